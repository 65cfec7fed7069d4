"""Which rows share a dropout mask: decided here, for any network, by mapping it over rows one at a time.

A network called on one row with a key draws one mask; the same key for all rows is one draw of weights, a key for each
row is a mask for each row. Row results then never depend on the rows beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from posterity.core.types import Array, Key, Params
from posterity.networks.convolutions import with_fast_gradients

Apply = Callable[[Params, Any, Key], Array]


def _one_row(apply: Apply, params: Params, row: Any, key: Key) -> Array:
    return apply(params, jax.tree.map(lambda leaf: leaf[None], row), key)[0]


def apply_shared(apply: Apply, params: Params, x: Any, key: Key) -> Array:
    """Outputs with one mask for all rows."""

    def mapped(params: Params, x: Any, key: Key) -> Array:
        return jax.vmap(lambda row: _one_row(apply, params, row, key))(x)

    return with_fast_gradients(mapped, params, x, key)


def apply_per_row(apply: Apply, params: Params, x: Any, keys: Key) -> Array:
    """Outputs with a mask for each row, from one key for each row."""

    def mapped(params: Params, x: Any, keys: Key) -> Array:
        return jax.vmap(lambda row, key: _one_row(apply, params, row, key))(x, keys)

    return with_fast_gradients(mapped, params, x, keys)


def row_keys(key: Key, x: Any) -> Key:
    """A key for each row that depends on the row's values alone, not on its place."""

    def digest(leaf: Array) -> Array:
        bits = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32).reshape(leaf.shape[0], -1)
        odd = 2 * jnp.arange(bits.shape[1], dtype=jnp.uint32) + 1
        return jnp.sum((bits ^ (bits >> 15)) * (odd * jnp.uint32(2654435761)), axis=1, dtype=jnp.uint32)

    digests = sum((digest(leaf) for leaf in jax.tree.leaves(x)), start=jnp.uint32(0))
    return jax.vmap(jax.random.fold_in, (None, 0))(key, digests)
