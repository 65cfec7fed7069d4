"""Rows: what inputs may be, what is set aside, and batches in which every row stands once an epoch."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from posterity.core.types import Batch
from posterity.data.arrays import check_inputs, dataset, holdout_split
from posterity.data.batches import batch_width, num_batches, permute, pick_rows, take_rows


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 64, 100, 1025])
def test_permute_is_a_bijection(size):
    for seed in range(3):
        found = permute(jax.random.key(seed), jnp.arange(size), size)
        assert sorted(np.asarray(found)) == list(range(size))


def test_orders_look_uniform():
    size, trials = 5, 4000
    keys = jax.random.split(jax.random.key(0), trials)
    orders = np.asarray(jax.vmap(lambda key: permute(key, jnp.arange(size), size))(keys))
    counts = np.stack([(orders == value).sum(0) for value in range(size)])
    expected = trials / size
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 16 + 4 * np.sqrt(2 * 16)  # (size - 1)^2 degrees of freedom
    distinct = {tuple(order) for order in orders}
    assert len(distinct) == 120  # all 5! of them


@pytest.mark.parametrize(("rows", "batch_size"), [(10, 3), (129, 128), (7, 7), (12, 4), (5, 1)])
def test_every_row_counts_once_an_epoch(rows, batch_size):
    batches, width = num_batches(rows, batch_size), batch_width(rows, batch_size)
    data = Batch(jnp.arange(rows)[:, None], jnp.arange(rows), jnp.ones(rows))
    orders = []
    for epoch in range(2):
        seen, sizes = [], []
        for index in range(batches):
            step = jnp.asarray(epoch * batches + index)
            batch = take_rows(data, *pick_rows(jax.random.key(0), rows, step, width, batches, True))
            real = np.asarray(batch.weight) > 0
            seen += list(np.asarray(batch.y)[real])
            sizes.append(real.sum())
            assert np.array_equal(batch.x[:, 0], batch.y)
        assert sorted(seen) == list(range(rows))
        assert max(sizes) - min(sizes) <= 1
        orders.append(seen)
    if batches > 1 and rows > 7:
        assert orders[0] != orders[1]


class Pair(NamedTuple):
    left: Any
    right: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    left: Any
    right: Any


LEFT, RIGHT = np.arange(6.0).reshape(3, 2), np.arange(3)


@pytest.mark.parametrize(
    "x", [LEFT, {"left": LEFT, "right": RIGHT}, (LEFT, RIGHT), Pair(LEFT, RIGHT), Registered(LEFT, {"more": RIGHT})]
)
def test_inputs_may_be_any_pytree_of_arrays(x):
    found = check_inputs(jax.tree.map(jnp.asarray, x))
    jax.tree.map(np.testing.assert_array_equal, found, x)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(found))


def test_lists_and_tables_are_one_array():
    np.testing.assert_array_equal(check_inputs(LEFT.tolist()), LEFT)
    np.testing.assert_array_equal(check_inputs([LEFT[0], LEFT[1]]), LEFT[:2])
    np.testing.assert_array_equal(check_inputs({"table": pd.DataFrame(LEFT)})["table"], LEFT)


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([LEFT, RIGHT], ValueError, "as a tuple or a dictionary"),
        (None, ValueError, "no array in it"),
        (object(), TypeError, "mixed values"),
        ((LEFT, RIGHT[:2]), ValueError, "different numbers of rows"),
    ],
)
def test_inputs_that_are_no_arrays_are_refused(x, error, message):
    with pytest.raises(error, match=message):
        check_inputs(x)


def test_what_is_set_aside_depends_on_seed_and_purpose_alone():
    rows = dataset((np.arange(20.0)[:, None], np.arange(20.0)))
    for name, stream in (("holdout", 7), ("validation", 10)):  # as every stored run has it
        kept, aside = holdout_split(rows, 0.25, 3, name)
        expected = np.sort(np.random.default_rng([3, stream]).permutation(20)[:5])
        np.testing.assert_array_equal(aside.y, expected)
        np.testing.assert_array_equal(np.sort(np.r_[kept.y, aside.y]), np.arange(20))
