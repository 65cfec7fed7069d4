"""What samplers of Hamiltonian dynamics share: the leapfrog, energies, widths of the prior, lengths of trajectories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Clock, Params
from posterity.data.arrays import Dataset
from posterity.inference.methods import step_size as adaptation
from posterity.inference.methods.density import Density, Factors, plain
from posterity.inference.methods.head import Head, find_head, integrated
from posterity.inference.methods.method import Execution, Method
from posterity.inference.methods.sampler import Sampler
from posterity.models.model import Model
from posterity.models.priors import Fixed, Flat, standard_deviation

DIVERGENCE = 1000.0  # a rise of energy that no accurate trajectory makes
# Gentler than for NUTS: with a trajectory of fixed length, a step size that dips a hundredfold costs a hundredfold.
BOLDNESS, GAMMA = 2.0, 0.1
WEYL = 0x9E3779B9  # 2^32 / golden ratio


class HamiltonianInfo(NamedTuple):
    """A step of HMC or NUTS."""

    log_joint: Array  # tempered, of the state after the step, as are the likelihood and prior below
    acceptance: Array  # probability; of NUTS the mean over the trajectory
    accepted: Array  # 1 where the proposal was taken; of NUTS where the state moved
    diverged: Array
    step_size: Array
    num_gradients: Array
    log_likelihood: Array  # untempered sum over rows
    log_prior: Array
    energy: Array  # H of the state after the step, with the momentum that led to it
    covered: Array  # share of the trajectory's length that was run: less than 1 where a limit on its steps cut it


HeadChoice = Literal["integrated", "sampled"]


class Headed(Method):
    """A method whose trajectories move all weights, or all but a linear head that has an exact conditional.

    Args:
        head: "integrated": a linear head is drawn from its exact conditional and only the other weights are sampled,
            where that is possible (the receipt has the reason where it is not). "sampled": all weights are sampled
            alike.
    """

    head: HeadChoice = "integrated"

    def find_head(self, model: Model, params: Params, x: object) -> Head | str:
        """The head that is integrated out, or why none is."""
        return find_head(model, params, x) if self.head == "integrated" else 'head="sampled" asks for it'

    def density(self, model: Model, params: Params, batch: Batch, factors: Factors | None = None) -> Density:
        """What trajectories move on; `factors` in place of those of the model's temperature."""
        head = self.find_head(model, params, batch.x)
        if isinstance(head, str):
            return plain(model, batch, factors)
        return integrated(model, head, batch, factors)

    def execution(self, model: Model, params: Params, data: Dataset) -> Execution:
        head = self.find_head(model, params, data.x)
        if isinstance(head, str):
            return Execution(remarks=(f"the head is sampled with the other weights: {head}",))
        # Side by side, XLA's products of chains in float64 take two to three times as long.
        names = " and ".join(filter(None, (head.weight, head.bias)))
        return Execution(float64=True, in_turn=True, remarks=(f"the means' columns of {names} are integrated out",))


class Hamiltonian(Headed, Sampler):
    """A sampler that adapts its step size in a first phase, where the user gives none."""

    step_size: float | None = None

    def stuck(self, trace: dict[str, np.ndarray]) -> np.ndarray | None:
        return adaptation.stuck_chains(trace) if self.step_size is None else None


def check_target_acceptance(method: Any) -> None:
    target = method.target_acceptance
    if not 0 < target < 1:
        raise ValueError(f"{type(method).__name__}(target_acceptance={target}) must lie between 0 and 1; try 0.8.")


def check_head(method: Any) -> None:
    if method.head not in ("integrated", "sampled"):
        raise ValueError(f"{type(method).__name__}(head={method.head!r}): choose 'integrated' or 'sampled'.")


def check_adaptation(method: Any, warmup: str, remedy: int) -> None:
    """Without a step size there must be steps in which to find one."""
    if method.step_size is None and getattr(method, warmup) == 0:
        raise ValueError(
            f"{type(method).__name__}({warmup}=0) leaves no step in which to adapt the step size: give step_size, or "
            f"{warmup}={remedy}."
        )


def check_widths(method: Any, widths: Params) -> None:
    """Of `prior_widths`: all are finite, so that they give a length to trajectories."""
    for name, width in zip(pytrees.leaf_names(widths), jax.tree.leaves(widths), strict=True):
        if not np.isfinite(width).all():
            sampler = type(method).__name__
            raise ValueError(
                f"The prior of {name!r} has no finite variance, or none that is known, so {sampler} cannot choose its "
                "trajectory length (with a proper prior it is pi/2 prior standard deviations): give "
                f"{sampler}(trajectory_length=...), in units of weights; then every weight has unit mass."
            )


class Point(NamedTuple):
    """One end of a trajectory."""

    position: Params
    momentum: Params
    gradient: Params
    measure: Array


def stretched_steps(length: Array, jitter: Array | float, step_size: Array, clock: Clock) -> Array:
    """How many steps a trajectory takes whose length is stretched by a factor within 1 +- jitter, as a float."""
    # A Weyl sequence, equidistributed in [0, 1), not the chain's key: one factor for all chains keeps the number of
    # leapfrog steps the same for all.
    uniform = (clock.step.astype(jnp.uint32) * jnp.uint32(WEYL)).astype(float) / 2.0**32
    stretched = length * (1 + jitter * (2 * uniform - 1))
    # Rounding of the quotient must not add a step to one that divides evenly.
    return jnp.maximum(jnp.ceil(stretched / step_size * (1 - 1e-5)), 1.0)


def at_most(num_steps: Array, most: Any) -> Array:
    """A whole number of steps. The cap comes before the conversion: what overflows an integer would wrap."""
    return jnp.clip(jnp.minimum(num_steps, 2.0**30).astype(int), 1, most)


def integrate(density: Density, begin: Point, widths: Params, step_size: Array, num_steps: Array) -> Point:
    """The other end of a trajectory."""
    end = leapfrog(density.gradient, begin, widths, step_size, num_steps)
    return end._replace(measure=density.measure(end.position))


def leapfrog(
    gradient_of: Callable[[Params], Params], begin: Point, widths: Params, step_size: Array, num_steps: Array
) -> Point:
    """`num_steps` steps of half a kick, a drift, half a kick, with one gradient each."""

    def along(share: float, values: Params, slopes: Params) -> Params:
        """values + share * step_size * r * slopes."""
        return jax.tree.map(lambda v, s, r: v + (share * step_size * r).astype(v.dtype) * s, values, slopes, widths)

    def step(index: Array, carry: tuple[Params, Params, Params]) -> tuple[Params, Params, Params]:
        del index
        position, momentum, _ = carry
        position = along(1.0, position, momentum)
        gradient = gradient_of(position)
        return position, along(1.0, momentum, gradient), gradient

    start = (begin.position, along(0.5, begin.momentum, begin.gradient), begin.gradient)
    position, momentum, gradient = jax.lax.fori_loop(0, num_steps, step, start)
    return Point(position, along(-0.5, momentum, gradient), gradient, begin.measure)


def energy_drop(density: Density, begin: Point, end: Point) -> Array:
    """H(begin) - H(end), the log of the acceptance ratio, from differences of single terms."""
    terms = density.difference(begin.position, begin.measure, end.position, end.measure)
    kinetic = jax.tree.map(lambda p, q: (p - q) * (p + q) / 2, begin.momentum, end.momentum)
    return pairwise_sum(jnp.concatenate([term.reshape(-1) for term in (*terms, *jax.tree.leaves(kinetic))]))


def pairwise_sum(values: Array) -> Array:
    """The sum of a vector by halves, whose rounding error grows with log n only."""
    while values.shape[0] > 1:
        half = (values.shape[0] + 1) // 2
        values = values[:half] + jnp.pad(values[half:], (0, 2 * half - values.shape[0]))
    return values.sum()


def prior_widths(model: Model, params: Params) -> Params:
    """s_i: the prior's standard deviation in the target; inf or NaN where it has none.

    One number per leaf, or one for each weight of it where the prior has as many.
    """
    prior, fan_in_axis = model.full_prior, model.network.fan_in_axis
    # What the target's temperature does to a Gaussian prior; for "likelihood" it leaves the prior alone.
    stretch = 1 / jnp.sqrt(model.tempering_factors[1])

    def leaf(name: str, weight: Array) -> Array:
        distribution = prior.find(name)
        if isinstance(distribution, Flat | Fixed):
            return jnp.asarray(jnp.inf, float)
        return standard_deviation(distribution) * prior.factor(name, weight.shape, fan_in_axis) * stretch

    return pytrees.map_with_path(leaf, params)


def relative_widths(model: Model, params: Params) -> tuple[Array, Params]:
    """s, the geometric mean over all weights, and s_i / s as of `prior_widths`; all 1 where any is not finite."""
    widths = prior_widths(model, params)
    finite = pytrees.all_finite(widths)
    widths = jax.tree.map(lambda width: jnp.where(finite, width, 1.0), widths)
    logs = jax.tree.map(lambda width, weight: jnp.log(width) * (weight.size // width.size), widths, params)
    scale = jnp.exp(pytrees.total(logs) / pytrees.size(params))
    return scale, jax.tree.map(lambda width: width / scale, widths)


def ravel_broadcast(widths: Params, position: Params) -> Array:
    """[P], from one number per leaf."""
    spread = jax.tree.map(lambda width, leaf: jnp.broadcast_to(width, leaf.shape).astype(leaf.dtype), widths, position)
    return ravel_pytree(spread)[0]
