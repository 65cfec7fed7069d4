"""Where a prediction's uncertainty comes from: functions of one block's components, [S, n, ...] -> [n, ...].

Variance (regression, counts), m_s and v_s the mean and variance of the target under draw s:
    total = aleatoric + epistemic,   aleatoric = mean_s v_s   (noise),   epistemic = var_s m_s   (ignorance)
Entropy (classes), p_s the class probabilities under draw s (Houlsby et al. 2011; Kendall & Gal 2017):
    total = H[mean_s p_s],   aleatoric = mean_s H[p_s],   epistemic = total - aleatoric = mutual information

Each is a smooth function of averages over draws, so its Monte Carlo error is that of the average of its influence
function psi_s (the delta method): v_s, (m_s - m)^2, -sum_c p_sc log mean_c, KL(p_s || mean). Draws of a Markov chain
are correlated, and their error is that of fewer draws.

Errors are such that a value and twice its error hold what infinitely many draws would give in 19 runs of 20, with few
draws too. All are wider by a t quantile. An epistemic part is skewed besides: of n draws it is the exact value times
chi^2_n-1 / n, small values come with small errors, and 8 draws were off by more than two plain errors in 27 % of runs.
With r its relative error, drawn to sqrt(2 / n), that of Gaussian draws, as by 4 draws more, its error is r (1 + 8 r^3):
from the quantiles of chi^2, for which 1 + 5 r^2 would be right in 95 % of runs, and this in 93 to 94 %.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core.types import Array, Family
from posterity.metrics import convergence, information
from posterity.models.likelihoods import class_probs
from posterity.models.model import Model
from posterity.prediction.streaming import Components

ROWS_TOGETHER = 32  # divides the rows of every block
GAUSSIAN_DRAWS = 4  # as which the relative error of Gaussian draws counts beside the one found
SKEWNESS = 8.0
LARGEST = 0.8  # relative error: of an error that is all but unknown not even the size is


class Uncertainty(NamedTuple):
    """Three numbers per row: in squared units of the target, or in nats for classes."""

    total: Array
    aleatoric: Array
    epistemic: Array


class Decomposition(NamedTuple):
    """The split, and the Monte Carlo standard error of each part."""

    value: Uncertainty
    standard_error: Uncertainty


def elementwise(distribution: dist.Distribution) -> dist.Distribution:
    """The distribution of each single number of a row's target."""
    if isinstance(distribution, dist.MultivariateNormal):
        return dist.Normal(distribution.loc, jnp.sqrt(distribution.variance))
    return distribution.base_dist if isinstance(distribution, dist.Independent) else distribution


def variances(model: Model, block: Components, positions: Array) -> Decomposition:
    """The split of the variance; axis 0 of the result counts rows."""
    conditional, marginal = elementwise(block.conditional(model)), elementwise(block.marginal(model))
    mean, noise = _full(marginal.mean, marginal), _full(conditional.variance, marginal)
    between = jnp.square(mean - mean.mean(0))
    aleatoric, epistemic = noise.mean(0), between.mean(0)
    if block.covariance is not None:
        # Not the total less the noise: with many rows nothing would be left of the difference in float32.
        epistemic += model.likelihood.mean_variance(block.covariance).mean(0)
    value = Uncertainty(aleatoric + epistemic, aleatoric, epistemic)
    if block.covariance is not None:
        return Decomposition(value, jax.tree.map(jnp.zeros_like, value))
    influence = Uncertainty(noise + between, noise, between)
    return Decomposition(value, monte_carlo_error(value, influence, mean, positions))


def entropies(model: Model, block: Components, positions: Array) -> Decomposition:
    """The split of the predictive entropy."""
    probs = class_probs(block.marginal(model))
    mean = probs.mean(0)
    each = information.entropy(probs)
    aleatoric = each.mean(0)
    # Rounding alone can put the noise above the whole; maximum, unlike a where, keeps NaN.
    total = jnp.maximum(information.entropy(mean), aleatoric)
    value = Uncertainty(total, aleatoric, total - aleatoric)
    # The mean may be rounded to zero where one draw is not: what such a class adds to the entropy is less than that.
    cross = information.cross_entropy(jnp.where(mean == 0, 0.0, probs), mean[None])
    influence = Uncertainty(cross, each, cross - each)
    likeliest = jnp.take_along_axis(probs, mean.argmax(-1)[None, ..., None], -1)[..., 0]
    return Decomposition(value, monte_carlo_error(value, influence, likeliest, positions))


def jackknife_mutual_information(model: Model, block: Components) -> Array:
    return information.mutual_information_jackknife(class_probs(block.marginal(model)))


def logit_variance(model: Model, block: Components) -> Array:
    """Variance over draws of the log probabilities less their mean over classes, which for a softmax are its logits.

    Mean over classes. From log probabilities, not from outputs: what outputs mean differs between likelihoods.
    """
    distribution = block.marginal(model)
    labels = range(class_probs(distribution).shape[-1])
    logs = jnp.stack([distribution.log_prob(jnp.asarray(label)) for label in labels], -1)
    return (logs - logs.mean(-1, keepdims=True)).var(0).mean(-1)


def variation_ratio(model: Model, block: Components) -> Array:
    return information.variation_ratio(class_probs(block.marginal(model)))


def _full(values: Array, distribution: dist.Distribution) -> Array:
    """A distribution's mean or variance may be one number for all rows."""
    return jnp.broadcast_to(values, distribution.batch_shape)


def monte_carlo_error(value: Uncertainty, influence: Uncertainty, predicted: Array, positions: Array) -> Uncertainty:
    """Standard error of the mean over draws of psi [S, n, ...], for each part; NaN for one draw, which cannot tell.

    `predicted` [S, n, ...] is what draws disagree on: how many of them are effective is seen there, too. `positions`
    [C, D]: where the draws of each chain are found, in order; empty for independent draws.
    """
    num_draws, *shape = predicted.shape
    if num_draws < 2:
        return Uncertainty(*(jnp.full(shape, jnp.nan) for _ in influence))
    if positions.size == 0:
        plain = Uncertainty(*(psi.std(0, ddof=1) / jnp.sqrt(num_draws) for psi in influence))
        return _honest(value, plain, jnp.asarray(float(num_draws)), jnp.asarray(num_draws - 1.0))
    rows = [psi.reshape(num_draws, -1).T for psi in (*influence, predicted)]
    # A few rows at a time: the spectra of a whole block would take several times its memory.
    *errors, effective = jax.lax.map(
        lambda parts: _chain_errors(jnp.stack(parts, -1)[positions]), rows, batch_size=ROWS_TOGETHER
    ).T.reshape(-1, *shape)
    degrees = effective / convergence.DRAWS_OF_A_DEGREE
    if positions.shape[1] < convergence.SHORT:
        degrees = jnp.asarray(positions.shape[0] - 1.0)
    return _honest(value, Uncertainty(*errors), effective, degrees)


def _chain_errors(draws: Array) -> Array:
    """Plain errors of all quantities [C, D, Q] but the last, and the effective draws of the one that has the fewest."""
    num_chains, num_draws, _ = draws.shape
    errors = convergence.standard_error(draws[..., :-1], jnp)
    if num_draws < convergence.SHORT:  # a chain counts as one draw where nothing shows how many they are
        return jnp.append(errors, num_chains)
    return jnp.append(errors, convergence.effective_draws(convergence.split(draws[..., 2:], jnp), jnp).min())


def _honest(value: Uncertainty, plain: Uncertainty, effective: Array, degrees: Array) -> Uncertainty:
    """Errors that hold with few effective draws; that of the total grows by as much as that of its epistemic part."""
    total, aleatoric, epistemic = (convergence.t_factor(degrees, jnp) * error for error in plain)
    squares = effective * jnp.square(plain.epistemic) + 2 * GAUSSIAN_DRAWS / effective * jnp.square(value.epistemic)
    wide = convergence.t_factor(degrees, jnp) * jnp.sqrt(squares / (effective + GAUSSIAN_DRAWS))
    relative = wide / jnp.where(value.epistemic > 0, value.epistemic, jnp.inf)
    wide *= 1 + SKEWNESS * jnp.minimum(relative, LARGEST) ** 3
    return Uncertainty(total + wide - epistemic, aleatoric, wide)


def chain_positions(family: Family, draws: np.ndarray) -> np.ndarray:
    """Where in `draws` those of each chain are, [C, D]; empty if none is correlated with another.

    Families that make fresh draws make independent ones; chains that keep one draw each are independent of each other.
    """
    num_chains, stored = family.num_chains, family.num_draws
    if stored is None or stored == num_chains:
        return np.zeros((0, 0), int)
    found = [np.flatnonzero(draws % num_chains == chain) for chain in range(num_chains)]
    shortest = min(map(len, found))  # a subset of the draws need not take as many from each chain
    return np.stack([places[:shortest] for places in found])
