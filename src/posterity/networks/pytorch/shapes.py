"""Shapes, indexing, and values that are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array

Axes = int | Sequence[int] | None
Number = int | float | Array


def expand(x: Array, size: Sequence[int], implicit: bool = False) -> Array:
    del implicit
    own = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(have if want == -1 else want for have, want in zip(own, size, strict=True)))


def flatten(x: Array, start_dim: int = 0, end_dim: int = -1) -> Array:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def unflatten(x: Array, dim: int, sizes: Sequence[int]) -> Array:
    axis = dim % x.ndim
    return x.reshape(*x.shape[:axis], *sizes, *x.shape[axis + 1 :])


def squeeze(x: Array, dim: Axes = None) -> Array:
    axes = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(axis % x.ndim for axis in axes if x.shape[axis] == 1))


def split(x: Array, split_size: int | Sequence[int], dim: int = 0) -> Sequence[Array]:
    length = x.shape[dim]
    each = split_size if isinstance(split_size, int) else None
    sizes = [min(each, length - i) for i in range(0, length, each)] if each else list(split_size)  # type: ignore[arg-type]
    return jax.lax.split(x, sizes, axis=dim % x.ndim)


def chunk(x: Array, chunks: int, dim: int = 0) -> Sequence[Array]:
    return split(x, -(-x.shape[dim] // chunks), dim)


def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[at(x, dim, slice(start, end, step))]


def at(x: Array, dim: int, index: Any) -> tuple[Any, ...]:
    return (*(slice(None),) * (dim % x.ndim), index)


def index(x: Array, indices: Sequence[Array | None]) -> Array:
    return x[tuple(slice(None) if index is None else index for index in indices)]


def index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    place = x.at[tuple(slice(None) if index is None else index for index in indices)]
    return place.add(values.astype(x.dtype)) if accumulate else place.set(values.astype(x.dtype))


def gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    del sparse_grad
    shorter = tuple(slice(None) if i == dim % x.ndim else slice(n) for i, n in enumerate(index.shape))
    return jnp.take_along_axis(x[shorter], index, dim)


def scatter(x: Array, dim: int, index: Array, src: Number, add: bool = False) -> Array:
    grid = list(jnp.meshgrid(*(jnp.arange(n) for n in index.shape), indexing="ij", sparse=True))
    grid[dim % x.ndim] = index
    values = src[tuple(slice(n) for n in index.shape)] if isinstance(src, jax.Array) else src
    return x.at[tuple(grid)].add(values) if add else x.at[tuple(grid)].set(values)


def slice_scatter(
    x: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    return x.at[at(x, dim, slice(start, end, step))].set(src)


def unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    starts = jnp.arange(0, x.shape[dimension] - size + 1, step)
    taken = jnp.take(x, starts[:, None] + jnp.arange(size), dimension)
    return jnp.moveaxis(taken, dimension % x.ndim + 1, -1)


def pixel_shuffle(x: Array, factor: int) -> Array:
    *front, channels, height, width = x.shape
    parts = x.reshape(*front, channels // factor**2, factor, factor, height, width)
    count = len(front)
    order = (*range(count + 1), count + 3, count + 1, count + 4, count + 2)
    return parts.transpose(order).reshape(*front, channels // factor**2, height * factor, width * factor)


def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0])


def repeat(x: Array, repeats: Sequence[int]) -> Array:
    return jnp.tile(x, tuple(repeats))


def embedding(weight: Array, indices: Array, *unused: Any) -> Array:
    del unused  # padding_idx stops PyTorch's gradient of a row, which here is a weight as any other
    return jnp.take(weight, indices, 0)


def cast(x: Array, dtype: Any = None, *unused: Any) -> Array:
    del unused
    return x if dtype is None else x.astype(dtype)


def full(size: Sequence[int], value: Number, dtype: Any = None) -> Array:
    return jnp.full(tuple(size), value, dtype)


def arange(*ends: Number, dtype: Any = None) -> Array:
    return jnp.arange(*ends, dtype=dtype)  # type: ignore[arg-type]


def like(value: Number) -> Callable[..., Array]:
    return lambda x, dtype=None: jnp.full_like(x, value, dtype=dtype)


def sized(value: Number) -> Callable[..., Array]:
    return lambda size, dtype=None: full(size, value, dtype)


def new(value: Number) -> Callable[..., Array]:
    return lambda x, size, dtype=None: full(size, value, dtype or x.dtype)


def same(x: Array, *unused: Any) -> Array:
    del unused
    return x


def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    return jnp.concatenate([part for part in tensors if part.shape != (0,)], dim)


def one_hot(x: Array, num_classes: int) -> Array:
    return jax.nn.one_hot(x, num_classes, dtype=x.dtype)
