"""The scores of a prediction: what each is called, measured in and best at, in one place; and `evaluate`.

Reports, the command and the verdict take names, directions and words from SCORES; a score that is added here is shown
by all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from posterity.metrics.classes import accuracy, brier, calibration_error
from posterity.metrics.estimate import Estimate, checked, classification, mean_over_rows, require
from posterity.metrics.numbers import (
    LEVELS,
    interval_coverage,
    interval_width,
    mean_absolute_error,
    quantile_calibration,
    rmse,
)
from posterity.metrics.ranking import auroc


@dataclass(frozen=True)
class Score:
    """A score as readers know it."""

    name: str
    """Its key in what `evaluate` or a comparison with a reference returns."""
    label: str
    """The heading of its column."""
    meaning: str
    """What it is, in a phrase."""
    best: Literal["low", "high"] | float | None = None
    """What to look for: low or high values, those near a number, or None where alone it says nothing."""
    unit: str = ""
    """What it is measured in, as it follows a number; {} stands for the name of a reference."""
    headline: bool = True
    """Whether short tables show it."""

    @property
    def hint(self) -> str:
        """The direction in words, for a title."""
        return {"low": " (lower is better)", "high": " (higher is better)"}.get(str(self.best), "")

    def winners(self, values: Iterable[Estimate | None]) -> set[int]:
        """Which values are the best; none where one cannot say, or where all are alike."""
        known = {i: value.value for i, value in enumerate(values) if value is not None and np.isfinite(value.value)}
        if self.best is None or len(set(known.values())) < 2:
            return set()
        ranks = {i: self._rank(value) for i, value in known.items()}
        return {i for i, rank in ranks.items() if rank == min(ranks.values())}

    def _rank(self, value: float) -> float:
        if isinstance(self.best, float):
            return abs(value - self.best)
        return value if self.best == "low" else -value


OF_TARGET = "units of the target"
SCORES = {
    score.name: score
    for score in (
        Score("accuracy", "accuracy", "share of rows whose most probable class is the right one", "high"),
        Score("rmse", "RMSE", "root of the mean squared error", "low", OF_TARGET),
        Score("mae", "MAE", "mean absolute error", "low", OF_TARGET, headline=False),
        Score(
            "nll", "NLL", "negative log likelihood of a row: rewards being right and knowing how sure", "low", "nats"
        ),
        Score(
            "nll_gaussian",
            "NLL, Gaussian",
            "the same, of a Gaussian with the prediction's two moments",
            "low",
            "nats",
            headline=False,
        ),
        Score("crps", "CRPS", "distance of the predicted distribution from what was observed", "low", OF_TARGET),
        Score("brier", "Brier", "squared distance of the probabilities from the right answer", "low"),
        Score(
            "calibration_error", "calibration error", "how far confidence is from what then happens, on average", "low"
        ),
        Score("coverage_90", "90 % coverage", "share of rows inside their 90 % interval or set of classes", 0.9),
        Score(
            "width_90",
            "90 % width",
            "mean width of that interval: narrower is better only at equal coverage",
            unit=OF_TARGET,
            headline=False,
        ),
        Score(
            "error_auroc",
            "error AUROC",
            "whether mistakes are more uncertain than right answers; 0.5 is chance",
            "high",
            headline=False,
        ),
        # Of a comparison with a reference, whose name goes into the unit.
        Score("agreement", "agreement", "share of rows where the most probable class is the same", "high", "of inputs"),
        Score(
            "total_variation",
            "total variation",
            "half the sum of differences of probabilities",
            "low",
            "of probability",
        ),
        Score(
            "wasserstein",
            "Wasserstein distance",
            "distance of the predicted distributions",
            "low",
            "of {}'s predictive standard deviation",
        ),
        Score(
            "epistemic_distance",
            "epistemic distance",
            "distance of the chains' predictions, noise left out",
            "low",
            "of {}'s epistemic standard deviation",
        ),
    )
}


def negative_log_likelihood(log_prob: ArrayLike) -> Estimate:
    """-mean_n log p(y_n | x_n) in nats, from log_prob [N]; +inf if any row was held impossible."""
    # 0 - x, so that perfect predictions give 0.0 and not -0.0.
    return mean_over_rows(0.0 - checked("log_prob", log_prob, infinite=True))


def _require_one_target(prediction: Any) -> None:
    if prediction.kind == "classes":
        targets, by_hand = np.shape(prediction.probs)[1:-1], "metrics.accuracy(prediction.probs[:, 0, 0], y[:, 0, 0])"
    else:
        targets, by_hand = np.shape(prediction.mean)[1:], "metrics.rmse(prediction.mean[:, 0], y[:, 0])"
    require(
        targets == (),
        f"evaluate scores one target a row; this prediction has {targets} of them in each. Score them one by one with "
        f"the functions of posterity.metrics, e.g. {by_hand}; prediction.log_prob(y) is that of all in a row together.",
    )


def _evaluate_heads(prediction: Any, y: Any) -> dict[str, Estimate]:
    found = {"nll": negative_log_likelihood(prediction.log_prob(y))}  # first: it checks the names in y
    for name in prediction.heads:
        found |= {f"{name}/{score}": value for score, value in evaluate(prediction[name], y[name]).items()}
    return found


def evaluate(prediction: Any, y: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, Estimate]:
    """What to report for a Prediction against the targets y [N] or [N, 1], by its kind.

    classes: accuracy, nll, brier, calibration_error, coverage_90 (of sets of classes), error_auroc
    (total uncertainty against mistakes; NaN without mistakes, or with nothing else). continuous,
    counts: rmse, mae, nll (of the mixture), nll_gaussian (of its two moments), crps, coverage_90,
    width_90; continuous: calibration_error (of quantiles, which counts reach in jumps). One target a
    row: several, or one for each pixel, are not independent, and their errors would be too small.
    Several heads, y a dict: those of each under "name/score", and nll, of all together. Bounds of
    censored targets, y [N, 2]: nll alone, since the rows that were observed are not a fair sample.
    """
    if prediction.heads:
        return _evaluate_heads(prediction, y)
    y = np.asarray(y)
    if prediction.is_censored and y.ndim == 2 and y.shape[1] == 2:
        return {"nll": negative_log_likelihood(prediction.log_prob(y))}
    _require_one_target(prediction)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if prediction.kind == "classes":
        probs, labels = classification(prediction.probs, y)
        mistaken = probs.argmax(1) != labels
        ranked = auroc(prediction.total, mistaken) if 0 < mistaken.mean() < 1 else None
        return {
            "accuracy": accuracy(probs, labels),
            "nll": negative_log_likelihood(prediction.log_prob(labels)),
            "brier": brier(probs, labels),
            "calibration_error": calibration_error(probs, labels),
            "coverage_90": mean_over_rows(prediction.prediction_set(0.9)[np.arange(len(labels)), labels]),
            "error_auroc": ranked or Estimate(float("nan"), float("nan")),
        }
    lower, upper = prediction.interval(0.9)
    found = {
        "rmse": rmse(prediction.mean, y),  # first: it checks y before the prediction sees it
        "mae": mean_absolute_error(prediction.mean, y),
        "nll": negative_log_likelihood(prediction.log_prob(y)),
        "nll_gaussian": negative_log_likelihood(prediction.log_prob_gaussian(y)),
        "crps": mean_over_rows(checked("crps", prediction.crps(y))),
        "coverage_90": interval_coverage(lower, upper, y),
        "width_90": interval_width(lower, upper),
    }
    if prediction.kind == "continuous":
        found["calibration_error"] = quantile_calibration(prediction.quantile(LEVELS), y)
    return found
