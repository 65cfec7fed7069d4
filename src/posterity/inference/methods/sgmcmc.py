"""Stochastic-gradient MCMC: Langevin dynamics on minibatches, without an accept step, so with an error that falls with
the learning rate.

With g the gradient of the tempered log joint of all N rows (estimated from a batch), xi ~ N(0, I), a the learning rate,
per datum as for SGD on the mean loss, and P a diagonal preconditioner (1 without):

    SGLD (Welling & Teh 2011; their epsilon is 2a/N)     w <- w + (a/N) P g + sqrt(2 (a/N) P) xi
    SGHMC (Chen et al. 2014, eq. 15), momentum beta      m <- beta m + sqrt((a/N) P) g + sqrt(2 (1 - beta)) xi
                                                         w <- w + sqrt((a/N) P) m

SGHMC is SGD with momentum v = sqrt((a/N) P) m, and noise; m keeps its scale of about 1 where the learning rate moves.

The temperature is in g alone, so noise is never scaled by it. Full batch, on a Gaussian of precision A, both are linear
recursions whose stationary covariance is, with beta = 0 for SGLD and P = 1,

    [A (I - (a/N) A / (2 (1 + beta)))]^-1,

the true A^-1 with an error of first order in a; they are stable while (a/N) A < 2 (1 + beta).

Schedules: a constant; decreasing a (1 + t/b)^-gamma; cyclical (Zhang et al. 2020), in step k = 0 .. K-1 of each cycle

    a_k = a/2 [cos(pi k / K) + 1],    no noise while k/K < exploration, draws kept at the end.

RMSprop (Li et al. 2016): P = 1 / (sqrt(mean of (g/N)^2) + 1e-5), learned in burn-in and frozen afterwards: a P that
moves with w would need a correction that nobody computes for networks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.inference.methods.card import Card
from posterity.inference.methods.method import explicit_batch_size
from posterity.inference.methods.sampler import Sampler, check_counts, check_positive
from posterity.models.model import Model

DAMPING = 1e-5  # of the preconditioner, in units of a gradient per datum
DECAY = 0.99  # of its running average
LONGEST_STRIDE = 100  # steps; the driver looks at the clock between strides


class LangevinState(NamedTuple):
    params: Params
    momentum: Params  # m of SGHMC, None for SGLD
    square: Params  # running mean of (g/N)^2, None without a preconditioner
    num_steps: Array  # of the whole run, which schedules follow


class LangevinInfo(NamedTuple):
    log_joint: Array  # tempered, scaled to all rows from the step's batch, before the step
    learning_rate: Array


@records.record
class Langevin(Sampler):
    """Settings that SGLD and SGHMC share. Abstract.

    Args:
        num_draws: Draws kept, per chain.
        num_burn_in: Steps that are discarded, and in which a preconditioner is learned.
        thin: Keep every thin-th step.
        learning_rate: Per datum, as for SGD on a mean loss; with a preconditioner as for RMSprop.
        batch_size: Rows per step. None: 128, or all rows where there are fewer; "full": all rows.
        schedule: "constant", or "decreasing": learning_rate (1 + t / b)^-gamma at step t. Draws of a decreasing
            schedule count equally, which converges for decay_power < 1 (Teh et al. 2016).
        decay_offset: b of a decreasing schedule, in steps from the beginning of the run.
        decay_power: gamma of a decreasing schedule; 1/3 has the best rate of convergence (Teh et al. 2016).
        preconditioner: "rmsprop": one learning rate for each weight, learned in burn-in. None: the same for all.
    """

    augments = True
    num_draws: int = records.host(default=500)
    _: dataclasses.KW_ONLY
    num_burn_in: int = records.host(default=5_000)
    thin: int = records.host(default=20)
    learning_rate: float = records.traced(default=1e-3)
    batch_size: int | str | None = records.host(default=None)
    schedule: Literal["constant", "decreasing"] = "constant"
    decay_offset: float = records.traced(default=1_000.0)
    decay_power: float = records.traced(default=1 / 3)
    preconditioner: Literal["rmsprop"] | None = None
    start: Any = records.host(default=None)

    def __post_init__(self) -> None:
        check_counts(self, num_draws=1, num_burn_in=0, thin=1)
        check_positive(self, "learning_rate", "decay_offset", "decay_power")
        _check_choice(self, "schedule", "constant", "decreasing")
        _check_choice(self, "preconditioner", None, "rmsprop")
        if self.preconditioner is not None and self.num_burn_in == 0:
            raise ValueError(
                f"{type(self).__name__}(num_burn_in=0) leaves no step in which to learn the preconditioner: "
                "give num_burn_in=1000, or preconditioner=None."
            )

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        batch_size = explicit_batch_size(self.batch_size, num_rows)
        burn_in = Phase(self.num_burn_in, batch_size, thin=_record_length(self.num_burn_in))
        return burn_in, Phase(self.num_draws * self.thin, batch_size, thin=self.thin, keep=True)

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)


@records.record
class SGLD(Langevin):
    """Stochastic-gradient Langevin dynamics."""

    card = Card(
        name="sgld",
        label="SGLD",
        what="Langevin dynamics on minibatches.",
        when="Many rows; slower to mix than SGHMC.",
        reference="Welling & Teh 2011",
        ignorance="right up to an error of the step size",
        cost="5-50",
        verdict="samples",
        # Without the preconditioner, for which no law is known.
        verified_with=lambda: {"num_draws": 2_000, "learning_rate": 1e-2, "preconditioner": None},
        colour="gold",
        line=":",
        marker="v",
        settings=lambda size: {
            "num_draws": size.count(250),
            "num_burn_in": size.count(5_000, 100),
            "thin": 20,
            "preconditioner": "rmsprop",
        },
        share=4,
        is_sampler=True,
    )


@records.record
class SGHMC(Langevin):
    """Stochastic-gradient HMC: SGD with momentum, and noise. The momentum is never redrawn; friction wears it off.

    Args:
        learning_rate: Per datum, as for SGD on a mean loss; in the long run steps are 1 / (1 - momentum) times as long.
        momentum: Share of the momentum that a step keeps, beta = 1 - friction.
    """

    card = Card(
        name="sghmc",
        label="SGHMC",
        what="Hamiltonian dynamics on minibatches.",
        when="Many rows, when a sampler is wanted.",
        reference="Chen et al. 2014",
        ignorance="right up to an error of the step size",
        cost="5-50",
        verdict="samples",
        verified_with=lambda: {"num_draws": 2_000, "learning_rate": 1e-3},
        colour="gold",
        line="-",
        marker="^",
        settings=lambda size: {"num_draws": size.count(250), "num_burn_in": size.count(5_000, 100), "thin": 20},
        share=4,
        is_sampler=True,
        compared=True,
    )

    _: dataclasses.KW_ONLY
    learning_rate: float = records.traced(default=1e-4)
    momentum: float = records.traced(default=0.9)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"SGHMC(momentum={self.momentum}) must lie in [0, 1); 0.9 is usual, 0 is SGLD.")


BASES: dict[str, type[Langevin]] = {"sgld": SGLD, "sghmc": SGHMC}


@records.record
class Cyclical(Sampler):
    """A cosine learning rate that starts anew each cycle, around SGLD or SGHMC: explore, then sample.

    Args:
        base: "sgld", "sghmc", or such a method with settings, as SGHMC(learning_rate=...). Each cycle begins at its
            learning rate; its batch size, momentum and preconditioner (learned while exploring, frozen while sampling)
            apply; its `num_draws`, `num_burn_in` and `thin` are ignored.
        num_cycles: Cycles of each chain.
        cycle_length: Steps of a cycle, K.
        exploration: Share of a cycle without noise, from which no draws are kept.
        draws_per_cycle: Draws kept at the end of each cycle.
        thin: Steps between these draws.
    """

    card = Card(
        name="cyclical",
        label="Cyclical SGHMC",
        what="SGHMC whose step size comes and goes.",
        when="Many rows and several modes.",
        reference="Zhang et al. 2020",
        ignorance="of the modes visited",
        cost="5-50",
        verdict="approximates",
        verified_with=lambda: {"base": SGHMC(learning_rate=1e-3), "num_cycles": 40},
        colour="gold",
        line="--",
        marker="D",
        settings=lambda size: {
            "base": "sghmc",
            "num_cycles": size.count(8),
            "cycle_length": 2_000,
            "draws_per_cycle": 20,
        },
        share=4,
        is_sampler=True,
    )

    augments = True
    base: Any = records.traced(default="sgld")
    _: dataclasses.KW_ONLY
    num_cycles: int = records.host(default=10)
    cycle_length: int = records.traced(default=2_000)
    exploration: float = records.traced(default=0.5)
    draws_per_cycle: int = records.host(default=10)
    thin: int = records.host(default=20)
    start: Any = records.host(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.base, str):
            if self.base not in BASES:
                raise ValueError(f"Cyclical(base={self.base!r}) is not known; choose 'sgld' or 'sghmc'.")
            object.__setattr__(self, "base", BASES[self.base]())
        if not isinstance(self.base, Langevin):
            raise TypeError(f"Cyclical(base={self.base!r}): expected 'sgld', 'sghmc', SGLD(...) or SGHMC(...).")
        if self.base.schedule != "constant" or self.base.start is not None:
            raise ValueError("The base of Cyclical takes no schedule and no start: give start to Cyclical itself.")
        check_counts(self, num_cycles=1, cycle_length=1, draws_per_cycle=1, thin=1)
        if not 0 <= self.exploration < 1:
            raise ValueError(f"Cyclical(exploration={self.exploration}) must lie in [0, 1); try 0.5.")
        if self.base.preconditioner is not None and self.exploration == 0:
            raise ValueError(
                "Cyclical(exploration=0) leaves no step in which to learn the preconditioner of its base: give "
                "exploration=0.5, or a base with preconditioner=None."
            )
        sampling, kept = (1 - self.exploration) * self.cycle_length, self.draws_per_cycle * self.thin
        if kept > sampling + 1e-6:
            raise ValueError(
                f"Cyclical keeps {self.draws_per_cycle} draws {self.thin} steps apart, {kept} steps, but only "
                f"{sampling:g} of a cycle's {self.cycle_length} steps have noise: lower exploration, draws_per_cycle "
                "or thin, or raise cycle_length."
            )

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        batch_size = explicit_batch_size(self.base.batch_size, num_rows)
        kept = Phase(self.draws_per_cycle * self.thin, batch_size, thin=self.thin, keep=True)
        before = self.cycle_length - kept.num_steps
        return (Phase(before, batch_size, thin=_record_length(before)), kept) * self.num_cycles

    def kernel(self, model: Model) -> Kernel:
        return _cyclical_kernel(self, model)


def _kernel(method: Langevin, model: Model) -> Kernel:
    def step(key: Key, state: LangevinState, batch: Batch, clock: Clock) -> tuple[LangevinState, LangevinInfo]:
        rate = jnp.asarray(method.learning_rate, float)
        if method.schedule == "decreasing":
            rate = rate * (1 + state.num_steps / method.decay_offset) ** -method.decay_power
        return _move(method, model, key, state, batch, clock, rate, noise=1.0, learning=clock.phase == 0)

    return Kernel(_init(method, model), step)


def _cyclical_kernel(method: Cyclical, model: Model) -> Kernel:
    def step(key: Key, state: LangevinState, batch: Batch, clock: Clock) -> tuple[LangevinState, LangevinInfo]:
        # A cycle is two phases, of which the second keeps; by the clock, for a budget may have cut the first one.
        before = jnp.where(clock.phase % 2 == 0, 0, method.cycle_length - clock.num_steps)
        share = (before + clock.step) % method.cycle_length / method.cycle_length
        rate = method.base.learning_rate / 2 * (jnp.cos(jnp.pi * share) + 1)
        exploring = share < method.exploration
        noise = jnp.where(exploring, 0.0, 1.0)
        return _move(method.base, model, key, state, batch, clock, rate, noise, learning=exploring)

    return Kernel(_init(method.base, model), step)


def _init(method: Langevin, model: Model) -> Any:
    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> LangevinState:
        del key
        momentum = jax.tree.map(jnp.zeros_like, params) if isinstance(method, SGHMC) else None
        square = None
        if method.preconditioner is not None:
            gradient = jax.grad(model.log_joint)(params, batch, clock.num_batches)
            square = jax.tree.map(lambda g: jnp.square(g / clock.num_data.astype(g.dtype)), gradient)
        return LangevinState(params, momentum, square, jnp.zeros((), int))

    return init


def _move(
    method: Langevin,
    model: Model,
    key: Key,
    state: LangevinState,
    batch: Batch,
    clock: Clock,
    rate: Array,
    noise: Array | float,
    learning: Array,
) -> tuple[LangevinState, LangevinInfo]:
    """One step with this learning rate, its noise times 0 or 1; a preconditioner changes only while `learning`."""
    log_joint, gradient = jax.value_and_grad(model.log_joint)(state.params, batch, clock.num_batches)
    square, scales = _precondition(state.square, gradient, clock.num_data, learning)
    beta = method.momentum if isinstance(method, SGHMC) else 0.0
    eta = rate / clock.num_data
    noise_scale = jnp.sqrt(2.0 * (1 - beta)) * noise
    widths = jax.tree.map(lambda scale: jnp.sqrt(eta * scale).astype(scale.dtype), scales)
    draws = pytrees.normal_like(key, gradient)
    kicks = jax.tree.map(lambda r, g, xi: r * g + noise_scale.astype(g.dtype) * xi, widths, gradient, draws)
    momentum = None
    if state.momentum is not None:
        momentum = kicks = jax.tree.map(lambda m, kick: jnp.asarray(beta, m.dtype) * m + kick, state.momentum, kicks)
    params = jax.tree.map(lambda w, r, kick: w + r * kick, state.params, widths, kicks)
    info = pytrees.as_floats(LangevinInfo(log_joint=log_joint, learning_rate=rate))
    return LangevinState(params, momentum, square, state.num_steps + 1), info


def _precondition(square: Params, gradient: Params, num_data: Array, learning: Array) -> tuple[Params, Params]:
    """The running mean after this gradient, and P of each weight."""
    if square is None:
        return None, jax.tree.map(jnp.ones_like, gradient)
    new = jax.tree.map(
        lambda s, g: DECAY * s + (1 - DECAY) * jnp.square(g / num_data.astype(g.dtype)), square, gradient
    )
    square = pytrees.select(learning, new, square)
    return square, jax.tree.map(lambda s: 1 / (jnp.sqrt(s) + DAMPING), square)


def _record_length(num_steps: int) -> int:
    return max(1, min(num_steps // 100, LONGEST_STRIDE))


def _check_choice(method: Any, name: str, *choices: Any) -> None:
    value = getattr(method, name)
    if value not in choices:
        known = " or ".join(map(repr, choices))
        raise ValueError(f"{type(method).__name__}({name}={value!r}) is not known; choose {known}.")
