"""MC dropout (Gal & Ghahramani 2016): train with dropout, keep it on to predict, and read the spread as ignorance.

For weights W_i whose inputs are kept with probability p_i, noise precision tau, prior N(0, 1/l^2) and biases b:

    (1/N) sum_n E(y_n, f(x_n; masks_n)) + sum_i (p_i l^2 / (2 tau N) ||W_i||^2 + l^2 / (2 tau N) ||b_i||^2)

with E = -log p / tau. Times tau, and for any prior, that is the loss here (per datum):

    -(1/N) sum_n log p(y_n | f(x_n; masks_n)) - (1/N) sum_w (p_w log p(w) + (1 - p_w) log p(0))

W is the stored weight, as in the authors' code, and f multiplies kept inputs by 1/p. With learned rates (concrete
dropout; Gal, Hron & Kendall 2017) -(1/N) sum_i K_i H(p_i) joins, K_i the number of inputs and H the entropy of p_i.

What to know: with a FIXED rate the spread does not shrink as data grow, since nothing in the loss asks it to; it
measures the rate you chose. With a learned rate it does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.checks import check_whole
from posterity.core.devices import jit_once
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params
from posterity.data.arrays import Dataset
from posterity.inference.methods.card import Card
from posterity.inference.methods.descent import Descent, DescentState, descend, loss_parts, mean_negative_log_likelihood
from posterity.inference.methods.method import Result
from posterity.models.model import Model, weighted_sum
from posterity.networks.built_in import BuiltIn
from posterity.networks.dropout import apply_per_row
from posterity.networks.perceptron import DROPOUT_LOGIT
from posterity.weights.families import DropoutMasks

ROUNDING = 1e-6  # of outputs, relative to the largest


class DropoutVariables(NamedTuple):
    weights: Params
    logits: Params  # of learned rates, None at every other leaf


@records.record
class MCDropout(Descent):
    """Dropout on, in training and in prediction. The network says where: mlp(..., dropout=0.1).

    Args:
        num_masks: Masks for each datum and step of training.
        per_row: True: each row is predicted with masks of its own. False: a draw is one mask for all rows, which is one
            draw of the weights.
        rates: For a network of your own, the dropout rate before each weight: one number, or {path pattern: rate}.
            None: those of a built-in network, 0 in any other.
    """

    card = Card(
        name="mc_dropout",
        label="MC dropout",
        what="Dropout left on when predicting.",
        when="A network that is trained with dropout anyway.",
        reference="Gal & Ghahramani 2016",
        ignorance="with a fixed rate it does not shrink with data",
        cost="1",
        verdict="approximates",
        colour="orange",
        line="-",
        marker="s",
        settings=lambda size: size.descent(5_000),
        dropout=0.1,
        compared=True,
    )

    _: dataclasses.KW_ONLY
    num_masks: int = 1
    per_row: bool = False
    rates: Any = None

    targets_temperature = False
    holds_scales = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("MCDropout", num_masks=self.num_masks)
        table = {"*": self.rates} if isinstance(self.rates, float | int) else self.rates
        if isinstance(table, Mapping):
            for pattern, rate in table.items():
                if not 0 <= rate < 1:
                    raise ValueError(f"MCDropout: the rate {rate} of {pattern!r} is outside [0, 1); try 0.1.")
            object.__setattr__(self, "rates", tuple(table.items()))

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        x = jax.tree.map(lambda leaf: jnp.asarray(leaf[:8]), data.x)
        if _effect_of_dropout(model, params, x) <= ROUNDING:
            raise ValueError(
                "MCDropout needs a network with dropout, and this one gives the same outputs with and without a key. "
                "Say mlp(..., dropout=0.1), or put Dropout layers into your module."
            )

    def kernel(self, model: Model) -> Kernel:
        def prepare(key: Key, params: Params) -> tuple[DropoutVariables, None]:
            del key
            return DropoutVariables(params, _only_logits(model.fixed)), None

        def loss(key: Key, variables: DropoutVariables, constant: None, batch: Batch, clock: Clock) -> Any:
            del constant
            rebound = _rebind(model, variables)
            rows = self._log_likelihood(key, rebound, variables.weights, batch)
            log_likelihood = clock.num_batches * weighted_sum(rows, batch.weight)
            return loss_parts(model, log_likelihood, -self.penalty(rebound, variables.weights), clock)

        def validate(key: Key, state: DescentState, batch: Batch) -> Array:
            del key
            return mean_negative_log_likelihood(_rebind(model, state.params), state.params.weights, batch)

        return descend(self, loss, validate, prepare)

    def finish(self, model: Model, states: DescentState, kept: Params, fixed: Params) -> Result:
        del kept
        learned = pytrees.merge(states.params.logits, fixed)
        return Result(DropoutMasks(states.params.weights, learned, self.per_row), model)

    def penalty(self, model: Model, params: Params) -> Array:
        """What the prior, and the entropy of learned rates, add to the negative log likelihood of the data."""
        complete = model.complete(params)
        rates = self._rates(model, complete["network"])
        prior, axis = model.full_prior, model.network.fan_in_axis
        at_weights = jax.tree.map(jnp.sum, prior.log_probs(params, axis))
        at_zero = jax.tree.map(jnp.sum, prior.log_probs(jax.tree.map(jnp.zeros_like, params), axis))
        rate_of = dict(zip(pytrees.leaf_names({"network": rates}), jax.tree.leaves(rates), strict=True))

        def expected(name: str, value: Array, value_at_zero: Array) -> Array:
            rate = rate_of.get(name, 0.0)
            return (1 - rate) * value + rate * value_at_zero

        return -pytrees.total(pytrees.map_with_path(expected, at_weights, at_zero)) - _entropy(complete["network"])

    def _log_likelihood(self, key: Key, model: Model, params: Params, batch: Batch) -> Array:
        """[N], the mean over `num_masks` masks a datum."""

        def one(key_mask: Key) -> Array:
            outputs = apply_per_row(model.plain_outputs, params, batch.x, jax.random.split(key_mask, batch.y.shape[0]))
            return model.log_likelihood_of(outputs, batch.y)

        return jax.vmap(one)(jax.random.split(key, self.num_masks)).mean(0)

    def _rates(self, model: Model, params: Params) -> Params:
        """The probability that the input of each weight is dropped; 0 where neither network nor user says."""
        if self.rates is None:
            return model.network.dropout_rates(params) if isinstance(model.network, BuiltIn) else _zeros(params)

        def find(name: str, leaf: Array) -> float:
            is_matrix = jnp.ndim(leaf) > 1  # dropping inputs does not touch a bias
            return next((rate for pattern, rate in self.rates if is_matrix and pytrees.matches(name, pattern)), 0.0)

        return pytrees.map_with_path(find, params)


def dropout_relation(
    *,
    precision: float | None = None,
    keep: float | None = None,
    length_scale: float | None = None,
    num_data: float | None = None,
    weight_decay: float | None = None,
) -> float:
    """tau = p l^2 / (2 N lambda) (Gal & Ghahramani 2016, eq. 7): give any four, get the fifth.

    Args:
        precision: tau, the precision of the noise; 1 / tau is its variance.
        keep: p, the probability to KEEP a unit.
        length_scale: l; the prior of a weight is N(0, 1 / l^2).
        num_data: N.
        weight_decay: lambda, in the loss (1/N) sum_n (squared error / 2) + lambda ||W||^2.
    """
    given = {
        "precision": precision,
        "keep": keep,
        "length_scale": length_scale,
        "num_data": num_data,
        "weight_decay": weight_decay,
    }
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(f"Give exactly four of {', '.join(given)}; missing now: {', '.join(missing) or 'none'}.")
    known = {name: float(value) for name, value in given.items() if value is not None}
    bad = [name for name, value in known.items() if not value > 0]
    if bad:
        raise ValueError(f"{', '.join(bad)} must be above 0.")
    if known.get("keep", 1.0) > 1:
        raise ValueError(f"keep={known['keep']} is a probability to KEEP a unit; give a number in (0, 1].")
    tau, p, scale, count, decay = (known.get(name, 1.0) for name in given)
    solutions = {
        "precision": lambda: p * scale**2 / (2 * count * decay),
        "keep": lambda: 2 * count * decay * tau / scale**2,
        "length_scale": lambda: float(np.sqrt(2 * count * decay * tau / p)),
        "num_data": lambda: p * scale**2 / (2 * decay * tau),
        "weight_decay": lambda: p * scale**2 / (2 * count * tau),
    }
    found = solutions[missing[0]]()
    if missing[0] != "keep":
        return found
    if found > 1 + 1e-9:
        raise ValueError(
            f"These four would need keep={found:.4g}, and a probability is at most 1: lower precision, num_data or "
            "weight_decay, or raise length_scale."
        )
    return min(found, 1.0)  # the last digit of a 1 is rounding


@jit_once
def _effect_of_dropout(model: Model, params: Params, x: Any) -> Array:
    """The largest change of an output under four masks, relative to the largest output; NaN where one is."""
    quiet = model.outputs(params, x)
    # One mask after the other: side by side, sums could be taken in another order than without masks.
    noisy = jax.lax.map(lambda key: model.outputs(params, x, key), jax.random.split(jax.random.key(0), 4))
    return jnp.max(jnp.abs(noisy - quiet)) / (jnp.max(jnp.abs(quiet)) + jnp.finfo(quiet.dtype).tiny)


def _only_logits(fixed: Params) -> Params:
    return pytrees.map_with_path(lambda name, leaf: leaf if name.endswith(DROPOUT_LOGIT) else None, fixed)


def _rebind(model: Model, variables: DropoutVariables) -> Model:
    """The model with the learned rates in the place of the ones it was bound to."""
    return model.bind(pytrees.merge(variables.logits, model.fixed))


def _entropy(params: Params) -> Array:
    """sum_i K_i H(p_i) over layers with a learned rate."""
    total = jnp.zeros(())
    for layer in params.values() if isinstance(params, dict) else ():
        if isinstance(layer, dict) and DROPOUT_LOGIT in layer:
            logit = layer[DROPOUT_LOGIT]
            entropy = jax.nn.softplus(logit) - logit * jax.nn.sigmoid(logit)
            total += layer["weight"].shape[0] * entropy
    return total


def _zeros(params: Params) -> Params:
    return jax.tree.map(lambda _: 0.0, params)
