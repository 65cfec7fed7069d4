"""Records: frozen dataclasses that JAX can trace through and a store can name without holding code."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

from posterity.core import docstrings

T = TypeVar("T")

RECORDS: dict[str, type] = {}  # every record by its qualified name: a store names one without holding code


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
    checks belong to the user's call, and leaves may be tracers. The `Args` of a docstring gain the entries of the bases
    for the fields that are inherited.
    """
    plain_bases = [base for base in cls.__mro__[:-1] if not dataclasses.is_dataclass(base)]
    shows_itself = any("__repr__" in vars(base) for base in plain_bases)
    cls = dataclasses.dataclass(frozen=True, repr=not shows_itself)(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    cls.__doc__ = docstrings.with_inherited(cls, [f.name for f in fields])
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
    _register(cls)
    return cls


def qualified_name(cls: type) -> str:
    """What a store calls a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _register(cls: type) -> None:
    """Enter a record under its qualified name; another class of that name would be read in its place.

    A cell of a notebook that runs again, or a function that does, makes its own record anew.
    """
    name = qualified_name(cls)
    runs_again = cls.__module__ == "__main__" or "<locals>" in cls.__qualname__
    if name in RECORDS and not runs_again:
        raise TypeError(f"There is a record {name} already: give the second class another name.")
    RECORDS[name] = cls


def replace(value: T, **changes: Any) -> T:
    """dataclasses.replace for a record whose fields may be tracers: nothing is checked again."""
    made = object.__new__(type(value))
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        object.__setattr__(made, field.name, changes.get(field.name, getattr(value, field.name)))
    return made
