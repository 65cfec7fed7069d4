"""Augmentation: inputs that change at random at every step, inside the compiled program.

With t(x) a random change of x that leaves its target as it is, a step sees log p(y | t(x)) in place of log p(y | x):
training targets exp(E_t log p(y | t(x))), a geometric mean over changes. It counts each row once, however many changed
inputs it is seen by, and is not the likelihood of a longer data set (Nabarro et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array, Batch, Key
from posterity.data.arrays import Dataset

Augment = Callable[[Key, Any], Any]  # (key, inputs of one row) -> inputs of the same shape
AUGMENTING = 2**30  # folded into keys, clear of the numbers of phases
REMARK = (
    "inputs were augmented: each step sees log p(y | t(x)) of a random change t, so that the target is "
    "exp(E_t log p(y | t(x))), with each row counted once, and not the likelihood of the rows as given"
)


def augmented(augment: Augment, key: Key, step: Array, batch: Batch) -> Batch:
    """The batch with each row changed by a key of its own."""
    key = jax.random.fold_in(jax.random.fold_in(key, AUGMENTING), step)
    return batch._replace(x=jax.vmap(augment)(jax.random.split(key, batch.weight.shape[0]), batch.x))


def check_augment(augment: Any, rows: Dataset) -> None:
    """Refuse what is no function from a key and one row's inputs to inputs of the same shape and type."""
    if not callable(augment):
        raise TypeError(
            f"augment is {type(augment).__name__}; expected a function of (key, x), x being one row's inputs."
        )
    row = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), rows.x)
    try:
        made = jax.eval_shape(augment, jax.random.key(0), row)
    except Exception as error:  # the user's own code may raise anything
        raise ValueError(f"augment cannot be applied to one row: {type(error).__name__}: {error}") from error
    wanted, got = (jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree) for tree in (row, made))
    if wanted != got:
        raise ValueError(f"augment makes {got} of a row of {wanted}; expected the same shapes and types.")
