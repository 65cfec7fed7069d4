"""Values as JSON that is never executed, and folders of files whose manifest is checked."""
