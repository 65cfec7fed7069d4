"""Values of a store as plain JSON and back; arrays go into a table of their own and leave their name behind.

Nothing that is read is ever executed: values are rebuilt from names in a fixed table (records of this package,
distributions of numpyro, optimisers of optax), and what is not in it is reported.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax

from posterity.core import pytrees, records
from posterity.core.checks import is_number
from posterity.core.names import printable
from posterity.models.priors import Fixed, Flat
from posterity.networks.images import LeNet, ResNet, UNet
from posterity.networks.perceptron import MLP
from posterity.networks.sequences import CNNLSTM

DISTRIBUTIONS = ("Normal", "Laplace", "StudentT", "Cauchy", "Logistic", "Uniform", "Gumbel", "SoftLaplace")
PLAIN = {records.qualified_name(cls): cls for cls in (MLP, LeNet, ResNet, UNet, CNNLSTM, Flat, Fixed)}
KINDS = ("array", "dict", "tuple", "record", "mixture", "distribution", "optimizer", "missing")
OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop", "adagrad", "lion", "nadam", "radam", "adabelief", "lamb", "noisy_sgd")
PASSED_AGAIN = ("model", "method")  # to `load` or `resume`: the only values of which a store may lack a part


class StoreError(ValueError):
    """A store that cannot be read, or not for what was asked; the message says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))  # it may quote the store


class Missing:
    """What a store could not hold: a function of the user's own. It must be passed again."""

    def __init__(self, what: str) -> None:
        self.what = what


def encode(value: Any, arrays: dict[str, np.ndarray], name: str = "") -> Any:
    """A value as JSON; its arrays are added to `arrays` under their paths.

    `name` is the path of the value. What cannot be held is refused, but for parts of what a user can pass again.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic) or (
        isinstance(value, jax.Array | np.ndarray) and np.ndim(value) == 0 and not name
    ):
        return np.asarray(value).item()
    if isinstance(value, jax.Array | np.ndarray):
        while name in arrays:  # keys may hold a slash: {"a/b": ..., "a": {"b": ...}}
            name += "+"
        arrays[name] = np.asarray(value)
        return {"array": name}
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        return {"dict": [[key, encode(item, arrays, f"{name}/{key}")] for key, item in value.items()]}
    if isinstance(value, tuple | list) and not _is_named(value):
        return {"tuple": [encode(item, arrays, f"{name}/{i}") for i, item in enumerate(value)]}
    if _is_record(value):
        fields = {}
        for field in _stored_fields(value):
            part = getattr(value, field.name)
            stored = encode(_plain(part, field), arrays, f"{name}/{field.name}")
            if not (part is field.default and _is_missing(stored)):  # a function that is the default comes back as it
                fields[field.name] = stored
        return {"record": records.qualified_name(type(value)), "fields": fields}
    return _encode_named(value, arrays, name)


def _encode_named(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
    if isinstance(value, dist.MixtureSameFamily):
        parts = (value.mixing_distribution.probs, value.component_distribution)
        return {"mixture": [encode(part, arrays, f"{name}/{i}") for i, part in enumerate(parts)]}
    if type(value).__name__ in DISTRIBUTIONS and isinstance(value, dist.Distribution):
        names = type(value).arg_constraints
        return {
            "distribution": type(value).__name__,
            "arguments": {n: encode(getattr(value, n), arrays, f"{name}/{n}") for n in names},
        }
    for optimizer in OPTIMIZERS:
        if value is getattr(optax, optimizer):
            return {"optimizer": optimizer}
    if name.split("/")[0] not in PASSED_AGAIN:
        raise StoreError(
            f"A store cannot hold {name.strip('/') or 'the value'} of type {type(value).__name__}: use arrays in a "
            "dict, list or tuple instead, a dict with texts or whole numbers as keys."
        )
    return {"missing": f"{name}: {type(value).__name__}"}


def decode(stored: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value again; `Missing` where the store could not hold it.

    Its arrays are taken out of `arrays`: each belongs to one value, so that a store cannot ask for it many times.
    """
    if not isinstance(stored, dict):
        return stored
    kind = next((kind for kind in KINDS if kind in stored), "none of them")
    content: Any = stored.get(kind)
    if kind == "array":
        return arrays.pop(content)
    if kind == "dict":
        return {key: decode(item, arrays) for key, item in content}
    if kind == "tuple":
        return tuple(decode(item, arrays) for item in content)
    if kind == "record":
        return _decode_record(content, {n: decode(v, arrays) for n, v in stored["fields"].items()})
    if kind == "mixture":
        probs, components = (decode(part, arrays) for part in content)
        return dist.MixtureSameFamily(dist.Categorical(probs=jnp.asarray(probs)), components)
    if kind == "distribution":
        if content not in DISTRIBUTIONS:
            raise StoreError(f"The store names a distribution {content!r} that is not allowed; it is damaged.")
        arguments = {name: decode(item, arrays) for name, item in stored["arguments"].items()}
        return getattr(dist, content)(**{n: _unwrap(v) for n, v in arguments.items()})
    if kind == "optimizer" and content in OPTIMIZERS:
        return getattr(optax, content)
    if kind == "missing":
        return Missing(content)
    raise StoreError(f"The store holds a value of the unknown kind {kind!r}; it is damaged or from another version.")


def _decode_record(name: str, fields: dict[str, Any]) -> Any:
    """A record built as a user builds it, with its checks; unchecked where a part must be passed again."""
    cls = _class_of(name)
    if cls is None:
        raise StoreError(
            f"The store names {name!r}, which this process does not know: import the module that defines it, or pip "
            "install -U posterity."
        )
    known = {f.name: f for f in dataclasses.fields(cls)}
    for field in set(fields) - set(known):
        raise StoreError(f"The store gives {name} a field {field!r}, which this version does not have.")
    if "start" in known:
        fields = {"start": None, **fields}  # what a run started from has served
    for field, given in fields.items():
        default = known[field].default
        if isinstance(given, tuple) and _is_named(default) and not _is_named(given):
            fields[field] = type(default)(*given)
    if not find_missing(tuple(fields.values())):
        return cls(**fields)
    value = object.__new__(cls)
    for field, described in known.items():
        object.__setattr__(value, field, fields.get(field, described.default))
    return value


def _class_of(name: str) -> Any:
    return PLAIN.get(name) or records.RECORDS.get(name)


def _is_record(value: Any) -> bool:
    """Whether a store can name the class of this value and find it again."""
    return _class_of(records.qualified_name(type(value))) is type(value)


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_missing(stored: Any) -> bool:
    return isinstance(stored, dict) and "missing" in stored


def _plain(value: Any, field: Any) -> Any:
    """A NamedTuple as the tuple it is, where the default of a record's field says which one to make of it again."""
    return tuple(value) if _is_named(field.default) and type(value) is type(field.default) else value


def find_missing(value: Any) -> list[str]:
    """What a decoded value lacks."""
    if isinstance(value, Missing):
        return [value.what]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [what for f in dataclasses.fields(value) for what in find_missing(getattr(value, f.name))]
    if isinstance(value, dict | tuple | list):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        return [what for item in items for what in find_missing(item)]
    return []


def alike(a: Any, b: Any) -> bool:
    """Whether two values are stored as the same but for rounding; of functions that none can hold, this is unknown."""
    texts, numbers = [], []
    for value in (a, b):
        arrays: dict[str, np.ndarray] = {}
        stored = encode(decode(encode(value, arrays, "model"), arrays), arrays, "model")  # as it comes back
        leaves, structure = jax.tree.flatten(stored)
        texts.append((structure, [leaf for leaf in leaves if not is_number(leaf)], list(arrays)))
        numbers.append([leaf for leaf in leaves if is_number(leaf)] + list(arrays.values()))
    return texts[0] == texts[1] and all(
        np.shape(x) == np.shape(y) and np.allclose(x, y, rtol=1e-6, atol=0.0) for x, y in zip(*numbers, strict=True)
    )


def fingerprint(values: Any) -> str:
    """A digest of a pytree of arrays: the same for the same numbers, shapes and types."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(values):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{pytrees.path_name(path)} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def plain_json(metadata: dict[str, Any] | None) -> dict[str, Any]:
    """The user's metadata as it will come back from a manifest."""
    try:
        return json.loads(json.dumps(metadata or {}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StoreError(f"metadata must be plain JSON (texts, finite numbers, lists, dicts): {error}.") from error


def _stored_fields(value: Any) -> list[Any]:
    """All but a `start` that is no record: a posterior or weights, which have served once a run has ended."""

    def serves(field: Any) -> bool:
        return field.name != "start" or _is_record(value.start)

    return [f for f in dataclasses.fields(value) if serves(f)]


def _unwrap(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
