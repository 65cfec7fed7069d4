"""What a question is asked of: a table, split at random as often as a study needs, and small networks for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posterity.core import records
from posterity.core.types import Task
from posterity.inference import Method, fit
from posterity.metrics import evaluate
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.tables.defaults import table_method
from posterity.tables.pipeline import TableCode
from posterity.tables.split import prepare

LEAST_TEST_SHARE = 0.2
MOST_TEST_ROWS = 1_000
JUDGED_ROWS = 100  # test inputs at which a reference is diagnosed


class Split(NamedTuple):
    """Rows to train on and rows to test on, as numbers."""

    code: TableCode
    x: np.ndarray  # [N, F]
    y: np.ndarray  # [N]
    x_test: np.ndarray
    y_test: np.ndarray
    hidden: tuple[int, ...]

    @property
    def data(self) -> tuple[np.ndarray, np.ndarray]:
        return self.x, self.y

    @property
    def at(self) -> np.ndarray:
        """Where a reference is diagnosed."""
        return self.x_test[:JUDGED_ROWS]

    @property
    def is_classes(self) -> bool:
        return self.code.task == "classification"

    def model(self, method: Method | None = None, **changes: Any) -> Model:
        """The network of tables, with one small hidden layer; `changes` replace fields of the model."""
        made = self.code.model(method, hidden=self.hidden, prior="fixed")  # the same for all, also for samplers
        return records.replace(made, **changes) if changes else made

    def fit(self, name: str, effort: float = 1.0, seed: int = 1) -> Posterior:
        """A method by its name, with its settings for tables."""
        method = table_method(name, len(self.y), effort=effort)
        return fit(self.model(method), method, self.data, seed=seed, progress=False)


@dataclass(frozen=True)
class Subject:
    """A table with the column to predict."""

    title: str
    """What it is called in the report."""
    frame: pd.DataFrame
    """Raw columns."""
    target: str
    """The column to predict."""
    task: Task | None = None
    """None: as the target looks."""

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What results belong to: its name, its size, and a digest of its cells."""
        cells = sha256(self.frame.to_csv(index=False).encode()).hexdigest()
        rows, columns = self.frame.shape
        size = {"rows": rows, "columns": columns, "digest": cells[:16]}
        return {"title": self.title, "target": self.target, **size}

    def split(self, seed: int, num_rows: int, hidden: tuple[int, ...]) -> Split:
        """A random split with at most so many rows to train on, which a reference can sample in a minute."""
        share = max(LEAST_TEST_SHARE, 1 - num_rows / len(self.frame))
        found = prepare(self.frame, self.target, title=self.title, task=self.task, test_share=share, seed=seed)
        x_test, y_test = (values[:MOST_TEST_ROWS] for values in found.test)
        return Split(found.code, *found.train, x_test, y_test, hidden)


def row_scores(prediction: Prediction, split: Split, y: np.ndarray | None = None) -> dict[str, Any]:
    """What is kept of a prediction: for each test row the negative log likelihood and the error, and the calibration.

    The error of a row is 1 for a wrong class and 0 for a right one, or the squared error in units of the target's
    standard deviation.
    """
    y = split.y_test if y is None else y
    scale = 1.0 if split.is_classes else split.code.target.scale
    wrong = prediction.label != y if split.is_classes else np.square((np.ravel(prediction.mean) - y) / scale)
    calibration = evaluate(prediction, y)["calibration_error"]
    return {
        "nll": rounded(-prediction.log_prob(y) - np.log(scale)),
        "error": rounded(wrong),
        "calibration": list(calibration),
    }


def rounded(values: Any) -> list[float]:
    """For a results file: four decimals."""
    return np.round(np.asarray(values, float), 4).tolist()
