"""Leave-one-out log probabilities of rows from draws given all rows, by Pareto-smoothed importance sampling.

The posterior without row n is the one with it, weighted by 1 / p(y_n | w): with draws w_s, log weights
r_s = -log p(y_n | w_s),

    log p(y_n | others) = log sum_s exp(r_s) p(y_n | w_s) - log sum_s exp(r_s)

The M = min(S / 5, 3 sqrt(S)) largest weights are replaced by quantiles of a generalised Pareto distribution fitted to
them (Zhang & Stephens 2009). Its shape k tells whether to believe the result: not above 1 - 1 / log10(S), or 0.7
(Vehtari, Simpson, Gelman, Yao & Gabry 2024, arXiv 1507.02646; Vehtari, Gelman & Gabry 2017 for leave-one-out).

arviz-stats has the same numbers, one row at a time (the tests compare).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from posterity.metrics.estimate import Estimate, FloatArray, checked

LEAST_TAIL = 5  # draws that a shape can be fitted to
PRIOR_DRAWS = 10  # draws near k = 1/2 as which a weak prior of the shape counts
HIGHEST_K = 0.7


@dataclass(frozen=True)
class LeaveOneOut:
    """log p(y_n | all other rows) of N rows."""

    log_prob: FloatArray
    """[N], in nats."""
    pareto_k: FloatArray
    """[N]: the shape of the tail of each row's weights; -inf where they are all alike."""
    num_draws: int
    """That it was computed from."""

    @property
    def limit(self) -> float:
        """The shape above which a row's number is not to be believed, with so many draws."""
        return min(1 - 1 / math.log10(self.num_draws), HIGHEST_K)

    @property
    def num_unreliable(self) -> int:
        """Rows whose shape is above the limit."""
        return int((self.pareto_k > self.limit).sum())

    @property
    def total(self) -> Estimate:
        """The sum over rows, with its error from the choice of rows, sqrt(N) times their standard deviation."""
        return sum_over_rows(self.log_prob)


def sum_over_rows(rows: FloatArray) -> Estimate:
    """The sum of numbers of single rows [N], with the standard error sqrt(N) s; NaN for one row."""
    error = float(np.sqrt(len(rows)) * rows.std(ddof=1)) if len(rows) > 1 else math.nan
    return Estimate(float(rows.sum()), error)


def leave_one_out(log_likelihood: ArrayLike, relative_efficiency: float = 1.0) -> LeaveOneOut:
    """Leave-one-out log probabilities from log p(y_n | w_s), [S, N].

    `relative_efficiency`: the effective share of the draws; the tail of correlated draws is taken longer.
    """
    values = checked("log_likelihood", log_likelihood, "[S, N]")
    if len(values) < 2 * LEAST_TAIL:
        raise ValueError(f"{len(values)} draws are too few for leave-one-out; give at least {2 * LEAST_TAIL}.")
    log_weights, shapes = smoothed_log_weights(-values, relative_efficiency)
    found = logsumexp(log_weights + values, axis=0) - logsumexp(log_weights, axis=0)
    return LeaveOneOut(np.asarray(found), shapes, len(values))


def smoothed_log_weights(log_ratios: FloatArray, relative_efficiency: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Pareto-smoothed log weights [S, N], at most 0 and not normalised, and the shape k of each tail, [N]."""
    num_draws, num_rows = log_ratios.shape
    size = int(min(num_draws / 5, 3 * math.sqrt(num_draws / relative_efficiency)))
    log_weights = log_ratios - log_ratios.max(0)
    shapes = np.full(num_rows, -np.inf)
    if size < LEAST_TAIL:
        return log_weights, np.full(num_rows, np.inf)
    order = np.argsort(log_weights, 0, kind="stable")
    tail = order[-size:]
    for row in range(num_rows):
        column, places = log_weights[:, row], tail[:, row]
        cut = max(column[order[-size - 1, row]], math.log(np.finfo(float).tiny))
        above = np.exp(column[places]) - math.exp(cut)
        above = above[above > 0]  # of ties at the cut nothing is above it
        if len(above) <= LEAST_TAIL - 1 or above[-1] == above[0]:
            continue
        shape, scale = fit_pareto(above)
        shapes[row] = shape
        levels = (np.arange(len(above)) + 0.5) / len(above)
        quantiles = _pareto_quantiles(levels, shape, scale) + math.exp(cut)
        column[places[-len(above) :]] = np.minimum(np.log(quantiles), 0.0)
    return log_weights, shapes


def fit_pareto(values: FloatArray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution above 0, of sorted values (Zhang & Stephens 2009).

    The posterior mean under their empirical prior, the shape drawn towards 1/2 as by ten values more.
    """
    count = len(values)
    num_points = 30 + int(math.sqrt(count))
    grid = 1 - np.sqrt(num_points / (np.arange(1, num_points + 1) - 0.5))
    grid = grid / (3 * values[int(count / 4 + 0.5) - 1]) + 1 / values[-1]
    shape = np.log1p(-grid[:, None] * values).mean(1)
    log_likelihood = count * (np.log(-grid / shape) - shape - 1)
    weight = np.exp(log_likelihood - logsumexp(log_likelihood))
    centre = float((grid * weight).sum())
    found = float(np.log1p(-centre * values).mean())
    return (count * found + PRIOR_DRAWS / 2) / (count + PRIOR_DRAWS), -found / centre


def _pareto_quantiles(levels: FloatArray, shape: float, scale: float) -> FloatArray:
    if abs(shape) < 1e-12:
        return -scale * np.log1p(-levels)
    return scale * np.expm1(-shape * np.log1p(-levels)) / shape
