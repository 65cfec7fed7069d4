"""Scores of predicted numbers: errors of the mean, the CRPS, intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from posterity.metrics.estimate import Estimate, FloatArray, check_lengths, checked, matching, mean_over_rows, require

CROSSED_BOUNDS = "lower exceeds upper in {} rows; expected lower <= upper; swap the arguments?"
LEVELS = (np.arange(20) + 0.5) / 20  # of quantiles, to compare distributions by
NUM_RESAMPLES = 200
CHUNK_ELEMENTS = 2**18  # 2 MB per temporary array: stays in cache


def rmse(mean: ArrayLike, y: ArrayLike) -> Estimate:
    """sqrt(mean_n (mean_n - y_n)^2), in [0, inf). Error by the delta method: se(MSE) / (2 RMSE)."""
    mean, y = matching(mean=mean, y=y)
    square, error = mean_over_rows((mean - y) ** 2)
    root = float(np.sqrt(square))
    return Estimate(root, error / (2 * root) if root > 0 else error)


def mean_absolute_error(mean: ArrayLike, y: ArrayLike) -> Estimate:
    """mean_n |mean_n - y_n|, in [0, inf)."""
    mean, y = matching(mean=mean, y=y)
    return mean_over_rows(np.abs(mean - y))


def gaussian_log_prob(mean: ArrayLike, std: ArrayLike, y: ArrayLike) -> FloatArray:
    """log N(y_n; mean_n, std_n^2) per row [N], of the Gaussian with the predictive's two moments.

    The score of Lakshminarayanan et al. 2017 and Izmailov et al. 2021. It is not the log of the
    mixture's density (Gal and Ghahramani 2016), and the two differ: report which one.
    """
    mean, std, y = matching(mean=mean, std=std, y=y)
    require(std > 0, f"std goes down to {std.min():.4g}; expected all above 0; add the noise's.")
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


def crps_gaussian_mixture(means: ArrayLike, stds: ArrayLike, y: ArrayLike) -> Estimate:
    """Mean over rows of crps_gaussian_mixture_rows, in [0, inf)."""
    return mean_over_rows(crps_gaussian_mixture_rows(means, stds, y))


def crps_gaussian_mixture_rows(means: ArrayLike, stds: ArrayLike, y: ArrayLike) -> FloatArray:
    """Exact CRPS per row [N] of the equal mixture of N(means_sn, stds_sn^2) (Grimit et al. 2006).

        mean_s A(y - m_s, v_s) - 1/2 mean_st A(m_s - m_t, v_s + v_t),   A(m, v) = E|N(m, v)|.

    means and stds are [S, N]; a std may be 0 (a point mass). S^2 / 2 terms per row.
    """
    means, stds = checked("means", means, "[S, N]"), checked("stds", stds, "[S, N]")
    y = checked("y", y)
    shapes = f"means has shape {means.shape} and stds has {stds.shape}"
    require(means.shape == stds.shape, f"{shapes}; expected the same; try np.broadcast_to.")
    check_lengths(means=means.shape[1], y=len(y))
    require(stds >= 0, f"stds goes down to {stds.min():.4g}; expected none negative; check it.")
    num_chunks = -(-means.size // CHUNK_ELEMENTS)
    chunks = (np.array_split(array, num_chunks, axis=-1) for array in (means, stds**2, y))
    return np.concatenate([_crps_chunk(*chunk) for chunk in zip(*chunks, strict=True)])


def _crps_chunk(means: FloatArray, variances: FloatArray, y: FloatArray) -> FloatArray:
    # s = t once, s < t twice: the half in front of the double sum cancels the second.
    pairs = _mean_absolute_normal(np.zeros_like(means), 2 * variances).sum(0) / 2
    for s in range(len(means) - 1):
        between = means[s] - means[s + 1 :], variances[s] + variances[s + 1 :]
        pairs += _mean_absolute_normal(*between).sum(0)
    return _mean_absolute_normal(y - means, variances).mean(0) - pairs / len(means) ** 2


def _mean_absolute_normal(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """E|N(m, v)| = 2 sqrt(v) phi(m / sqrt(v)) + m (2 Phi(m / sqrt(v)) - 1); |m| for v = 0."""
    std = np.sqrt(variance)
    ratio = mean / np.where(std > 0, std, 1.0)
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    return np.where(std > 0, 2 * std * density + mean * (2 * ndtr(ratio) - 1), np.abs(mean))


def crps_samples(samples: ArrayLike, y: ArrayLike) -> Estimate:
    """Mean over rows of crps_samples_rows: the CRPS of the law the draws come from, unbiased."""
    return mean_over_rows(crps_samples_rows(samples, y))


def crps_samples_rows(samples: ArrayLike, y: ArrayLike) -> FloatArray:
    """Fair CRPS per row [N] from draws [S, N] of the predictive, S >= 2 (Ferro 2014).

        mean_s |x_s - y| - 1 / (2 S (S - 1)) sum_st |x_s - x_t|

    One row's value may be negative: it is an estimate. O(S log S): sorted, the k-th of S draws
    lies above k - 1 others and below S - k, so sum_{s<t} |x_s - x_t| = sum_k (2k - S - 1) x_k.
    """
    samples, y = checked("samples", samples, "[S, N]"), checked("y", y)
    check_lengths(samples=samples.shape[1], y=len(y))
    num_draws = len(samples)
    require(num_draws > 1, "samples has S=1 draw; expected 2 or more to see a spread; draw more.")
    # Deviations, not samples: a large common offset would cost digits in the weighted sum.
    deviations = np.sort(samples - y, axis=0)
    weights = 2 * np.arange(1, num_draws + 1) - num_draws - 1
    half_difference = weights @ deviations / (num_draws * (num_draws - 1))
    return np.abs(deviations).mean(0) - half_difference


def interval_coverage(lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> Estimate:
    """Share of rows with lower_n <= y_n <= upper_n, in [0, 1]; bounds may be infinite."""
    lower, upper, y = matching(infinite=True, lower=lower, upper=upper, y=y)
    require(lower <= upper, CROSSED_BOUNDS.format(np.sum(lower > upper)))
    return mean_over_rows((lower <= y) & (y <= upper))


def interval_width(lower: ArrayLike, upper: ArrayLike) -> Estimate:
    """mean_n (upper_n - lower_n), in [0, inf]: sharpness, to be read next to the coverage."""
    lower, upper = matching(infinite=True, lower=lower, upper=upper)
    require(lower <= upper, CROSSED_BOUNDS.format(np.sum(lower > upper)))
    return mean_over_rows(upper - lower)


def quantile_calibration(quantiles: ArrayLike, y: ArrayLike) -> Estimate:
    """mean_q |share of y under the quantile of level u_q - u_q|, in [0, 1/2].

    Absolute differences, where Kuleshov et al. 2018 take squares. `quantiles` [N, Q] are those at LEVELS. Error:
    standard deviation over 200 bootstrap resamples of the rows.
    """
    quantiles, y = checked("quantiles", quantiles, "[N, Q]", infinite=True), checked("y", y)
    check_lengths(quantiles=len(quantiles), y=len(y))
    below = (y[:, None] <= quantiles).astype(float)
    generator, size = np.random.default_rng(0), len(y)
    weights = generator.multinomial(size, np.full(size, 1 / size), NUM_RESAMPLES) / size
    resampled = np.abs(weights @ below - LEVELS).mean(1)
    error = float(resampled.std(ddof=1)) if size > 1 else np.nan
    return Estimate(float(np.abs(below.mean(0) - LEVELS).mean()), error)
