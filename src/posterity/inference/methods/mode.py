"""The pass over the rows of a Laplace approximation, and a step to the mode.

Training ends near the mode, not at it: in directions that the data hardly determine (two columns that are nearly one)
it may stop many standard deviations away. With g the gradient of the log joint and V = precision^-1

    decrement = sqrt(g^T V g),   the distance to the optimum of the quadratic, in standard deviations of the posterior

Where it is more than 0.1, a second pass evaluates the log joint at w + t V g, t = 1, 1/2, 1/4, 1/8 (Gauss-Newton with
a line search), and where the best of these is higher a third one takes the curvature there.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Clock, Params
from posterity.inference.methods import wide
from posterity.inference.methods.curvature import Curvature, num_chosen
from posterity.models.model import Model, weighted_sum
from posterity.weights.linearized import choose, gather, scatter

SMALL_DECREMENT = 0.1  # standard deviations: nearer to the mode no step is tried
FRACTIONS = (1.0, 0.5, 0.25, 0.125)  # of the step


class LaplaceState(NamedTuple):
    """The sums are `wide.Sum` in a program and plain arrays on the host."""

    params: Params  # the mode
    curvature: Curvature  # of the rows seen so far, as the sums below
    gradient: Any  # [P] of their log likelihood in the weights that get a spread
    log_likelihood: Any  # untempered
    num_targets: Any  # the numbers that noise was added to
    share: Array  # of all rows, that these are
    going: Array  # a step is being tried, or has been taken
    step: Array  # [P] towards the optimum
    trials: Any  # log likelihood with each of FRACTIONS of it


def begin(params: Params, curvature: Curvature) -> LaplaceState:
    """Nothing seen yet, at these weights."""
    dtype, size = jax.tree.leaves(params)[0].dtype, num_chosen(params, curvature.names)
    zero = partial(wide.Sum.zeros, dtype=dtype)
    sums = zero((size,)), zero(()), zero(())
    share, going = jnp.zeros((), dtype), jnp.zeros((), bool)
    return LaplaceState(params, curvature, *sums, share, going, jnp.zeros(size, dtype), zero((len(FRACTIONS),)))


def when(condition: Array, function: Any, state: LaplaceState) -> LaplaceState:
    """function(state) where the condition holds. A loop of one turn or none: a `cond` mapped over chains does both."""
    return jax.lax.fori_loop(0, condition.astype(int), lambda _, state: function(state), state)


def measure(model: Model, batch: Batch, clock: Clock, state: LaplaceState) -> LaplaceState:
    """Add one batch's curvature, gradient and log likelihood."""
    chosen, others = choose(state.params, state.curvature.names)

    def log_likelihood(chosen: Params) -> tuple[Array, Array]:
        rows = model.log_likelihood(pytrees.merge(chosen, others), batch)
        return weighted_sum(rows, batch.weight), rows

    gradient, rows = jax.grad(log_likelihood, has_aux=True)(chosen)
    targets = jnp.sum(batch.weight) * (batch.y.size // batch.y.shape[0])
    return state._replace(
        curvature=state.curvature.add(model, state.params, batch),
        gradient=state.gradient.plus(gather(gradient, state.curvature.names)),
        log_likelihood=state.log_likelihood.plus(_weighted(rows, batch.weight)),
        num_targets=state.num_targets.plus(targets),
        share=jnp.minimum((clock.step + 1) * batch.y.shape[0] / clock.num_data, 1.0).astype(state.share.dtype),
    )


def search(model: Model, batch: Batch, state: LaplaceState) -> LaplaceState:
    """Add one batch's log likelihood along the step."""
    rows = [model.log_likelihood(_along(state, fraction), batch) for fraction in FRACTIONS]
    with jax.enable_x64(True):
        return state._replace(trials=state.trials.plus(jnp.stack([_weighted(row, batch.weight) for row in rows])))


def propose(model: Model, state: LaplaceState) -> LaplaceState:
    """The step V g, to be tried where it is long."""
    gradient, prior, *factors = slope(model, state)
    with jax.enable_x64(True):
        step = state.curvature.solve(gradient, prior, *factors)
        # False for NaN, too: of a posterior that is improper.
        far = jnp.sum(gradient * step) > SMALL_DECREMENT**2
        return state._replace(step=step.astype(state.step.dtype), going=state.going & far)


def settle(model: Model, state: LaplaceState) -> LaplaceState:
    """Go where the log joint was highest along the step, to measure again there; or stay."""
    places = [_along(state, fraction) for fraction in (0.0, *FRACTIONS)]
    # Outside: a model's own numbers would be float64 there, and products of them fall back.
    here, *priors = (wide.wide(model.log_prior(place)) for place in places)
    with jax.enable_x64(True):
        likelihood_factor, prior_factor = model.tempering_factors
        likelihoods = state.trials.exact() - state.log_likelihood.exact()
        rises = likelihood_factor * likelihoods + prior_factor * (jnp.stack(priors) - here)
        rises = rises.astype(state.step.dtype)
    best = jnp.argmax(jnp.pad(jnp.where(jnp.isnan(rises), -jnp.inf, rises), (1, 0)))  # the first: 0, to stay
    going = state.going & (best > 0)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves)[best], *places)
    sums = state.curvature, state.gradient, state.log_likelihood, state.num_targets, state.share
    curvature, gradient, log_likelihood, num_targets, share = jax.tree.map(
        lambda leaf: jnp.where(going, jnp.zeros_like(leaf), leaf), sums
    )
    return state._replace(
        params=pytrees.select(going, params, state.params),
        curvature=curvature,
        gradient=gradient,
        log_likelihood=log_likelihood,
        num_targets=num_targets,
        share=share,
        going=going,
    )


def _along(state: LaplaceState, fraction: float) -> Params:
    step = scatter(state.step, state.params, state.curvature.names)
    return jax.tree.map(lambda weight, change: weight + fraction * change, state.params, step)


def _weighted(rows: Array, weight: Array) -> Array:
    """Their weighted sum in float64."""
    with jax.enable_x64(True):
        return jnp.sum(wide.wide(rows) * wide.wide(weight))


def slope(model: Model, state: LaplaceState, scale: float = 1.0) -> tuple[Array, Array, Any, Any]:
    """Gradient of the log joint, the prior's curvature, and the factors of the two parts; the data's times `scale`."""
    likelihood_factor, prior_factor = model.tempering_factors
    _, of_prior, prior = prior_terms(model, state.params, state.curvature.names)
    total = state.gradient.exact() if wide.is_sum(state.gradient) else state.gradient
    with jax.enable_x64(True):
        gradient = scale * likelihood_factor * total + prior_factor * wide.wide(of_prior)
        return gradient, wide.wide(prior), scale * likelihood_factor, prior_factor


@partial(jax.jit, static_argnames="names")
def prior_terms(model: Model, params: Params, names: tuple[str, ...]) -> tuple[Array, Array, Array]:
    """The log prior of the weights of `names`, its derivative and minus its second one: it is a sum over weights.

    Weights without a spread are constants, which the evidence conditions on.
    """
    ones = jax.tree.map(jnp.ones_like, params)
    first, second = jax.jvp(jax.grad(model.log_prior), (params,), (ones,))
    # Where a prior is not log-concave its curvature would take precision away that the data may not have.
    return model.log_prior(choose(params, names)[0]), gather(first, names), jnp.maximum(-gather(second, names), 0)
