"""How a command ends that cannot go on: a sentence on standard error and an exit code."""

from __future__ import annotations

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


class InputError(Exception):
    """What the user gave cannot be used; the message says what to give instead. Exit code 2."""


class FailedError(Exception):
    """The input was fine and the work could not be done all the same. Exit code 1."""
