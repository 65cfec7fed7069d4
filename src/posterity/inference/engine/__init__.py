"""The driver of every method: `fit`, the only loop, and what makes it stop, resume and report."""
