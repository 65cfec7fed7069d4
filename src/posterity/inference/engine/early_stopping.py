"""Early stopping as a kernel around a kernel: each chain keeps its best state and stands still once it stops improving.

It happens inside the compiled loop, at fixed steps, so the result does not depend on how a run was cut into segments.
"""

from __future__ import annotations

import functools
from collections import namedtuple
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params

LOOKING = 2**30  # folded into the key of the start, clear of what kernels split it into


class EarlyStoppingState(NamedTuple):
    current: Any
    best: Any
    best_loss: Array
    num_worse: Array  # looks since the best one
    stopped: Array
    last_loss: Array  # of the latest look; before the first one, at the start

    @property
    def params(self) -> Params:
        return self.best.params


def stop_early(kernel: Kernel, validation: Batch, every: Any, patience: Any) -> Kernel:
    """Look at the validation loss every `every` steps; stop after `patience` looks without a better one.

    What a step records has the latest loss besides, `validation_loss`.

    The last step is looked at too, and before the first look the best state is the latest one: a run shorter than
    `every` steps, by its plan or by a budget, must not end where it began.
    """
    validate = kernel.validate
    assert validate is not None

    def init(key: Key, params: Params, batch: Batch, clock: Clock) -> EarlyStoppingState:
        state = kernel.init(key, params, batch, clock)
        infinite = jnp.asarray(jnp.inf)
        loss = _recorded(validate(jax.random.fold_in(key, LOOKING), state, validation), infinite)
        return EarlyStoppingState(state, state, infinite, jnp.zeros((), int), jnp.asarray(False), loss)

    def look(key: Key, state: EarlyStoppingState) -> EarlyStoppingState:
        loss = validate(key, state.current, validation).astype(state.best_loss.dtype)
        better = (loss < state.best_loss) & ~state.stopped
        num_worse = jnp.where(better, 0, state.num_worse + 1)
        return EarlyStoppingState(
            state.current,
            pytrees.select(better, state.current, state.best),
            jnp.where(better, loss, state.best_loss),
            num_worse,
            state.stopped | (num_worse >= patience),
            jnp.where(state.stopped, state.last_loss, _recorded(loss, state.best_loss)),
        )

    def step(key: Key, state: EarlyStoppingState, batch: Batch, clock: Clock) -> tuple[EarlyStoppingState, Any]:
        key_step, key_look = jax.random.split(key)
        moved, info = kernel.step(key_step, state.current, batch, clock)
        current = pytrees.select(state.stopped, state.current, moved)
        best = pytrees.select(jnp.isinf(state.best_loss), current, state.best)
        state = state._replace(current=current, best=best)
        due = ((clock.step + 1) % every == 0) | (clock.step + 1 == clock.num_steps)
        state = jax.lax.cond(due, look, lambda _, same: same, key_look, state)
        return state, _with_loss(type(info))(*info, state.last_loss)

    return Kernel(init, step, validate)


def _recorded(loss: Array, like: Array) -> Array:
    """The largest number where it is not finite: that alone does not end a run."""
    return jnp.nan_to_num(loss.astype(like.dtype), nan=jnp.finfo(like.dtype).max)


@functools.cache
def _with_loss(info: type[Any]) -> type[Any]:
    """What a kernel records, with one field more."""
    return namedtuple(info.__name__, (*info._fields, "validation_loss"))
