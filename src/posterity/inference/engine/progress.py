"""The progress bar of a run: phase, loss, speed, time left; in a terminal (on standard error) or a notebook alone."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """A bar over all steps of a run."""

    def __init__(self, title: str, num_steps: int, show: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not (show and (console.is_terminal or console.is_jupyter)),
        )
        # Until the first steps are done: a user who sees no step for half a minute should know why.
        self._task = self._progress.add_task(title, total=num_steps, shown="compiling")

    def update(self, completed: int, name: str, value: Any) -> None:
        self._progress.update(self._task, completed=completed, shown=f"{name.replace('_', ' ')} {value:.4g}")

    def extend(self, num_steps: int) -> None:
        """Another number of steps in all."""
        self._progress.update(self._task, total=num_steps)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
