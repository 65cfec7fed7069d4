"""Numbers about predictions, each with its standard error, in numpy and float64.

Axes: [S] draws, [N] rows, [C] classes. A metric that is a mean over rows has the standard error
s / sqrt(N), s being the rows' standard deviation; other errors are named at the function. They
speak of the choice of test rows, not of training; NaN from one row. Bad input: ValueError.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from posterity.metrics.classes import accuracy, brier, calibration_error
from posterity.metrics.distances import (
    agreement,
    agreement_rows,
    total_variation,
    total_variation_rows,
    wasserstein,
    wasserstein_rows,
)
from posterity.metrics.estimate import Estimate, checked, classification, mean_over_rows, require
from posterity.metrics.numbers import (
    LEVELS,
    crps_gaussian_mixture,
    crps_gaussian_mixture_rows,
    crps_samples,
    crps_samples_rows,
    gaussian_log_prob,
    interval_coverage,
    interval_width,
    mean_absolute_error,
    quantile_calibration,
    rmse,
)
from posterity.metrics.ranking import RiskCoverage, auroc, risk_coverage

__all__ = [
    "Estimate", "RiskCoverage", "accuracy", "agreement", "agreement_rows", "auroc", "brier",
    "calibration_error", "crps_gaussian_mixture", "crps_gaussian_mixture_rows", "crps_samples",
    "crps_samples_rows", "evaluate", "gaussian_log_prob", "interval_coverage", "interval_width",
    "mean_absolute_error", "mean_over_rows", "negative_log_likelihood",
    "quantile_calibration", "risk_coverage", "rmse", "total_variation", "total_variation_rows",
    "wasserstein", "wasserstein_rows",
]  # fmt: skip


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


def evaluate(prediction: Any, y: ArrayLike) -> dict[str, Estimate]:
    """What to report for a Prediction against the targets y [N] or [N, 1], by its kind.

    classes: accuracy, nll, brier, calibration_error, coverage_90 (of sets of classes), error_auroc
    (total uncertainty against mistakes; NaN without mistakes, or with nothing else). continuous,
    counts: rmse, mae, nll (of the mixture), nll_gaussian (of its two moments), crps, coverage_90,
    width_90; continuous: calibration_error (of quantiles, which counts reach in jumps). One target a
    row: several, or one for each pixel, are not independent, and their errors would be too small.
    """
    _require_one_target(prediction)
    y = np.asarray(y)
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
