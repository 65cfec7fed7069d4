"""The no-U-turn sampler (Hoffman & Gelman 2014; multinomial, Betancourt 2017), by blackjax, adapted as Stan does.

Warm-up of W steps: a fast interval (75 steps), slow windows of 25, 50, 100, ... steps, a last fast interval (50); the
last window reaches up to it, and where W < 150 the intervals are 15 %, 75 % and 10 % of W. The step size follows dual
averaging all along. At the end of a slow window of n draws the inverse mass of weight i becomes

    M_i^-1 = n / (n + 5) var_i + 5 / (n + 5) 10^-3 s_i^2,

var_i the window's variance and s_i the prior's width in the target (1 where it has none; Stan: 1 for all), and the step
size starts anew. M^-1 = s_i^2 at first. All of this lives in the state and in the clock, so a run can be cut anywhere.
The log density is summed from differences to the step's first point, term by term, so it is accurate in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.inference.methods import step_size as adaptation
from posterity.inference.methods.card import Card
from posterity.inference.methods.density import Density
from posterity.inference.methods.hamiltonian import (
    Hamiltonian,
    HamiltonianInfo,
    HeadChoice,
    check_adaptation,
    check_head,
    check_target_acceptance,
    prior_widths,
)
from posterity.inference.methods.sampler import check_counts, check_positive
from posterity.models.model import Model

FIRST_FAST, FIRST_WINDOW, LAST_FAST = 75, 25, 50
HEAD = 1  # folded into the key of a step, which the trajectory uses whole
MAX_WINDOWS = 24  # doubling from 25: more steps than anyone has


class Welford(NamedTuple):
    """Running mean and sum of squared deviations of the weights, [P]."""

    num_draws: Array
    mean: Array
    squares: Array


class NUTSState(NamedTuple):
    params: Params  # all weights
    gradient: Array  # [P] of the log density at their position
    measure: Array  # of their position
    step_size: adaptation.DualAveraging | None  # None where the user gave one
    inverse_mass: Array  # [P]
    window: Welford


@records.record
class NUTS(Hamiltonian):
    """HMC that chooses the length of each trajectory and adapts a diagonal mass matrix in warm-up.

    Args:
        num_draws: Draws kept, per chain.
        num_burn_in: Steps that adapt step size and mass matrix and are discarded.
        target_acceptance: The acceptance probability, a mean over the trajectory, that the step size adapts to.
        step_size: Step of the leapfrog, in units of sqrt(M^-1), the widths learned in warm-up. None: adapted then.
        thin: Keep every thin-th step.
        max_depth: A trajectory has at most 2^max_depth - 1 leapfrog steps.
    """

    card = Card(
        name="nuts",
        label="NUTS",
        what="HMC that chooses its own trajectory length.",
        when="Few weights; when HMC's defaults do not fit.",
        reference="Hoffman & Gelman 2014",
        ignorance="right once converged",
        cost="10 to 10,000",
        verdict="samples",
        colour="ink",
        line="--",
        marker="s",
        settings=lambda size: {"num_draws": size.count(200), "num_burn_in": size.count(200, 50), "max_depth": 8},
        share=8,
        gradients=lambda method: 2.0**method.max_depth,
        until="good",
        is_sampler=True,
    )

    num_draws: int = records.host(default=1_000)
    _: dataclasses.KW_ONLY
    num_burn_in: int = records.host(default=1_000)
    target_acceptance: float = records.traced(default=0.8)
    step_size: float | None = records.traced(default=None)
    thin: int = records.host(default=1)
    start: Any = records.host(default=None)
    max_depth: int = 10
    head: HeadChoice = "integrated"

    def __post_init__(self) -> None:
        check_counts(self, num_draws=1, num_burn_in=0, thin=1, max_depth=1)
        check_positive(self, "step_size")
        check_target_acceptance(self)
        check_adaptation(self, "num_burn_in", 500)
        check_head(self)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        del num_rows
        return Phase(self.num_burn_in), Phase(self.num_draws * self.thin, thin=self.thin, keep=True)

    def inverse_mass(self, states: NUTSState) -> Array | None:
        num_weights = sum(leaf[0].size for leaf in jax.tree.leaves(states.params))
        # With a head integrated out it is that of the other weights alone, which lie among the head's in their leaves.
        return states.inverse_mass if states.inverse_mass.shape[1] == num_weights else None

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)


def _kernel(method: NUTS, model: Model) -> Kernel:
    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> NUTSState:
        del clock
        density = method.density(model, params, batch)
        position = density.position(params)
        measure, variance = density.measure(position), _prior_variance(model, position)
        flat, log_ratio = _relative(density, position, measure)
        gradient = jax.grad(log_ratio)(flat)
        adapted = None
        if method.step_size is None:
            momentum = jax.random.normal(key, flat.shape, flat.dtype)
            drop = _one_step_energy_drop(log_ratio, flat, gradient, momentum, jnp.sqrt(variance))
            adapted = adaptation.begin(adaptation.first_step_size(drop, jnp.ones((), float)))
        return NUTSState(params, gradient, measure, adapted, variance, _empty(flat))

    def step(key: Key, state: NUTSState, batch: Batch, clock: Clock) -> tuple[NUTSState, HamiltonianInfo]:
        adapting = clock.phase == 0
        if state.step_size is None:
            step_size = jnp.asarray(method.step_size, float)
        else:
            step_size = adaptation.current(state.step_size, adapting)
        density = method.density(model, state.params, batch)
        before = density.position(state.params)
        position, gradient, facts = _move(method, density, key, state, before, step_size)
        measure = density.measure(position)
        params = density.complete(jax.random.fold_in(key, HEAD), position)
        flat = _flat(position)
        acceptance, diverged, num_leapfrog, kinetic = facts
        report = density.report(params, measure)
        info = HamiltonianInfo(
            log_joint=model.temper(report.log_likelihood, report.log_prior),
            acceptance=acceptance,
            accepted=jnp.any(flat != _flat(before)),
            diverged=diverged,
            step_size=step_size,
            num_gradients=num_leapfrog,
            log_likelihood=report.log_likelihood,
            log_prior=report.log_prior,
            energy=kinetic - report.log_density,
            covered=jnp.ones(()),
        )
        new = state._replace(params=params, gradient=gradient, measure=measure)
        adapted = _adapt(method, new, flat, acceptance, _prior_variance(model, position), clock)
        return pytrees.select(adapting, adapted, new), pytrees.as_floats(info)

    return Kernel(init, step)


def _move(
    method: NUTS, density: Density, key: Key, state: NUTSState, position: Params, step_size: Array
) -> tuple[Params, Array, tuple[Array, ...]]:
    """The new position, the gradient there, and (acceptance, diverged, leapfrog steps, kinetic energy)."""
    from blackjax.mcmc import hmc, nuts  # here: importing blackjax starts the backend

    flat, log_ratio = _relative(density, position, state.measure)
    step: Any = nuts.build_kernel()  # Any: its annotations say float where it takes arrays
    begin: Any = (flat, jnp.zeros((), flat.dtype), state.gradient)
    step_size = step_size.astype(flat.dtype)
    end, report = step(
        key, hmc.HMCState(*begin), log_ratio, step_size, state.inverse_mass, max_num_doublings=method.max_depth
    )
    kinetic = report.energy + end.logdensity  # both relative to the step's first point
    facts = (report.acceptance_rate, report.is_divergent, report.num_integration_steps, kinetic)
    return _unflat(position)(end.position), end.logdensity_grad, facts


def _relative(density: Density, position: Params, measure: Array) -> tuple[Array, Callable[[Array], Array]]:
    """The position as one vector, and the log density of such a vector minus that of this position."""
    unravel = _unflat(position)

    def log_ratio(vector: Array) -> Array:
        there = unravel(vector)
        terms = density.difference(position, measure, there, density.measure(there))
        return sum((term.sum() for term in terms), start=jnp.zeros((), vector.dtype)).astype(vector.dtype)

    return _flat(position), log_ratio


def _flat(position: Params) -> Array:
    """As one vector [P] of the program's own precision, which blackjax takes its other numbers to have."""
    return ravel_pytree(position)[0].astype(float)


def _unflat(position: Params) -> Callable[[Array], Params]:
    vector, unravel = ravel_pytree(position)
    return lambda flat: unravel(flat.astype(vector.dtype))


def _one_step_energy_drop(
    density: Callable[[Array], Array], flat: Array, gradient: Array, momentum: Array, width: Array
) -> Callable[[Array], Array]:
    def drop(step_size: Array) -> Array:
        step = (step_size * width).astype(flat.dtype)
        half = momentum + step / 2 * gradient
        value, slope = jax.value_and_grad(density)(flat + step * half)
        end = half + step / 2 * slope
        return value + jnp.sum((momentum - end) * (momentum + end)) / 2

    return drop


def _adapt(method: NUTS, state: NUTSState, flat: Array, acceptance: Array, variance: Array, clock: Clock) -> NUTSState:
    """Step size every step; mass matrix at the end of each slow window."""
    slow, ends = schedule(clock.step, clock.num_steps)
    window = pytrees.select(slow, _add(state.window, flat), state.window)
    share = window.num_draws / (window.num_draws + 5)
    window_variance = window.squares / jnp.maximum(window.num_draws - 1, 1)
    inverse_mass = jnp.where(ends, share * window_variance + (1 - share) * 1e-3 * variance, state.inverse_mass)
    adapted = state.step_size
    if adapted is not None:
        adapted = adaptation.update(adapted, acceptance, method.target_acceptance)
        adapted = pytrees.select(ends, adaptation.begin(jnp.exp(adapted.log_average)), adapted)
    return state._replace(
        step_size=adapted, inverse_mass=inverse_mass, window=pytrees.select(ends, _empty(flat), window)
    )


def schedule(step: Array, num_steps: Array) -> tuple[Array, Array]:
    """Whether a warm-up step belongs to a slow window, and whether one ends with it."""
    short = num_steps < FIRST_FAST + FIRST_WINDOW + LAST_FAST
    begin = jnp.where(short, num_steps * 15 // 100, FIRST_FAST)
    end = num_steps - jnp.where(short, num_steps // 10, LAST_FAST)
    edges = begin + FIRST_WINDOW * (2 ** jnp.arange(1, MAX_WINDOWS + 1) - 1)
    # An edge stands only if the next window, twice as long, fits too; otherwise the window reaches up to the end.
    stands = (edges[1:] <= end) & ~short
    ends = jnp.any((edges[:-1] == step + 1) & stands) | (step + 1 == end)
    none = num_steps < 20  # too few to learn a mass matrix from
    return (step >= begin) & (step < end) & ~none, ends & ~none


def _empty(flat: Array) -> Welford:
    return Welford(jnp.zeros((), flat.dtype), jnp.zeros_like(flat), jnp.zeros_like(flat))


def _add(window: Welford, flat: Array) -> Welford:
    count = window.num_draws + 1
    mean = window.mean + (flat - window.mean) / count
    return Welford(count, mean, window.squares + (flat - window.mean) * (flat - mean))


def _prior_variance(model: Model, params: Params) -> Array:
    """s_i^2 of every weight, [P]; 1 where the prior has no finite variance."""

    def leaf(width: Array, weight: Array) -> Array:
        return jnp.broadcast_to(jnp.where(jnp.isfinite(width), jnp.square(width), 1.0), weight.shape)

    return _flat(jax.tree.map(leaf, prior_widths(model, params), params))
