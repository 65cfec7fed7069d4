"""Scales of a prior that are inferred with the weights (Neal 1996; by input: automatic relevance determination).

    w = exp(s) z,    z ~ the prior's distribution, divided by sqrt(fan-in) where asked,    s ~ the hyperprior

What methods move is (z, s), the non-centred form: z and s are independent under the prior, so that a density, a KL
divergence or a width is that of two independent variables, and no funnel joins them. In (w, s) the density has no
bound, where s falls and w shrinks with it; in (z, s) its peak says little of where its mass lies. So methods that seek
a peak hold s at its initial value (`Method.holds_scales`), and samplers infer it.

Trees of weights come in two forms. The standardised one has z, and s under "log_scales"; it is what is sampled. The
complete one (`Model.complete`) has w, which the network reads, and exp(s) under "scales", which nothing reads. Both
hold a scale by the path of its leaf, {"network/layer_0/weight": {"layer": ..., "input": ...}}, in arrays of the
leaf's own number of axes, which broadcast against it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from posterity.core import pytrees, records
from posterity.core.checks import check_positive
from posterity.core.types import Array, Params

LOG_SCALES, SCALES = "log_scales", "scales"
By = Literal["layer", "input", "output"]


@records.record
class Learned:
    """A prior whose width is learned: weights w = exp(s) z with z from `distribution` and s from `log_scale`.

    Methods that sample infer s with the weights, and so does Bayes by Backprop. Point estimates, and what is built on
    one (Laplace, SWAG), hold s at its initial value. Tempering "posterior" tempers the hyperprior with the rest of the
    density, "likelihood" leaves it alone.

    Args:
        distribution: Of z: the prior at s = 0.
        by: What has a scale of its own. "layer": each weight matrix. "input": each matrix, and each input of it as well
            (automatic relevance determination). "output": each output of a matrix. A bias has one scale in any case.
        log_scale: The hyperprior, of each log scale s. None: Normal(0, 1).
        initial: The scale exp(s) that chains begin with, and that point estimates hold.
    """

    distribution: Any = records.traced()
    by: By = "layer"
    log_scale: Any = records.traced(default=None)
    initial: float = records.traced(default=1.0)

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise ValueError(f"Learned(by={self.by!r}) is not known; choose 'layer', 'input' or 'output'.")
        check_positive("Learned", initial=self.initial)
        if self.log_scale is None:
            object.__setattr__(self, "log_scale", dist.Normal(0.0, 1.0))

    def shapes(self, shape: tuple[int, ...], fan_in_axis: int) -> dict[str, tuple[int, ...]]:
        """Of the log scales of a leaf of this shape."""
        one = (1,) * len(shape)
        if len(shape) < 2 or self.by == "layer":
            return {"layer": one}
        # [..., in, out] here and in Flax, [out, in, ...] in Equinox.
        inputs, outputs = (len(shape) - 2, len(shape) - 1) if fan_in_axis == -2 else (1, 0)
        axis = inputs if self.by == "input" else outputs
        each = {self.by: tuple(length if i == axis else 1 for i, length in enumerate(shape))}
        return {"layer": one, **each} if self.by == "input" else each


def first(learned: Callable[[str], Learned | None], params: Params, fan_in_axis: int) -> dict[str, Any]:
    """The log scales that chains begin with, for the leaves that have some."""
    made = {}
    for name, leaf in zip(pytrees.leaf_names(params), jax.tree.leaves(params), strict=True):
        found = learned(name)
        if found is None:
            continue
        if not name.startswith("network/"):
            raise ValueError(f"The prior of {name!r} is Learned; it is not a weight: give a distribution for it.")
        shapes = found.shapes(leaf.shape, fan_in_axis)
        made[name] = {by: jnp.full(shape, jnp.log(found.initial), leaf.dtype) for by, shape in shapes.items()}
    return made


def same_shapes(one: Params, other: Params) -> bool:
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (one, other)]
    return shapes[0] == shapes[1]


def standardise(weights: Params, log_scales: dict[str, Any]) -> Params:
    """(z, s) from weights w."""
    return {**_multiplied(weights, log_scales, -1), LOG_SCALES: log_scales}


def complete(params: Params) -> Params:
    """Weights w, with exp(s) beside them, from (z, s); without log scales the same tree."""
    if LOG_SCALES not in params:
        return params
    log_scales = params[LOG_SCALES]
    return {**_multiplied(params, log_scales, 1), SCALES: jax.tree.map(jnp.exp, log_scales)}


def scale_of(weights: Params, name: str) -> Array | None:
    """What z is multiplied by to give the leaf of this name of complete weights; None: its scale is not learned."""
    scales = weights.get(SCALES, {}).get(name)
    return None if scales is None else functools.reduce(operator.mul, scales.values())


def _multiplied(params: Params, log_scales: dict[str, Any], sign: int) -> Params:
    """All but the scales, each leaf times the exponential of `sign` times its log scales."""

    def leaf(name: str, value: Array) -> Array:
        scales = log_scales.get(name)
        return value if scales is None else value * jnp.exp(sign * sum(scales.values())).astype(value.dtype)

    return pytrees.map_with_path(
        leaf, {name: part for name, part in params.items() if name not in (LOG_SCALES, SCALES)}
    )
