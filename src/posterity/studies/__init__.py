"""Published experiments, run again: each module is a command that puts our numbers beside the paper's."""
