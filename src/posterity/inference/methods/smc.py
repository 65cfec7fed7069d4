"""Sequential Monte Carlo from the prior to the posterior (Del Moral et al. 2006), with HMC moves.

Particles follow a path of densities from the normalised prior p(w) to the model's tempered joint density p_T(D, w):

    log pi_b(w) = (1 - b) log p(w) + b log p_T(D, w) = log p(w) + b g(w),   g(w) = log p_T(D, w) - log p(w)

At T = 1, g is the log-likelihood. P particles begin as draws from the prior at b = 0; a step then

    1. finds b' > b by bisection, as large as leaves the weights u_i = exp((b' - b) g(w_i)) an effective number
       (sum u)^2 / sum u^2 of `ess_share` P particles (Jasra et al. 2011; particles are resampled at every step, so
       that this is the conditional one of Zhou et al. 2016),
    2. adds log(sum u / P) to the log evidence: the product of these means is an unbiased estimate of the normaliser Z
       of p_T(D, w) for given b (Neal 2001; Del Moral et al. 2006), and a consistent one for those found here,
    3. resamples the particles in proportion to u, systematically (Kitagawa 1996),
    4. moves each by `num_moves` trajectories of HMC on pi_b'. Where a linear head can be integrated out (head.py) they
       move the other weights, and the head is then drawn from its conditional under pi_b', which is exact.

A chain is an island: P particles that know nothing of those of other chains. Log estimates L_c of C islands are nearly
N(log Z - v / 2, v) (Berard et al. 2014), which gives the error of the estimate that is reported:

    log Z = log mean_c exp(L_c)   +-   t_{C-1}(0.975) sqrt(v / C + v^2 / (2 (C - 1))),   v the variance of the L_c

The trajectory is that of HMC, (pi / 2) s_b long with s_b the width of the prior in pi_b, but of at most `max_leapfrog`
steps: particles need not forget where they were from one temperature to the next. The step size, one for an island,
follows the mean acceptance of its particles, log step size += acceptance - `target_acceptance`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from scipy.stats import t as student

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.methods.card import Card
from posterity.inference.methods.density import Density, Factors, Report, plain
from posterity.inference.methods.hamiltonian import (
    DIVERGENCE,
    HeadChoice,
    Headed,
    Point,
    at_most,
    check_head,
    check_target_acceptance,
    check_widths,
    energy_drop,
    integrate,
    prior_widths,
    relative_widths,
    stretched_steps,
)
from posterity.inference.methods.method import Result
from posterity.inference.methods.sampler import check_counts, check_positive
from posterity.models.model import Model
from posterity.models.priors import Flat
from posterity.weights.families import Samples

JITTER = 0.2  # of the trajectories' length, as in HMC
FIRST_STEPS = 4  # leapfrog steps of the first trajectory
LEAST_LOG_RISE = -70.0  # of b: float32 has no room for less
NUM_BISECTIONS = 40


class SMCState(NamedTuple):
    params: Params  # [P, ...] all particles
    log_likelihood: Array  # [P], untempered
    log_prior: Array  # [P]
    share: Array  # b
    log_evidence: Array  # of the island, up to b
    log_step_size: Array
    num_temperatures: Array


class SMCInfo(NamedTuple):
    share: Array  # b, 1 for the posterior
    log_evidence: Array
    log_joint: Array  # mean over particles, tempered, as are the likelihood and prior below
    acceptance: Array  # mean probability of the step's moves; 1 where there was none
    step_size: Array
    num_gradients: Array  # of all particles together
    log_likelihood: Array
    log_prior: Array


@records.record
class SMC(Headed):
    """Particles tempered from the prior to the posterior: all modes at their weights, and the log evidence.

    Args:
        num_particles: Particles of each island, which is a chain of `fit`; each becomes a draw.
        ess_share: Effective share of the particles that a rise of the inverse temperature leaves; nearer to 1 takes
            more steps.
        num_moves: Trajectories of each particle at each temperature.
        num_last_steps: Steps of as many moves each at the end, on the posterior itself.
        max_leapfrog: Most leapfrog steps of a trajectory.
        trajectory_length: In units of weights, as for HMC. None: pi / 2 prior standard deviations.
        target_acceptance: The acceptance probability that the step size adapts to.
        max_temperatures: Most temperatures; once the posterior is reached, those left cost nothing.
        start: Gives the values of weights that are held fixed; the others begin as draws from the prior. None: the
            network's own initialisation.
    """

    card = Card(
        name="smc",
        label="SMC",
        what="Particles tempered from the prior to the posterior.",
        when="Several modes, or the evidence of a model.",
        reference="Del Moral et al. 2006",
        ignorance="right with enough particles, in all modes",
        cost="100 to 10,000",
        verdict="samples",
        colour="ink",
        line="-.",
        marker="D",
        settings=lambda size: {"num_particles": size.count(64, 16), "num_last_steps": size.count(10)},
        share=8,
        gradients=lambda method: float(method.num_particles * method.num_moves * (method.max_leapfrog + 1)),
    )

    num_particles: int = 64
    _: dataclasses.KW_ONLY
    ess_share: float = records.traced(default=0.9)
    num_moves: int = records.traced(default=2)
    num_last_steps: int = records.host(default=10)
    max_leapfrog: int = records.traced(default=32)
    trajectory_length: float | None = records.traced(default=None)
    target_acceptance: float = records.traced(default=0.8)
    head: HeadChoice = "integrated"
    max_temperatures: int = records.host(default=2_000)
    start: Any = records.host(default=None)

    default_chains = 4
    anytime = False  # particles on their way to the posterior are no draws from it

    def __post_init__(self) -> None:
        check_counts(self, num_particles=2, num_moves=1, num_last_steps=0, max_leapfrog=1, max_temperatures=1)
        check_positive(self, "trajectory_length")
        check_target_acceptance(self)
        check_head(self)
        if not 0 < self.ess_share < 1:
            raise ValueError(f"SMC(ess_share={self.ess_share}) must lie between 0 and 1; 0.9 is usual.")

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        del num_rows
        return Phase(self.max_temperatures), Phase(self.num_last_steps)

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        del data
        for name in pytrees.leaf_names(params):
            if isinstance(model.full_prior.find(name), Flat):
                raise ValueError(
                    f"The prior of {name!r} is flat, and SMC begins with draws from the prior: give it a proper one, "
                    "e.g. Normal(0, 1), or use HMC(trajectory_length=...)."
                )
        if self.trajectory_length is None:
            check_widths(self, prior_widths(model, params))

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)

    def finish(self, model: Model, states: SMCState, kept: Params, fixed: Params) -> Result:
        del kept
        host = jax.tree.map(np.asarray, states)
        if (host.share < 1).any():
            raise ValueError(
                f"SMC came to {host.share.min():.3g} of the way from prior to posterior in {self.max_temperatures} "
                f"temperatures: raise max_temperatures, or lower ess_share={self.ess_share}."
            )
        islands = host.log_evidence.astype(float)
        facts = {
            "log_evidence": float(np.logaddexp.reduce(islands) - math.log(len(islands))),
            "log_evidence_error": evidence_error(islands),
            "log_evidence_of_islands": islands.tolist(),
            "num_temperatures": host.num_temperatures.tolist(),
        }
        # In the order of resampling relatives are neighbours, whose likeness a diagnosis then finds as that of a chain.
        return Result(Samples(states.params, fixed), model, facts)


def evidence_error(islands: np.ndarray) -> float | None:
    """Half of the 95 % interval of the log evidence, from the log estimates of islands; None where there is one."""
    count = len(islands)
    if count == 1:
        return None
    variance = np.var(islands, ddof=1)
    return float(student.ppf(0.975, count - 1) * np.sqrt(variance / count + variance**2 / (2 * (count - 1))))


def _kernel(method: SMC, model: Model) -> Kernel:
    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> SMCState:
        del clock
        keys = jax.random.split(key, method.num_particles)
        particles = jax.vmap(model.sample_prior, (0, None))(keys, params)
        zero = jnp.zeros((), float)
        density = plain(model, batch)
        report = jax.vmap(lambda params: density.report(params, density.measure(params)))(particles)
        position = method.density(model, params, batch).position(params)
        length, _ = _trajectory(method, model, position, zero)
        return SMCState(
            params=particles,
            log_likelihood=report.log_likelihood.astype(float),
            log_prior=report.log_prior.astype(float),
            share=zero,
            log_evidence=zero,
            log_step_size=jnp.log(length / FIRST_STEPS),
            num_temperatures=jnp.zeros((), int),
        )

    def step(key: Key, state: SMCState, batch: Batch, clock: Clock) -> tuple[SMCState, SMCInfo]:
        key_resample, key_moves = jax.random.split(key)
        # A loop of no moves costs nothing: temperatures that are left over are free.
        num_moves = jnp.where((state.share == 1) & (clock.phase == 0), 0, method.num_moves)
        state = temper(key_resample, state)
        first = pytrees.take_rows(state.params, 0)
        density = method.density(model, first, batch, path_factors(model, state.share))
        length, widths = _trajectory(method, model, density.position(first), state.share)
        in_turn = not isinstance(method.find_head(model, first, batch.x), str)  # the reason is that of `execution`

        def move(index: Array, carry: tuple[SMCState, Array, Array]) -> tuple[SMCState, Array, Array]:
            state, acceptance_sum, num_gradients = carry
            step_size = jnp.minimum(jnp.exp(state.log_step_size), length)
            now = clock._replace(step=clock.step * method.num_moves + index)
            num_leapfrog = at_most(stretched_steps(length, JITTER, step_size, now), method.max_leapfrog)
            keys = jax.random.split(jax.random.fold_in(key_moves, index), method.num_particles)
            one = lambda particle: _move(density, particle, widths, step_size, num_leapfrog)  # noqa: E731
            run = jax.lax.map if in_turn else lambda move, particles: jax.vmap(move)(particles)
            particles, report, acceptances = run(one, (keys, state.params))
            acceptance = acceptances.mean()
            change = jnp.where(clock.phase == 0, acceptance - method.target_acceptance, 0.0)
            state = state._replace(
                params=particles,
                log_likelihood=report.log_likelihood.astype(float),
                log_prior=report.log_prior.astype(float),
                log_step_size=jnp.log(step_size) + change,
            )
            return state, acceptance_sum + acceptance, num_gradients + method.num_particles * (num_leapfrog + 1)

        none = jnp.zeros((), float), jnp.zeros((), int)
        state, acceptance_sum, num_gradients = jax.lax.fori_loop(0, num_moves, move, (state, *none))
        info = SMCInfo(
            share=state.share,
            log_evidence=state.log_evidence,
            log_joint=model.temper(state.log_likelihood, state.log_prior).mean(),
            acceptance=jnp.where(num_moves == 0, 1.0, acceptance_sum / jnp.maximum(num_moves, 1)),
            step_size=jnp.exp(state.log_step_size),
            num_gradients=num_gradients,
            log_likelihood=state.log_likelihood.mean(),
            log_prior=state.log_prior.mean(),
        )
        return state, pytrees.as_floats(info)

    def temper(key: Key, state: SMCState) -> SMCState:
        """Raise b, and resample by what that does to the weights."""
        gain = model.temper(state.log_likelihood, state.log_prior) - state.log_prior  # g [P]
        share = next_share(gain, state.share, method.ess_share)
        log_weights = (share - state.share) * gain
        # At the posterior all weights are the same; rounding must not swap particles.
        same = jnp.arange(method.num_particles)
        ancestors = jnp.where(share > state.share, systematic(key, log_weights), same)
        particles, log_likelihood, log_prior = pytrees.take_rows(
            (state.params, state.log_likelihood, state.log_prior), ancestors
        )
        return state._replace(
            params=particles,
            log_likelihood=log_likelihood,
            log_prior=log_prior,
            share=share,
            log_evidence=state.log_evidence + logsumexp(log_weights) - math.log(method.num_particles),
            num_temperatures=state.num_temperatures + (share > state.share),
        )

    return Kernel(init, step)


def next_share(gain: Array, share: Array, ess_share: Array | float) -> Array:
    """The largest b' whose weights exp((b' - b) g) leave this effective share of the particles; 1 at most."""

    def is_gentle(rise: Array) -> Array:
        log_weights = rise * gain
        log_ess = 2 * logsumexp(log_weights) - logsumexp(2 * log_weights)
        return log_ess >= jnp.log(ess_share * gain.size)

    # On a log scale: the first rise may be as small as one over the log-likelihood of a draw from the prior.
    def halve(_: int, interval: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = interval
        middle = (low + high) / 2
        gentle = is_gentle(jnp.exp(middle))
        return jnp.where(gentle, middle, low), jnp.where(gentle, high, middle)

    rest = 1 - share
    ends = jnp.full_like(share, LEAST_LOG_RISE), jnp.log(jnp.maximum(rest, jnp.exp(LEAST_LOG_RISE)))
    low, _ = jax.lax.fori_loop(0, NUM_BISECTIONS, halve, ends)
    return jnp.where(is_gentle(rest), jnp.ones_like(share), share + jnp.exp(low))


def systematic(key: Key, log_weights: Array) -> Array:
    """Which particle each of [P] new ones copies: particle i is copied P W_i times, rounded up or down."""
    count = log_weights.size
    ends = jnp.cumsum(jax.nn.softmax(log_weights))
    places = (jnp.arange(count) + jax.random.uniform(key)) / count
    return jnp.minimum(jnp.searchsorted(ends, places * ends[-1], side="right"), count - 1)


def path_factors(model: Model, share: Array) -> Factors:
    """What log pi_b multiplies log-likelihood and log prior by; at b = 1 as the model's temperature asks for."""
    likelihood, prior = model.tempering_factors
    return share * likelihood, (1 - share) + share * prior


def _trajectory(method: SMC, model: Model, position: Params, share: Array) -> tuple[Array, Params]:
    """Length without jitter, and the relative width of the weights of each leaf; as for HMC on pi_b."""
    scale, widths = relative_widths(model, position)
    if method.trajectory_length is not None:
        return jnp.asarray(method.trajectory_length, float), widths
    power = model.tempering_factors[1]  # of the prior in the posterior, where the widths are from
    return jnp.asarray(np.pi / 2 * scale * jnp.sqrt(power / (1 - share + share * power)), float), widths


def _move(
    density: Density, particle: tuple[Key, Params], widths: Params, step_size: Array, num_leapfrog: Array
) -> tuple[Params, Report, Array]:
    """The weights of a particle after one trajectory, accepted or not, their density, and the acceptance."""
    key, params = particle
    key_momentum, key_accept, key_complete = jax.random.split(key, 3)
    position = density.position(params)
    momentum = pytrees.normal_like(key_momentum, position)
    begin = Point(position, momentum, density.gradient(position), density.measure(position))
    end = integrate(density, begin, widths, step_size, num_leapfrog)
    drop = energy_drop(density, begin, end)
    diverged = ~(jnp.isfinite(drop) & (drop > -DIVERGENCE) & pytrees.all_finite(end.gradient))
    acceptance = jnp.where(diverged, 0.0, jnp.exp(jnp.minimum(drop, 0.0)))
    accepted = jax.random.uniform(key_accept, dtype=acceptance.dtype) < acceptance
    point = pytrees.select(accepted, end, begin)
    params = density.complete(key_complete, point.position)
    return params, density.report(params, point.measure), acceptance
