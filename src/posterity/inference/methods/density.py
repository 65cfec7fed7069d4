"""The densities that trajectories of HMC and NUTS move on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from posterity.core.types import Array, Batch, Key, Params
from posterity.models.model import Model, weighted_sum


class Report(NamedTuple):
    """What a trace holds of a state."""

    log_likelihood: Array  # untempered sum over rows, of complete weights
    log_prior: Array  # of complete weights
    log_density: Array  # of the position, up to a constant


class Density(NamedTuple):
    """The density that trajectories move on. A position is a tree of weights: all of them, or all but an exact part."""

    position: Callable[[Params], Params]  # of complete weights
    gradient: Callable[[Params], Params]
    measure: Callable[[Params], Array]  # what `difference` needs to know of a position
    difference: Callable[[Params, Array, Params, Array], list[Array]]
    # (begin, its measure, end, its measure) -> terms whose sum is log p(end) - log p(begin).
    complete: Callable[[Key, Params], Params]  # complete weights, their exact part drawn anew
    report: Callable[[Params, Array], Report]  # of complete weights and the measure of their position


Factors = tuple[Any, Any]  # what a density multiplies log-likelihood and log prior by


def plain(model: Model, batch: Batch, factors: Factors | None = None) -> Density:
    """The tempered joint density of all weights, compared row by row and weight by weight.

    `factors`: others than the model's temperature asks for.
    """

    def temper(log_likelihood: Array, log_prior: Array) -> Array:
        if factors is None:
            return model.temper(log_likelihood, log_prior)
        return factors[0] * log_likelihood + factors[1] * log_prior

    def log_density(params: Params) -> Array:
        return temper(weighted_sum(model.log_likelihood(params, batch), batch.weight), model.log_prior(params))

    def difference(begin: Params, at_begin: Array, end: Params, at_end: Array) -> list[Array]:
        rows = (at_end - at_begin) * batch.weight.astype(at_end.dtype)
        priors = jax.tree.map(jnp.subtract, model.log_priors(end), model.log_priors(begin))
        zero = jnp.zeros((), rows.dtype)
        return [temper(rows, zero), *(temper(zero, leaf) for leaf in jax.tree.leaves(priors))]

    def report(params: Params, rows: Array) -> Report:
        log_likelihood, log_prior = weighted_sum(rows, batch.weight), model.log_prior(params)
        return Report(log_likelihood, log_prior, temper(log_likelihood, log_prior))

    return Density(
        position=lambda params: params,
        gradient=jax.grad(log_density),
        measure=lambda params: model.log_likelihood(params, batch),
        difference=difference,
        complete=lambda _, params: params,
        report=report,
    )


def flattened(density: Density, params: Params) -> Density:
    """The same density of positions as vectors [P]: a program over one vector compiles in half the time of one over a
    tree of a dozen leaves, and steps faster."""
    unravel = ravel_pytree(density.position(params))[1]

    def difference(begin: Array, at_begin: Array, end: Array, at_end: Array) -> list[Array]:
        return density.difference(unravel(begin), at_begin, unravel(end), at_end)

    return Density(
        position=lambda params: ravel_pytree(density.position(params))[0],
        gradient=lambda position: ravel_pytree(density.gradient(unravel(position)))[0],
        measure=lambda position: density.measure(unravel(position)),
        difference=difference,
        complete=lambda key, position: density.complete(key, unravel(position)),
        report=density.report,
    )
