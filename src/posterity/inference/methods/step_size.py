"""The step size of a Hamiltonian sampler, tuned to an acceptance probability by dual averaging.

    x_t = mu - sqrt(t) / (gamma (t + t_0)) sum_{i<=t} (target - a_i)        log step size to try next
    xbar_t = t^-kappa x_t + (1 - t^-kappa) xbar_{t-1}                        log step size to keep

with a_i the acceptance probability of step i and mu the log of `boldness` times the first step size (Hoffman & Gelman
2014, sec. 3.2.1; theirs: boldness 10, gamma = 0.05, t_0 = 10, kappa = 0.75). The state is a few numbers, so a run
can be cut anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array

BOLDNESS, GAMMA, OFFSET, KAPPA = 10.0, 0.05, 10.0, 0.75
SMALL_ERROR = float(-np.log(0.8))  # an energy error that one leapfrog step may make
MAX_HALVINGS = 60
STUCK_ACCEPTANCE, STUCK_STEP_SIZE = 0.01, 1e-3
COLLAPSED = 1e-6  # of the first step size: dual averaging overshoots by a few orders, and comes back
RESOLUTION = float(np.finfo(np.float32).eps)
MIN_STRIDES = 5  # fewer steps in a row may well be rejected


class DualAveraging(NamedTuple):
    """Where the adaptation is; all are single numbers."""

    log_step_size: Array  # to try next
    log_average: Array  # to keep
    error_sum: Array  # of (target - acceptance)
    num_updates: Array
    centre: Array  # mu


def begin(step_size: Array, boldness: float = BOLDNESS) -> DualAveraging:
    """Start, or start again, at a step size."""
    log_step_size = jnp.log(step_size)
    zero = jnp.zeros_like(log_step_size)
    return DualAveraging(log_step_size, log_step_size, zero, zero, np.log(boldness) + log_step_size)


def update(state: DualAveraging, acceptance: Array, target: Array | float, gamma: float = GAMMA) -> DualAveraging:
    """After a step that was accepted with this probability."""
    count = state.num_updates + 1
    error_sum = state.error_sum + (target - acceptance)
    log_step_size = state.centre - jnp.sqrt(count) / (gamma * (count + OFFSET)) * error_sum
    share = count**-KAPPA
    log_average = share * log_step_size + (1 - share) * state.log_average
    return DualAveraging(log_step_size, log_average, error_sum, count, state.centre)


def current(state: DualAveraging, adapting: Array) -> Array:
    """The step size to use: the one on trial while adapting, their average afterwards."""
    return jnp.exp(jnp.where(adapting, state.log_step_size, state.log_average))


def first_step_size(energy_drop: Callable[[Array], Array], largest: Array) -> Array:
    """The largest of `largest`, `largest` / 2, ... with which one leapfrog step nearly conserves energy.

    `energy_drop(step_size)` is the energy before one step minus that after it. Its size counts, not its sign: far from
    the typical set a step much too long can land at a lower energy.
    """

    # A trial stands in the body alone: a mapped loop compiles its condition three times.
    def try_half(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step_size, trials, _ = carry
        small = jnp.abs(energy_drop(step_size / 2)) <= SMALL_ERROR  # False for NaN
        return step_size / 2, trials + 1, small

    def too_long(carry: tuple[Array, Array, Array]) -> Array:
        _, trials, small = carry
        return ~small & (trials <= MAX_HALVINGS)

    return jax.lax.while_loop(too_long, try_half, (2 * largest, jnp.zeros((), int), jnp.zeros((), bool)))[0]


def stuck_chains(trace: dict[str, np.ndarray]) -> np.ndarray:
    """Chains [C] whose warm-up collapsed, from its trace [C, R] alone.

    Either nothing moved in its second half, or its step size ended below a thousandth of the largest one: such a chain
    sits in a spike of the density that the others do not know. Where all do, or where there is one chain alone, its own
    first step size tells: a second half that never came near it.
    """
    half = trace["acceptance"].shape[1] // 2
    acceptance, log_joint = trace["acceptance"][:, half:], trace["log_joint"][:, half:]
    still = acceptance.mean(1) < STUCK_ACCEPTANCE
    if log_joint.shape[1] >= MIN_STRIDES:
        still |= np.ptp(log_joint, 1) == 0
    first, last = trace["step_size"][:, 0], trace["step_size"][:, -1]
    return still | (last < STUCK_STEP_SIZE * last.max()) | (largest_late(trace) < COLLAPSED * first)


def rounded_away(trace: dict[str, np.ndarray], weights: np.ndarray, widths: np.ndarray | float) -> np.ndarray:
    """Chains [C] that began in such a spike: half their weights [C, P] are too large to feel a step, and stay.

    A leapfrog step moves a weight by step size times width [C, P], which below the last digit of float32 is nothing,
    however the chain counts it as accepted. No posterior that narrow could be told from a point.
    """
    return np.mean(largest_late(trace)[:, None] * widths < RESOLUTION * np.abs(weights), axis=1) >= 0.5


def largest_late(trace: dict[str, np.ndarray]) -> np.ndarray:
    """The largest step size [C] of the second half."""
    return trace["step_size"][:, trace["step_size"].shape[1] // 2 :].max(1)
