"""What estimators make of held-out rows: intervals and sets of classes that hold their share, and by how much."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import numpy as np
import pandas as pd

from posterity.core.checks import is_number
from posterity.data.arrays import Dataset
from posterity.metrics.estimate import mean_over_rows
from posterity.posterior.posterior import Posterior
from posterity.prediction.conformal import Conformal
from posterity.prediction.prediction import Prediction


class Calibrated:
    """An estimator whose posterior has rows that were not trained on."""

    posterior_: Posterior
    _known: tuple[Posterior, Conformal] | None = None  # of which posterior it is tells whether it is out of date

    def predict_distribution(self, X: Any) -> Prediction:
        raise NotImplementedError

    def _encoded_inputs(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def _encoded_target(self, y: Any) -> np.ndarray:
        raise NotImplementedError

    def conformal(self) -> Conformal:
        """Of the rows that were held out: the corrected level, how many rows there are, temperature of classes."""
        if self._known is None or self._known[0] is not self.posterior_:
            if self.posterior_.held_out is None:
                raise ValueError(
                    "No rows were held out, so nothing can be calibrated. Either hold some out, "
                    f"{type(self).__name__}(holdout=0.2), or give rows that were not trained on: calibrate(X, y)."
                )
            self._known = self.posterior_, self.posterior_.conformal()
        return self._known[1]

    def calibrate(self, X: Any, y: Any) -> Self:
        """Calibrate intervals, sets of classes and out-of-distribution p-values by rows that were NOT trained on."""
        x, targets = self._encoded_inputs(X), self._encoded_target(y)
        if len(x) != len(targets):
            raise ValueError(f"X has {len(x)} rows and y has {len(targets)}; they must match row by row.")
        rows = Dataset(x, targets, np.ones(len(targets)))
        self.posterior_ = dataclasses.replace(self.posterior_.calibrate(x), held_out=rows)
        return self

    def coverage(self, X: Any, y: Any, level: float = 0.9, by: Any = None) -> pd.DataFrame:
        """The share of targets that intervals or sets of classes hold, the posterior's own and calibrated ones.

        `by`: the name of a column of X, or one label a row, to see the share in each group; numbers of many values are
        cut into quarters. The errors are standard errors, the size the mean width or number of classes.
        """
        prediction, target = self.predict_distribution(X), self._encoded_target(y)
        ways = {"posterior": held_targets(prediction, target, level, None)}
        if self.posterior_.held_out is not None:
            ways["calibrated"] = held_targets(prediction, target, level, self.conformal())
        return coverage_table(ways, None if by is None else _groups(X, by))


def coverage_table(ways: dict[str, tuple[np.ndarray, np.ndarray]], groups: np.ndarray | None = None) -> pd.DataFrame:
    """Of each way, (inside [N], size [N]), the share of rows that are inside, for all rows and for each group."""
    num_rows = len(next(iter(ways.values()))[0])
    chosen = {"all": np.ones(num_rows, bool)}
    if groups is not None:
        chosen |= {str(name): groups == name for name in pd.unique(groups)}
    rows = {}
    for name, members in chosen.items():
        row: dict[str, float] = {"rows": int(members.sum())}
        for way, (inside, size) in ways.items():
            share = mean_over_rows(inside[members])
            row |= {way: share.value, f"{way}_error": share.standard_error, f"{way}_size": float(size[members].mean())}
        rows[name] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def held_targets(
    prediction: Prediction, y: np.ndarray, level: float, conformal: Conformal | None
) -> tuple[np.ndarray, np.ndarray]:
    """Whether an interval or set holds each target, and how wide it is or how many classes it has; [N] each."""
    if prediction.kind == "classes":
        own = prediction.prediction_set
        chosen = own(level) if conformal is None else conformal.prediction_set(prediction, level)
        return chosen[np.arange(len(y)), y.astype(int)], chosen.sum(1)
    lower, upper = prediction.interval(level) if conformal is None else conformal.interval(prediction, level)
    return (lower <= y) & (y <= upper), upper - lower


def _groups(X: Any, by: Any) -> np.ndarray:
    """A label for each row."""
    if isinstance(by, str) or is_number(by):
        if not isinstance(X, pd.DataFrame) or by not in X.columns:
            columns = ", ".join(map(repr, X.columns)) if isinstance(X, pd.DataFrame) else "none, as X is an array"
            raise ValueError(f"by={by!r} is not a column of X; its columns: {columns}. Or give a label for each row.")
        by = X[by]
    return group_labels(pd.Series(np.asarray(by)), len(X))


def group_labels(column: pd.Series, num_rows: int, most: int = 12) -> np.ndarray:
    """The values of a column as labels; numbers of more than so many values are cut into quarters."""
    if len(column) != num_rows:
        raise ValueError(f"by has {len(column)} labels for {num_rows} rows; give one for each row.")
    if pd.api.types.is_numeric_dtype(column) and column.nunique() > most:
        column = pd.Series(pd.qcut(column, 4, duplicates="drop"))
    return column.astype(str).where(column.notna(), "missing").to_numpy()
