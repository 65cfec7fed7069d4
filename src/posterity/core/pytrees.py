"""Pytrees of weights: arithmetic, the paths of leaves, rows."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from posterity.core.types import Array, Key, Params

T = TypeVar("T")


def path_name(path: tuple[Any, ...]) -> str:
    """'layer_0/weight' for the path of a leaf."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def map_with_path(function: Callable[..., Any], tree: Params, *rest: Params) -> Params:
    """`function(name, leaf, ...)` at every leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: function(path_name(path), *leaves), tree, *rest)


def leaf_names(tree: Params) -> list[str]:
    return [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern with * and ? speaks of the weight of this path; a network's own need not say "network/"."""
    return fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"network/{pattern}")


def as_floats(tree: T) -> T:
    """Every leaf in the precision of the run: what is recorded of a step is averaged over steps."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, float), tree)


def all_finite(tree: Params) -> Array:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def total(tree: Params) -> Array:
    """The sum over all leaves."""
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def size(tree: Params) -> int:
    """How many numbers a tree holds."""
    return sum(int(np.prod(jnp.shape(leaf))) for leaf in jax.tree.leaves(tree))


def normal_like(key: Key, tree: Params) -> Params:
    """Independent standard normals of the shapes of a tree.

    All in one draw: drawn leaf by leaf, random numbers took half the time that compiling a sampler takes.
    """
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.random.normal(key, flat.shape, flat.dtype))


def merge(free: Params, fixed: Params) -> Params:
    """Put fixed leaves where the free tree holds None."""
    return jax.tree.map(lambda a, b: b if a is None else a, free, fixed, is_leaf=lambda leaf: leaf is None)


def select(condition: Array, if_true: T, if_false: T) -> T:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


def num_rows(x: Any) -> int:
    return int(jnp.shape(jax.tree.leaves(x)[0])[0])


def take_rows(x: T, index: Any) -> T:
    return jax.tree.map(lambda leaf: leaf[index], x)
