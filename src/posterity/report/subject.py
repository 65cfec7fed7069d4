"""What a report shows of a comparison: its inputs in units of their own, and predictions along or over them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posterity.plots.predictions import binned
from posterity.prediction.prediction import Prediction
from posterity.tables.comparison import Comparison

GRID_LINE, GRID_SIDE = 161, 61  # points along one input, and along each of two
BEYOND = 0.35  # of the range of the data: how far a grid looks past them
NUM_BINS = 10
NUM_INPUTS = 3  # shown where there are many
ROUNDING = 1e-3  # of the range of a raw column


class Input(NamedTuple):
    """One input in units of its own: raw = shift + scale * encoded."""

    name: str
    shift: float = 0.0
    scale: float = 1.0

    def raw(self, encoded: Any) -> np.ndarray:
        return self.shift + self.scale * np.asarray(encoded, float)


class Subject:
    """A comparison, and what several sections need of it."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.entries = comparison.entries
        self.reference = comparison.reference
        self.num_inputs = comparison.train[0].shape[1]
        self.is_regression = comparison.task == "regression"

    @cached_property
    def grid(self) -> np.ndarray:
        """Rows that cover the one input or the two, and some room beyond the data."""
        x = self.comparison.train[0]
        low, high = x.min(0), x.max(0)
        room = BEYOND * np.where(high > low, high - low, 1.0)
        count = GRID_LINE if self.num_inputs == 1 else GRID_SIDE
        sides = [np.linspace(*ends, count) for ends in zip(low - room, high + room, strict=True)]
        return np.stack(np.meshgrid(*sides), -1).reshape(-1, len(sides)).astype(x.dtype)

    @cached_property
    def on_grid(self) -> list[Prediction]:
        """What each method says along one input, or over two."""
        return [entry.posterior.predict(self.grid) for entry in self.entries]

    def input(self, column: int) -> Input:
        """An input in units of its own, where the raw column is the encoded one but for shift and scale."""
        names, (x, _) = self.comparison.features, self.comparison.test
        name = names[column] if len(names) == x.shape[1] else f"input {column}"
        frame = self.comparison.frame
        if frame is None or name not in frame or pd.api.types.is_datetime64_any_dtype(frame[name]):
            return Input(name)
        raw, encoded = np.array([_number(value) for value in frame[name]]), x[:, column].astype(float)
        known = np.isfinite(raw)
        if known.sum() < 3 or np.ptp(encoded[known]) == 0:
            return Input(name)
        scale, shift = np.polyfit(encoded[known], raw[known], 1)
        apart = np.abs(shift + scale * encoded[known] - raw[known]).max()
        fits = apart <= ROUNDING * np.ptp(raw[known])
        return Input(name, float(shift), float(scale)) if fits else Input(name)

    @cached_property
    def telling_inputs(self) -> list[int]:
        """The inputs along which uncertainty changes most at test rows, most first."""
        x = self.comparison.test[0]
        prediction = (self.reference or self.entries[-1]).prediction
        values = prediction.epistemic if np.any(prediction.epistemic > 0) else prediction.total
        deviations = [np.std(binned(x[:, column], (values,), NUM_BINS)[1][0]) for column in range(x.shape[1])]
        return [int(column) for column in np.argsort(-np.array(deviations), kind="stable")[:NUM_INPUTS]]


def _number(value: Any) -> float:
    """A value of a raw column, which may hold numbers as text; NaN where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
