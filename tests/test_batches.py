"""Batches: every row once an epoch, in a new order each epoch, whatever N and the batch size are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity.data.batches import batch_width, num_batches, permute, pick_rows, take_rows
from posterity.types import Batch


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
