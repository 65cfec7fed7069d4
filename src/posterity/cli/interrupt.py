"""Ctrl-C while a run is stored: it stops at once, and nothing that was stored is lost."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from posterity.cli.errors import INTERRUPTED
from posterity.cli.folders import after_stop
from posterity.cli.output import say

Value = TypeVar("Value")


def interruptible(work: Callable[[], Value], folder: Path) -> Value:
    """The result of `work`, which is kept in a folder; Ctrl-C says what is in it by then and ends the process.

    Compiled code does not listen to signals, so the work is done in a thread and the main one waits. Ending the process
    under it is safe since a store survives being killed at any moment.
    """
    outcome: dict[str, Any] = {}

    def attempt() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:  # raised again below, in the thread that the user talks to
            outcome["error"] = error

    worker = threading.Thread(target=attempt, daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(0.2)
    except KeyboardInterrupt:
        Console(file=sys.stderr).show_cursor(True)  # a progress bar hides it
        say(f"\nStopped. {after_stop(folder)}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
