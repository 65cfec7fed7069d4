"""Bayes by Backprop: a Gaussian for each weight, fitted by gradients through its draws (Blundell et al. 2015).

    q(w) = N(mean, scale^2),  scale = log(1 + exp(rho)),    w = mean + scale * noise,  noise ~ N(0, 1)
    free energy  F = E_q[log q(w)] - E_q[log p_T(w, D)]     (tempered as the model says; T = 1: minus the ELBO)
                   = complexity - tempered expected log-likelihood

The complexity is minus the entropy of q, in closed form, minus the tempered E_q[log p(w)]: in closed form for weights
with a normal prior, the mean over the step's draws for others, nothing for flat ones. At T = 1 it is KL(q || prior).
(Draws of log q, as in the paper, would add noise to the value of F and none to its gradient: for w = mean + scale *
noise they are -log(scale) - noise^2 / 2.)

Batch i = 1 .. M of an epoch carries the share pi_i of the complexity, 1 / M or 2^(M-i) / (2^M - 1) (paper, sec. 3.4).
A step follows M / N (pi_i complexity - tempered log-likelihood of the batch): over an epoch these average to F / N.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from posterity.core import pytrees, records
from posterity.core.checks import check_positive, check_whole
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params
from posterity.inference.methods.card import Card
from posterity.inference.methods.descent import Descent, DescentState, descend, mean_negative_log_likelihood
from posterity.inference.methods.method import Result
from posterity.models.model import Model, weighted_sum
from posterity.weights.families import DiagonalGaussian

MinibatchWeights = Literal["uniform", "geometric"]


class Gaussian(NamedTuple):
    """What is optimised: a mean and a rho for each weight."""

    mean: Params
    rho: Params

    @property
    def scale(self) -> Params:
        # As written in the paper: the form that is safe beyond a scale of 88 takes a third longer.
        return jax.tree.map(lambda rho: jnp.log1p(jnp.exp(rho)), self.rho)


class FreeEnergy(NamedTuple):
    """Estimates from one step, for the whole data and per datum, whatever the batch's share of the complexity."""

    loss: Array  # the free energy
    complexity: Array  # at temperature 1, KL(q || prior)
    negative_log_likelihood: Array  # untempered


@records.record
class BayesByBackprop(Descent):
    """Mean-field variational inference: the independent Gaussians nearest to the posterior in KL(q || posterior).

    Args:
        num_samples: Draws of the weights per step.
        minibatch_weights: How batches share the complexity, the divergence from the prior: "uniform", or "geometric":
            the first batches of an epoch carry most of it.
        initial_scale: Standard deviation of every weight at the start.
        closed_form: Whether the log prior of weights with a normal prior is integrated exactly. False: it is sampled,
            as that of other priors.
    """

    card = Card(
        name="bayes_by_backprop",
        label="Bayes by Backprop",
        what="One independent Gaussian for each weight, by the ELBO.",
        when="Pruning, or one pass over large data; too sure between data.",
        reference="Blundell et al. 2015",
        ignorance="in part: too sure far from the data",
        cost="2-3",
        verdict="approximates",
        verified_with=lambda: {"num_steps": 20_000, "learning_rate": 3e-3},
        colour="purple",
        line="-",
        marker="D",
        settings=lambda size: size.descent(5_000),
        compared=True,
    )

    _: dataclasses.KW_ONLY
    num_samples: int = 1
    minibatch_weights: MinibatchWeights = "uniform"
    initial_scale: Any = records.traced(default=0.05)
    closed_form: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("BayesByBackprop", num_samples=self.num_samples)
        check_positive("BayesByBackprop", initial_scale=self.initial_scale)
        if self.minibatch_weights not in ("uniform", "geometric"):
            raise ValueError(
                f"BayesByBackprop(minibatch_weights={self.minibatch_weights!r}) is not known; "
                "choose 'uniform' or 'geometric'."
            )

    def kernel(self, model: Model) -> Kernel:
        return _kernel(self, model)

    def finish(self, model: Model, states: DescentState, kept: Params, fixed: Params) -> Result:
        del kept
        return Result(DiagonalGaussian(states.params.mean, states.params.scale, fixed), model)


def _kernel(method: BayesByBackprop, model: Model) -> Kernel:
    def prepare(key: Key, params: Params) -> tuple[Gaussian, None]:
        del key
        rho = _inverse_softplus(method.initial_scale)
        return Gaussian(params, jax.tree.map(lambda leaf: jnp.full_like(leaf, rho), params)), None

    def loss(key: Key, q: Gaussian, constant: None, batch: Batch, clock: Clock) -> tuple[Array, FreeEnergy]:
        del constant
        scale = q.scale

        def at_draw(key: Key) -> tuple[Array, Array]:
            noise = pytrees.normal_like(key, q.mean)
            weights = jax.tree.map(lambda m, s, e: m + s * e, q.mean, scale, noise)
            log_likelihood = weighted_sum(model.log_likelihood(weights, batch), batch.weight)
            return log_likelihood, _sampled_log_prior(model, weights, method.closed_form)

        if method.num_samples == 1:  # no loop: it would copy the noise on the way to the gradient
            log_likelihood, log_prior = at_draw(key)
        else:  # one draw after the other: mapped over together, two of a wide network took three times as long
            draws = jax.lax.map(at_draw, jax.random.split(key, method.num_samples))
            log_likelihood, log_prior = jax.tree.map(jnp.mean, draws)
        if method.closed_form:
            log_prior = log_prior + _expected_log_prior(model, q.mean, scale)
        zero = jnp.zeros(())
        complexity = (-_entropy(scale) - model.temper(zero, log_prior)) / clock.num_data
        negative_log_likelihood = -clock.num_batches * log_likelihood / clock.num_data
        misfit = model.temper(negative_log_likelihood, zero)
        share = clock.num_batches * minibatch_weight(method.minibatch_weights, clock.batch_index, clock.num_batches)
        info = FreeEnergy(complexity + misfit, complexity, negative_log_likelihood)
        return share * complexity + misfit, info

    def validate(key: Key, state: DescentState, batch: Batch) -> Array:
        del key
        return mean_negative_log_likelihood(model, state.params.mean, batch)

    return descend(method, loss, validate, prepare)


def minibatch_weight(kind: MinibatchWeights, batch_index: Any, num_batches: Any) -> Array:
    """Batch i's share of the complexity, i = batch_index + 1 of M = num_batches: 1 / M, or 2^(M-i) / (2^M - 1)."""
    if kind == "uniform":
        return jnp.asarray(1.0 / num_batches)
    # Divided through by 2^M, which overflows from M = 128 on.
    return jnp.exp2(-(batch_index + 1.0)) / (1.0 - jnp.exp2(-jnp.asarray(num_batches, float)))


def _entropy(scale: Params) -> Array:
    """E_q[-log q(w)]: log(scale) + log(2 pi e) / 2 for each weight."""
    constant = 0.5 * (1.0 + jnp.log(2 * jnp.pi)) * pytrees.size(scale)
    return pytrees.total(jax.tree.map(jnp.log, scale)) + constant


def _expected_log_prior(model: Model, mean: Params, scale: Params) -> Array:
    """E_q[log p(w)] of the weights with a normal prior: that at the mean, less scale^2 / (2 prior scale^2)."""
    prior = model.full_prior

    def leaf(name: str, mean: Array, scale: Array) -> Array:
        if not prior.is_gaussian(name):
            return jnp.zeros(())
        normal = prior.find(name)
        factor = prior.factor(name, mean.shape, model.network.fan_in_axis)
        squares = jnp.square(mean - factor * normal.loc) + jnp.square(scale)
        width = factor * normal.scale
        if normal.batch_shape:
            return -jnp.sum(0.5 * squares / jnp.square(width) + jnp.log(jnp.sqrt(2 * jnp.pi) * width))
        return -0.5 * jnp.sum(squares) / jnp.square(width) - mean.size * jnp.log(jnp.sqrt(2 * jnp.pi) * width)

    return pytrees.total(pytrees.map_with_path(leaf, mean, scale))


def _sampled_log_prior(model: Model, weights: Params, closed_form: bool) -> Array:
    """log p(w) at a draw, of the weights whose part is not known in closed form."""
    prior = model.full_prior
    others = pytrees.map_with_path(lambda name, w: None if closed_form and prior.is_gaussian(name) else w, weights)
    return prior.log_prob(others, model.network.fan_in_axis)


def _inverse_softplus(scale: Any) -> Array:
    return jnp.log(jnp.expm1(scale))
