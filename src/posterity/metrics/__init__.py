"""Numbers about predictions, each with its standard error, in numpy and float64.

Axes: [S] draws, [N] rows, [C] classes. A metric that is a mean over rows has the standard error
s / sqrt(N), s being the rows' standard deviation; other errors are named at the function. They
speak of the choice of test rows, not of training; NaN from one row. Bad input: ValueError.
"""

from posterity.metrics.classes import accuracy, brier, calibration_error
from posterity.metrics.distances import (
    agreement,
    agreement_rows,
    total_variation,
    total_variation_rows,
    wasserstein,
    wasserstein_rows,
)
from posterity.metrics.estimate import Estimate, mean_over_rows
from posterity.metrics.numbers import (
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
from posterity.metrics.scores import SCORES, Score, evaluate, negative_log_likelihood

__all__ = [
    "SCORES", "Estimate", "RiskCoverage", "Score", "accuracy", "agreement", "agreement_rows", "auroc", "brier",
    "calibration_error", "crps_gaussian_mixture", "crps_gaussian_mixture_rows", "crps_samples",
    "crps_samples_rows", "evaluate", "gaussian_log_prob", "interval_coverage", "interval_width",
    "mean_absolute_error", "mean_over_rows", "negative_log_likelihood",
    "quantile_calibration", "risk_coverage", "rmse", "total_variation", "total_variation_rows",
    "wasserstein", "wasserstein_rows",
]  # fmt: skip
