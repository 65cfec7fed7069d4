"""Decisions: the action of least expected cost under the predictive distribution (Raiffa & Schlaifer 1961).

    expected cost   c(a) = E[cost(a, y)],   action = argmin_a c(a)
    value of asking      = min_a c(a) - E[min_a cost(a, y)]     what it would be worth to know y beforehand

The second is the expected value of perfect information: no test, however good, is worth more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from posterity.core.checks import is_number
from posterity.metrics import Estimate, RiskCoverage, mean_over_rows, risk_coverage
from posterity.metrics.estimate import FloatArray, checked, probabilities
from posterity.prediction.prediction import Prediction
from posterity.uses.deferral import Deferral, Promise, controlled

Cost = ArrayLike | Callable[[Any, np.ndarray], np.ndarray]
DEFER = -1  # in place of the number of an action
NUM_SAMPLES = 2_000  # of a target that is a number, at least


class Costs:
    """What each action costs, of targets that are classes 0 .. C-1, by a matrix, or numbers, by a function.

    Args:
        cost: [A, C], or `cost(action, y)` for an array y, which gives an array of its shape.
        actions: What the function is called with; for a matrix, its rows by default.
    """

    def __init__(self, cost: Cost, actions: ArrayLike | None) -> None:
        if callable(cost):
            if actions is None:
                raise ValueError("cost is a function; name the actions to choose from, as actions=[...].")
            self.matrix = None
            self.function = cost
            self.actions = np.asarray(actions)
        else:
            self.matrix = checked("cost", cost, "[A, C]")
            self.actions = np.arange(len(self.matrix)) if actions is None else np.asarray(actions)
            if len(self.actions) != len(self.matrix):
                raise ValueError(f"cost has {len(self.matrix)} rows and there are {len(self.actions)} actions.")
        if self.actions.ndim != 1 or not len(self.actions):
            raise ValueError(f"actions has shape {self.actions.shape}; expected a list of at least one.")

    def of_classes(self, num_classes: int) -> FloatArray:
        """[A, C]."""
        if self.matrix is None:
            return self.of_numbers(np.arange(num_classes))
        if self.matrix.shape[1] != num_classes:
            raise ValueError(
                f"cost has {self.matrix.shape[1]} columns and there are {num_classes} classes; expected one for each."
            )
        return self.matrix

    def of_numbers(self, y: np.ndarray) -> FloatArray:
        """[A, ...] at targets y [...]."""
        if self.matrix is not None:
            raise ValueError("cost is a matrix, which is for classes; the target is a number: give cost(action, y).")
        found = [np.asarray(self.function(action, y), float) for action in self.actions.tolist()]
        shapes = {one.shape for one in found}
        if shapes != {y.shape}:
            raise ValueError(
                f"cost(action, y) gave arrays of shape {sorted(shapes)} for y of shape {y.shape}; expected a cost for "
                "each of y: write it with numpy's functions, such as np.maximum."
            )
        return checked("cost(action, y)", np.reshape(found, (len(found), -1)), "[A, N]").reshape(len(found), *y.shape)

    def at(self, y: np.ndarray) -> FloatArray:
        """[A, N]: what each action would have cost at targets that are known."""
        return self.of_numbers(y) if self.matrix is None else self.matrix[:, y.astype(int)]


@dataclass(frozen=True)
class Decision:
    """An action for each of N rows, of A actions, and what is expected of it."""

    action: np.ndarray
    """[N]: the number of the action of least expected cost; -1 where the row is handed on."""
    expected_costs: FloatArray
    """[N, A]: of every action."""
    expected_cost: FloatArray
    """[N]: of what was chosen; of a row that is handed on, its price."""
    standard_error: FloatArray
    """[N]: Monte Carlo error of `expected_cost`; NaN where nothing is known of the draws."""
    mean_cost: Estimate
    """The mean of `expected_cost` over rows, with its Monte Carlo error: rows share their draws."""
    value_of_asking: FloatArray
    """[N]: what it would be worth to know the target before the choice (expected value of perfect information)."""
    costs: Costs
    """What was given."""
    deferral: Deferral | None
    """When a row is handed on, and at what price."""

    @property
    def kept(self) -> np.ndarray:
        """[N]: whether the row is decided here."""
        return self.action != DEFER

    @property
    def chosen(self) -> np.ndarray:
        """The actions themselves, of the rows that are kept."""
        return self.costs.actions[self.action[self.kept]]

    def realised(self, y: ArrayLike) -> FloatArray:
        """[N]: what each row cost, once targets are known; of a row that is handed on, its price."""
        found = self.costs.at(self._targets(y))
        cost = np.take_along_axis(found, np.maximum(self.action, 0)[None], 0)[0]
        return np.where(self.kept, cost, 0.0 if self.deferral is None else self.deferral.price)

    def risk(self, y: ArrayLike) -> Estimate:
        """Mean realised cost of the rows that are kept, with its error from the choice of rows."""
        if not self.kept.any():
            raise ValueError("Every row is handed on: there is no cost of kept rows to report.")
        return mean_over_rows(self.realised(y)[self.kept])

    def risk_coverage(self, y: ArrayLike) -> RiskCoverage:
        """Mean realised cost against the share kept, where the rows of least expected cost are kept first.

        With the cost 1 - np.eye(C), accuracy against the share kept is 1 - risk.
        """
        costs, best = self.costs.at(self._targets(y)), self.expected_costs.argmin(1)
        return risk_coverage(self.expected_costs.min(1), costs[best, np.arange(len(best))])

    def _targets(self, y: ArrayLike) -> np.ndarray:
        y = np.asarray(y)
        if y.shape != self.action.shape:
            raise ValueError(f"y has shape {y.shape}; there are decisions of shape {self.action.shape}.")
        return y


def decide(
    prediction: Prediction | ArrayLike,
    cost: Cost,
    *,
    actions: ArrayLike | None = None,
    defer: float | Deferral | None = None,
    seed: int = 0,
) -> Decision:
    """The action of least expected cost at each row.

    Args:
        prediction: What `posterior.predict` gives, of one class or number a row; or probabilities of classes [N, C].
        cost: A matrix [A, C], what action a costs where the class is c; or a function `cost(action, y)` of an array of
            targets, whose expectation is taken by draws from the predictive distribution.
        actions: What the function is called with, one after the other; names of the rows of a matrix.
        defer: A price: a row is handed on (action -1) where every action is expected to cost more. Or what
            `control_risk` returns: rows of too large an expected cost are handed on.
        seed: Of the draws of numbers.

    Examples:
        >>> import numpy as np
        >>> from posterity import decide
        >>> probs = np.array([[0.95, 0.05], [0.8, 0.2], [0.1, 0.9]])  # healthy, ill
        >>> decision = decide(probs, [[0, 10], [1, 0]], defer=0.6)  # to send home, to treat
        >>> decision.action.tolist(), decision.expected_cost.round(2).tolist()
        ([0, -1, 1], [0.5, 0.6, 0.1])
        >>> decision.value_of_asking.round(2).tolist()
        [0.5, 0.6, 0.1]
    """
    costs = Costs(cost, actions)
    if is_number(defer):
        defer = Deferral.at_price(float(defer))
    elif not (defer is None or isinstance(defer, Deferral)):
        raise TypeError(f"defer is {defer!r}; expected a price, what control_risk(...) returns, or None.")
    by_draw, least = _expected(prediction, costs, seed)  # [S, N, A], [N]
    expected = by_draw.mean(0)
    action, lowest = expected.argmin(1), expected.min(1)
    each = np.take_along_axis(by_draw, action[None, :, None], 2)[..., 0]  # [S, N]
    kept = np.ones(len(action), bool) if defer is None else lowest <= defer.threshold
    price = 0.0 if defer is None else defer.price
    each, lowest = np.where(kept, each, price), np.where(kept, lowest, price)
    error, of_mean = _error(prediction, each), _error(prediction, each.mean(1))
    return Decision(
        action=np.where(kept, action, DEFER),
        expected_costs=expected,
        expected_cost=lowest,
        standard_error=np.where(kept, error, 0.0),
        mean_cost=Estimate(float(lowest.mean()), float(of_mean)),
        value_of_asking=np.maximum(lowest - least, 0.0),  # rounding alone can put it below 0
        costs=costs,
        deferral=defer,
    )


def control_risk(
    prediction: Prediction | ArrayLike,
    y: ArrayLike,
    cost: Cost,
    level: float,
    *,
    actions: ArrayLike | None = None,
    confidence: float = 0.95,
    largest: float | None = None,
    price: float = 0.0,
    seed: int = 0,
) -> Deferral:
    """Which rows to hand on so that the mean cost of those kept stays below a level: for `decide(..., defer=...)`.

    Learn-then-Test (Angelopoulos et al. 2021): a finite-sample bound, whatever the model, for new rows like these.

    Args:
        prediction: At held-out rows, which no one has trained on or chosen a model by.
        y: Their targets.
        cost: As of `decide`; no cost may be negative.
        level: What the mean cost of kept rows stays below; with the cost 1 - np.eye(C), the rate of errors.
        actions: As of `decide`.
        confidence: The probability, over the choice of held-out rows, that it does.
        largest: The largest cost there is, for a function; of a matrix it is known.
        price: What a row that is handed on costs.
        seed: Of the choice of the fifth of the rows that thresholds are taken from, and of draws of numbers.
    """
    decision = decide(prediction, cost, actions=actions, seed=seed)
    matrix, found = decision.costs.matrix, decision.realised(y)
    if matrix is not None:
        largest = float(matrix.max())
    elif largest is None:
        raise ValueError("cost is a function; give the largest cost it can have, as largest=...")
    least = min(found.min(), found.min() if matrix is None else matrix.min())
    if least < 0 or found.max() > largest:
        raise ValueError(f"Costs reach from {least:g} to {found.max():g}; expected 0 to largest={largest:g}.")
    binary = matrix is not None and bool(np.isin(matrix, (0.0, largest)).all())
    return controlled(decision.expected_costs.min(1), found, Promise(level, confidence, largest, binary), price, seed)


def _expected(prediction: Prediction | ArrayLike, costs: Costs, seed: int) -> tuple[FloatArray, FloatArray]:
    """E[cost(a, y)] under each draw [S, N, A], and E[min_a cost(a, y)], [N]."""
    if not isinstance(prediction, Prediction):
        probs = probabilities("prediction", prediction)[None]
    elif prediction.kind == "classes":
        probs = prediction.draw_means.astype(float)
        if probs.ndim != 3:
            raise ValueError(f"The prediction has probabilities of shape {probs.shape[1:]}; expected one class a row.")
    else:
        return _expected_of_numbers(prediction, costs, seed)
    matrix = costs.of_classes(probs.shape[-1])
    return probs @ matrix.T, probs.mean(0) @ matrix.min(0)


def _expected_of_numbers(prediction: Prediction, costs: Costs, seed: int) -> tuple[FloatArray, FloatArray]:
    y = prediction.draw_samples(-(-NUM_SAMPLES // prediction.num_draws), seed).astype(float)  # [S, R, N]
    if y.ndim != 3:
        raise ValueError(f"The prediction has targets of shape {y.shape[2:]}; expected one number a row.")
    found = costs.of_numbers(y)  # [A, S, R, N]
    least = found.min(0).mean((0, 1))
    if prediction.is_closed_form:  # its draws are independent, also within a Gaussian
        return np.moveaxis(found.reshape(len(found), -1, y.shape[-1]), 0, -1), least
    return np.moveaxis(found.mean(2), 0, -1), least


def _error(prediction: Prediction | ArrayLike, values: FloatArray) -> Any:
    """Monte Carlo error of the mean over draws of values [S, ...]."""
    if not isinstance(prediction, Prediction):
        return np.full(values.shape[1:], np.nan)
    if not prediction.is_closed_form:
        return prediction.error_over_draws(values)
    return values.std(0, ddof=1) / np.sqrt(len(values))
