"""Scaled dot-product attention, and dropout."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from posterity.core.types import Array, Key


def attention(
    random_key: Key | None,
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """softmax(q k' scale + mask) v, queries [..., L, E], keys [..., S, E], values [..., S, V]."""
    if enable_gqa:  # fewer heads of keys and values, each shared by some of queries
        key, value = (jnp.repeat(part, query.shape[-3] // part.shape[-3], -3) for part in (key, value))
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ jnp.swapaxes(key, -1, -2) * scale
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is not None:
        masked = attn_mask.dtype == bool
        scores = jnp.where(attn_mask, scores, -jnp.inf) if masked else scores + attn_mask.astype(scores.dtype)
    weights = jax.nn.softmax(scores, -1) if attn_mask is None else safe_softmax(scores)
    return dropout(random_key, weights, dropout_p) @ value


def safe_softmax(scores: Array) -> Array:
    """Zeros, not NaN, where all is masked, as in PyTorch."""
    blank = jnp.all(scores == -jnp.inf, -1, keepdims=True)
    return jnp.where(blank, 0, jax.nn.softmax(jnp.where(blank, 0, scores), -1))


def flash_attention(
    random_key: Key | None,
    query: Array,
    key: Array,
    value: Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Array | None = None,
    scale: float | None = None,
) -> tuple[Array, None]:
    """Its fused form; the second result serves PyTorch's gradient alone."""
    return attention(random_key, query, key, value, attn_mask, dropout_p, is_causal, scale=scale), None


def dropout(key: Key | None, x: Array, p: float = 0.5, train: bool | None = True) -> Array:
    return _dropped(key, x, p, train, x.shape)


def feature_dropout(key: Key | None, x: Array, p: float, train: bool) -> Array:
    """Whole channels."""
    return _dropped(key, x, p, train, (*x.shape[:2], *(1 for _ in x.shape[2:])))


def _dropped(key: Key | None, x: Array, p: float, train: bool | None, shape: tuple[int, ...]) -> Array:
    if key is None or p == 0 or train is False:
        return x
    if p == 1:
        return jnp.zeros_like(x)
    return jnp.where(jax.random.bernoulli(key, 1 - p, shape), x / (1 - p), 0)


def alpha_dropout(key: Key | None, x: Array, p: float, train: bool) -> Array:
    """Dropped units get the lowest value of SELU; mean and variance stay (Klambauer et al. 2017, sec. 3)."""
    if key is None or p == 0 or not train:
        return x
    lowest = -1.7580993408473766
    slope = 1 / math.sqrt((1 - p) * (1 + p * lowest**2))
    kept = jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x, lowest)
    return kept * slope - slope * p * lowest
