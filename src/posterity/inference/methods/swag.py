"""SWAG: the Gaussian that a trajectory of SGD at a constant rate traces out (Maddox et al. 2019, algorithm 1).

    a snapshot w_n every few steps, the start counting as w_0:
        mean_n = mean of w_0 .. w_n        variance_n = mean of squares - square of the mean        D_n = w_n - mean_n
    w ~ N(mean, (diag(variance) + D D^T / (R - 1)) / 2),   D the last R deviations

The variance is accumulated as squared deviations (Welford 1962): a difference of two large squares loses its digits.

The rate sets the width: the paper takes a high one, which for its networks and losses is 0.01 to 0.05. What is high
depends on the loss: descent is stable for rates up to 2 (1 + momentum) / h, h the largest curvature of the mean loss,
and h grows with the precision of the data. By default the rate is therefore RATE / h, with h at the start, and batches
are a quarter of the rows at most, since the descent of full batches has no noise.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from posterity.core import pytrees, records
from posterity.core.checks import check_whole
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.batches import num_batches
from posterity.inference.methods.card import Card
from posterity.inference.methods.descent import Descent, loss_parts
from posterity.inference.methods.method import Result
from posterity.inference.methods.point import MAP
from posterity.models.model import Model, weighted_sum
from posterity.weights.families import LowRankGaussian

MINIMUM_SNAPSHOTS = 2  # R - 1 divides
RATE = 0.5  # a seventh of the largest stable one, at a momentum of 0.9
CURVATURE_STEPS = 20  # of the power iteration
LARGEST_BATCH, MOST_OF_THE_ROWS = 128, 0.25


def sgd_with_momentum(learning_rate: Any) -> optax.GradientTransformation:
    return optax.sgd(learning_rate, momentum=0.9)


class SWAGState(NamedTuple):
    descent: Any
    mean: Params  # of the start and all snapshots
    squares: Params  # sum of their squared deviations from that mean
    deviations: Params  # [R, ...], the slots of a ring; zero until filled
    num_snapshots: Array
    learning_rate: Any  # None where it is the method's own

    @property
    def params(self) -> Params:
        return self.descent.params


@records.record
class SWAG(Descent):
    """A Gaussian fitted to the snapshots of SGD around an optimum; several chains give multi-SWAG.

    Args:
        learning_rate: A constant; its size sets the width of the Gaussian. None: 0.5 / the largest curvature of the
            loss at the start.
        batch_size: Rows per step. None: 128, or a quarter of the rows where there are fewer than 512, since full
            batches have no noise; "full": all rows.
        optimizer: A function of the learning rate, or an optax transformation, which then has a learning rate of its
            own. By default SGD with momentum 0.9.
        snapshot_every: Steps between snapshots. None: one snapshot per epoch.
        rank: Deviations kept; fewer where the run has fewer snapshots.
        start: Where the trajectory begins: a method, which is fitted first, a Posterior, or trained weights.
    """

    card = Card(
        name="swag",
        label="SWAG",
        what="A Gaussian of the path of gradient descent.",
        when="A large network that is trained by SGD already.",
        reference="Maddox et al. 2019",
        ignorance="as wide as the noise of SGD",
        cost="1.5-2",
        verdict="approximates",
        colour="red",
        line="-",
        marker="X",
        settings=lambda size: {
            "start": MAP(**size.descent(2_000)),
            "num_steps": size.count(1_000, 40),
            "snapshot_every": size.count(20, 2),
        },
    )

    _: dataclasses.KW_ONLY
    learning_rate: Any = records.traced(default=None)
    batch_size: int | str | None = records.host(default=None)
    optimizer: Any = sgd_with_momentum
    snapshot_every: int | None = None
    rank: int = 20
    start: Any = records.host(default=MAP())

    targets_temperature = False
    holds_scales = True

    def __post_init__(self) -> None:
        Descent.__post_init__(records.replace(self, learning_rate=RATE) if self.learning_rate is None else self)
        check_whole("SWAG", MINIMUM_SNAPSHOTS, rank=self.rank)
        if self.snapshot_every is not None:
            check_whole("SWAG", snapshot_every=self.snapshot_every)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        few = min(LARGEST_BATCH, max(1, int(MOST_OF_THE_ROWS * num_rows)))
        batch_size = few if self.batch_size is None else self.batch_size
        (phase,) = Descent.plan(records.replace(self, batch_size=batch_size), num_rows)
        every = self.snapshot_every or num_batches(num_rows, phase.batch_size)
        if phase.num_steps // every < MINIMUM_SNAPSHOTS:
            raise ValueError(
                f"SWAG takes {phase.num_steps // every} snapshot(s) in {phase.num_steps} steps, one every {every}; it "
                f"needs at least {MINIMUM_SNAPSHOTS}: raise num_steps (or num_epochs), or lower snapshot_every."
            )
        return (phase,)

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)

    def finish(self, model: Model, states: SWAGState, kept: Params, fixed: Params) -> Result:
        del kept
        count = int(np.min(states.num_snapshots))  # all chains have as many
        if count < MINIMUM_SNAPSHOTS:
            raise ValueError(
                f"SWAG was stopped after {count} snapshot(s) and needs at least {MINIMUM_SNAPSHOTS}: give it a longer "
                "budget, or lower snapshot_every."
            )
        scale = jax.tree.map(lambda squares: jnp.sqrt(squares / (count + 1)), states.squares)
        # Slots that no snapshot filled are no deviations: the family divides by the number of slots less one.
        filled = jax.tree.map(lambda leaf: leaf[:, : min(count, self.rank)], states.deviations)
        return Result(LowRankGaussian(states.mean, scale, filled, fixed), model, {"num_snapshots": count})


def _kernel(method: SWAG, model: Model) -> Kernel:
    def descent(rate: Any) -> Kernel:
        """The steps are those of MAP with this method's optimiser."""
        rate = method.learning_rate if rate is None else rate
        return records.replace(MAP(), learning_rate=rate, optimizer=method.optimizer).kernel(model)

    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> SWAGState:
        empty = jax.tree.map(lambda leaf: jnp.zeros((method.rank, *leaf.shape), leaf.dtype), params)
        zero = jax.tree.map(jnp.zeros_like, params)
        key_curvature, key_descent = jax.random.split(key)
        rate = None
        if method.learning_rate is None:
            rate = RATE / _largest_curvature(model, key_curvature, params, batch, clock)
        start = descent(rate).init(key_descent, params, batch, clock)
        return SWAGState(start, params, zero, empty, jnp.zeros((), int), rate)

    def step(key: Key, state: SWAGState, batch: Batch, clock: Clock) -> tuple[SWAGState, Any]:
        moved, info = descent(state.learning_rate).step(key, state.descent, batch, clock)
        every = clock.num_batches.astype(int) if method.snapshot_every is None else method.snapshot_every
        due = (clock.step + 1) % every == 0
        return jax.lax.cond(due, _snapshot, lambda same: same, state._replace(descent=moved)), info

    return Kernel(init, step)


def _snapshot(state: SWAGState) -> SWAGState:
    """Add the current weights to the moments and to the ring."""
    slot = state.num_snapshots % pytrees.num_rows(state.deviations)
    count = state.num_snapshots + 2  # with this one and the start
    mean = jax.tree.map(lambda m, w: m + (w - m) / count.astype(w.dtype), state.mean, state.params)
    deviation = jax.tree.map(lambda w, m: w - m, state.params, mean)
    squares = jax.tree.map(lambda s, w, old, d: s + (w - old) * d, state.squares, state.params, state.mean, deviation)
    deviations = jax.tree.map(lambda ring, d: ring.at[slot].set(d), state.deviations, deviation)
    return SWAGState(state.descent, mean, squares, deviations, state.num_snapshots + 1, state.learning_rate)


def _largest_curvature(model: Model, key: Key, params: Params, batch: Batch, clock: Clock) -> Array:
    """The largest eigenvalue, in size, of the Hessian of the mean loss of a batch, by power iteration."""
    flat, unravel = ravel_pytree(params)

    def loss(weights: Array) -> Array:
        rows = weighted_sum(model.log_likelihood(unravel(weights), batch), batch.weight)
        return loss_parts(model, clock.num_batches * rows, model.log_prior(unravel(weights)), clock)[0]

    def turn(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        # By the reverse mode alone: some layers, our convolutions too, have no forward mode.
        product = jax.grad(lambda w: jnp.dot(jax.grad(loss)(w), carry[0]))(flat)
        size = jnp.linalg.norm(product)
        return product / size, size

    direction = jax.random.normal(key, flat.shape, flat.dtype)
    begin = direction / jnp.linalg.norm(direction), jnp.ones((), flat.dtype)
    return jax.lax.fori_loop(0, CURVATURE_STEPS, turn, begin)[1]
