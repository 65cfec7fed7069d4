"""Dense networks on rows of features, with dropout before each weight matrix.

    h_0 = x,   h_{i+1} = act((h_i * z_i / keep_i) W_i + b_i),   z_i ~ Bernoulli(keep_i),   outputs linear.

A key switches dropout on; one call with one key uses one mask for all rows, which is one draw of weights (Gal &
Ghahramani 2016, sec. 3). With `learn_dropout` each rate is a weight of its own and the masks are relaxed (Gal, Hron &
Kendall 2017, eq. 5, relaxation temperature 0.1), so that its gradient exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.checks import check_rate, check_whole
from posterity.core.types import Array, Key, Params
from posterity.networks.built_in import BuiltIn

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "softplus": jax.nn.softplus,
}
RELAXATION_TEMPERATURE = 0.1
DROPOUT_LOGIT = "dropout_logit"
NARROW = 64  # inputs or units of a layer


@dataclass(frozen=True)
class MLP(BuiltIn):
    """A dense network; two with the same settings are equal, so they share compiled programs."""

    hidden: tuple[int, ...]
    num_outputs: int | None  # None: whatever the likelihood takes
    activation: str | Callable[[Array], Array] = "relu"
    input_dropout: float = 0.0
    dropout: float = 0.0  # before each weight matrix after the first
    learn_dropout: bool = False
    bias: bool = True
    # Not for a user to set, but named in every store of an MLP.
    fan_in_axis: int = -2
    shares_masks: bool = True

    splits_rows = False

    @property
    def depth(self) -> int:
        return len(self.hidden) + 1

    def rate(self, layer: int) -> float:
        """The probability to drop an input of a layer."""
        return self.input_dropout if layer == 0 else self.dropout

    def init(self, key: Key, x: Array) -> Params:
        """Weights N(0, gain / fan_in), biases zero."""
        widths = (int(np.prod(x.shape[1:])), *self.hidden, self.outputs_known())
        params: dict[str, dict[str, Array]] = {}
        for i, key_layer in enumerate(jax.random.split(key, self.depth)):
            gain = 1.0 if i == self.depth - 1 or self.activation == "tanh" else 2.0
            weight = jax.random.normal(key_layer, (widths[i], widths[i + 1])) * np.sqrt(gain / max(widths[i], 1))
            params[f"layer_{i}"] = {"weight": weight}
            if self.bias:
                params[f"layer_{i}"]["bias"] = jnp.zeros(widths[i + 1])
            if self.learn_dropout and self.rate(i) > 0:
                params[f"layer_{i}"][DROPOUT_LOGIT] = jnp.asarray(np.log(self.rate(i) / (1 - self.rate(i))))
        return params

    def apply(self, params: Params, x: Array, key: Key | None = None) -> Array:
        """Outputs [N, K]."""
        hidden, last = self.features(params, x, key), params[f"layer_{self.depth - 1}"]
        return self._affine(last, hidden)

    def features(self, params: Params, x: Array, key: Key | None = None) -> Array:
        """What the last weight matrix multiplies, [N, H]."""
        activation = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        hidden = x.reshape(x.shape[0], -1).astype(params["layer_0"]["weight"].dtype)
        for i in range(self.depth):
            layer = params[f"layer_{i}"]
            if key is not None and self.rate(i) > 0:
                hidden = hidden * self._mask(jax.random.fold_in(key, i), layer, i)
            if i < self.depth - 1:
                hidden = activation(self._affine(layer, hidden))
        return hidden

    def dropout_rates(self, params: Params) -> Params:
        """For each weight, the probability that its input is dropped: 0 for biases."""

        def rates(i: int, layer: dict[str, Array]) -> dict[str, Any]:
            rate = jax.nn.sigmoid(layer[DROPOUT_LOGIT]) if DROPOUT_LOGIT in layer else self.rate(i)
            return {name: rate if name == "weight" else 0.0 for name in layer}

        return {f"layer_{i}": rates(i, params[f"layer_{i}"]) for i in range(self.depth)}

    def _affine(self, layer: dict[str, Array], hidden: Array) -> Array:
        weight, bias = layer["weight"], layer.get("bias", jnp.zeros((), hidden.dtype))
        if max(weight.shape) > NARROW:
            return hidden @ weight + bias
        # Rows along the last axis in memory: a gradient of a narrow network then costs about half on a CPU.
        return (weight.T @ hidden.T + bias[..., None]).T

    def _mask(self, key: Key, layer: dict[str, Array], i: int) -> Array:
        width = layer["weight"].shape[0]
        dtype = layer["weight"].dtype
        if DROPOUT_LOGIT not in layer:
            keep = 1.0 - self.rate(i)
            return jax.random.bernoulli(key, keep, (1, width)).astype(dtype) / keep
        noise = jax.random.logistic(key, (1, width), dtype)
        keep_relaxed = jax.nn.sigmoid((noise - layer[DROPOUT_LOGIT]) / RELAXATION_TEMPERATURE)
        return keep_relaxed / jax.nn.sigmoid(-layer[DROPOUT_LOGIT])


def mlp(
    hidden: int | Sequence[int] = (50, 50),
    num_outputs: int | None = None,
    *,
    activation: str | Callable[[Array], Array] = "relu",
    dropout: float = 0.0,
    input_dropout: float = 0.0,
    learn_dropout: bool = False,
) -> MLP:
    """A dense network: widths of its hidden layers, an activation (a name or a function), dropout rates.

    `dropout` acts before every weight matrix but the first, `input_dropout` before the first.
    """
    rates = check_rate("input_dropout", input_dropout), check_rate("dropout", dropout)
    if isinstance(activation, str) and activation not in ACTIVATIONS:
        raise ValueError(
            f"activation={activation!r} is not known; choose from {', '.join(ACTIVATIONS)}, or pass a function."
        )
    if isinstance(hidden, str):
        raise TypeError(f"hidden={hidden!r} is text; expected widths, such as (50, 50).")
    widths = (hidden,) if isinstance(hidden, int | np.integer) else tuple(hidden)
    check_whole("mlp", hidden=widths)
    widths = tuple(int(width) for width in widths)
    if learn_dropout and dropout == 0 and input_dropout == 0:
        raise ValueError("learn_dropout=True needs rates to start from; try dropout=0.1, input_dropout=0.1.")
    return MLP(widths, num_outputs, activation, *rates, learn_dropout)


def linear(num_outputs: int | None = None, *, bias: bool = True) -> MLP:
    """A network with no hidden layer: outputs = x W + b."""
    return MLP((), num_outputs, bias=bias)
