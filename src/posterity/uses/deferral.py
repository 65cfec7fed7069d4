"""When to hand a row on: at a price, or such that the risk of the rows kept stays below a level.

The second is Learn-then-Test (Angelopoulos et al. 2021, arXiv 2110.01052). Rows are kept while their expected cost is
at most t. For each t of a sequence, from few rows kept to all, the hypothesis "the mean cost of a kept row is above the
level" is tested on held-out rows, at 1 - confidence; the last t before the first that is not rejected is taken
(fixed-sequence testing: all of them at that error rate, together). With n kept rows, costs in [0, 1] and their mean r:

    costs 0 or 1       p = P(Binomial(n, level) <= n r)                                       (Clopper & Pearson 1934)
    other costs        p = min(exp(-n h(min(r, level), level)), e P(Binomial(n, level) <= ceil(n r)))
                       h(a, b) = a log(a / b) + (1 - a) log((1 - a) / (1 - b))    (Hoeffding-Bentkus: Bates et al. 2021)

Each is valid for any t that does not depend on the rows tested, whatever the model: so the sequence is made of the
expected costs of a fifth of the held-out rows, which then take no part. Valid for new rows that are exchangeable with
the held-out ones, on average over kept rows; with probability `confidence` over the choice of held-out rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from posterity.core.checks import is_number
from posterity.metrics.estimate import FloatArray

SHARE_OF_SEQUENCE = 0.2
ROUNDING = 1e-9


@dataclass(frozen=True)
class Deferral:
    """Rows whose expected cost is above a threshold are handed on."""

    threshold: float
    """The largest expected cost that is kept; -inf: none is."""
    price: float = 0.0
    """What a row that is handed on costs."""
    level: float | None = None
    """What the mean cost of kept rows stays below. None: nothing is promised."""
    confidence: float | None = None
    """With what probability over the choice of held-out rows."""
    share_kept: float | None = None
    """Of the held-out rows that were tested."""
    risk: float | None = None
    """Mean cost of those that were kept; NaN where there are none."""

    @classmethod
    def at_price(cls, price: float) -> Deferral:
        """A row is handed on where it is expected to cost more than this."""
        return cls(threshold=price, price=price)

    def __str__(self) -> str:
        if self.level is None:
            return f"Rows expected to cost more than {self.price:g} are handed on."
        if self.share_kept == 0:
            return f"No threshold keeps the cost below {self.level:g}, as far as these rows show: all are handed on."
        return (
            f"Rows expected to cost at most {self.threshold:.3g} are kept, {self.share_kept:.0%} of them; they cost "
            f"{self.risk:.3g} here, and in the long run less than {self.level:g}, with confidence {self.confidence:g}."
        )


@dataclass(frozen=True)
class Promise:
    """What is asked of kept rows."""

    level: float
    """What their mean cost stays below."""
    confidence: float
    """With what probability over the choice of held-out rows."""
    largest: float
    """The largest cost there is; the least is 0 or more."""
    binary: bool
    """Whether a cost can only be 0 or the largest."""

    def __post_init__(self) -> None:
        if not (is_number(self.level) and 0 < self.level < self.largest):
            raise ValueError(
                f"level={self.level!r} must be a number above 0 and below the largest cost, {self.largest:g}."
            )
        if not (is_number(self.confidence) and 0 < self.confidence < 1):
            raise ValueError(f"confidence={self.confidence!r} must be a number between 0 and 1, strictly; try 0.95.")


def controlled(score: FloatArray, cost: FloatArray, promise: Promise, price: float = 0.0, seed: int = 0) -> Deferral:
    """The deferral that Learn-then-Test finds, from scores [N] and costs [N] of held-out rows."""
    level, confidence, largest = promise.level, promise.confidence, promise.largest
    alpha, delta = level / largest, 1 - confidence
    order = np.random.default_rng(seed).permutation(len(score))
    num_sequence = round(SHARE_OF_SEQUENCE * len(score))
    sequence, tested = np.sort(score[order[:num_sequence]]), order[num_sequence:]
    score, cost = score[tested], cost[tested] / largest
    needed = math.ceil(math.log(delta) / math.log1p(-alpha))  # rows without cost that show the risk to be low
    if len(tested) < needed:
        raise ValueError(
            f"level={level:g} at confidence {confidence:g} takes {math.ceil(needed / (1 - SHARE_OF_SEQUENCE))} "
            f"held-out rows at the least; there are {len(order)}: give more, or a higher level."
        )
    # Few rows cannot reject anything, and one cost among barely enough would end the sequence at its first step.
    begin = min(max(1.5 * needed, min(4 * needed, len(tested) / 2)), len(tested))
    first = math.ceil(begin / len(tested) * num_sequence)
    threshold = -math.inf
    for candidate in np.append(np.unique(sequence[max(first - 1, 0) :]), math.inf):
        if p_value(cost[score <= candidate], alpha, promise.binary) > delta:
            break
        threshold = float(candidate)
    kept = score <= threshold
    risk = float(cost[kept].mean() * largest) if kept.any() else math.nan
    return Deferral(threshold, price, level, confidence, float(kept.mean()), risk)


def p_value(cost: ArrayLike, level: float, binary: bool) -> float:
    """Of "the mean is above the level", from independent costs in [0, 1]; `binary`: they can only be 0 or 1."""
    cost = np.asarray(cost, float)
    count, total = len(cost), float(np.sum(cost))
    if count == 0:
        return 1.0
    if binary:
        return float(stats.binom.cdf(round(total), count, level))
    mean = min(total / count, level)
    divergence = special.rel_entr(mean, level) + special.rel_entr(1 - mean, 1 - level)
    bentkus = math.e * stats.binom.cdf(math.ceil(total - ROUNDING), count, level)
    return float(min(math.exp(-count * divergence), bentkus, 1.0))
