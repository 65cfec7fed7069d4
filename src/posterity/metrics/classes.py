"""Scores of class probabilities."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from posterity.metrics.estimate import Estimate, FloatArray, classification, mean_over_rows, require

BinScheme = Literal["equal_width", "equal_mass", "equal_mass_strict"]
NUM_RESAMPLES = 200


def accuracy(probs: ArrayLike, labels: ArrayLike) -> Estimate:
    """Share of rows whose most probable class (first of equals) is the label, in [0, 1]."""
    probs, labels = classification(probs, labels)
    return mean_over_rows(probs.argmax(1) == labels)


def brier(probs: ArrayLike, labels: ArrayLike) -> Estimate:
    """mean_n sum_c (p_nc - [c = y_n])^2, summed over classes: in [0, 2] (Brier 1950)."""
    probs, labels = classification(probs, labels)
    return mean_over_rows(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1))


def calibration_error(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = 15, scheme: BinScheme = "equal_width"
) -> Estimate:
    """ECE = sum_b |B_b| / N |accuracy_b - confidence_b|, in [0, 1], confidence = max_c p_c.

    - equal_width: bins (b/B, (b+1)/B] (Guo et al. 2017);
    - equal_mass: bins between the quantiles of the confidence, equal confidences in one bin;
    - equal_mass_strict: as bnn_hmc (Izmailov et al. 2021, there with num_bins=20): open bins
      between every ceil(N/B)-th sorted confidence and the largest one; rows on an edge drop out.

    The value is biased upwards where bins hold few rows. Error: standard deviation over 200
    bootstrap resamples of the rows with the bins held fixed; its seed is fixed.
    """
    probs, labels = classification(probs, labels)
    wanted = f"expected num_bins >= 1 and scheme in {get_args(BinScheme)}"
    got = f"num_bins={num_bins}, scheme={scheme!r}"
    require(num_bins >= 1 and scheme in get_args(BinScheme), f"{got}; {wanted}.")
    confidence = probs.max(1)
    bins, kept = _assign_bins(confidence, num_bins, scheme)
    gaps = np.where(kept, (probs.argmax(1) == labels) - confidence, 0.0) / len(labels)
    value = float(np.abs(np.bincount(bins, gaps)).sum())
    generator, size = np.random.default_rng(0), len(labels)
    resamples = (generator.integers(0, size, size) for _ in range(NUM_RESAMPLES))
    resampled = [np.abs(np.bincount(bins[rows], gaps[rows])).sum() for rows in resamples]
    return Estimate(value, float(np.std(resampled, ddof=1)) if size > 1 else float("nan"))


def _assign_bins(
    confidence: FloatArray, num_bins: int, scheme: BinScheme
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The bin of each row [N], and whether it counts."""
    kept = np.ones(len(confidence), dtype=bool)
    if scheme == "equal_width":
        inner_edges = np.arange(1, num_bins) / num_bins
        return np.searchsorted(inner_edges, confidence, side="left"), kept
    ordered = np.sort(confidence)
    if scheme == "equal_mass":
        first_of_bin = len(confidence) * np.arange(1, num_bins) // num_bins
        return np.searchsorted(ordered[first_of_bin], confidence, side="right"), kept
    edges = np.append(ordered[:: -(-len(confidence) // num_bins)], ordered[-1])
    return np.searchsorted(edges, confidence, side="left"), ~np.isin(confidence, edges)
