"""`from_torch`: a network of a PyTorch module. `to_torch`: its posterior as state dicts of that module."""

# PyTorch is not in the environment of the type checker.
# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array, Key, Network, Params
from posterity.networks.pytorch.graph import Exported, Operations, run

if TYPE_CHECKING:
    import torch

    from posterity.posterior.posterior import Posterior

ROWS = 3  # of the example that are exported with; a graph of one row would hold for one row alone


def from_torch(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    example: Any,
    *,
    output: str | int | None = None,
    dropout: bool = True,
    operations: Operations | None = None,
) -> Network:
    """A network of a PyTorch module, whose graph (`torch.export`) is interpreted in JAX.

    Weights have PyTorch's names, such as "layer1.0.conv1.weight", and begin at the module's values. Buffers, and
    parameters that do not require a gradient, are constants.

    Args:
        module: The module, after `module.eval()` if it has a BatchNorm; or a function without arguments that builds
            one, which each chain then calls under a seed of its own.
        example: Inputs, at least one row: an array or tensor; a tuple, whose parts are the arguments of `forward`; or a
            dictionary of its arguments by name. x has the same form.
        output: Which part is the output of the network, where the module returns a tuple or a dictionary.
        dropout: Whether the module's dropout is kept: it is then on where `apply` is given a key. False: the module is
            taken in evaluation mode.
        operations: Functions of JAX arrays for operations of PyTorch that are not known here, by name:
            {"aten.sinc.default": jnp.sinc}.
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("from_torch needs PyTorch: pip install 'posterity[torch]'.") from error
    from posterity.networks.pytorch.export import export

    made = module if isinstance(module, torch.nn.Module) else module()
    if not isinstance(made, torch.nn.Module):
        raise TypeError(
            f"from_torch got {type(made).__name__}; expected a torch.nn.Module, or a function without arguments that "
            "returns one."
        )
    rows = _example_rows(made, example)
    exported = export(made, rows if isinstance(rows, tuple | dict) else (rows,), dropout)
    network = network_of(exported, output, dict(operations or {}))
    _check_same(network, made, rows, output)
    if made is module:
        return network
    build: Any = module
    return network._replace(init=_fresh_weights(build, exported))


def network_of(exported: Exported, output: str | int | None = None, operations: Operations = {}) -> Network:  # noqa: B006
    """The network of an exported graph; PyTorch is no longer needed."""
    graph, weights, constants = exported
    if unknown := graph.unknown(operations):
        raise ValueError(
            f"The module uses operations that are not known here: {', '.join(unknown)}. Give each as a function of JAX "
            "arrays with the same arguments: "
            f'from_torch(module, example, operations={{"{unknown[0]}": lambda x: ...}}).'
        )
    if not weights:
        raise ValueError(
            "No parameter of the module requires a gradient, so there is nothing to infer: call "
            "module.requires_grad_(True) before from_torch(module, example)."
        )
    if isinstance(graph.output, dict | list):
        graph = graph._replace(output=_chosen(graph.output, output))

    def init(key: Key, x: Any) -> Params:
        del key, x
        return {name: jnp.asarray(value) for name, value in weights.items()}

    def apply(params: Params, x: Any, key: Key | None = None) -> Array:
        held = {name: jnp.asarray(value) for name, value in constants.items()}
        return run(graph, params, held, jax.tree.leaves(x), key, operations)

    return Network(init, apply, fan_in_axis=-1)


def _chosen(outputs: dict[str, Any] | list[Any], output: str | int | None) -> Any:
    """The part of a module's outputs that is wanted; all of a dictionary where none is named."""
    if output is None and isinstance(outputs, dict):
        return outputs
    names = list(outputs) if isinstance(outputs, dict) else list(range(len(outputs)))
    if output is None and len(names) == 1:
        return outputs[names[0]]  # type: ignore[index]
    if output not in names:
        raise ValueError(
            f"The module returns {len(names)} parts, {', '.join(map(repr, names))}, and output={output!r} is none of "
            f"them; say which is the output of the network: from_torch(module, example, output={names[0]!r})."
        )
    return outputs[output]  # type: ignore[index]


def _example_rows(module: torch.nn.Module, example: Any) -> Any:
    """The first rows of the example as tensors, repeated where there are too few."""
    import torch

    real = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())

    def leaf(value: Any) -> torch.Tensor:
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
        if tensor.ndim == 0 or len(tensor) == 0:
            raise ValueError("The example has no rows; give at least one, with the axis of rows first.")
        tensor = tensor.to(real) if tensor.is_floating_point() else tensor
        return tensor.repeat(-(-ROWS // len(tensor)), *(1 for _ in tensor.shape[1:]))[:ROWS]

    if isinstance(example, Mapping):
        return {name: leaf(value) for name, value in example.items()}
    return tuple(map(leaf, example)) if isinstance(example, tuple) else leaf(example)


def _check_same(network: Network, module: torch.nn.Module, rows: Any, output: str | int | None) -> None:
    """Refuse a network that differs from the module in evaluation mode, for other rows than those of the export."""
    import torch

    fewer = jax.tree.map(lambda tensor: tensor[: ROWS - 1], rows)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        # With gradients: without, PyTorch takes other ways through its transformers, which give 0 for padding.
        given = (
            module(**fewer) if isinstance(fewer, dict) else module(*(fewer if isinstance(fewer, tuple) else (fewer,)))
        )
    finally:
        for part, mode in modes.items():
            part.training = mode
    expected = given if output is None or isinstance(given, torch.Tensor) else given[output]
    x = jax.tree.map(lambda tensor: jnp.asarray(tensor.cpu().numpy()), fewer)
    made = jax.jit(network.apply)(network.init(jax.random.key(0), x), x)
    pairs = _pairs(expected, made)
    for theirs, ours in pairs:
        wanted = theirs.detach().double().cpu().numpy()
        scale = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)) or 1.0
        tolerance = 1e-8 if ours.dtype == jnp.float64 and theirs.dtype == torch.float64 else 1e-3
        same = np.shape(ours) == wanted.shape and np.allclose(ours, wanted, 1e-3, tolerance * scale, equal_nan=True)
        if not same:
            raise ValueError(
                f"The network in JAX gives other outputs than {type(module).__name__} in evaluation mode for the "
                "example. If a part of the module does more in training mode than dropout, say from_torch(module, "
                "example, dropout=False); if you gave operations=, compare them with PyTorch's."
            )


def _pairs(theirs: Any, ours: Any) -> list[tuple[Any, Any]]:
    """Each output of the module with that of the network."""
    if isinstance(ours, dict):
        return [(theirs[name], value) for name, value in ours.items()]
    if isinstance(theirs, Mapping):
        theirs = next(iter(theirs.values()))
    return [(theirs[0] if isinstance(theirs, list | tuple) else theirs, ours)]


def _fresh_weights(build: Callable[[], torch.nn.Module], exported: Exported) -> Callable[[Key, Any], Params]:
    """The weights of a module that is built anew, under a seed from the key."""
    import torch

    from posterity.networks.pytorch.export import array

    shapes = {name: jax.ShapeDtypeStruct(w.shape, jnp.asarray(w).dtype) for name, w in exported.weights.items()}

    def built(seed: np.ndarray) -> dict[str, np.ndarray]:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(seed))
            parameters = dict(build().named_parameters())
        return {name: array(parameters[name]).astype(like.dtype) for name, like in shapes.items()}

    def init(key: Key, x: Any) -> Params:
        del x
        seed = jax.random.randint(key, (), 0, jnp.iinfo(jnp.int32).max)
        return jax.pure_callback(built, shapes, seed, vmap_method="sequential")

    return init


def to_torch(
    posterior: Posterior,
    module: torch.nn.Module,
    weights: Literal["draws", "mean"] = "draws",
    *,
    num_draws: int | None = None,
    seed: int = 0,
) -> list[dict[str, torch.Tensor]]:
    """Weights of a posterior as complete state dicts of the module, for `module.load_state_dict`.

    Args:
        posterior: Of a model whose network is `from_torch(module, example)`.
        module: Gives names, types, and all that is no weight, such as running statistics. It is not changed.
        weights: "draws": a state dict for each draw. "mean": one, with the mean of the draws; of chains in different
            modes it is the weights of no good network.
        num_draws: How many draws. None: all that are stored, or one where fresh ones are made.
        seed: Of fresh draws.
    """
    import torch

    if weights not in ("draws", "mean"):
        raise ValueError(f"weights={weights!r} is not known; choose 'draws' or 'mean'.")
    stored = posterior.family.num_draws is not None
    if weights == "mean" and not stored:  # a Gaussian's mean, or what dropout acts on
        complete = posterior.starting_weights(posterior.family.num_chains)
    else:
        complete = posterior.weights(None if weights == "mean" else num_draws, seed)
    draws = {name: np.asarray(value) for name, value in complete["network"].items()}
    if weights == "mean":
        draws = {name: value.mean(0, keepdims=True) for name, value in draws.items()}
    state = module.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(state.items())}  # a tied weight has several names
    if missing := sorted(set(draws) - set(state)):
        raise ValueError(
            f"{type(module).__name__} has no parameter {', '.join(missing[:5])}; give the module that the posterior's "
            "network was made of by from_torch."
        )

    def dressed(name: str, tensor: torch.Tensor, index: int) -> torch.Tensor:
        known = draws.get(first[id(tensor)], draws.get(name))
        if known is None:
            return tensor.detach().clone()
        return torch.as_tensor(np.array(known[index])).to(tensor)

    count = len(next(iter(draws.values())))
    return [{name: dressed(name, tensor, i) for name, tensor in state.items()} for i in range(count)]
