"""What sums or chooses along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array

Axes = int | Sequence[int] | None
Number = int | float | Array


def _axes(dim: Axes) -> int | tuple[int, ...] | None:
    """PyTorch's axes for a reduction: none or an empty list are all."""
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


def reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(x: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
        return function(x if dtype is None else x.astype(dtype), _axes(dim), keepdims=keepdim)

    return reduced


def reduce_all(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, dtype=None: function(x if dtype is None else x.astype(dtype))


def _moments(x: Array, dim: Axes, unbiased: bool, keepdim: bool, correction: int | None) -> tuple[Array, Array]:
    less = (1 if unbiased else 0) if correction is None else correction
    axes = _axes(dim)
    return jnp.var(x, axes, ddof=less, keepdims=keepdim), jnp.mean(x, axes, keepdims=keepdim)


def var(
    x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, correction: int | None = None
) -> Array:
    return _moments(x, dim, unbiased, keepdim, correction)[0]


def var_mean(
    x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, correction: int | None = None
) -> tuple[Array, Array]:
    return _moments(x, dim, unbiased, keepdim, correction)


def std_mean(
    x: Array, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, correction: int | None = None
) -> tuple[Array, Array]:
    variance, mean = _moments(x, dim, unbiased, keepdim, correction)
    return jnp.sqrt(variance), mean


def vector_norm(x: Array, ord: Number = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    x = x if dtype is None else x.astype(dtype)
    if ord != 2:
        return jnp.linalg.norm(x if dim is not None else x.ravel(), ord, _axes(dim), keepdims=keepdim)
    squares = jnp.sum(jnp.square(x), _axes(dim), keepdims=keepdim)
    positive = squares > 0  # the derivative at 0 is 0, as in PyTorch
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), 0)


def best(choose: Callable[..., Array]) -> Callable[..., tuple[Array, Array]]:
    def best(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        index = choose(x, axis=dim, keepdims=True)
        values = jnp.take_along_axis(x, index, dim)
        return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))

    return best


def sort(x: Array, dim: int = -1, descending: bool = False, stable: bool = True) -> tuple[Array, Array]:
    index = jnp.argsort(x, axis=dim, descending=descending, stable=True)
    del stable
    return jnp.take_along_axis(x, index, dim), index


def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    del sorted
    values, index = sort(x, dim, largest)
    return jax.lax.slice_in_dim(values, 0, k, axis=dim), jax.lax.slice_in_dim(index, 0, k, axis=dim)
