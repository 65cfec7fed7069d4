"""The predictive distribution: the equal mixture over draws, p(y | x) = mean_s p(y | f_s(x)).

Distributions are mixed, never their parameters averaged: that would lose the epistemic variance. Functions of one
block's components, [S, n, ...] -> [n, ...].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc, gammainc, ndtr

from posterity.core.types import Array, Key
from posterity.models.likelihoods import class_probs
from posterity.models.model import Model
from posterity.prediction.streaming import Components
from posterity.prediction.uncertainty import elementwise

MAX_BISECTIONS = 100  # in float32 the ends usually meet after thirty
MAX_DOUBLINGS = 100
SAMPLING = 2**30  # what samples of targets fold into their key
NUM_SAMPLES = 4096  # where a likelihood has no cumulative distribution function
POISSON = 1e20  # the concentration at which a negative binomial count of any float32 mean is a Poisson one


def mean(model: Model, block: Components) -> Array:
    """E[y], elementwise; class probabilities for classes."""
    return _means(model, block).mean(0)


def draw_means(model: Model, block: Components) -> Array:
    """The same under each component, rows first: [n, S, ...]."""
    return jnp.moveaxis(_means(model, block), 0, 1)


def _means(model: Model, block: Components) -> Array:
    marginal = block.marginal(model)
    if model.likelihood.kind == "classes":
        return class_probs(marginal)
    single = elementwise(marginal)
    return jnp.broadcast_to(single.mean, single.batch_shape)


def log_prob(model: Model, block: Components, y: Array) -> Array:
    """log p(y) of the mixture, by log-mean-exp; one number per row (axes between N and K are summed before mixing)."""
    log_probs = _log_probs(model, block, y)
    return jax.nn.logsumexp(log_probs, axis=0) - jnp.log(log_probs.shape[0])


def draw_log_probs(model: Model, block: Components, y: Array) -> Array:
    """log p(y) under each component, rows first: [n, S]."""
    return _log_probs(model, block, y).T


def _log_probs(model: Model, block: Components, y: Array) -> Array:
    log_probs = jnp.asarray(block.marginal(model).log_prob(y[None]))
    return log_probs.reshape(*log_probs.shape[:2], -1).sum(-1)


def quantiles(model: Model, block: Components, levels: Array) -> Array:
    """The quantiles of the mixture at `levels` [Q], elementwise: [n, ..., Q]; NaN where its cdf is."""
    single = elementwise(block.marginal(model))
    if not has_cdf(single):
        return _sampled_quantiles(single, levels)

    def reached(points: Array) -> Array:
        """The mixture's cdf at points [n, ..., P]."""
        return jnp.moveaxis(cdf(single, jnp.moveaxis(points, -1, 0)[:, None]).mean(1), 0, -1)

    def halfway(ends: tuple[Array, Array]) -> Array:
        middle = (ends[0] + ends[1]) / 2
        return jnp.floor(middle) if single.is_discrete else middle

    def unfinished(state: tuple[Array, tuple[Array, Array]]) -> Array:
        count, (low, high) = state
        middle = halfway((low, high))
        return (count < MAX_BISECTIONS) & jnp.any((middle > low) & (middle < high))

    def halve(state: tuple[Array, tuple[Array, Array]]) -> tuple[Array, tuple[Array, Array]]:
        count, (low, high) = state
        middle = halfway((low, high))
        below = reached(middle) < levels
        return count + 1, (jnp.where(below, middle, low), jnp.where(below, high, middle))

    ends = _widened(reached, levels, *_first_bracket(single, levels.shape[0]))
    _, (_, high) = jax.lax.while_loop(unfinished, halve, (jnp.zeros((), int), ends))
    return jnp.where(jnp.isnan(reached(high)), jnp.nan, high)


def cumulative(model: Model, block: Components, y: Array) -> Array:
    """P(target < y) and P(target <= y) of the mixture, elementwise: [n, ..., 2]. They differ for counts."""
    single = elementwise(block.marginal(model))
    ends = jnp.stack([y - 1, y], -1) if single.is_discrete else jnp.stack([y, y], -1)
    ends = jnp.moveaxis(ends, -1, 0)[:, None]
    if has_cdf(single):
        reached = cdf(single, ends)
    else:
        drawn = _sampled(single)
        reached = (drawn <= ends[:, 0][:, None]).astype(float)
    return jnp.moveaxis(reached.mean(1), 0, -1)


def cdf(distribution: dist.Distribution, value: Array) -> Array:
    """P(y <= value) of each single number: 0 below the support and 1 above it, where numpyro's may be NaN, or 0.9."""
    if isinstance(distribution, dist.Poisson):
        return _count_cdf(value, distribution.mean, jnp.asarray(POISSON))
    if isinstance(distribution, dist.GammaPoisson):
        return _count_cdf(value, distribution.mean, jnp.asarray(distribution.concentration))
    support: Any = getattr(distribution, "support", None)
    lower, upper = (getattr(support, name, None) for name in ("lower_bound", "upper_bound"))
    found = jnp.asarray(distribution.cdf(value))
    found = found if lower is None else jnp.where(value < lower, 0.0, found)
    return found if upper is None else jnp.where(value >= upper, 1.0, found)


def _count_cdf(value: Array, mean: Array, concentration: Array) -> Array:
    """P(y <= value) = I_p(a, b) of negative binomial counts, b = value + 1, p = a / (a + mean), to 3e-4.

    In float32 the incomplete beta function is off by 0.04 at means of 1e5, and no number at 1e7: it is asked only below
    300. Beyond, the incomplete gamma function stands in where a or b is below 10 (Wise 1950), and a normal where both
    are above (Peizer & Pratt 1968).
    """
    above = jnp.floor(value) + 1
    few, many, swapped = jnp.minimum(concentration, above), jnp.maximum(concentration, above), concentration > above
    log_share = jnp.where(swapped, jnp.log1p(mean / concentration), jnp.log1p(concentration / mean))
    # What is not chosen is asked small things too: the loops of these functions last until all elements are done.
    by_beta = betainc(jnp.minimum(concentration, 300), jnp.minimum(above, 300), 1 / (1 + mean / concentration))
    by_gamma = gammainc(jnp.minimum(few, 10), (many + (few - 1) / 2) * log_share)
    by_gamma = jnp.where(swapped, 1 - by_gamma, by_gamma)
    by_normal = ndtr(_normal_score(above - 1, mean, concentration))
    found = jnp.where(few >= 10, by_normal, jnp.where(many >= 300, by_gamma, by_beta))
    return jnp.where(value < 0, 0.0, found)


def _normal_score(count: Array, mean: Array, concentration: Array) -> Array:
    """The z of Peizer & Pratt with P(y <= count) = Phi(z) nearly: the root of the deviance, its bias removed."""
    share, other = 1 / (1 + concentration / mean), 1 / (1 + mean / concentration)
    above = (mean - count) * other - 0.5
    bias = (
        1 / 6
        - share / 3
        + 0.02 * (other / (count + 1) - share / concentration + (other - 0.5) / (concentration + count + 1))
    )
    counts, others = count + 0.5, concentration - 0.5
    deviance = _bend(above / counts) / counts + _bend(-above / others) / others
    return (bias - above) * jnp.sqrt(deviance / (1 + 1 / (6 * (concentration + count))))


def _bend(x: Array) -> Array:
    """2 (x - log(1 + x)) / x^2, by its series where the difference would cost digits."""
    small, large = jnp.where(jnp.abs(x) < 0.1, x, 0.0), jnp.where(jnp.abs(x) < 0.1, 1.0, x)
    series = 1 - small * (2 / 3 - small * (1 / 2 - small * (2 / 5 - small * (1 / 3 - small * 2 / 7))))
    return jnp.where(jnp.abs(x) < 0.1, series, 2 * (large - jnp.log1p(large)) / jnp.square(large))


def _first_bracket(single: dist.Distribution, num_levels: int) -> tuple[Array, Array]:
    """Where the quantiles may be sought, [n, ..., Q] each: all means, and fifty standard deviations around them.

    A draw without a finite mean or variance, as of Cauchy's distribution, says nothing here.
    """
    centre, deviation = single.mean, jnp.sqrt(single.variance)
    centre, deviation = (jnp.where(jnp.isfinite(part), part, 0.0) for part in (centre, deviation))
    # Beside a large centre 1 is nothing, and a bracket of no width could not be widened.
    reach = 50 * deviation + 1 + 8 * jnp.finfo(centre.dtype).eps * jnp.abs(centre)
    low, high = (jnp.broadcast_to(centre + sign * reach, single.batch_shape) for sign in (-1, 1))
    low, high = low.min(0), high.max(0)
    if single.is_discrete:
        low, high = jnp.floor(low), jnp.ceil(high)
    return tuple(jnp.repeat(end[..., None], num_levels, -1) for end in (low, high))  # type: ignore[return-value]


def _widened(reached: Callable[[Array], Array], levels: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The bracket, each end moved out by its width, again and again, until it holds the quantile."""

    # One place asks `reached`, which for counts takes most of the time to compile.
    def widen(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, low, high, _ = state
        at_low, at_high = jnp.split(reached(jnp.concatenate([low, high], -1)), 2, -1)
        too_high, too_low, width = at_low >= levels, at_high < levels, high - low
        low, high = jnp.where(too_high, low - width, low), jnp.where(too_low, high + width, high)
        return count + 1, low, high, jnp.any(too_high | too_low)

    state = (jnp.zeros((), int), low, high, jnp.ones((), bool))
    _, low, high, _ = jax.lax.while_loop(lambda state: (state[0] <= MAX_DOUBLINGS) & state[3], widen, state)
    return low, high


def samples(model: Model, block: Components, row: Array, key: Key, count: Array) -> Array:
    """Draws of the target, [n, count.size, ...]: the components in a random order, again and again.

    The order is the seed's alone: sample i comes from one and the same component at all rows, a draw of the function.
    """
    num_components = block.outputs.shape[0]
    key_order, key_noise = _sampling_keys(key, row)
    order = jax.random.permutation(key_order, num_components)
    rounds = -(-count.shape[0] // num_components)
    drawn = jnp.asarray(block.marginal(model).sample(key_noise, (rounds,)))[:, order]  # [R, S, n, ...]
    flat = drawn.reshape(-1, *drawn.shape[2:])[: count.shape[0]]
    return jnp.moveaxis(flat, 0, 1)


def draw_samples(model: Model, block: Components, row: Array, key: Key, count: Array) -> Array:
    """So many draws of the target from every component, rows first and the components in order: [n, R, S, ...]."""
    drawn = jnp.asarray(block.marginal(model).sample(_sampling_keys(key, row)[1], count.shape))
    return jnp.moveaxis(drawn, 2, 0)


def _sampling_keys(key: Key, row: Array) -> tuple[Key, Key]:
    """Of the order of components, the same at all rows, and of noise, of which each block has its own."""
    # A stream of its own: the same seed may have drawn the weights.
    key_order, key_noise = jax.random.split(jax.random.fold_in(key, SAMPLING))
    return key_order, jax.random.fold_in(key_noise, row[0])


def normal_parts(model: Model, block: Components) -> tuple[Array, Array]:
    """Means and standard deviations of the components of a Gaussian mixture, each [n, ..., S]."""
    single = elementwise(block.marginal(model))
    scale = jnp.broadcast_to(jnp.sqrt(single.variance), single.batch_shape)
    return jnp.moveaxis(single.mean, 0, -1), jnp.moveaxis(scale, 0, -1)


def is_normal(model: Model, outputs_shape: tuple[int, ...]) -> bool:
    """Whether the target is Gaussian under every draw."""
    return isinstance(elementwise(model.distribution(jnp.zeros(outputs_shape))), dist.Normal)


def has_cdf(single: dist.Distribution) -> bool:
    try:
        jax.eval_shape(lambda: single.cdf(single.mean))
    except NotImplementedError:
        return False
    return True


def _sampled_quantiles(single: dist.Distribution, levels: Array) -> Array:
    return jnp.moveaxis(jnp.quantile(_sampled(single), levels, axis=0), 0, -1)


def _sampled(single: dist.Distribution) -> Array:
    """Draws of the mixture, in place of a cumulative distribution function: [about 4096, n, ...]."""
    rounds = -(-NUM_SAMPLES // single.batch_shape[0])
    drawn = jnp.asarray(single.sample(jax.random.key(0), (rounds,)))
    return drawn.reshape(-1, *drawn.shape[2:])
