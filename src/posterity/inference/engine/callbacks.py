"""What is called as a run goes, between segments of about a second: `fit(..., callbacks=[CSVLog("log.csv")])`."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from posterity.posterior.posterior import Posterior
from posterity.posterior.trace import Trace


class Callback(Protocol):
    """Any function of these three; what it raises ends the run, which a store has kept up to there."""

    def __call__(self, step: int, metrics: Mapping[str, float], posterior: Callable[[], Posterior]) -> None:
        """Called after each segment.

        Args:
            step: Steps of the stage that are done.
            metrics: What the trace recorded since the last call, mean over steps and chains.
            posterior: Makes the posterior of what the run has so far; a method without a partial result raises.
        """
        ...


class CSVLog:
    """Writes a line for each call: step, seconds since it was made, and every metric. A file that is there goes on.

    Args:
        path: Of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._begun = time.perf_counter()
        self._rows: list[dict[str, str]] = []
        if self.path.exists():
            with self.path.open(newline="") as file:
                self._rows = list(csv.DictReader(file))

    def __call__(self, step: int, metrics: Mapping[str, float], posterior: Callable[[], Posterior]) -> None:
        del posterior
        known = list(self._rows[0]) if self._rows else []
        seconds = f"{time.perf_counter() - self._begun:.2f}"
        row = {"step": str(step), "seconds": seconds, **{name: f"{value:.7g}" for name, value in metrics.items()}}
        columns = [*known, *(name for name in row if name not in known)]
        # Another stage may record other things: then all lines are written anew, with columns for both.
        anew = columns != known
        self._rows.append(row)
        if anew:
            self._rows = [{name: before.get(name, "") for name in columns} for before in self._rows]
        with self.path.open("w" if anew else "a", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="")
            if anew:
                writer.writeheader()
            writer.writerows(self._rows if anew else [row])


def averages(part: Trace) -> dict[str, float]:
    """Of what some strides recorded, over steps and chains."""
    return {name: float(np.average(values.mean(0), weights=part.num_steps)) for name, values in part.items()}
