"""Pruning: weights whose Gaussian cannot tell them from zero go first (Blundell et al. 2015, sec. 5.1)."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from posterity.core.types import Array, Family, Params
from posterity.posterior.posterior import Posterior
from posterity.weights.families import DiagonalGaussian


def signal_to_noise(family: Family) -> Params:
    """|mean| / scale of every weight, [C, ...]; 0 for a weight that is surely zero."""
    if not isinstance(family, DiagonalGaussian):
        raise TypeError(
            f"{type(family).__name__} does not hold one independent Gaussian a weight; signal to noise is known for "
            "a DiagonalGaussian, which BayesByBackprop ends in."
        )
    return jax.tree.map(_ratio, family.mean, family.scale)


def prune(posterior: Posterior, share: float) -> Posterior:
    """The posterior with this share of each chain's weights, those of lowest signal to noise, set to exactly zero.

    Fixed weights and a likelihood's own parameters are neither counted nor pruned. The calibration of
    out-of-distribution p-values belongs to the weights before: call `calibrate` again.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share={share} must lie in [0, 1]: it is the share of the weights to REMOVE; try 0.75.")
    ratios = signal_to_noise(posterior.family)
    family: DiagonalGaussian = posterior.family  # type: ignore[assignment]
    keep = {name: jax.tree.map(lambda leaf: jnp.ones_like(leaf, bool), part) for name, part in ratios.items()}
    num_weights = sum(leaf[0].size for leaf in jax.tree.leaves(ratios["network"]))
    keep["network"] = _above_lowest(ratios["network"], round(share * num_weights))
    mean, scale = (
        jax.tree.map(lambda leaf, kept: jnp.where(kept, leaf, 0.0), part, keep) for part in (family.mean, family.scale)
    )
    pruned = dataclasses.replace(family, mean=mean, scale=scale)
    facts = {**posterior.facts, "pruned_share": float(share)}
    return dataclasses.replace(posterior, family=pruned, facts=facts, calibration=None)


def _ratio(mean: Array, scale: Array) -> Array:
    return jnp.where(mean == 0, 0.0, jnp.abs(mean) / scale)


@jax.jit
@partial(jax.vmap, in_axes=(0, None))
def _above_lowest(ratios: Params, num_removed: Array) -> Params:
    """Whether each weight of a chain survives. Ranks, not a threshold: ties must not change how many go."""
    flat, unflatten = ravel_pytree(ratios)
    ranks = jnp.argsort(jnp.argsort(flat))
    keep = (ranks >= num_removed).astype(flat.dtype)
    return jax.tree.map(lambda leaf: leaf > 0.5, unflatten(keep))
