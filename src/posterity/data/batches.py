"""Minibatches by arithmetic: which rows a step sees is a function of (key, step), so a run resumes inside an epoch.

An epoch is cut into ceil(N / batch_size) batches whose sizes differ by one row at most; the shorter ones are padded
with rows of weight 0. Every row is in exactly one batch, and no batch is a small noisy remainder.
The order of an epoch is a keyed bijection of 0 .. N-1: a Feistel cipher on the next power of four, walked along its
cycle until it lands below N (Black & Rogaway 2002). It holds no state and costs no sort.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Clock, Key

NUM_ROUNDS = 12  # fewer leave a visible bias on the orders of a handful of rows


def num_batches(num_rows: int, batch_size: int | None) -> int:
    return 1 if batch_size is None else math.ceil(num_rows / batch_size)


def batch_width(num_rows: int, batch_size: int | None) -> int:
    """Rows of the widest batch, which is the shape all of them have."""
    return math.ceil(num_rows / num_batches(num_rows, batch_size))


def padded_size(num_rows: int) -> int:
    """The least of 4, 5, 6, 7 times a power of two that holds all rows: a program compiled for it serves its equals.

    The rows that are added have weight 0; they cost a ninth of a step on average.
    """
    unit = 2 ** max(math.ceil(math.log2(num_rows)) - 3, 0)
    return math.ceil(num_rows / unit) * unit


def pick_rows(key: Key, rows: int, step: Array, width: int, batches: int, shuffle: bool) -> tuple[Array, Array]:
    """Which of the rows make the batch of one step, and which of those pad it.

    `key` belongs to the chain, and the epoch's key is folded from it.
    """
    epoch, index = step // batches, step % batches
    first, last = _edge(index, rows, batches), _edge(index + 1, rows, batches)
    position = first + jnp.arange(width)
    padding = position >= last
    position = jnp.where(padding, first, position)
    if shuffle:
        position = permute(jax.random.fold_in(key, epoch), position, rows)
    return position, padding


def take_rows(data: Batch, position: Array, padding: Array) -> Batch:
    """The rows picked, those that pad with weight 0."""
    batch = pytrees.take_rows(data, position)
    return batch._replace(weight=jnp.where(padding, 0.0, batch.weight))


def clock(step: Array, num_steps: Array, phase: Array, batches: int, rows: Array | int) -> Clock:
    counts = (jnp.asarray(batches, jnp.float32), jnp.asarray(rows, jnp.float32))
    return Clock(step, num_steps, phase, step % batches, *counts)


def permute(key: Key, position: Array, size: int) -> Array:
    """Where a keyed permutation of 0 .. size-1 sends each position."""
    half_bits = max(1, math.ceil(math.log2(max(size, 2)) / 2))
    mask = jnp.uint32((1 << half_bits) - 1)
    round_keys = jax.random.bits(key, (NUM_ROUNDS,), jnp.uint32)

    def encrypt(value: Array) -> Array:
        left, right = value >> half_bits, value & mask
        for i in range(NUM_ROUNDS):
            mixed = (right ^ round_keys[i]) * jnp.uint32(0x9E3779B1)
            mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x85EBCA77)
            left, right = right, left ^ ((mixed >> 16) & mask)
        return (left << half_bits) | right

    def walk(value: Array) -> Array:
        return jnp.where(value >= size, encrypt(value), value)

    start = encrypt(position.astype(jnp.uint32))
    inside = jax.lax.while_loop(lambda value: jnp.any(value >= size), walk, start)
    return inside.astype(jnp.int32)


def _edge(index: Array, rows: int, batches: int) -> Array:
    """First row of a batch: the first `rows % batches` batches hold one row more."""
    return index * (rows // batches) + jnp.minimum(index, rows % batches)
