"""The dense layers of any network, read from the program JAX traces of it.

A dense layer is a weight matrix that enters exactly one product, s = a W, with a bias that is added to that product
where there is one. Its Kronecker factors need the inputs a and the gradients of the outputs in s; a probe added to s
gives the latter: d outputs / d probe at probe = 0 (Martens & Grosse 2015, sec. 2.1).
Calls (jit, checkpoint, custom derivatives) are looked into; a weight that is used twice, in a convolution, or inside
a loop is not the weight of a dense layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees
from posterity.core.types import Array, Params
from posterity.networks.jaxpr import RESHAPES, Inliner, Step, evaluate, moves_only
from posterity.networks.perceptron import MLP


class Dense(NamedTuple):
    """One dense layer: the paths of its weights, and which axis of the matrix counts inputs."""

    weight: str
    bias: str | None
    input_axis: int  # 0 for [in, out], 1 for [out, in]


class _Product(NamedTuple):
    """Where a layer's product is computed."""

    step: int
    operand: int  # the input of the product that is not a weight
    contracted: int  # the operand's axis that is summed over
    feature_axis: int  # of the product


class LayerProgram(NamedTuple):
    """A network taken apart for inputs of one shape. Positions are all axes of a product but its features."""

    layers: tuple[Dense, ...]  # in the order they are computed
    others: tuple[str, ...]  # weights of no dense layer
    products: tuple[_Product, ...]
    steps: tuple[Step, ...]
    arguments: tuple[int, ...]
    constants: dict[int, Any]
    result: int

    @property
    def ends_in_layer(self) -> bool:
        """Whether the outputs [N, K] are the last layer's product and bias, and nothing is done to them."""
        if not self.layers:
            return False
        product, bias = self.products[-1], self.layers[-1].bias
        value, shape = self.steps[product.step].outputs[0], self.steps[product.step].equation.outvars[0].aval.shape
        axes: Axes = tuple(0 if i == product.feature_axis else None for i in range(len(shape)))
        for step in self.steps[product.step + 1 :]:
            if value not in step.inputs:
                continue
            if moves_only(step.equation):
                axes = _moved(step.equation, axes)
            elif bias is None or step.equation.primitive.name != "add":
                return False
            else:
                bias = None  # the one sum there may be: `_bias` saw that this layer's own is added first
            value, shape = step.outputs[0], step.equation.outvars[0].aval.shape
        return value == self.result and len(shape) == 2 and (shape[-1] == 1 or axes[-1] == 0)

    def zero_probes(self) -> tuple[Array, ...]:
        """A probe for each layer, [positions, out]."""
        products = [(self.steps[product.step].equation.outvars[0].aval, product) for product in self.products]
        return tuple(
            jnp.zeros((aval.size // aval.shape[product.feature_axis], aval.shape[product.feature_axis]), aval.dtype)
            for aval, product in products
        )

    def apply(self, params: Params, probes: Sequence[Array] | None, x: Any) -> tuple[Array, tuple[Array, ...]]:
        """Outputs, with the probes added to the products if there are any, and each layer's inputs, [positions, in]."""
        values = dict(self.constants)
        values.update(zip(self.arguments, jax.tree.leaves((params, x)), strict=True))
        places = {product.step: i for i, product in enumerate(self.products)}
        inputs: list[Any] = [None] * len(self.products)
        for number, step in enumerate(self.steps):
            made = evaluate(step.equation, [values[i] for i in step.inputs])
            if number in places:
                product = self.products[places[number]]
                inputs[places[number]] = _features_last(values[product.operand], product.contracted)
                if probes is not None:
                    moved = jnp.moveaxis(made[0], product.feature_axis, -1)
                    moved += probes[places[number]].reshape(moved.shape)
                    made = [jnp.moveaxis(moved, -1, product.feature_axis)]
            values.update(zip(step.outputs, made, strict=True))
        return values[self.result], tuple(inputs)


def trace_layers(network: Any, params: Params, x: Any) -> LayerProgram:
    """Find the dense layers of `network.apply(params, x)`; the program serves any inputs of the shape of x."""
    closed = jax.make_jaxpr(lambda params, x: network.apply(params, x))(params, x)
    names = pytrees.leaf_names(params)
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    inliner = Inliner()
    arguments = tuple(inliner.new() for _ in closed.jaxpr.invars)
    inliner.weights.update(arguments[: len(names)])
    (result,) = inliner.inline(closed.jaxpr, closed.consts, arguments)
    steps = tuple(inliner.steps)
    aliases, uses = _follow_weights(steps, dict(enumerate(shapes)), arguments, result)
    found = _products(steps, aliases, uses, shapes)
    layers = [
        Dense(names[weight], None if bias is None else names[bias], axis)
        for weight, axis, product in found
        for bias in [_bias(steps, product, aliases, uses, shapes, result)]
    ]
    known = {name for layer in layers for name in (layer.weight, layer.bias)}
    others = tuple(name for name in names if name not in known)
    products = tuple(product for _, _, product in found)
    return LayerProgram(tuple(layers), others, products, steps, arguments, inliner.constants, result)


def last_features(network: Any, params: Params, x: Any) -> Array:
    """What the last dense layer multiplies, [N, H], averaged over positions; without such a layer the flattened x."""
    if isinstance(network, MLP):
        return network.features(params, x)

    def one(row: Any) -> Array:
        single = jax.tree.map(lambda leaf: leaf[None], row)
        program = trace_layers(network, params, single)
        if not program.layers:
            return jnp.concatenate([leaf.ravel().astype(float) for leaf in jax.tree.leaves(row)])
        return program.apply(params, program.zero_probes(), single)[1][-1].mean(0)

    return jax.vmap(one)(x)


Axes = tuple[int | None, ...]  # for each axis of a value, the axis of the weight it is; None: of length 1 or repeated


def _moved(equation: Any, axes: Axes) -> Axes:
    """Where the axes of a value are after an equation that only moves it."""
    name, before, after = equation.primitive.name, equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    if name == "transpose":
        return tuple(axes[i] for i in equation.params["permutation"])
    if name == "broadcast_in_dim":
        made: list[int | None] = [None] * len(after)
        for i, place in enumerate(equation.params["broadcast_dimensions"]):
            made[int(place)] = axes[i] if before[i] == after[int(place)] else None
        return tuple(made)
    if name in RESHAPES and before != after:
        kept = [axis for axis, length in zip(axes, before, strict=True) if length != 1]
        if [length for length in before if length != 1] != [length for length in after if length != 1]:
            return (None,) * len(after)
        remaining = iter(kept)
        return tuple(next(remaining) if length != 1 else None for length in after)
    return axes


class _Alias(NamedTuple):
    leaf: int
    axes: Axes


def _follow_weights(
    steps: Sequence[Step], shapes: dict[int, Any], arguments: Sequence[int], result: int
) -> tuple[dict[int, _Alias], Counter[int]]:
    """Which values are a weight, moved about, and how often each weight is used for anything else."""
    aliases = {arguments[leaf]: _Alias(leaf, tuple(range(len(shape)))) for leaf, shape in shapes.items()}
    uses: Counter[int] = Counter()
    for step in steps:
        if moves_only(step.equation) and step.inputs[0] in aliases:
            alias = aliases[step.inputs[0]]
            aliases[step.outputs[0]] = _Alias(alias.leaf, _moved(step.equation, alias.axes))
        else:
            uses.update(aliases[i].leaf for i in step.inputs if i in aliases)
    if result in aliases:
        uses[aliases[result].leaf] += 1
    return aliases, uses


def _products(
    steps: Sequence[Step], aliases: dict[int, _Alias], uses: Counter[int], shapes: Sequence[Any]
) -> list[tuple[int, int, _Product]]:
    """(weight, its input axis, product) for each product of one whole weight matrix and something else."""
    found = []
    for number, step in enumerate(steps):
        if step.equation.primitive.name != "dot_general" or sum(i in aliases for i in step.inputs) != 1:
            continue
        side = 0 if step.inputs[0] in aliases else 1
        alias = aliases[step.inputs[side]]
        contracting, batching = step.equation.params["dimension_numbers"]
        whole = len(shapes[alias.leaf]) == 2 and sorted(a for a in alias.axes if a is not None) == [0, 1]
        if not whole or len(alias.axes) != 2 or uses[alias.leaf] != 1 or batching[0] or len(contracting[0]) != 1:
            continue
        input_axis = alias.axes[contracting[side][0]]
        # Free axes of the left side come first in a product.
        feature_axis = 0 if side == 0 else len(step.equation.outvars[0].aval.shape) - 1
        product = _Product(number, step.inputs[1 - side], int(contracting[1 - side][0]), feature_axis)
        found.append((alias.leaf, int(input_axis or 0), product))
    return found


def _bias(
    steps: Sequence[Step],
    product: _Product,
    aliases: dict[int, _Alias],
    uses: Counter[int],
    shapes: Sequence[Any],
    result: int,
) -> int | None:
    """The weight added to a product and to nothing else, along its features."""
    value = steps[product.step].outputs[0]
    shape = steps[product.step].equation.outvars[0].aval.shape
    width = shape[product.feature_axis]
    axes: Axes = tuple(0 if i == product.feature_axis else None for i in range(len(shape)))
    for step in steps[product.step + 1 :]:
        if value not in step.inputs:
            continue
        if sum(value in other.inputs for other in steps) != 1 or value == result:
            return None
        if moves_only(step.equation):
            value, axes = step.outputs[0], _moved(step.equation, axes)
            continue
        others = [i for i in step.inputs if i != value]
        if step.equation.primitive.name != "add" or len(others) != 1 or others[0] not in aliases:
            return None
        alias = aliases[others[0]]
        broadcast = [0 if a is not None and shapes[alias.leaf][a] == width else None for a in alias.axes]
        along = width == 1 or (tuple(broadcast) == axes and 0 in axes)
        size = int(np.prod(shapes[alias.leaf]))
        return alias.leaf if along and size == width and uses[alias.leaf] == 1 else None
    return None


def _features_last(value: Array, axis: int) -> Array:
    moved = jnp.moveaxis(value, axis, -1)
    return moved.reshape(-1, moved.shape[-1])
