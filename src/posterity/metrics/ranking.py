"""Does the uncertainty put the rows into the right order?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from posterity.metrics.estimate import Estimate, FloatArray, check_lengths, checked, matching, mean_over_rows, require


class RiskCoverage(NamedTuple):
    """Mean loss of the k most certain rows (risk) when the share k/N of all is kept (coverage)."""

    coverage: FloatArray  # [N]
    risk: FloatArray  # [N]
    area: Estimate  # mean of risk over coverage; lower is better


def auroc(score: ArrayLike, positive: ArrayLike) -> Estimate:
    """P(score of a positive row > score of a negative one) + P(equal) / 2, in [0, 1].

    From midranks, O(N log N). Error: DeLong et al. 1988, with a = (share of negatives below a
    positive) and b = (share of positives above a negative): sqrt(var(a)/N+ + var(b)/N-); NaN if
    a group has one row. For out-of-distribution detection the score is an uncertainty.
    """
    score, positive = matching(infinite=True, score=score, positive=positive)
    found, wanted = np.unique(positive), "expected both 0 and 1; without both, report no AUROC"
    require(np.array_equal(found, [0, 1]), f"positive holds {found[:5]}; {wanted}.")
    yes, no, ranks = positive == 1, positive == 0, _midranks(score)
    # A rank among all minus the rank among its own kind counts the rows of the other kind below.
    below = (ranks[yes] - _midranks(score[yes])) / no.sum()
    above = 1 - (ranks[no] - _midranks(score[no])) / yes.sum()
    errors = mean_over_rows(below).standard_error, mean_over_rows(above).standard_error
    return Estimate(float(below.mean()), float(np.hypot(*errors)))


def _midranks(values: FloatArray) -> FloatArray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def risk_coverage(uncertainty: ArrayLike, loss: ArrayLike) -> RiskCoverage:
    """Risk of keeping the k most certain rows, for all k (Geifman and El-Yaniv 2017).

        risk_k = 1/k sum_{j<=k} loss_(j),   coverage_k = k/N,   area = 1/N sum_k risk_k

    Rows of equal uncertainty count with their mean loss, as if in random order. Error of the
    area: jackknife over rows; where uncertainties tie it is on the safe side.
    """
    uncertainty, loss = checked("uncertainty", uncertainty, infinite=True), checked("loss", loss)
    check_lengths(uncertainty=len(uncertainty), loss=len(loss))
    order = np.argsort(uncertainty, kind="stable")
    _, group, counts = np.unique(uncertainty, return_inverse=True, return_counts=True)
    group_loss = np.bincount(group, loss) / counts
    kept = np.arange(1, len(loss) + 1)
    risk = np.cumsum(group_loss[group[order]]) / kept
    area = Estimate(float(risk.mean()), _area_error(loss[order]))
    return RiskCoverage(kept / len(loss), risk, area)


def _area_error(loss: FloatArray) -> float:
    """Jackknife error of mean_k risk_k for losses in order of certainty, in O(N)."""
    num_rows = len(loss)
    if num_rows == 1:
        return float("nan")
    total, kept = np.cumsum(loss), np.arange(1, num_rows + 1)
    # Without row r: risks before it stay; each later one loses loss_r and one row.
    before = np.append(0.0, np.cumsum(total / kept)[:-1])
    after = np.append(np.cumsum((total[1:] / kept[:-1])[::-1])[::-1], 0.0)
    weight = np.append(np.cumsum((1 / kept[:-1])[::-1])[::-1], 0.0)
    without = (before + after - loss * weight) / (num_rows - 1)
    return float(np.sqrt((num_rows - 1) * without.var()))
