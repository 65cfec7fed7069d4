"""Ctrl-C without loss."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def polite_interrupt(note: Callable[[], None], allowed: bool) -> Iterator[None]:
    """The first Ctrl-C only calls `note`, so that a segment can end and nothing is lost; the second stops at once."""
    if not allowed or threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: Any) -> None:
        del number, frame
        note()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
