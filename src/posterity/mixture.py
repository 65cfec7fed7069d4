"""The predictive distribution: the equal mixture over draws, p(y | x) = mean_s p(y | f_s(x)).

Distributions are mixed, never their parameters averaged: that would lose the epistemic variance. Functions of one
block's components, [S, n, ...] -> [n, ...].
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from posterity.likelihoods import class_probs
from posterity.streaming import Components
from posterity.types import Array, Key
from posterity.uncertainty import elementwise

NUM_BISECTIONS = 60
SAMPLING = 2**30  # what samples of targets fold into their key
NUM_SAMPLES = 4096  # where a likelihood has no cumulative distribution function


def mean(model: Any, block: Components) -> Array:
    """E[y], elementwise; class probabilities for classes."""
    marginal = block.marginal(model)
    if model.likelihood.kind == "classes":
        return class_probs(marginal).mean(0)
    single = elementwise(marginal)
    return jnp.broadcast_to(single.mean, single.batch_shape).mean(0)


def log_prob(model: Any, block: Components, y: Array) -> Array:
    """log p(y) of the mixture, by log-mean-exp; one number a row (axes between N and K are summed before mixing)."""
    log_probs = jnp.asarray(block.marginal(model).log_prob(y[None]))
    log_probs = log_probs.reshape(*log_probs.shape[:2], -1).sum(-1)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(log_probs.shape[0])


def quantiles(model: Any, block: Components, levels: Array) -> Array:
    """The quantiles of the mixture at `levels` [Q], elementwise: [n, ..., Q]."""
    single = elementwise(block.marginal(model))
    if not has_cdf(single):
        return _sampled_quantiles(single, levels)
    centre, spread = single.mean, jnp.sqrt(single.variance)
    low, high = (centre - 50 * spread).min(0) - 1, (centre + 50 * spread).max(0) + 1
    if single.is_discrete:
        low, high = jnp.full_like(low, -1.0), jnp.ceil(high)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        point = jnp.floor(middle) if single.is_discrete else middle
        below = jnp.stack([single.cdf(point[..., q][None]).mean(0) for q in range(levels.shape[0])], -1) < levels
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    ends = tuple(jnp.repeat(end[..., None], levels.shape[0], -1) for end in (low, high))
    low, high = jax.lax.fori_loop(0, NUM_BISECTIONS, halve, ends)
    # The cdf of a count below 0 need not come out as 0 in float32.
    return jnp.maximum(jnp.floor(high), 0.0) if single.is_discrete else (low + high) / 2


def samples(model: Any, block: Components, row: Array, key: Key, count: Array) -> Array:
    """Draws of the target, [n, count.size, ...]: the components in a random order, again and again.

    The order is the seed's alone: sample i comes from one and the same component at all rows, a draw of the function.
    """
    # A stream of its own: the same seed may have drawn the weights.
    key_order, key_noise = jax.random.split(jax.random.fold_in(key, SAMPLING))
    num_components = block.outputs.shape[0]
    order = jax.random.permutation(key_order, num_components)
    key_noise = jax.random.fold_in(key_noise, row[0])  # each block has noise of its own
    rounds = -(-count.shape[0] // num_components)
    drawn = jnp.asarray(block.marginal(model).sample(key_noise, (rounds,)))[:, order]  # [R, S, n, ...]
    flat = drawn.reshape(-1, *drawn.shape[2:])[: count.shape[0]]
    return jnp.moveaxis(flat, 0, 1)


def normal_parts(model: Any, block: Components) -> tuple[Array, Array]:
    """Means and standard deviations of the components of a Gaussian mixture, each [n, ..., S]."""
    single = elementwise(block.marginal(model))
    scale = jnp.broadcast_to(jnp.sqrt(single.variance), single.batch_shape)
    return jnp.moveaxis(single.mean, 0, -1), jnp.moveaxis(scale, 0, -1)


def is_normal(model: Any, outputs_shape: tuple[int, ...]) -> bool:
    """Whether the target is Gaussian under every draw."""
    return isinstance(elementwise(model.distribution(jnp.zeros(outputs_shape))), dist.Normal)


def has_cdf(single: dist.Distribution) -> bool:
    try:
        jax.eval_shape(lambda: single.cdf(single.mean))
    except NotImplementedError:
        return False
    return True


def _sampled_quantiles(single: dist.Distribution, levels: Array) -> Array:
    rounds = -(-NUM_SAMPLES // single.batch_shape[0])
    drawn = jnp.asarray(single.sample(jax.random.key(0), (rounds,)))
    return jnp.moveaxis(jnp.quantile(drawn.reshape(-1, *drawn.shape[2:]), levels, axis=0), 0, -1)
