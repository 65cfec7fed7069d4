"""Pictures of an estimator: bands along a column, calibration, and noise and ignorance apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from posterity.prediction.prediction import Prediction
from posterity.tables.columns import as_frame, kind, to_numbers

GRID_POINTS = 101
BEYOND = 0.2  # of the range of a column: how far bands look past the data


class Drawn:
    """An estimator that draws itself, on matplotlib axes, those given or new ones, which are returned."""

    def predict_distribution(self, X: Any) -> Prediction:
        raise NotImplementedError

    def _encoded_target(self, y: Any) -> np.ndarray:
        raise NotImplementedError

    def plot_bands(self, X: Any, y: Any = None, column: str | None = None, axes: Any = None) -> Any:
        """Mean, ignorance and noise along one column of numbers, the others as in a typical row of X.

        `y` draws the rows too. Look for: ignorance, the inner band, that widens where rows are few.
        """
        from posterity.plots import band

        frame = as_frame(X)
        name = _column(frame, column)
        seen = to_numbers(pd.Series(frame[name]))
        low, high = np.nanmin(seen), np.nanmax(seen)
        grid = np.linspace(low - BEYOND * (high - low), high + BEYOND * (high - low), GRID_POINTS)
        rows = pd.concat([_typical(frame)] * GRID_POINTS, ignore_index=True).assign(**{name: grid})
        rows = rows if isinstance(X, pd.DataFrame) else rows.to_numpy()
        prediction = self.predict_distribution(rows)
        if prediction.kind == "classes":
            raise ValueError("plot_bands is for numbers; for classes use plot_split(X, column).")
        data = None if y is None else (seen, np.asarray(y, float))
        axes = band(prediction, grid, data, axes)
        axes.set_xlabel(name, parse_math=False)
        return axes

    def plot_calibration(self, X: Any, y: Any, axes: Any = None) -> Any:
        """The share of targets y that intervals or sets of classes hold, over the share that they should."""
        from posterity.plots import coverage_curve

        return coverage_curve(self.predict_distribution(X), self._encoded_target(y), axes)

    def plot_split(self, X: Any, column: str | None = None, axes: Any = None, num_bins: int = 10) -> Any:
        """Noise and ignorance of the rows X along one column of numbers, in bins of as many rows each."""
        from posterity.plots import split_along

        frame = as_frame(X)
        name = _column(frame, column)
        values = to_numbers(pd.Series(frame[name]))
        known = ~np.isnan(values)
        rows = X.loc[known] if isinstance(X, pd.DataFrame) else np.asarray(X)[known]
        axes = split_along(self.predict_distribution(rows), values[known], axes, num_bins)
        axes.set_xlabel(name, parse_math=False)
        return axes


def _column(frame: pd.DataFrame, column: str | None) -> str:
    """The column to draw along: the one that is named, or the only one."""
    numbers = [name for name in frame.columns if kind(pd.Series(frame[name])) == "number"]
    chosen = numbers[0] if column is None and len(numbers) == 1 else str(column)
    if chosen not in numbers:
        raise ValueError(f"column={column!r} is not a column of numbers of X; choose one of {', '.join(numbers)}.")
    return chosen


def _typical(frame: pd.DataFrame) -> pd.DataFrame:
    """One row: the median of numbers, the most frequent of other values."""
    typical = {}
    for name in frame.columns:
        column = pd.Series(frame[name])
        plain = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
        modes = column.mode()
        typical[name] = [column.median() if plain else modes.iloc[0] if len(modes) else None]
    return pd.DataFrame(typical)
