"""Yesterday's posterior as today's prior: an independent Gaussian for each weight, with its mean and width.

Bayes' rule in two steps, p(w | D1, D2) ~ p(D2 | w) p(w | D1), with p(w | D1) replaced by Gaussians of the same moments:
what weights have to do with each other is lost (variational continual learning does the same: Nguyen et al. 2018).
"""

from __future__ import annotations

import glob
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import pytrees
from posterity.core.types import Params
from posterity.models.model import Model
from posterity.models.priors import Fixed, Prior
from posterity.models.scales import SCALES
from posterity.weights.families import DiagonalGaussian


def gaussian_prior(model: Model, family: Any, draws: Callable[[], Params], widen: float) -> Prior:
    """From the family itself where it is a diagonal Gaussian, else from complete weights of draws, [S, ...].

    These are made where they are needed only: 4,000 of a network with 300,000 weights take 5 GB.
    """
    if isinstance(family, DiagonalGaussian) and family.num_chains == 1 and not model.prior.learns_scales:
        mean, std = pytrees.take_rows((family.mean, family.scale), 0)
    else:
        weights = {name: part for name, part in draws().items() if name != SCALES}
        mean = jax.tree.map(lambda leaf: leaf.mean(0), weights)
        std = jax.tree.map(lambda leaf: leaf.std(0, ddof=1), weights)
    full = model.full_prior
    table: dict[str, Any] = {}
    leaves = zip(pytrees.leaf_names(mean), jax.tree.leaves(mean), jax.tree.leaves(std), strict=True)
    for name, centre, width in leaves:
        if full.is_fixed(name):
            continue
        if not (np.asarray(width) > 0).all():
            raise ValueError(
                f"Weights of {name!r} do not vary over draws, and a prior of no width would hold them for good: use a "
                "posterior that has a width, such as that of Laplace(), BayesByBackprop() or HMC()."
            )
        # The brackets of a path are no choice of characters here.
        table[glob.escape(name)] = dist.Normal(centre, jnp.asarray(widen, width.dtype) * width)
    held = {p: d for p, d in zip(full.patterns, full.distributions, strict=True) if isinstance(d, Fixed)}
    held = {p: d for p, d in held.items() if p in model.prior.patterns}
    return Prior((*table, *held), (*table.values(), *held.values()))
