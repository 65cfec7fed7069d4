"""Convolutions of images whose gradients are fast inside a loop on a CPU, in a network from anywhere.

XLA's CPU compiler has fast code for one order of axes. It brings the gradients that JAX writes into that order at the
top of a program but not inside a loop, and every training is one: a step of a U-Net took 20 times as long. So the
program of a network is traced, and its convolutions are replaced by one with gradients of our own. This is done once
for all rows: were it done below a map over rows, the weights' gradient would be computed for each row by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array
from posterity.networks.jaxpr import evaluate


def with_fast_gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), on a CPU with the convolutions in it replaced by ours."""
    if jax.default_backend() != "cpu":
        return function(*arguments)
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if not _has_convolutions(closed.jaxpr):
        return function(*arguments)
    made = _evaluate_program(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))
    return jax.tree.unflatten(jax.tree.structure(shape), made)


def convolves(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether the function has convolutions that can be replaced."""
    return _has_convolutions(jax.make_jaxpr(function)(*arguments).jaxpr)


def _has_convolutions(jaxpr: Any) -> bool:
    return any(_is_plain(equation) or _calls_convolutions(equation) for equation in jaxpr.eqns)


def _calls_convolutions(equation: Any) -> bool:
    return equation.primitive.name in ("jit", "pjit") and _has_convolutions(equation.params["jaxpr"].jaxpr)


def _evaluate_program(jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        inputs = [value(atom) for atom in equation.invars]
        if _is_plain(equation):
            made = [_replaced(equation.params, *inputs)]
        elif _calls_convolutions(equation):
            inner = equation.params["jaxpr"]
            made = _evaluate_program(inner.jaxpr, inner.consts, inputs)
        else:
            made = evaluate(equation, inputs)
        values.update(zip(equation.outvars, made, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def _is_plain(equation: Any) -> bool:
    """A convolution of images without groups, dilation or a precision of its own, with one stride for both sides."""
    if equation.primitive.name != "conv_general_dilated" or len(equation.params["window_strides"]) != 2:
        return False
    asked, of_x = equation.params, equation.invars[0].aval
    dilations = (
        *asked["lhs_dilation"],
        *asked["rhs_dilation"],
        asked["feature_group_count"],
        asked["batch_group_count"],
    )
    precise = asked["precision"] is not None or asked["preferred_element_type"] not in (None, of_x.dtype)
    return set(dilations) == {1} and not precise and len(set(asked["window_strides"])) == 1


def _replaced(asked: dict[str, Any], x: Array, weight: Array) -> Array:
    """The same convolution by ours, whose axes are in an order of their own."""
    numbers, sides = asked["dimension_numbers"], asked["padding"]
    row, channel, *places = numbers.lhs_spec
    filters, inputs, *window = numbers.rhs_spec
    x, weight = x.transpose(row, *places, channel), weight.transpose(*window, inputs, filters)
    even = tuple(min(side) for side in sides)
    if min(even) < 0 or any(before != after for before, after in sides):
        x = jax.lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((*side, 0) for side in sides), (0, 0, 0)])
        even = (0, 0)
    made: Any = _convolution(x, weight, asked["window_strides"][0], even)
    row, channel, *places = numbers.out_spec
    return made.transpose(np.argsort([row, *places, channel]))


def _plain_convolution(x: Array, weight: Array, sides: Any, stride: int = 1, **dilations: Any) -> Array:
    strides, order = (stride, stride), ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weight, strides, sides, dimension_numbers=order, **dilations)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolution(x: Array, weight: Array, stride: int, beside: tuple[int, int]) -> Array:
    """A convolution whose gradients are convolutions in the same order of axes."""
    return _plain_convolution(x, weight, [(one, one) for one in beside], stride)


def _convolution_forward(x: Array, weight: Array, stride: int, beside: tuple[int, int]) -> tuple[Array, Any]:
    return _convolution(x, weight, stride, beside), (x, weight)


def _convolution_backward(stride: int, beside: tuple[int, int], saved: Any, change: Array) -> tuple[Array, Array]:
    x, weight = saved
    geometry = list(zip(x.shape[1:3], change.shape[1:3], weight.shape[:2], beside, strict=True))
    # Of the inputs: the change, with zeros for the pixels that the stride left out, and the window turned around.
    sides = [(width - 1 - one, side - stride * (size - 1) - 1 + one) for side, size, width, one in geometry]
    of_x = _plain_convolution(change, _turned(weight).swapaxes(2, 3), sides, lhs_dilation=(stride, stride))
    # Of the window: inputs and change convolved, rows in the place of channels.
    if stride == 1:  # the change moves over the inputs, whose order of axes is then the cheaper to make
        of_weight = _plain_convolution(change.transpose(3, 1, 2, 0), x.transpose(1, 2, 0, 3), sides)
        return of_x, _turned(of_weight.transpose(1, 2, 3, 0))
    sides = [(one, width + stride * (size - 1) - side - one) for side, size, width, one in geometry]
    kept = x[:, : x.shape[1] + min(0, sides[0][1]), : x.shape[2] + min(0, sides[1][1])]
    sides = [(before, max(0, after)) for before, after in sides]
    rows, moves = kept.transpose(3, 1, 2, 0), change.transpose(1, 2, 0, 3)
    of_weight = _plain_convolution(rows, moves, sides, rhs_dilation=(stride, stride))
    return of_x, of_weight.transpose(1, 2, 0, 3)


def _turned(window: Array) -> Array:
    return jnp.flip(window, (0, 1))


_convolution.defvjp(_convolution_forward, _convolution_backward)
