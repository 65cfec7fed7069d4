"""Full-batch Hamiltonian Monte Carlo (Neal 2011), as Izmailov et al. 2021 ran it on networks.

    H(w, p) = -log p_T(w | D) + |p|^2 / 2,   dw_i/dt = r_i p_i,   dp_i/dt = r_i d log p_T / dw_i,   p ~ N(0, I)

which is a mass of 1 / r_i^2 for weight i. s_i is the standard deviation of weight i under the prior as it stands in the
target: sigma_i sqrt(T) for tempering "posterior", sigma_i for "likelihood". r_i = s_i / s, s the geometric mean of all
s_i. Every weight then turns by a quarter of its prior's period in the time (pi / 2) s, the default trajectory; with one
prior width r_i = 1, and step size and trajectory length are the paper's (unit mass).

A trajectory is L = ceil(length / step size) leapfrog steps (half p, full w, half p; inner halves merged) and costs L
gradients. It is accepted with probability min(1, exp(H - H')); otherwise the state is repeated. H - H' is summed from
differences of single terms, one per row and two per weight, never from two large sums, so it is accurate in float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.methods import step_size as adaptation
from posterity.inference.methods import variational
from posterity.inference.methods.card import Card
from posterity.inference.methods.density import Density, Factors, flattened
from posterity.inference.methods.hamiltonian import (
    BOLDNESS,
    DIVERGENCE,
    GAMMA,
    Hamiltonian,
    HamiltonianInfo,
    HeadChoice,
    Point,
    at_most,
    check_adaptation,
    check_head,
    check_target_acceptance,
    check_widths,
    energy_drop,
    integrate,
    prior_widths,
    ravel_broadcast,
    relative_widths,
    stretched_steps,
)
from posterity.inference.methods.sampler import check_counts, check_positive
from posterity.models.model import Model

Metric = Literal["prior", "variational"]
FIRST_STEP = 0.05  # of trajectories in the variational metric, in widths of q


class HMCState(NamedTuple):
    params: Params  # all weights
    gradient: Array  # [P] of the log density at their position, so that a trajectory need not begin with one
    measure: Array  # of their position
    step_size: adaptation.DualAveraging | None  # None where the user gave one
    q: variational.Variational | None = None  # of the variational metric


@records.record
class HMC(Hamiltonian):
    """Full-batch HMC: the reference for all other methods. Draws are repeated where a proposal is rejected.

    Args:
        num_draws: Draws kept, per chain.
        num_burn_in: Steps that are discarded, and in which the step size adapts.
        step_size: Step of the leapfrog, in units of weights. With one prior width it is that of the paper; with
            several, that of a weight of width s, the geometric mean of all widths, and weight i moves r_i = s_i / s
            times as far. None: adapted in burn-in to `target_acceptance`.
        trajectory_length: Of each proposal, in the same units. None: (pi / 2) s. It must be given where a prior has no
            finite variance; every weight then has unit mass.
        jitter: Trajectories are stretched by factors spread evenly over [1 - jitter, 1 + jitter], or they can resonate;
            0 repeats a published run. The factor depends on the step alone, so that chains of one step size run side by
            side without waiting.
        target_acceptance: The acceptance probability that the step size adapts to.
        max_leapfrog: Most leapfrog steps of a trajectory with an adapted step size. A step size that collapses then
            shortens its trajectories, which is still a valid sampler but a slow one. A given step size has no limit.
        thin: Keep every thin-th step.
        metric: What trajectories measure distance by. "prior": the prior's widths. "variational": the widths of a
            mean-field Gaussian that is fitted first, from where each chain starts; trajectories are then measured in
            these widths, also a `trajectory_length` that is given, and pi of them long by default: mean-field widths
            are narrower than the posterior's own.
        num_variational: Steps that fit it.
    """

    card = Card(
        name="hmc",
        label="HMC",
        what="Hamiltonian Monte Carlo on all rows.",
        when="The referee: the posterior itself, given time.",
        reference="Neal 2011",
        ignorance="right once converged",
        cost="10 to 10,000",
        verdict="samples",
        colour="ink",
        line="-",
        marker="o",
        settings=lambda size: {
            "num_draws": size.count(50),
            "num_burn_in": size.count(60, 20),
            "metric": "variational",
            "num_variational": size.count(500, 100),
            "max_leapfrog": 32,
        },
        chains=8,
        learns_scales=True,
        share=8,
        gradients=lambda method: float(method.max_leapfrog),
        until="good",
        is_sampler=True,
        compared=True,
    )

    num_draws: int = records.host(default=100)
    _: dataclasses.KW_ONLY
    num_burn_in: int = records.host(default=50)
    step_size: float | None = records.traced(default=None)
    trajectory_length: float | None = records.traced(default=None)
    jitter: float = records.traced(default=0.5)
    target_acceptance: float = records.traced(default=0.8)
    max_leapfrog: int = records.traced(default=10_000)
    thin: int = records.host(default=1)
    start: Any = records.host(default=None)
    head: HeadChoice = "integrated"
    metric: Metric = "prior"
    num_variational: int = records.host(default=500)

    def __post_init__(self) -> None:
        check_counts(self, num_draws=1, num_burn_in=0, thin=1, max_leapfrog=1)
        check_positive(self, "step_size", "trajectory_length")
        check_target_acceptance(self)
        if not 0 <= self.jitter < 1:
            raise ValueError(f"HMC(jitter={self.jitter}) must lie in [0, 1); 0.5 is usual, 0 switches it off.")
        check_adaptation(self, "num_burn_in", 50)
        check_head(self)
        if self.metric not in get_args(Metric):
            raise ValueError(f"HMC(metric={self.metric!r}) is not known; choose 'prior' or 'variational'.")
        check_counts(self, num_variational=1)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        del num_rows
        sampling = Phase(self.num_burn_in), Phase(self.num_draws * self.thin, thin=self.thin, keep=True)
        return (Phase(self.num_variational), *sampling) if self.metric == "variational" else sampling

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        del data
        if self.trajectory_length is not None and self.metric == "prior":
            return
        check_widths(self, prior_widths(model, params))

    def adapts(self, clock: Clock) -> Array:
        """Whether the step size learns from a step: in burn-in, which variational inference precedes."""
        return clock.phase == (1 if self.metric == "variational" else 0)

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)


def _kernel(method: HMC, model: Model) -> Kernel:
    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> HMCState:
        del clock
        space = Space.of(method, model, method.density(model, params, batch), params)
        density, position = space.density, space.density.position(params)
        if method.metric == "variational":
            # Gradient and measure are those of draws of q, once there are some: here they would only be compiled.
            shape = jax.eval_shape(density.measure, position)
            q = variational.begin(position, space.prior_widths)
            begun = adaptation.begin(jnp.asarray(FIRST_STEP, float), BOLDNESS)
            step_size = begun if method.step_size is None else None
            return HMCState(params, jnp.zeros_like(position), jnp.zeros(shape.shape, shape.dtype), step_size, q)
        state = HMCState(params, density.gradient(position), density.measure(position), None)
        if method.step_size is not None:
            return state
        length, widths = space.length, space.widths
        begin = Point(position, pytrees.normal_like(key, position), state.gradient, state.measure)

        def energy_drop_of(step_size: Array) -> Array:
            return energy_drop(density, begin, integrate(density, begin, widths, step_size, jnp.ones((), int)))

        first = adaptation.first_step_size(energy_drop_of, length)
        return state._replace(step_size=adaptation.begin(first, BOLDNESS))

    def step(key: Key, state: HMCState, batch: Batch, clock: Clock) -> tuple[HMCState, HamiltonianInfo]:
        key_momentum, *keys = jax.random.split(key, 3)
        density = method.density(model, state.params, batch, _factors(model, state, clock))
        momentum = pytrees.normal_like(key_momentum, state.gradient)
        state, info, _ = transition(method, model, density, keys, state, momentum, clock)
        return state, info

    return Kernel(init, step)


def _factors(model: Model, state: HMCState, clock: Clock) -> Factors | None:
    """The tempering of a step: the model's own, but for the first steps of variational inference."""
    if state.q is None:
        return None
    of_likelihood, of_prior = model.tempering_factors
    return of_likelihood, jnp.where(clock.phase == 0, variational.share(clock), 1.0) * of_prior


class Space(NamedTuple):
    """Where trajectories run: a density of positions as vectors, and the units of each weight."""

    density: Density
    length: Array  # of a trajectory without jitter
    widths: Array  # r [P], relative widths of the prior
    prior_widths: Array  # s [P]

    @classmethod
    def of(cls, method: HMC, model: Model, density: Density, params: Params) -> Space:
        position = density.position(params)
        length, widths = trajectory(method, model, position)
        flat = [ravel_broadcast(leaf, position) for leaf in (widths, prior_widths(model, position))]
        return cls(flattened(density, params), length, *flat)


class Move(NamedTuple):
    """What a step does: a trajectory from a point, a draw of q, or a stay where variational inference ended."""

    begin: Point
    widths: Array
    step_size: Array
    num_leapfrog: Array
    covered: Array
    inferring: Array  # whether it is a step of variational inference
    free: Array  # whether it is taken without a test


def _move(method: HMC, space: Space, state: HMCState, begin: Point, clock: Clock) -> Move:
    if state.q is None:
        no = jnp.zeros((), bool)
        return Move(begin, space.widths, *_steps(method, state, space.length, clock), no, no)
    inferring, prior = clock.phase == 0, space.prior_widths
    # A budget may cut inference while the prior is still tempered: gradient and measure are then of another density. So
    # burn-in begins with a drift of no length, which computes them where the chain is.
    settling = (clock.phase == 1) & (clock.step == 0)
    free = inferring | settling
    length = jnp.asarray(np.pi if method.trajectory_length is None else method.trajectory_length, float)
    step_size, num_leapfrog, covered = _steps(method, state, length, clock)
    # A drift of one width from the mean of q, with no kick before it, is a draw of q: no second program is compiled.
    draw = begin._replace(position=variational.centre(state.q, prior), gradient=jnp.zeros_like(begin.gradient))
    return Move(
        pytrees.select(inferring, draw, begin),
        variational.metric(state.q, prior),
        jnp.where(inferring, 1.0, jnp.where(settling, 0.0, step_size)),
        jnp.where(free, 1, num_leapfrog),
        jnp.where(free, 1.0, covered),
        inferring,
        free,
    )


def transition(
    method: HMC, model: Model, density: Density, keys: Sequence[Key], state: HMCState, momentum: Array, clock: Clock
) -> tuple[HMCState, HamiltonianInfo, Array]:
    """One trajectory from a momentum [P], accepted or not; also returns the momentum at its end.

    The first key decides whether it is accepted, the second draws the part of the weights that is exact.
    """
    space = Space.of(method, model, density, state.params)
    density = space.density
    begin = Point(density.position(state.params), momentum, state.gradient, state.measure)
    move = _move(method, space, state, begin, clock)
    begin, step_size = move.begin, move.step_size
    end = integrate(density, begin, move.widths, step_size, move.num_leapfrog)
    drop = energy_drop(density, begin, end)
    diverged = ~(jnp.isfinite(drop) & (drop > -DIVERGENCE) & pytrees.all_finite(end.gradient)) & ~move.free
    acceptance = jnp.where(move.free, 1.0, jnp.where(diverged, 0.0, jnp.exp(jnp.minimum(drop, 0.0))))
    accepted = jax.random.uniform(keys[0], dtype=acceptance.dtype) < acceptance
    point = pytrees.select(accepted, end, begin)
    adapted, q = state.step_size, state.q
    if adapted is not None:
        moved = adaptation.update(adapted, acceptance, method.target_acceptance, GAMMA)
        if q is not None:
            # Chains that leave q for the bulk of the posterior find it stiffer: what they learned before is forgotten.
            again = (clock.step + 1 == clock.num_steps // 4) | (clock.step + 1 == clock.num_steps // 2)
            moved = pytrees.select(again, adaptation.begin(jnp.exp(moved.log_step_size), 1.0), moved)
        adapted = pytrees.select(method.adapts(clock) & ~move.free, moved, adapted)
    if q is not None:
        learned = variational.update(q, momentum, end.gradient, space.prior_widths, clock)
        q = pytrees.select(move.inferring, learned, q)
    params = density.complete(keys[1], point.position)
    report = density.report(params, point.measure)
    kinetic = pytrees.total(jax.tree.map(jnp.square, point.momentum)) / 2
    info = HamiltonianInfo(
        log_joint=model.temper(report.log_likelihood, report.log_prior),
        acceptance=acceptance,
        accepted=accepted,
        diverged=diverged,
        step_size=step_size,
        num_gradients=move.num_leapfrog,
        log_likelihood=report.log_likelihood,
        log_prior=report.log_prior,
        energy=kinetic - report.log_density,
        covered=move.covered,
    )
    return HMCState(params, point.gradient, point.measure, adapted, q), pytrees.as_floats(info), end.momentum


def trajectory(method: HMC, model: Model, params: Params) -> tuple[Array, Params]:
    """Length without jitter, and the relative width r_i of the weights of each leaf."""
    scale, widths = relative_widths(model, params)
    length = np.pi / 2 * scale if method.trajectory_length is None else method.trajectory_length
    return jnp.asarray(length, float), widths


def _steps(method: HMC, state: HMCState, length: Array, clock: Clock) -> tuple[Array, Array, Array]:
    """Step size and number of leapfrog steps of this trajectory, and how much of its length they cover."""
    if state.step_size is None:
        step_size, most = jnp.asarray(method.step_size, float), jnp.iinfo(jnp.int32).max
    else:
        step_size, most = (
            jnp.minimum(adaptation.current(state.step_size, method.adapts(clock)), length),
            method.max_leapfrog,
        )
    whole = stretched_steps(length, method.jitter, step_size, clock)
    return step_size, at_most(whole, most), jnp.minimum(most / whole, 1.0)
