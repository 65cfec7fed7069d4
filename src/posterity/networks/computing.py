"""How a network is computed: in bfloat16, or with intermediate values computed again for its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array
from posterity.networks.jaxpr import Inliner, Step, evaluate


def in_bfloat16(apply: Callable[..., Array]) -> Callable[..., Array]:
    """The function with weights and inputs rounded to bfloat16, and outputs in the precision of the weights.

    XLA adds the products of a matrix product in float32, and jax.numpy its sums; gradients arrive in the precision of
    the weights, as does all that follows the outputs.
    """

    def low(leaf: Any) -> Any:
        return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def computed(params: Any, x: Any, key: Any = None) -> Array:
        outputs = apply(*jax.tree.map(low, (params, x)), key)
        return outputs.astype(jnp.result_type(*jax.tree.leaves(params)))

    return computed


def rematerialised(apply: Callable[..., Array]) -> Callable[..., Array]:
    """The function, whose gradient keeps the values at about sqrt(n) of its n operations and computes others again.

    What is kept grows as sqrt(n) with the depth, for one more evaluation (Chen et al. 2016). XLA's compiler for CPUs
    merges the second evaluation with the first (jax 0.10), and saves nothing.
    """

    def computed(params: Any, x: Any, key: Any = None) -> Array:
        program = jax.make_jaxpr(apply)(params, x, key)
        inliner = Inliner()
        arguments = jax.tree.leaves((params, x, key))
        numbers = [inliner.new() for _ in arguments]
        (made,) = inliner.inline(program.jaxpr, program.consts, numbers)
        values = {**inliner.constants, **dict(zip(numbers, arguments, strict=True))}
        steps, size = inliner.steps, max(1, math.isqrt(len(inliner.steps)))
        for first in range(0, len(steps), size):
            part, later = steps[first : first + size], steps[first + size :]
            wanted = {made}.union(*(step.inputs for step in later))
            values.update(_computed_again(part, values, wanted))
        return values[made]

    return computed


def _computed_again(steps: Sequence[Step], values: dict[int, Any], wanted: set[int]) -> dict[int, Any]:
    """What some steps make of the values, for later ones; their own intermediate values are not kept for a gradient."""
    produced = {number for step in steps for number in step.outputs}
    given = sorted({number for step in steps for number in step.inputs} - produced)
    kept = sorted(produced & wanted)

    @jax.checkpoint
    def run(inputs: list[Any]) -> list[Any]:
        known = dict(zip(given, inputs, strict=True))
        for step in steps:
            made = evaluate(step.equation, [known[number] for number in step.inputs])
            known.update(zip(step.outputs, made, strict=True))
        return [known[number] for number in kept]

    return dict(zip(kept, run([values[number] for number in given]), strict=True))
