"""From a PyTorch module to a graph, by `torch.export`.

One export serves with and without dropout: the module is exported in training mode, so that dropout is in the graph,
but for normalisations with running statistics, which stay in the mode that the user has put them in.
"""

# PyTorch is not in the environment of the type checker.
# pyright: reportMissingImports=false
from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree

from posterity.networks.pytorch.graph import Argument, Call, Dtype, Exported, Graph, Value

# Where a tensor lies, and whether it is a copy, says nothing of its values.
IGNORED = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy")
CREATED = ("full", "zeros", "ones", "empty", "arange", "eye", "linspace", "scalar_tensor")
VIEWS = ("alias", "chunk", "detach", "diagonal", "expand", "narrow", "permute", "reshape", "select", "slice", "split")
VIEWS += ("squeeze", "t", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "flatten", "getitem")
REGIONS = ("wrap_with_set_grad_enabled", "wrap_with_autocast")


def export(module: torch.nn.Module, example: tuple[Any, ...] | dict[str, Any], dropout: bool) -> Exported:
    """The program of a module for any number of rows; `example` has at least two."""
    with _mode(module, dropout), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.export about its own inside
        program = _program(module, example)
        if any(_writes_elsewhere(node) for node in program.graph.nodes):
            program = program.run_decompositions({})
    return _Reader(program).read(module, example)


def _program(module: torch.nn.Module, example: tuple[Any, ...] | dict[str, Any]) -> torch.export.ExportedProgram:
    """By running the code, or where that fixes the number of rows, as `len(x)` does, by reading it ("strict")."""
    positional, named = (example, {}) if isinstance(example, tuple) else ((), example)
    rows = {0: torch.export.Dim.AUTO}
    shapes = dict.fromkeys(named, rows) if named else tuple(rows for _ in positional)
    failure: ValueError | None = None
    for strict in (False, True):
        try:
            program = torch.export.export(module, positional, named, dynamic_shapes=shapes, strict=strict)
        except Exception as error:  # PyTorch's exporter and the user's own code may raise anything
            failure = failure or ValueError(
                f"torch.export cannot write {type(module).__name__} as a graph. It raised {type(error).__name__}: "
                f"{str(error).strip().splitlines()[0]} A forward that decides by the values of tensors, or that turns "
                "them into numbers of Python, has no graph: write it with torch.where."
            )
            continue
        fixed = [name for name, value in _user_inputs(program).items() if _is_fixed(value.shape[0])]
        if not fixed:
            return program
        failure = ValueError(
            f"The graph that torch.export wrote holds for {len(_leaves(example)[0])} rows of {', '.join(fixed)} alone: "
            "forward fixes the number of rows. Take it from the input: x.flatten(1) or x.reshape(x.shape[0], -1) in "
            "place of x.view(32, -1)."
        )
    assert failure is not None
    raise failure


def _leaves(example: tuple[Any, ...] | dict[str, Any]) -> list[Any]:
    return list(example.values() if isinstance(example, dict) else example)


def _is_fixed(size: int | torch.SymInt) -> bool:
    return isinstance(size, int) or size.node.maybe_as_int() is not None


def _user_inputs(program: torch.export.ExportedProgram) -> dict[str, Any]:
    """Name and value of each input, in PyTorch's order."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    return {str(name): values[str(name)] for name in program.graph_signature.user_inputs}


@contextlib.contextmanager
def _mode(module: torch.nn.Module, training: bool) -> Iterator[None]:
    """Training mode, if asked for, for all but normalisations with running statistics."""
    before = {part: part.training for part in module.modules()}
    try:
        for part in before:
            if not isinstance(part, _NormBase):
                part.training = training
        yield
    finally:
        for part, mode in before.items():
            part.training = mode


def _writes_elsewhere(node: Node) -> bool:
    """Whether an operation in place changes a value that is, or shares memory with, one read under another name."""
    if node.op != "call_function" or not _base(_operation(node)).endswith("_"):
        return False
    changed = node.args[0]
    if not isinstance(changed, Node) or changed.op == "placeholder" or len(changed.users) > 1:
        return True
    return _base(_operation(changed)).rpartition(".")[2] in VIEWS


def _operation(node: Node) -> str:
    """aten.add.Tensor, operator.mul or torch.sym_max."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return f"higher_order.{node.target.name()}"
    target: Any = node.target
    module = "operator" if target in vars(operator).values() else "torch"
    return f"{module}.{target.__name__}"


def _base(operation: str) -> str:
    return operation.rpartition(".")[0] if operation.startswith("aten.") else operation


class _Reader:
    """Reads the nodes of an exported program; `names` has what each is called in the graph."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self.calls: list[Call] = []

    def read(self, module: torch.nn.Module, example: tuple[Any, ...] | dict[str, Any]) -> Exported:
        signature = self.program.graph_signature
        if written := {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}:
            raise ValueError(
                f"{type(module).__name__} writes to {', '.join(sorted(set(written.values())))} when it is called, so "
                "that a call changes the next one's result. Call module.eval() before from_torch(module, example), or "
                "leave that out of its forward."
            )
        outputs = self._body(self.program.graph, {}, "")
        spec = self.program.call_spec.out_spec
        calls, used = _needed(self.calls, outputs)
        free = _free_parameters(module)
        named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        named.update(signature.inputs_to_lifted_tensor_constants)
        weights = {value: free[name] for value, name in named.items() if value in used and name in free}
        constants = {value: name for value, name in named.items() if value in used and value not in weights}
        tensors = {**self.program.state_dict, **self.program.constants}
        inputs = _inputs(self.program, example)
        graph = Graph(inputs, weights, constants, calls, _plain(_pytree.tree_unflatten(outputs, spec)))
        return Exported(
            graph,
            {name: array(tensors[name]) for name in weights.values()},
            {name: array(tensors[name]) for name in constants.values()},
        )

    def _body(self, graph: torch.fx.Graph, names: dict[Node, Argument], prefix: str) -> list[Argument]:
        """Append the calls of a graph; what it returns."""
        for node in graph.nodes:
            if node.op == "placeholder":
                names.setdefault(node, Value(node.name))
            elif node.op == "output":
                return [_argument(part, names) for part in _pytree.tree_leaves(node.args[0], lambda x: x is None)]
            elif node.op == "call_function":
                self._call(node, names, prefix)
        raise ValueError("The exported graph has no output.")

    def _call(self, node: Node, names: dict[Node, Argument], prefix: str) -> None:
        operation, name = _operation(node), prefix + node.name
        if operation.removeprefix("higher_order.") in REGIONS:
            names[node] = self._region(node, names, name)
            return
        if operation == "operator.getitem" and isinstance(whole := names[node.args[0]], list):  # type: ignore[index]
            names[node] = whole[node.args[1]]  # type: ignore[index]
            return
        arguments: Any = _argument(list(node.args), names)
        options = {key: _argument(part, names) for key, part in node.kwargs.items() if key not in IGNORED}
        base = _base(operation).rpartition(".")[2]
        if base in CREATED and options.get("dtype") is None:
            options["dtype"] = Dtype(_dtype_name(node.meta["val"].dtype))
        if _normalises_over_rows(base, arguments):
            raise ValueError(
                "The module has a BatchNorm in training mode, which normalises with batch statistics: each row's "
                "likelihood would depend on the rows beside it. Call module.eval() before from_torch(module, example), "
                "which makes its stored statistics constants (dropout stays), or use GroupNorm or LayerNorm."
            )
        self.calls.append(Call(name, operation, arguments, options))
        names[node] = Value(name)

    def _region(self, node: Node, names: dict[Node, Argument], name: str) -> list[Argument]:
        """A part of the program that PyTorch runs without gradients, or in another precision, written out."""
        first = next(i for i, part in enumerate(node.args) if isinstance(part, Node) and part.op == "get_attr")
        body: Any = getattr(self.program.graph_module, str(node.args[first].target))  # type: ignore[union-attr]
        inside = [part for part in body.graph.nodes if part.op == "placeholder"]
        given = {part: _argument(value, names) for part, value in zip(inside, node.args[first + 1 :], strict=True)}
        outputs = self._body(body.graph, given, f"{name}/")
        if node.args[0] is not False:
            return outputs
        made = [Call(f"{name}/{i}", "aten.detach.default", [part], {}) for i, part in enumerate(outputs)]
        self.calls.extend(made)
        return [Value(call.name) for call in made]


def _free_parameters(module: torch.nn.Module) -> dict[str, str]:
    """Every name of a parameter with a gradient, and its first: a tied weight has several."""
    first: dict[int, str] = {}
    every = module.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(tensor), name) for name, tensor in every if tensor.requires_grad}


def _argument(part: Any, names: Mapping[Node, Argument]) -> Argument:
    if isinstance(part, Node):
        return names[part]
    if isinstance(part, torch.dtype):
        return Dtype(_dtype_name(part))
    if isinstance(part, list | tuple):
        return [_argument(one, names) for one in part]
    if isinstance(part, bool | int | float | str) or part is None:
        return part
    if isinstance(part, torch.device | torch.layout | torch.memory_format):
        return None
    raise TypeError(f"The exported graph has an argument of type {type(part).__name__}, which is not known here.")


def _normalises_over_rows(base: str, arguments: list[Any]) -> bool:
    if base == "batch_norm":
        return bool(arguments[5])
    return base in ("_native_batch_norm_legit", "_native_batch_norm_legit_functional", "native_batch_norm")


def _needed(calls: list[Call], outputs: list[Argument]) -> tuple[list[Call], set[str]]:
    """Calls whose results are used, and all values that are; checks of shapes are not among them."""
    used = set(_values(outputs))
    kept = []
    for call in reversed(calls):
        if call.name in used:
            kept.append(call)
            used.update(_values([call.arguments, call.options]))
    return kept[::-1], used


def _values(argument: Any) -> Iterator[str]:
    if isinstance(argument, Value):
        yield argument.name
    elif isinstance(argument, list | dict):
        for part in argument.values() if isinstance(argument, dict) else argument:
            yield from _values(part)


def _inputs(program: torch.export.ExportedProgram, example: tuple[Any, ...] | dict[str, Any]) -> dict[str, str]:
    """Names and types of the inputs, in the order of JAX's leaves of x: a dictionary's by their keys."""
    types = {name: _dtype_name(value.dtype) for name, value in _user_inputs(program).items()}
    if isinstance(example, tuple):
        return types
    order = program.call_spec.in_spec.child(1).context  # type: ignore[union-attr]
    return {name: types[name] for _, name in sorted(zip(order, types, strict=True))}


def _plain(output: Any) -> Argument:
    """The structure of an output in dictionaries and lists."""
    if isinstance(output, Mapping):
        return {str(name): _plain(part) for name, part in output.items() if part is not None}
    return (
        [_plain(part) for part in output] if isinstance(output, list | tuple) and type(output) is not Value else output
    )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def array(tensor: torch.Tensor) -> np.ndarray:
    """A copy of its values; those of bfloat16, which numpy does not have, in single precision."""
    host = tensor.detach().cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy().copy()
