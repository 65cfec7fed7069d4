"""What samplers of Hamiltonian dynamics share: the leapfrog, energies, widths of the prior, lengths of trajectories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Clock, Params
from posterity.inference.methods import step_size as adaptation
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


class Hamiltonian(Sampler):
    """A sampler that adapts its step size in a first phase, where the user gives none."""

    step_size: float | None = None

    def stuck(self, trace: dict[str, np.ndarray]) -> np.ndarray | None:
        return adaptation.stuck_chains(trace) if self.step_size is None else None


def check_target_acceptance(method: Any) -> None:
    target = method.target_acceptance
    if not 0 < target < 1:
        raise ValueError(f"{type(method).__name__}(target_acceptance={target}) must lie between 0 and 1; try 0.8.")


def check_adaptation(method: Any, warmup: str, remedy: int) -> None:
    """Without a step size there must be steps in which to find one."""
    if method.step_size is None and getattr(method, warmup) == 0:
        raise ValueError(
            f"{type(method).__name__}({warmup}=0) leaves no step in which to adapt the step size: give step_size, or "
            f"{warmup}={remedy}."
        )


class Point(NamedTuple):
    """One end of a trajectory."""

    params: Params
    momentum: Params
    gradient: Params
    log_likelihood: Array  # [N]


def jittered_steps(length: Array, jitter: Array | float, step_size: Array, most: Any, clock: Clock) -> Array:
    """How many steps a trajectory takes whose length is stretched by a factor within 1 +- jitter."""
    # A Weyl sequence, equidistributed in [0, 1), not the chain's key: one factor for all chains keeps the number of
    # leapfrog steps the same for all.
    uniform = (clock.step.astype(jnp.uint32) * jnp.uint32(WEYL)).astype(float) / 2.0**32
    stretched = length * (1 + jitter * (2 * uniform - 1))
    # Rounding of the quotient must not add a step to one that divides evenly. The cap comes before the conversion:
    # a quotient that overflows an integer would wrap.
    quotient = jnp.ceil(stretched / step_size * (1 - 1e-5))
    return jnp.clip(jnp.minimum(quotient, 2.0**30).astype(int), 1, most)


def integrate(model: Model, batch: Batch, begin: Point, widths: Params, step_size: Array, num_steps: Array) -> Point:
    """The other end of a trajectory."""
    end = leapfrog(lambda params: jax.grad(model.log_joint)(params, batch), begin, widths, step_size, num_steps)
    return end._replace(log_likelihood=model.log_likelihood(end.params, batch))


def leapfrog(
    gradient_of: Callable[[Params], Params], begin: Point, widths: Params, step_size: Array, num_steps: Array
) -> Point:
    """`num_steps` steps of half a kick, a drift, half a kick, with one gradient each."""

    def along(share: float, values: Params, slopes: Params) -> Params:
        """values + share * step_size * r * slopes."""
        return jax.tree.map(lambda v, s, r: v + (share * step_size * r).astype(v.dtype) * s, values, slopes, widths)

    def step(index: Array, carry: tuple[Params, Params, Params]) -> tuple[Params, Params, Params]:
        del index
        params, momentum, _ = carry
        params = along(1.0, params, momentum)
        gradient = gradient_of(params)
        return params, along(1.0, momentum, gradient), gradient

    start = (begin.params, along(0.5, begin.momentum, begin.gradient), begin.gradient)
    params, momentum, gradient = jax.lax.fori_loop(0, num_steps, step, start)
    return Point(params, along(-0.5, momentum, gradient), gradient, begin.log_likelihood)


def energy_drop(model: Model, batch: Batch, begin: Point, end: Point) -> Array:
    """H(begin) - H(end), the log of the acceptance ratio, from differences of single terms."""
    rows = (end.log_likelihood - begin.log_likelihood) * batch.weight.astype(end.log_likelihood.dtype)
    priors = jax.tree.map(jnp.subtract, model.log_priors(end.params), model.log_priors(begin.params))
    kinetic = jax.tree.map(lambda p, q: (p - q) * (p + q) / 2, begin.momentum, end.momentum)
    zero = jnp.zeros((), rows.dtype)
    terms = [model.temper(rows, zero), *(model.temper(zero, leaf) for leaf in jax.tree.leaves(priors))]
    return pairwise_sum(jnp.concatenate([term.reshape(-1) for term in (*terms, *jax.tree.leaves(kinetic))]))


def pairwise_sum(values: Array) -> Array:
    """The sum of a vector by halves, whose rounding error grows with log n only."""
    while values.shape[0] > 1:
        half = (values.shape[0] + 1) // 2
        values = values[:half] + jnp.pad(values[half:], (0, 2 * half - values.shape[0]))
    return values.sum()


def prior_widths(model: Model, params: Params) -> Params:
    """s_i, one number per leaf: the prior's standard deviation in the target; inf or NaN where it has none."""
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
    """s, the geometric mean over all weights, and s_i / s, one number per leaf; all 1 where any is not finite."""
    widths = prior_widths(model, params)
    finite = pytrees.all_finite(widths)
    widths = jax.tree.map(lambda width: jnp.where(finite, width, 1.0), widths)
    logs = jax.tree.map(lambda width, weight: jnp.log(width) * weight.size, widths, params)
    scale = jnp.exp(pytrees.total(logs) / pytrees.size(params))
    return scale, jax.tree.map(lambda width: width / scale, widths)
