"""How far one prediction is from another at the same rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from posterity.metrics.estimate import Estimate, FloatArray, check_lengths, checked, matching_probs, mean_over_rows


def agreement(probs: ArrayLike, reference: ArrayLike) -> Estimate:
    """Share of rows where both have the same most probable class, in [0, 1]; both [N, C]."""
    return mean_over_rows(agreement_rows(probs, reference))


def agreement_rows(probs: ArrayLike, reference: ArrayLike) -> FloatArray:
    """1 per row [N] where both have the same most probable class, else 0."""
    probs, reference = matching_probs(probs, reference)
    return (probs.argmax(1) == reference.argmax(1)).astype(np.float64)


def total_variation(probs: ArrayLike, reference: ArrayLike) -> Estimate:
    """mean_n 1/2 sum_c |p_nc - q_nc|, in [0, 1]; both [N, C] (Izmailov et al. 2021)."""
    return mean_over_rows(total_variation_rows(probs, reference))


def total_variation_rows(probs: ArrayLike, reference: ArrayLike) -> FloatArray:
    """1/2 sum_c |p_nc - q_nc| per row [N]."""
    probs, reference = matching_probs(probs, reference)
    return np.abs(probs - reference).sum(1) / 2


def wasserstein(samples: ArrayLike, reference: ArrayLike) -> Estimate:
    """Mean over rows of wasserstein_rows, in y's unit."""
    return mean_over_rows(wasserstein_rows(samples, reference))


def wasserstein_rows(samples: ArrayLike, reference: ArrayLike) -> FloatArray:
    """W1 per row [N] of draws [S, N] from draws [R, N], in y's unit; exact for any S and R.

    W1 = int |F(y) - G(y)| dy = int_0^1 |F^-1(u) - G^-1(u)| du. Two sets of draws from one law
    have W1 > 0, of order 1 / sqrt(S): compare with the distance of the reference's own halves.
    """
    samples = checked("samples", samples, "[S, N]")
    reference = checked("reference", reference, "[R, N]")
    check_lengths(samples=samples.shape[1], reference=reference.shape[1])
    points = np.concatenate([samples, reference])
    steps = np.repeat([1 / len(samples), -1 / len(reference)], [len(samples), len(reference)])
    order = np.argsort(points, axis=0)
    difference = np.cumsum(steps[order], axis=0)[:-1]
    lengths = np.diff(np.take_along_axis(points, order, axis=0), axis=0)
    return (np.abs(difference) * lengths).sum(0)
