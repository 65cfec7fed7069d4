"""Pytree arithmetic, paths of weights, and records: frozen dataclasses that JAX can trace through."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from posterity.types import Array, Key, Params

T = TypeVar("T")

RECORDS: dict[str, type] = {}  # every record by its name, so that a store can name one without holding code


def traced(default: Any = dataclasses.MISSING) -> Any:
    """A field of a record whose number is an argument of compiled programs, not a constant in them."""
    return dataclasses.field(default=default, metadata={"kind": "traced"})


def host(default: Any = None) -> Any:
    """A field of a record that compiled programs never see."""
    return dataclasses.field(default=default, metadata={"kind": "host"})


@dataclass_transform(frozen_default=True, field_specifiers=(traced, host, dataclasses.field))
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass that is a pytree: `traced` fields are leaves, `host` fields are dropped, the rest is static.

    A traced field that holds a function (a schedule) is static too. Rebuilding from leaves skips `__post_init__`:
    checks belong to the user's call, and leaves may be tracers.
    """
    plain_bases = [base for base in cls.__mro__[:-1] if not dataclasses.is_dataclass(base)]
    shows_itself = any("__repr__" in vars(base) for base in plain_bases)
    cls = dataclasses.dataclass(frozen=True, repr=not shows_itself)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    traced_names = tuple(f.name for f in fields if f.metadata.get("kind") == "traced")
    static_names = tuple(f.name for f in fields if not f.metadata.get("kind"))
    host_names = tuple(f.name for f in fields if f.metadata.get("kind") == "host")

    def is_function(value: Any) -> bool:
        return callable(value) and jax.tree_util.all_leaves([value])

    def flatten(value: Any) -> tuple[tuple[Any, ...], Any]:
        leaves = tuple(getattr(value, name) for name in traced_names)
        functions = tuple(leaf if is_function(leaf) else None for leaf in leaves)
        leaves = tuple(None if is_function(leaf) else leaf for leaf in leaves)
        return leaves, (functions, tuple(getattr(value, name) for name in static_names))

    def flatten_with_keys(value: Any) -> tuple[Any, Any]:
        leaves, rest = flatten(value)
        keys = map(jax.tree_util.GetAttrKey, traced_names)
        return tuple(zip(keys, leaves, strict=True)), rest

    def unflatten(rest: Any, leaves: tuple[Any, ...]) -> Any:
        functions, statics = rest
        value = object.__new__(cls)
        for name, leaf, function in zip(traced_names, leaves, functions, strict=True):
            object.__setattr__(value, name, leaf if function is None else function)
        for name, static in zip(static_names, statics, strict=True):
            object.__setattr__(value, name, static)
        for name in host_names:
            object.__setattr__(value, name, None)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)  # type: ignore[arg-type]
    RECORDS[cls.__name__] = cls
    return cls


def replace(value: T, **changes: Any) -> T:
    """dataclasses.replace for a record whose fields may be tracers: nothing is checked again."""
    made = object.__new__(type(value))
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        object.__setattr__(made, field.name, changes.get(field.name, getattr(value, field.name)))
    return made


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
