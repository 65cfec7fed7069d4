"""The program of a PyTorch module as plain data, and its interpreter in JAX.

A graph is a list of calls of named operations on named values; operations.py has a function of JAX arrays for each. It
can be written as JSON and read again, so nothing here needs PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array, Key
from posterity.networks.pytorch.operations import OPERATIONS, RANDOM

Operation = Callable[..., Any]
Operations = Mapping[str, Operation]


class Value(NamedTuple):
    """A value of the graph, as an argument of a call."""

    name: str


class Dtype(NamedTuple):
    """A number type, by its name in PyTorch and JAX."""

    name: str


Argument = Value | Dtype | str | bool | int | float | list["Argument"] | dict[str, "Argument"] | None


class Call(NamedTuple):
    """name = operation(*arguments, **options)."""

    name: str
    operation: str
    arguments: list[Argument]
    options: dict[str, Argument]


class Graph(NamedTuple):
    """A program.

    Args:
        inputs: Names of the values that are arguments of the module, in the order of the leaves of x, and their types.
        weights: For each value that is a weight, the name of the parameter.
        constants: The same for buffers, frozen parameters and tensors in the code.
        calls: In the order of their execution.
        output: The value that the module returns, or a dictionary or list of them.
    """

    inputs: dict[str, str]
    weights: dict[str, str]
    constants: dict[str, str]
    calls: list[Call]
    output: Argument

    def to_json(self) -> str:
        calls = [[c.name, c.operation, _encode(c.arguments), _encode(c.options)] for c in self.calls]
        return json.dumps(self._replace(calls=calls, output=_encode(self.output))._asdict())  # type: ignore[arg-type]

    @classmethod
    def from_json(cls, text: str) -> Graph:
        read = json.loads(text)
        calls = [Call(name, operation, _decode(a), _decode(o)) for name, operation, a, o in read.pop("calls")]
        return cls(**{**read, "output": _decode(read["output"])}, calls=calls)

    def unknown(self, operations: Operations) -> list[str]:
        """Operations that neither the table nor `operations` has, each once."""
        names = dict.fromkeys(call.operation for call in self.calls)
        return [name for name in names if find(name, operations) is None and find(name, RANDOM) is None]


class Exported(NamedTuple):
    """A graph, with the values of its weights and constants by name."""

    graph: Graph
    weights: dict[str, np.ndarray]
    constants: dict[str, np.ndarray]


def run(
    graph: Graph,
    weights: Mapping[str, Array],
    constants: Mapping[str, Array],
    inputs: list[Array],
    key: Key | None = None,
    operations: Operations = {},  # noqa: B006
) -> Any:
    """What the module returns for these weights and inputs; a key switches dropout on."""
    values: dict[str, Any] = {name: weights[of] for name, of in graph.weights.items()}
    values.update({name: constants[of] for name, of in graph.constants.items()})
    values.update(zip(graph.inputs, map(_as_type, inputs, graph.inputs.values()), strict=True))
    for number, call in enumerate(graph.calls):
        arguments, options = _resolve(call.arguments, values), _resolve(call.options, values)
        function = find(call.operation, operations)
        if function is None:  # neither the user's nor ours: the table of those that draw random numbers
            drawn = RANDOM[_name_in(call.operation, RANDOM) or call.operation]
            own_key = None if key is None else jax.random.fold_in(key, number)
            values[call.name] = drawn(own_key, *arguments, **options)
        else:
            values[call.name] = function(*arguments, **options)
    return _resolve(graph.output, values)


def find(name: str, operations: Operations) -> Operation | None:
    """The function for an operation such as "aten.add_.Tensor": the user's, or the table's."""
    for table in (operations, OPERATIONS):
        found = _name_in(name, table)
        if found is not None:
            return table[found]
    return None


def _name_in(name: str, table: Operations) -> str | None:
    """The name under which a table has an operation: its own, without the overload, or that of its pure form."""
    return next((candidate for candidate in _candidates(name) if candidate in table), None)


def _candidates(name: str) -> Iterator[str]:
    base, _, overload = name.rpartition(".")
    yield from (name, base)
    if base.endswith("_"):
        yield from (f"{base[:-1]}.{overload}", base[:-1])


def _as_type(value: Array, dtype: str) -> Array:
    """An input in the kind of numbers that the module was exported with; real numbers keep their precision."""
    value = jnp.asarray(value)
    wanted = jax.dtypes.canonicalize_dtype(dtype)
    both_real = jnp.issubdtype(wanted, jnp.floating) and jnp.issubdtype(value.dtype, jnp.floating)
    return value if both_real else value.astype(wanted)


def _resolve(argument: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(argument, Value):
        return values[argument.name]
    if isinstance(argument, Dtype):
        return jax.dtypes.canonicalize_dtype(argument.name)
    if isinstance(argument, list):
        return [_resolve(part, values) for part in argument]
    if isinstance(argument, dict):
        return {name: _resolve(part, values) for name, part in argument.items()}
    return argument


def _encode(argument: Any) -> Any:
    """As JSON: a value is {"value": name}, a type {"dtype": name}, a dictionary {"dict": {...}}."""
    if isinstance(argument, Value | Dtype):
        return {type(argument).__name__.lower(): argument.name}
    if isinstance(argument, list):
        return [_encode(part) for part in argument]
    if isinstance(argument, dict):
        return {"dict": {name: _encode(part) for name, part in argument.items()}}
    return argument


def _decode(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_decode(part) for part in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, content),) = argument.items()
    if kind == "dict":
        return {name: _decode(part) for name, part in content.items()}
    return {"value": Value, "dtype": Dtype}[kind](content)
