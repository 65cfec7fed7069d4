"""Intervals and sets of classes that hold their share of targets, whether or not the model is right.

A posterior's own 90 % interval holds 90 % of the targets if its model is right. Split conformal prediction (Vovk et al.
2005) asks less: that new rows come as the n rows did that were not trained on. Each of these gets a score; with q the
k-th smallest of them, k = ceil((n + 1) level), the targets whose score is at most q are predicted, and

    level <= P(target among them) <= level + 1 / (n + 1)        the right side where scores have no ties

over calibration rows and new rows together. Given the calibration rows, the share is Beta(k, n + 1 - k) distributed.

Numbers: the score is the least t at which y lies in the interval I(t), where I(t) is the central interval of the
predictive distribution at level 2 Phi(t) - 1 (distributional conformal prediction, Chernozhukov et al. 2021). Beyond
t = 3, where float32 runs out of levels, I(t) is I(3) stretched about the median by t / 3; any nested intervals do
(Gupta et al. 2022). So an interval is the posterior's own at a corrected level: wide where the posterior is unsure.

Classes: the score is the probability of the classes that are more probable than the true one, plus u times its own, u
uniform (adaptive prediction sets, Romano et al. 2020); without a seed u is 0. A set is then the posterior's own at a
corrected level and never empty, but holds more than its share where a single class does already.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr, ndtri
from scipy.stats import beta

LAST = 3.0  # standard deviations of the widest interval whose level float32 holds well
ROUNDING = 1e-9  # of numbers of rows: 0.9 / (1 - 0.9) is 9
TEMPERATURES = (0.05, 20.0)  # between which one is sought


class Predicted(Protocol):
    """What a calibration asks of a prediction."""

    @property
    def kind(self) -> str: ...
    @property
    def probs(self) -> np.ndarray: ...
    def quantile(self, level: Any) -> np.ndarray: ...
    def cdf(self, y: Any, strict: bool = False) -> np.ndarray: ...


class Rows(NamedTuple):
    """Held-out rows: their scores and weights; of classes, what the scores are made of."""

    scores: np.ndarray  # [n], numbers: t; classes: the probability of the classes before the true one
    own: np.ndarray  # [n], probability of the true class; 0 for numbers
    weight: np.ndarray  # [n]


class Conformal:
    """What held-out rows say of a posterior's intervals or sets of classes, and those that hold.

    Args:
        prediction: At rows that were not trained on.
        y: Their targets, one a row.
        weight: Of these rows; a weight of 2 is a row that stands twice. None: all 1.
    """

    def __init__(self, prediction: Predicted, y: Any, weight: np.ndarray | None = None) -> None:
        y = np.asarray(y)
        self.kind = prediction.kind
        if y.ndim != 1:
            raise ValueError(f"y has shape {y.shape}; calibration is for one target per row, [N].")
        weight = np.ones(len(y)) if weight is None else np.asarray(weight, float)
        if self.kind == "classes":
            self._probs, self._labels = np.asarray(prediction.probs, float), y.astype(int)
            before, own = (part[np.arange(len(y)), self._labels] for part in _ranked(self._probs))
            self._rows = Rows(before, own, weight)
        else:
            self._rows = Rows(_interval_scores(prediction, y), np.zeros(len(y)), weight)
        self.num_rows = float(weight.sum())

    def __repr__(self) -> str:
        what = "sets of classes" if self.kind == "classes" else "intervals"
        return f"<Conformal calibration of {what} by {self.num_rows:g} rows>"

    def interval(self, prediction: Predicted, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper) of intervals that hold a share `level` of targets; infinite, with a warning, for few rows."""
        if self.kind == "classes":
            raise ValueError("interval is for numbers; for classes use prediction_set(prediction, level).")
        score = self._threshold(level)
        if math.isinf(score):
            shape = prediction.quantile(0.5).shape
            return np.full(shape, -math.inf if self.kind == "continuous" else 0.0), np.full(shape, math.inf)
        if score > LAST:
            low, median, high = np.moveaxis(prediction.quantile([ndtr(-LAST), 0.5, ndtr(LAST)]), -1, 0)
            below, above = _reach(self.kind, low, median, high)
            lower, upper = median - below * score / LAST, median + above * score / LAST
        else:
            both = prediction.quantile([ndtr(-score), ndtr(score)])
            lower, upper = both[..., 0], both[..., 1]
        if self.kind == "counts":
            lower, upper = np.maximum(np.ceil(lower), 0), np.floor(upper)
        return lower, upper

    def prediction_set(self, prediction: Predicted, level: float = 0.9, seed: int | None = None) -> np.ndarray:
        """Sets of classes that hold a share `level` of the true ones, as booleans [N, C].

        With a seed sets are drawn at random, some of them empty, so that they hold that share to 1 / (n + 1).
        """
        if self.kind != "classes":
            raise ValueError("prediction_set is for classes; for numbers use interval(prediction, level).")
        score = self._threshold(level, seed)
        before, own = _ranked(np.asarray(prediction.probs, float))
        return before + _uniform(seed, 1, len(own))[:, None] * own <= score

    def level(self, level: float = 0.9) -> float:
        """The level at which the posterior's own intervals or sets hold a share `level`; 1 where no level does."""
        score = self._threshold(level)
        return min(score, 1.0) if self.kind == "classes" else float(2 * ndtr(score) - 1)

    def coverage_range(self, level: float = 0.9, share: float = 0.9) -> tuple[float, float]:
        """Between which coverages this calibration lies with probability `share`: so much is up to chance in n rows."""
        place = math.ceil((self.num_rows + 1) * level - ROUNDING)
        if place > self.num_rows:
            return 1.0, 1.0
        ends = beta.ppf([(1 - share) / 2, (1 + share) / 2], place, self.num_rows + 1 - place)
        return float(ends[0]), float(ends[1])

    @cached_property
    def temperature(self) -> float:
        """T of p^(1/T) / sum p^(1/T) with the least log loss on the held-out rows (Guo et al. 2017).

        Above 1 the posterior is too sure of its classes, below 1 not sure enough.
        """
        if self.kind != "classes":
            raise ValueError("temperature is for classes; for numbers use interval(prediction, level).")
        rows = np.arange(len(self._labels))

        def loss(log_temperature: float) -> float:
            log_probs = np.log(np.maximum(tempered(self._probs, math.exp(log_temperature)), np.finfo(float).tiny))
            return -float(np.average(log_probs[rows, self._labels], weights=self._rows.weight))

        found: Any = minimize_scalar(loss, bounds=np.log(TEMPERATURES), method="bounded")
        return math.exp(found.x)

    def probs(self, prediction: Predicted) -> np.ndarray:
        """Class probabilities at the temperature of least log loss, [N, C]."""
        return tempered(np.asarray(prediction.probs, float), self.temperature)

    def _threshold(self, level: float, seed: int | None = None) -> float:
        """The score that is reached by a share `level` of rows like these, of which one more is to come."""
        if not 0 < level < 1:
            raise ValueError(f"level={level!r} must be a number between 0 and 1, strictly; 0.9 for 90 %.")
        scores = self._rows.scores + _uniform(seed, 0, len(self._rows.scores)) * self._rows.own
        order = np.argsort(scores, kind="stable")
        reached = np.cumsum(self._rows.weight[order])
        place = np.searchsorted(reached, (self.num_rows + 1) * level - ROUNDING)
        if place < len(order):
            return float(scores[order[place]])
        whole = "every class is predicted" if self.kind == "classes" else "intervals are infinite"
        warnings.warn(
            f"{self.num_rows:g} held-out rows are too few to calibrate a level of {level:g}: {whole}. It takes at "
            f"least {rows_needed(level)} rows: hold out more, or ask for a lower level.",
            stacklevel=3,
        )
        return math.inf


def rows_needed(level: float) -> int:
    """The fewest held-out rows that a level can be calibrated by: (n + 1) level must not exceed n."""
    return math.ceil(level / (1 - level) - ROUNDING)


def tempered(probs: np.ndarray, temperature: float) -> np.ndarray:
    """p^(1/T) / sum p^(1/T)."""
    logits = np.log(np.maximum(probs, np.finfo(float).tiny)) / temperature
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _ranked(probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each class the probability of those before it, the most probable first, and its own; [N, C] each."""
    order = np.argsort(-probs, axis=-1, kind="stable")
    ranked = np.take_along_axis(probs, order, -1)
    before = np.empty_like(probs)
    np.put_along_axis(before, order, np.cumsum(ranked, -1) - ranked, -1)
    return before, probs


def _uniform(seed: int | None, stream: int, count: int) -> np.ndarray:
    return np.zeros(count) if seed is None else np.random.default_rng([seed, stream]).uniform(size=count)


def _interval_scores(prediction: Predicted, y: np.ndarray) -> np.ndarray:
    """The least t with y in I(t), [N]."""
    under, up_to = (np.ravel(prediction.cdf(y, strict=strict)) for strict in (True, False))
    if prediction.kind == "counts":  # at most the quantile of any level above P(target < y), not of that level itself
        under = np.nextafter(under, np.ones_like(under))
    within = ndtri(np.clip(np.maximum(under, 1 - up_to).astype(float), 0.5, 1.0))
    low, median, high = np.moveaxis(prediction.quantile([ndtr(-LAST), 0.5, ndtr(LAST)]).reshape(len(y), 3), -1, 0)
    below, above = _reach(prediction.kind, low, median, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        stretched = LAST * np.where(y > median, (y - median) / above, (median - y) / below)
    return np.where(within <= LAST, within, np.maximum(stretched, LAST))


def _reach(kind: str, low: np.ndarray, median: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far I(3) reaches from the median, down and up; for counts at least 1, as it may hold the median alone."""
    least = 1.0 if kind == "counts" else 0.0
    return np.maximum(median - low, least), np.maximum(high - median, least)
