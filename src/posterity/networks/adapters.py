"""Networks from what people already have: a Flax NNX or Equinox module, or a pair of functions.

The weights become plain dictionaries of arrays named by their paths, so that priors, stores and reports can speak of
them; whatever else a module holds (frozen BatchNorm statistics, counters) is a constant of `apply`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core import pytrees
from posterity.core.types import Array, Key, Network, Params

_BATCH_NORM = (
    "{module} normalises with batch statistics that move, so each row's likelihood would depend on the rows beside it. "
    "Use LayerNorm, GroupNorm or filter response normalisation instead, or freeze the statistics: {remedy}."
)


def from_function(init: Callable[[Key, Any], Params], apply: Callable[..., Array], *, fan_in_axis: int = -2) -> Network:
    """A network of two functions: `init(key, x) -> params`, `apply(params, x)` or `apply(params, x, key)`.

    `fan_in_axis`: The axis of a weight matrix that is summed over: -2 for [in, out], -1 for [out, in].
    """
    if fan_in_axis not in (-2, -1):
        raise ValueError(
            f"fan_in_axis={fan_in_axis!r} is not known; -2 is for weights [..., in, out], -1 for [out, in, ...]."
        )
    if "key" in inspect.signature(apply).parameters:
        return Network(init, apply, fan_in_axis)

    def apply_without_key(params: Params, x: Any, key: Key | None = None) -> Array:
        del key
        return apply(params, x)

    return Network(init, apply_without_key, fan_in_axis)


def _calls(module: type) -> Callable[..., Any]:
    """`call(module, x)`: the parts of x are arguments of their own where `__call__` needs several."""
    parameters = list(inspect.signature(module.__call__).parameters.values())[1:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty and p.name != "key"]

    def call(module: Any, x: Any, **options: Any) -> Any:
        if len(needed) > 1 and isinstance(x, tuple):
            return module(*x, **options)
        return module(**x, **options) if len(needed) > 1 and isinstance(x, dict) else module(x, **options)

    return call


def from_nnx(module: Any) -> Network:
    """A network of a Flax NNX module: `from_nnx(lambda key: Net(rngs=nnx.Rngs(key)))`, or an instance to start from."""
    try:
        from flax import nnx
    except ImportError as error:
        raise ImportError("from_nnx needs Flax: pip install 'posterity[flax]'.") from error
    instance = module if isinstance(module, nnx.Module) else _made(module, "from_nnx(lambda key: Net(nnx.Rngs(key)))")
    if not isinstance(instance, nnx.Module):
        raise TypeError(
            f"from_nnx got {type(instance).__name__}; expected an nnx.Module or a function key -> nnx.Module."
        )
    for _, part in nnx.iter_modules(instance):
        if isinstance(part, nnx.BatchNorm) and not part.use_running_average:
            raise ValueError(_BATCH_NORM.format(module="nnx.BatchNorm", remedy="module.eval() before from_nnx(module)"))

    def modes(deterministic: bool) -> Any:
        view = nnx.clone(instance)
        view.set_attributes(deterministic=deterministic, raise_if_not_found=False)
        return nnx.split(view, nnx.Param, nnx.RngState, ...)

    graph_off, template, rng_state, constants = modes(True)
    graph_on = modes(False)[0]
    call = _calls(type(instance))

    def init(key: Key, x: Any) -> Params:
        del x
        made = instance if isinstance(module, nnx.Module) else module(key)
        return nnx.to_pure_dict(nnx.state(made, nnx.Param))

    def apply(params: Params, x: Any, key: Key | None = None) -> Array:
        weights = jax.tree.map(lambda leaf: leaf, template)
        nnx.replace_by_pure_dict(weights, params)
        if key is None:
            return call(nnx.merge(graph_off, weights, rng_state, constants, copy=True), x)
        return call(nnx.merge(graph_on, weights, _reseeded(rng_state, key), constants, copy=True), x)

    def _reseeded(state: Any, key: Key) -> Any:
        # Every stream by hand: nnx.reseed passes over streams that were built under another name.
        leaves, structure = jax.tree.flatten(state)
        keys = [jax.random.fold_in(key, i) for i in range(len(leaves))]

        def fresh(leaf: Array, key_leaf: Key) -> Array:
            if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                return jnp.zeros_like(leaf)
            return jax.random.wrap_key_data(jax.random.key_data(key_leaf), impl=jax.random.key_impl(leaf))

        return jax.tree.unflatten(structure, [fresh(leaf, k) for leaf, k in zip(leaves, keys, strict=True)])

    return Network(init, apply)


def _made(function: Any, example: str) -> Any:
    """The module that a user's function of a key makes; `example` is how the adapter wants to be called."""
    try:
        return function(jax.random.key(0))
    except Exception as error:  # the user's own code may raise anything
        raise TypeError(
            f"{example.split('(')[0]} called {getattr(function, '__name__', type(function).__name__)} with a random "
            f"key, which failed ({type(error).__name__}: {error}); give a function of a key, {example}."
        ) from error


def from_equinox(module: Any) -> Network:
    """A network of an Equinox module for ONE row: `from_equinox(lambda key: Net(key))`, or an instance."""
    try:
        import equinox as eqx
    except ImportError as error:
        raise ImportError("from_equinox needs Equinox: pip install 'posterity[equinox]'.") from error
    instance = module if isinstance(module, eqx.Module) else _made(module, "from_equinox(lambda key: Net(key))")
    if not isinstance(instance, eqx.Module):
        raise TypeError(
            f"from_equinox got {type(instance).__name__}; expected an eqx.Module or a function key -> eqx.Module."
        )

    def is_stateful(part: Any) -> bool:
        return isinstance(part, eqx.nn.StatefulLayer) and part.is_stateful()  # a Sequential may be, or not

    if any(map(is_stateful, jax.tree.leaves(instance, is_leaf=is_stateful))):
        raise ValueError(
            _BATCH_NORM.format(
                module="A stateful Equinox layer (BatchNorm)",
                remedy="replace it by a layer that applies the stored mean and variance as constants",
            )
        )
    takes_key = "key" in inspect.signature(type(instance).__call__).parameters
    call = _calls(type(instance))
    weights, constants = eqx.partition(instance, eqx.is_inexact_array)
    names, structure = pytrees.leaf_names(weights), jax.tree.structure(weights)

    def init(key: Key, x: Any) -> Params:
        del x
        made = instance if isinstance(module, eqx.Module) else module(key)
        return dict(zip(names, jax.tree.leaves(eqx.filter(made, eqx.is_inexact_array)), strict=True))

    def apply(params: Params, x: Any, key: Key | None = None) -> Array:
        built = eqx.combine(jax.tree.unflatten(structure, [params[name] for name in names]), constants)
        if key is None or not takes_key:
            return jax.vmap(lambda row: call(eqx.nn.inference_mode(built), row))(x)
        return jax.vmap(lambda row: call(eqx.nn.inference_mode(built, value=False), row, key=key))(x)

    return Network(init, apply, fan_in_axis=-1)
