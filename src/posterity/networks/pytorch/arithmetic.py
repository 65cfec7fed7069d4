"""Products, arithmetic and activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array

Number = int | float | Array


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    made = x @ weight.T
    return made if bias is None else made + bias


def add_product(product: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def added(base: Array, left: Array, right: Array, beta: Number = 1, alpha: Number = 1) -> Array:
        made = product(left, right)
        return (made if alpha == 1 else alpha * made) + (base if beta == 1 else beta * base)

    return added


def scaled(function: Callable[[Any, Any], Any]) -> Callable[..., Array]:
    return lambda a, b, alpha=1: function(a, b if alpha == 1 else alpha * b)


def divide(a: Array, b: Number, rounding_mode: str | None = None) -> Array:
    if rounding_mode is None:
        return a / b
    return jnp.floor_divide(a, b) if rounding_mode == "floor" else jnp.trunc(a / b).astype(jnp.result_type(a, b))


def power(base: Number, exponent: Number) -> Number:
    whole = isinstance(exponent, float) and exponent.is_integer()
    return base ** (int(exponent) if whole else exponent)  # exact, also in its derivative at 0


def clamp(x: Array, min: Number | None = None, max: Number | None = None) -> Array:
    x = x if min is None else jnp.maximum(x, min)
    return x if max is None else jnp.minimum(x, max)


def gelu(x: Array, approximate: str = "none") -> Array:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(input_scale * jnp.minimum(x, 0)))


def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(jnp.minimum(x * beta, threshold)) / beta)


def prelu(x: Array, weight: Array) -> Array:
    slope = weight if x.ndim < 2 else weight.reshape(1, -1, *(1 for _ in x.shape[2:]))
    return jnp.where(x > 0, x, slope * x)


def softmax(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, dim, dtype=None: function(x if dtype in (None, False) else x.astype(dtype), axis=dim)


def compare(function: Callable[[Any, Any], Any]) -> Callable[[Array, Number], Array]:
    return lambda a, b: function(a, b)
