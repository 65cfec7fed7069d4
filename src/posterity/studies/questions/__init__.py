"""Questions about posteriors, each answered on bundled data or on a table of the user's by a study of its own."""
