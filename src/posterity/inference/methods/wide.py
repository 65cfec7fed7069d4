"""Sums in float64 within a program whose own numbers are float32.

A curvature of 1e5 summed in float32 is wrong by 1e-2, which is more than a prior of standard deviation 100 adds to it.
Terms are therefore added up in float64, and the total is carried as two numbers of the program's precision: its value,
and what rounding took from it. JAX drops to float32 without a word wherever a function is traced outside
`enable_x64`, and again in products whose type was asked for by name when a loop around them is mapped over chains:
`lax.dot_general` of float64 arguments keeps theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array


class Sum(NamedTuple):
    """A float64 total as value + rest, each in the precision of the program."""

    value: Any
    rest: Any

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: Any) -> Sum:
        return cls(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))

    def plus(self, term: Array) -> Sum:
        with jax.enable_x64(True):
            total = self.exact() + wide(term)
            value = total.astype(self.value.dtype)
            return Sum(value, (total - wide(value)).astype(self.value.dtype))

    def exact(self) -> Any:
        """In float64; of arrays of numpy by numpy."""
        if isinstance(self.value, np.ndarray):
            return self.value.astype(np.float64) + self.rest.astype(np.float64)
        with jax.enable_x64(True):
            return wide(self.value) + wide(self.rest)


def is_sum(node: Any) -> bool:
    return isinstance(node, Sum)


def add(totals: Any, terms: Any) -> Any:
    """A tree of sums, each with its term added."""
    return jax.tree.map(lambda total, term: total.plus(term), totals, terms, is_leaf=is_sum)


def on_host(tree: Any) -> Any:
    """The tree in numpy, floating-point numbers in float64 and every sum as one array."""

    def settled(node: Any) -> np.ndarray:
        return Sum(*map(np.asarray, node)).exact() if is_sum(node) else np.asarray(node, np.float64)

    return jax.tree.map(settled, tree, is_leaf=is_sum)


def wide(array: Array) -> Array:
    with jax.enable_x64(True):
        return array.astype(jnp.float64)


def identity(size: int) -> Array:
    """[size, size] of booleans. Its indices have 32 bits: JAX warns of wider ones when it compiles the program."""
    row, column = (jax.lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return row == column


def matmul(left: Array, right: Array) -> Array:
    """left^T right, [P, Q] in float64, for [R, P] and [R, Q]."""
    with jax.enable_x64(True):
        return jax.lax.dot_general(wide(left), wide(right), (((0,), (0,)), ((), ())))


def weigh(weight: Array, fisher: Array, rows: Array) -> Array:
    """w F J in float64, [N, M, K, ...], for [N], [N, M, K, K] and [N, M, K, ...]."""
    with jax.enable_x64(True):
        weighted = wide(weight)[:, None, None, None] * wide(fisher)
        flat = wide(rows).reshape(*rows.shape[:3], -1)
        return jax.lax.dot_general(weighted, flat, (((3,), (2,)), ((0, 1), (0, 1)))).reshape(rows.shape)
