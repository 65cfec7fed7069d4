"""Entropies and what follows from them, in nats, traceable by JAX.

The last axis is the class axis [C]; functions of several draws have [S] in front: [S, ..., C].
Here 0 log 0 = 0, and NaN in gives NaN out. With p_s the probabilities of draw s, p their mean,

    total H[p]  =  aleatoric mean_s H[p_s]  +  epistemic I,    I = mean_s KL(p_s || p) >= 0

(Houlsby et al. 2011, BALD; Gal 2016 for the variation ratio).
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

__all__ = [
    "cross_entropy",
    "entropy",
    "kl_divergence",
    "mutual_information",
    "mutual_information_jackknife",
    "self_information",
    "variation_ratio",
]


def self_information(probability: ArrayLike) -> jax.Array:
    """-log p of each entry, in [0, inf]: the surprise at an event of that probability."""
    # 0 - log p, not -log p: a certain event gives 0.0, never -0.0.
    return 0.0 - jnp.log(_as_float(probability))


def entropy(probs: ArrayLike) -> jax.Array:
    """H[p] = -sum_c p_c log p_c, in [0, log C]; [..., C] -> [...].

    The slope at p_c = 0 is infinite; its gradient is given as 0, the limit seen through a softmax.
    """
    return 0.0 - _p_log_q(probs, probs).sum(-1)


def cross_entropy(p: ArrayLike, q: ArrayLike) -> jax.Array:
    """-sum_c p_c log q_c >= H[p], +inf where q_c = 0 < p_c; [..., C] -> [...]."""
    return 0.0 - _p_log_q(p, q).sum(-1)


def kl_divergence(p: ArrayLike, q: ArrayLike) -> jax.Array:
    """KL(p || q) = sum_c p_c (log p_c - log q_c), +inf where q_c = 0 < p_c; [..., C] -> [...].

    In [0, inf] up to rounding, and exactly 0 for p = q.
    """
    return (_p_log_q(p, p) - _p_log_q(p, q)).sum(-1)


def mutual_information(probs: ArrayLike) -> jax.Array:
    """I = H[mean_s p_s] - mean_s H[p_s], in [0, log min(S, C)]; [S, ..., C] -> [...].

    From few draws it is biased downwards, by about (C - 1) / 2S at most: the mean of S draws has
    not yet seen all the disagreement. See mutual_information_jackknife.
    """
    probs = _as_float(probs)
    # Rounding alone can make it negative; maximum, unlike a where, keeps NaN.
    return jnp.maximum(entropy(probs.mean(0)) - entropy(probs).mean(0), 0.0)


def mutual_information_jackknife(probs: ArrayLike) -> jax.Array:
    """Jackknife over draws of the mutual information: bias O(1/S^2), not O(1/S).

        S I - (S - 1) mean_s I_(-s)  =  I + (S - 1) mean_s KL(m_(-s) || m),

    with m the mean over draws and m_(-s) = (S m - p_s) / (S - 1) the mean without draw s;
    [S, ..., C] -> [...]. Never below the plain estimate; above log C where draws are few and
    disagree. NaN for S = 1: one draw cannot tell (Quenouille 1956).
    """
    probs = _as_float(probs)
    num_draws = probs.shape[0]
    if num_draws == 1:
        return jnp.full(probs.shape[1:-1], jnp.nan, probs.dtype)
    mean = probs.mean(0, keepdims=True)
    # The left side multiplies rounding errors by S; the right side, written with the relative
    # change u = m_(-s) / m - 1, keeps float32 exact enough for thousands of draws.
    change = (mean - probs) / ((num_draws - 1) * jnp.where(mean == 0, 1.0, mean))
    # u = -1: no other draw gives this class any mass, and 0 log 0 = 0.
    inside = jnp.where(change > -1, change, 0.0)
    divergence = (mean * ((1 + inside) * jnp.log1p(inside) - change)).sum(-1)
    return mutual_information(probs) + (num_draws - 1) * divergence.mean(0)


def variation_ratio(probs: ArrayLike) -> jax.Array:
    """1 - (votes for the most voted class) / S, in [0, 1 - 1/C]; [S, ..., C] -> [...].

    Each draw votes for its most probable class, the first of equals.
    """
    probs = _as_float(probs)
    votes = jax.nn.one_hot(probs.argmax(-1), probs.shape[-1], dtype=probs.dtype)
    ratio = 1 - votes.mean(0).max(-1)
    # argmax takes NaN for the largest and would vote for it.
    return jnp.where(jnp.isnan(probs).any((0, -1)), jnp.nan, ratio)


def _p_log_q(p: ArrayLike, q: ArrayLike) -> jax.Array:
    """p log q per entry: 0 where p = q = 0, -inf where q = 0 < p, finite gradients in both."""
    p, q = _as_float(p), _as_float(q)
    # The inner where keeps log 0, whose gradient is infinite, out of the graph altogether:
    # the outer one alone would multiply that infinity by 0. (p - inf keeps a NaN of p.)
    allowed = p * jnp.log(jnp.where(q == 0, 1.0, q))
    return jnp.where(q == 0, jnp.where(p == 0, 0.0, p - jnp.inf), allowed)


def _as_float(values: ArrayLike) -> jax.Array:
    array = jnp.asarray(values)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)
