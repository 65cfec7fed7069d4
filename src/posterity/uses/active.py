"""Active learning: fit, ask for labels, add them, again; what is learned against the number of labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from posterity import metrics
from posterity.core import pytrees
from posterity.core.checks import check_whole
from posterity.data.arrays import dataset
from posterity.inference.engine.driver import fit
from posterity.inference.methods.method import Method
from posterity.metrics.estimate import FloatArray
from posterity.models.model import Model
from posterity.prediction.prediction import Prediction
from posterity.uses.acquire import Score, acquire


@dataclass(frozen=True)
class LearningCurve:
    """A number of test rows after each round, for several seeds."""

    num_labels: np.ndarray
    """[T]: labels known."""
    values: FloatArray
    """[R, T]: accuracy for classes, root mean square error for numbers; one row for each seed."""
    asked: tuple[np.ndarray, ...]
    """Of each seed, rows of the pool in the order their labels became known."""

    @property
    def mean(self) -> FloatArray:
        """[T]: over seeds."""
        return self.values.mean(0)

    @property
    def standard_error(self) -> FloatArray:
        """[T]: of that mean; NaN for one seed."""
        if len(self.values) == 1:
            return np.full(self.values.shape[1], np.nan)
        return self.values.std(0, ddof=1) / np.sqrt(len(self.values))

    def labels_to(self, value: float) -> float:
        """The median over seeds of the labels at which a value, such as an accuracy of 0.9, is first reached.

        Infinite where half of the seeds do not reach it.
        """
        reached = [self.num_labels[row >= value][:1] for row in self.values]
        return float(np.median([first[0] if len(first) else np.inf for first in reached]))


def active_learning(
    model: Model,
    method: Method,
    pool: Any,
    test: Any,
    *,
    score: Score = "batchbald",
    initial: int | Iterable[int] = 20,
    k: int = 5,
    num_rounds: int = 10,
    targets: Any = None,
    num_draws: int | None = None,
    seeds: Iterable[int] = (0,),
) -> LearningCurve:
    """Learn from few labels, each time those of the k rows that `acquire` chooses.

    Args:
        model: Network, likelihood, prior.
        method: Fitted anew each round.
        pool: `(x, y)`; a label is looked at once it is asked for.
        test: `(x, y)` to score on.
        score: As of `acquire`; "random" gives the curve to compare with.
        initial: Rows of the pool whose labels are known at first: how many, at random, or which.
        k: Labels a round.
        num_rounds: Rounds after the first fit.
        targets: As of `acquire`.
        num_draws: Draws of the weights to score with, as of `acquire`.
        seeds: Each gives a curve of its own: another first choice, other fits.
    """
    check_whole("active_learning", k=k, num_rounds=num_rounds)
    rows, held_out = dataset(pool, model.likelihood), dataset(test, model.likelihood)
    asked, values = [], []
    for seed in seeds:
        known = _first(initial, rows.num_rows, seed)
        curve = []
        for number in range(num_rounds + 1):
            posterior = fit(model, method, rows.take(known), seed=seed, progress=False)
            curve.append(_value(posterior.predict(held_out.x, num_draws=num_draws), held_out.y))
            if number < num_rounds:
                left = np.setdiff1d(np.arange(rows.num_rows), known)
                settings: dict[str, Any] = {"targets": targets, "num_draws": num_draws, "seed": seed + number}
                chosen = acquire(posterior, pytrees.take_rows(rows.x, left), k, score, **settings)
                known = np.append(known, left[chosen.index])
        asked.append(known)
        values.append(curve)
    first = len(asked[0]) - k * num_rounds
    return LearningCurve(first + k * np.arange(num_rounds + 1), np.asarray(values), tuple(asked))


def _first(initial: int | Iterable[int], num_rows: int, seed: int) -> np.ndarray:
    if isinstance(initial, int):
        return np.random.default_rng(seed).permutation(num_rows)[:initial]
    return np.asarray(list(initial), int)


def _value(prediction: Prediction, y: np.ndarray) -> float:
    if prediction.kind == "classes":
        return metrics.accuracy(prediction.probs, y).value
    return metrics.rmse(prediction.mean, y).value
