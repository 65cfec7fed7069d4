"""MILE (Sommer et al. 2025): an ensemble first, then microcanonical Langevin dynamics (MCLMC) from each member.

Weights w in d dimensions move at unit speed, |u| = 1 (Robnik et al. 2023; Robnik & Seljak 2024):

    dw = u dt,    du = (I - u u^T) [grad log p_T(w | D) / (d - 1) dt + noise],

whose stationary law is p_T(w | D) times u uniform on the sphere. One step of size e is McLachlan's splitting of turns
of u and drifts of w, (c, 1/2, 1 - 2c, 1/2, c) with c = 0.1931833 (two gradients), then u <- (u + s z) / |u + s z| with
z ~ N(0, I), s^2 = (exp(2 e / L) - 1) / d. Its energy error is dE = dK - d log p_T, dK the log of how much the turns
shrink volume. Unadjusted, the law has an error of second order in e.

Warm-up, 8 : 1 : 1 (after the authors' code):
    I    xi = dE^2 / (d V) + 1e-8 with V from 0.5 down to V_d; q = exp(-(log xi / 9)^2 / 2); A <- r A + q xi / e^6,
         B <- r B + q, r = 99/101; e = (A/B)^(-1/6), and at most 0.8 of any e that diverged. L = max(sqrt d, 15).
    II   L = sqrt(sum_i Var[w_i]).         III   L = 0.4 e mean_i(steps / ESS_i).

The authors end at V = 0.1. With few weights e is then too long: the standard deviation of the function came to 0.93 of
NUTS's on a 1x10 network with Gaussian noise (0.89 at worst), and to 0.90 .. 1.73 of it with noise of the network's own.
R-hat cannot see that, for all chains have it. Therefore V_d = 1e-5 (d / 50)^4, within 1e-5 and 0.1: e is half as long
for such networks, and an effective draw of the function took 156 gradients, where it had taken 57 and adjusted draws
take 248. From 500 weights on it is the authors', for there a shorter e costs more than it gains: with 1e-4 on
Boston housing (801 weights, as many steps) R-hat rose from 1.25 to 1.54 and the test loss from 0.11 to 0.15 nats.

Adjusted (Robnik et al. 2025): a draw takes a fresh u, about L / e steps without noise, and is accepted with probability
min(1, exp(-dE)), else the state is repeated: exact at any e. A further phase then tunes e to a target acceptance. dE is
summed from differences of single terms, as in HMC.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.methods import hamiltonian
from posterity.inference.methods import step_size as adaptation
from posterity.inference.methods.card import Card
from posterity.inference.methods.density import plain
from posterity.inference.methods.hamiltonian import DIVERGENCE, check_target_acceptance
from posterity.inference.methods.point import DeepEnsemble
from posterity.inference.methods.sampler import Sampler, check_counts, check_positive
from posterity.metrics.convergence import effective_draws
from posterity.models.model import Model, weighted_sum

MCLACHLAN = 0.1931833275037836
FIRST_TARGET, LAST_TARGET = 0.5, 0.1  # variance of the energy error per dimension
FEW_TARGET, FEW = 1e-5, 50  # the last target of so few weights
TRUST, MEMORY = 1.5, 99 / 101
MAX_JUDGED = 2_000  # weights whose ESS phase III looks at
MAX_KEPT = 500  # draws that phases II and III keep for it
MIN_KEPT = 4  # below it draws know neither a spread nor an ESS: a budget may end a phase at its first stride
JITTER = 0.5  # of the length of adjusted trajectories


class MILEState(NamedTuple):
    params: Params
    velocity: Array  # [P], of length 1
    gradient: Array  # [P] of the tempered log joint
    log_likelihood: Array  # [N] of each row, neither weighted nor tempered
    step_size: Array
    length: Array  # L
    largest: Array  # step size allowed
    averages: tuple[Array, Array]  # A e^6 and B of phase I
    dual: adaptation.DualAveraging | None  # where the adjusted variant tunes its step size


class MILEInfo(NamedTuple):
    log_joint: Array  # tempered, of the state after the step, as are the likelihood and prior below
    acceptance: Array  # probability; 1 where nothing is rejected
    accepted: Array
    diverged: Array
    step_size: Array
    num_gradients: Array
    log_likelihood: Array  # untempered sum over rows
    log_prior: Array
    energy_change: Array  # dE of the step
    length: Array


class Point(NamedTuple):
    """A place on a trajectory, as flat vectors."""

    position: Array  # [P]
    velocity: Array  # [P]
    gradient: Array  # [P]
    log_likelihood: Array  # [N]


@records.record
class MILE(Sampler):
    """Microcanonical Langevin ensembles: one chain from each member, all in one program.

    Args:
        num_draws: Draws kept, per member.
        num_burn_in: Steps that tune step size and length and are discarded.
        thin: Keep every thin-th step. None: 5, or 1 where `adjusted`.
        step_size: Step of the integrator, e, in units of weights. None: tuned.
        length: L, the distance over which the velocity is forgotten, in units of weights. None: tuned.
        adjusted: Whether steps are accepted or repeated, so that draws are exact.
        target_acceptance: The acceptance probability that the adjusted variant tunes e for, in a further phase.
        max_trajectory: Most steps of an adjusted trajectory.
        start: One chain begins at each member: an ensemble, which is trained first, another method, a Posterior, or
            weights. None: the network's own initialisation.
    """

    card = Card(
        name="mile",
        label="MILE",
        what="A microcanonical sampler from each member of an ensemble.",
        when="Nearly HMC's answer in less time.",
        reference="Sommer et al. 2025",
        ignorance="right up to a small error of the step size; none if adjusted",
        cost="5-50",
        verdict="samples",
        colour="brown",
        line="-",
        marker="s",
        settings=lambda size: {
            "num_draws": size.count(100),
            "num_burn_in": size.count(1_000, 100),
            "thin": 5,
            "start": DeepEnsemble(**size.descent(3_000), num_members=6),
        },
        share=4,
        is_sampler=True,
        compared=True,
    )

    num_draws: int = records.host(default=500)
    _: dataclasses.KW_ONLY
    num_burn_in: int = records.host(default=2_000)
    thin: int | None = records.host(default=None)
    step_size: float | None = records.traced(default=None)
    length: float | None = records.traced(default=None)
    adjusted: bool = False
    target_acceptance: float = records.traced(default=0.9)
    max_trajectory: int = records.traced(default=1_000)
    start: Any = records.host(default=DeepEnsemble(num_members=8))

    def __post_init__(self) -> None:
        check_counts(self, num_draws=1, num_burn_in=0, max_trajectory=1, **({} if self.thin is None else {"thin": 1}))
        check_positive(self, "step_size", "length")
        check_target_acceptance(self)
        if self.tunes and self.num_burn_in < 100:
            raise ValueError(
                f"MILE(num_burn_in={self.num_burn_in}) leaves too few steps to tune step size and length: give both, "
                "or num_burn_in=2000 (at least 100)."
            )

    @property
    def tunes(self) -> bool:
        return self.step_size is None or self.length is None

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        del num_rows
        thin = self.thin or (1 if self.adjusted else 5)
        draws = Phase(self.num_draws * thin, thin=thin, keep=True)
        if not self.tunes:
            return Phase(self.num_burn_in), draws
        tenth = self.num_burn_in // 10
        looked_at = Phase(tenth, thin=-(-tenth // MAX_KEPT), keep=True, adapt=True)
        warmup = (Phase(self.num_burn_in - 2 * tenth), looked_at, looked_at)
        return (*warmup, Phase(tenth), draws) if self.adjusted else (*warmup, draws)

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        del model, data
        if pytrees.size(params) < 2:
            raise ValueError(
                "MILE moves at unit speed on a sphere and needs two free weights or more: use HMC or NUTS."
            )

    def stuck(self, trace: dict[str, np.ndarray]) -> np.ndarray | None:
        """A member whose step size collapsed in phase I sits in a spike of the density, as a chain of HMC would."""
        return adaptation.stuck_chains(trace) if self.step_size is None else None

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)


def _kernel(method: MILE, model: Model) -> Kernel:
    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> MILEState:
        del clock
        flat = ravel_pytree(params)[0]
        velocity = _unit(jax.random.normal(key, flat.shape, flat.dtype))
        slope = _slope(model, batch, params)
        gradient, rows = slope(flat)
        length = jnp.asarray(max(np.sqrt(flat.size), 15.0) if method.length is None else method.length, float)
        begin = Point(flat, velocity, gradient, rows)

        def energy_drop_of(step_size: Array) -> Array:
            end, shrinkage = isokinetic_step(slope, begin, step_size)
            return -_energy_change(model, batch, params, begin, end, shrinkage)

        step_size = method.step_size
        if step_size is None:
            step_size = adaptation.first_step_size(energy_drop_of, jnp.asarray(np.sqrt(flat.size) / 4, float))
        step_size, zero = jnp.asarray(step_size, float), jnp.zeros((), float)
        dual = adaptation.begin(step_size) if method.adjusted and method.step_size is None else None
        return MILEState(params, velocity, gradient, rows, step_size, length, zero + jnp.inf, (zero, zero), dual)

    def step(key: Key, state: MILEState, batch: Batch, clock: Clock) -> tuple[MILEState, MILEInfo]:
        return _step(method, model, key, state, batch, clock)

    def adapt(key: Key, state: MILEState, draws: Params, clock: Clock) -> MILEState:
        del key
        return _adapt(method, state, draws, clock)

    return Kernel(init, step, adapt=adapt)


def _step(
    method: MILE, model: Model, key: Key, state: MILEState, batch: Batch, clock: Clock
) -> tuple[MILEState, MILEInfo]:
    key_velocity, key_accept = jax.random.split(key)
    tuning = clock.phase < (3 if method.tunes else 1)
    adjusting = jnp.asarray(method.adjusted) & (~tuning if method.tunes else True)
    flat, unravel = ravel_pytree(state.params)
    noise = jax.random.normal(key_velocity, flat.shape, flat.dtype)
    # An adjusted trajectory begins with a fresh velocity and has no noise after it: either way it serves once.
    begin = Point(flat, jnp.where(adjusting, _unit(noise), state.velocity), state.gradient, state.log_likelihood)
    step_size, num_steps = _settings(method, state, adjusting, clock)
    end, shrinkage = _integrate(method, _slope(model, batch, state.params), begin, step_size, num_steps)
    change = _energy_change(model, batch, state.params, begin, end, shrinkage)
    diverged = ~((jnp.abs(change) < DIVERGENCE) & jnp.all(jnp.isfinite(end.gradient)))
    acceptance = jnp.where(adjusting, jnp.where(diverged, 0.0, jnp.exp(jnp.minimum(-change, 0.0))), 1.0)
    # Tuning may try a step too long and take it back; later an unadjusted chain that fails must be seen to fail.
    taken_back = diverged & (tuning | adjusting)
    accepted = (jax.random.uniform(key_accept, dtype=acceptance.dtype) < acceptance) & ~taken_back
    change = jnp.where(taken_back, DIVERGENCE, change)
    kept = pytrees.select(accepted, end, begin._replace(velocity=-begin.velocity))
    noise_scale = jnp.sqrt(jnp.expm1(2 * step_size / state.length) / flat.size).astype(flat.dtype)
    velocity = _unit(kept.velocity + jnp.where(adjusting, 0.0, noise_scale) * noise)
    new = state._replace(
        params=unravel(kept.position), velocity=velocity, gradient=kept.gradient, log_likelihood=kept.log_likelihood
    )
    log_likelihood, log_prior = weighted_sum(new.log_likelihood, batch.weight), model.log_prior(new.params)
    info = MILEInfo(
        log_joint=model.temper(log_likelihood, log_prior),
        acceptance=acceptance,
        accepted=accepted,
        diverged=diverged,
        step_size=step_size,
        num_gradients=2 * num_steps,
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        energy_change=change,
        length=state.length,
    )
    return _tune(method, new, change, diverged, acceptance, flat.size, clock), pytrees.as_floats(info)


def _settings(method: MILE, state: MILEState, adjusting: Array, clock: Clock) -> tuple[Array, Array]:
    """Step size and number of steps: one, or an adjusted trajectory's."""
    step_size, num_steps = state.step_size, jnp.ones((), int)
    if not method.adjusted:
        return step_size, num_steps
    if state.dual is not None:
        step_size = jnp.where(adjusting, adaptation.current(state.dual, clock.phase == 3), step_size)
    whole = hamiltonian.stretched_steps(state.length, JITTER, step_size, clock)
    along = hamiltonian.at_most(whole, method.max_trajectory)
    return step_size, jnp.where(adjusting, along, num_steps)


def _integrate(method: MILE, slope: Any, begin: Point, step_size: Array, num_steps: Array) -> tuple[Point, Array]:
    """The end of a trajectory, and dK, the log of how much it shrank volume."""
    if not method.adjusted:
        return isokinetic_step(slope, begin, step_size)

    def body(index: Array, carry: tuple[Point, Array]) -> tuple[Point, Array]:
        del index
        point, shrinkage = isokinetic_step(slope, carry[0], step_size)
        return point, carry[1] + shrinkage

    return jax.lax.fori_loop(0, num_steps, body, (begin, jnp.zeros((), begin.position.dtype)))


def isokinetic_step(
    slope: Callable[[Array], tuple[Array, Array]], point: Point, step_size: Array
) -> tuple[Point, Array]:
    """One step of McLachlan's splitting, reversible under u -> -u, and dK."""
    step = step_size.astype(point.position.dtype)
    velocity, first = turn(point.velocity, point.gradient, MCLACHLAN * step)
    middle = point.position + step / 2 * velocity
    velocity, second = turn(velocity, slope(middle)[0], (1 - 2 * MCLACHLAN) * step)
    position = middle + step / 2 * velocity
    gradient, rows = slope(position)
    velocity, third = turn(velocity, gradient, MCLACHLAN * step)
    return Point(position, velocity, gradient, rows), first + second + third


def turn(velocity: Array, gradient: Array, time: Array) -> tuple[Array, Array]:
    """The exact flow of du = (I - u u^T) g / (d - 1) dt for a constant g, and dK."""
    norm = jnp.linalg.norm(gradient)
    ahead = gradient / jnp.where(norm > 0, norm, 1.0)
    delta = time * norm / (gradient.size - 1)
    cosine, shrink = jnp.dot(velocity, ahead), jnp.exp(-delta)
    turned = ahead * (1 - shrink) * (1 + shrink + cosine * (1 - shrink)) + 2 * shrink * velocity
    # Two forms of one logarithm: the first is accurate for short turns, the second does not underflow on long ones.
    short = jnp.log1p((1 - cosine) * jnp.expm1(-2 * jnp.minimum(delta, 1.0)) / 2)
    long = jnp.log((1 + cosine + (1 - cosine) * jnp.square(shrink)) / 2)
    return _unit(turned), (gradient.size - 1) * (delta + jnp.where(delta < 1, short, long))


def _slope(model: Model, batch: Batch, params: Params) -> Callable[[Array], tuple[Array, Array]]:
    """position -> (gradient of the tempered log joint [P], log-likelihood of each row [N])."""
    unravel = ravel_pytree(params)[1]

    def density(position: Array) -> tuple[Array, Array]:
        weights = unravel(position)
        rows = model.log_likelihood(weights, batch)
        return model.temper(weighted_sum(rows, batch.weight), model.log_prior(weights)), rows

    return jax.grad(density, has_aux=True)


def _energy_change(model: Model, batch: Batch, params: Params, begin: Point, end: Point, shrinkage: Array) -> Array:
    unravel = ravel_pytree(params)[1]
    ends = [hamiltonian.Point(unravel(point.position), None, None, point.log_likelihood) for point in (begin, end)]
    return (shrinkage - hamiltonian.energy_drop(plain(model, batch), *ends)).astype(float)


def _tune(
    method: MILE, state: MILEState, change: Array, diverged: Array, acceptance: Array, size: int, clock: Clock
) -> MILEState:
    """Phase I, and the last tuning phase of the adjusted variant."""
    if method.step_size is not None:
        return state
    progress = clock.step / jnp.maximum(clock.num_steps - 1, 1)
    target = FIRST_TARGET + (LAST_TARGET - FIRST_TARGET) * progress
    target *= (_last_target(size) / LAST_TARGET) ** progress
    xi = jnp.square(change) / (size * target) + 1e-8
    # A step that was taken back counts through the cap alone.
    weight = jnp.where(diverged, 0.0, jnp.exp(-jnp.square(jnp.log(xi) / (6 * TRUST)) / 2))
    errors, weights = MEMORY * state.averages[0] + weight * xi, MEMORY * state.averages[1] + weight
    known = weights > 0
    factor = jnp.where(known, errors / jnp.where(known, weights, 1.0), 1.0) ** (-1 / 6)
    largest = jnp.where(diverged, jnp.minimum(state.largest, 0.8 * state.step_size), state.largest)
    step_size = jnp.minimum(factor * state.step_size, largest)
    # A is kept in units of the step size of the moment: e^-6 overflows in float32.
    averages = (errors * (step_size / state.step_size) ** 6, weights)
    moved = state._replace(step_size=step_size, largest=largest, averages=averages)
    state = pytrees.select(clock.phase == 0, moved, state)
    if state.dual is None:
        return state
    dual = adaptation.update(state.dual, acceptance, method.target_acceptance, hamiltonian.GAMMA)
    return state._replace(dual=pytrees.select(clock.phase == 3, dual, state.dual))


def _last_target(size: int) -> float:
    """The variance of the energy error, per dimension, that phase I ends at: more for more weights."""
    return float(np.clip(FEW_TARGET * (size / FEW) ** 4, FEW_TARGET, LAST_TARGET))


def _adapt(method: MILE, state: MILEState, draws: Params, clock: Clock) -> MILEState:
    """L where phase II or III ends."""
    flat = jax.vmap(lambda draw: ravel_pytree(draw)[0])(draws)  # [D, P]
    if method.length is None and len(flat) >= MIN_KEPT:
        deviation = jnp.sqrt(jnp.sum(jnp.var(flat, axis=0)))
        judged = flat[:, :: -(-flat.shape[1] // MAX_JUDGED)]
        forgotten = 0.4 * state.step_size * jnp.mean(clock.num_steps / effective_draws(judged[None], jnp))
        length = jnp.where(clock.phase == 1, deviation, forgotten).astype(float)
        # A chain that has not moved knows no length.
        state = state._replace(length=jnp.where(jnp.isfinite(length) & (deviation > 0), length, state.length))
    if state.dual is not None:
        state = state._replace(dual=adaptation.begin(state.step_size, hamiltonian.BOLDNESS))
    return state


def _unit(vector: Array) -> Array:
    return vector / jnp.linalg.norm(vector)
