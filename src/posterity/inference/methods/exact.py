"""The exact posterior of a linear-Gaussian model (Bishop 2006, sec. 3.3).

    f(x, w) = f_0(x) + Phi(x) w,   y ~ N(f, sigma^2),   w ~ N(mu, diag(s^2))
    precision = l Phi^T Phi / sigma^2 + p diag(s^-2),   mean = mu + V l Phi^T (y - f_0 - Phi mu) / sigma^2

l and p are 1 without a temperature, 1/T and 1/T with one, 1/T and 1 where it tempers the likelihood alone. The log
evidence is the normaliser of the tempered joint density, at T = 1 the log marginal likelihood of y.
The design matrix Phi is computed on the device and solved by QR in float64 on the host, never squared.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from posterity.core import pytrees, records
from posterity.core.devices import jit_once
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.methods.card import Card
from posterity.inference.methods.method import Method, Result
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.models.priors import Flat
from posterity.weights.linearized import Full, Linearized, gather, row_jacobian

DESIGN_BYTES = 4e9
TOLERANCE = 1e-3  # of a deviation from linearity, relative to how much the outputs vary


class ExactState(NamedTuple):
    params: Params
    design: Array  # [N, M, K, P]
    residual: Array  # [N, M, K]: targets less the outputs at zero weights
    weight: Array  # [N]


class ExactInfo(NamedTuple):
    sum_of_squares: Array  # of those residuals


@records.record
class Exact(Method):
    """The posterior in closed form: a network affine in its weights, Gaussian(scale), a Gaussian prior.

    Args:
        start: Gives the values of the weights that are held fixed; its other weights are ignored. None: the network's
            own initialisation.
    """

    card = Card(
        name="exact",
        label="Exact",
        what="The closed form.",
        when="Networks that are linear in their weights only; not for the tables here.",
        reference="Bishop 2006",
        ignorance="exact",
        cost="a matrix",
        verdict="samples",
        colour="ink",
        line=":",
        marker="*",
        for_tables=False,
    )

    _: dataclasses.KW_ONLY
    start: Any = records.host(default=None)

    anytime = False
    holds_scales = True

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        del num_rows
        return (Phase(1, None, shuffle=False),)

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        remedy = "Use Laplace() for a Gaussian approximation, or HMC() for the posterior itself."
        if not isinstance(model.likelihood, Gaussian):
            raise ValueError(
                f"Exact needs the likelihood Gaussian(scale); it is {type(model.likelihood).__name__}. {remedy}"
            )
        for name in pytrees.leaf_names(params):
            if not model.full_prior.is_gaussian(name) and not isinstance(model.full_prior.find(name), Flat):
                found = type(model.full_prior.find(name)).__name__
                raise ValueError(f"Exact needs a Normal (or Flat) prior; that of {name!r} is {found}. {remedy}")
        x = jax.tree.map(lambda leaf: np.asarray(leaf[:16]), data.x)
        if not _deviation_from_affine(model, params, x) <= TOLERANCE:
            raise ValueError(
                "Exact needs a network that is affine in its free weights, such as linear(); this one is not. Hold the "
                f"weights of its inner layers with the prior Fixed(). {remedy}"
            )
        outputs_a_row = jax.eval_shape(model.outputs, params, x).size // pytrees.num_rows(x)
        size = 4.0 * data.num_rows * outputs_a_row * pytrees.size(params)
        if size > DESIGN_BYTES:
            raise ValueError(
                f"Exact would hold a design matrix of {size / 1e9:.0f} GB; Laplace() gives the same posterior batch by "
                "batch, up to how well its start finds the mode."
            )

    def kernel(self, model: Model) -> Kernel:
        def solve(params: Params, batch: Batch) -> ExactState:
            zero = jax.tree.map(jnp.zeros_like, params)
            names = pytrees.leaf_names(params)
            design = gather(row_jacobian(model, zero, batch.x), names, 3)
            outputs = model.outputs(zero, batch.x).reshape(design.shape[:-1])
            return ExactState(params, design, batch.y.reshape(outputs.shape) - outputs, batch.weight)

        def init(key: Key, params: Params, batch: Batch, clock: Clock) -> ExactState:
            del key, clock
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(solve, params, batch))

        def step(key: Key, state: ExactState, batch: Batch, clock: Clock) -> tuple[ExactState, ExactInfo]:
            del key, clock
            made = solve(state.params, batch)
            return made, ExactInfo(jnp.sum(jnp.square(made.residual)))

        return Kernel(init, step)

    def finish(self, model: Model, states: ExactState, kept: Params, fixed: Params) -> Result:
        del kept
        host = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), states)
        chains = [pytrees.take_rows(host, c) for c in range(pytrees.num_rows(states.params))]
        solved = [_solve(model, chain) for chain in chains]
        dtype = jax.tree.leaves(states.params)[0].dtype
        means, covariances, evidence = zip(*solved, strict=True)
        stack = lambda *leaves: jnp.asarray(np.stack(leaves), dtype)  # noqa: E731
        family = Linearized(jax.tree.map(stack, *means), jax.tree.map(stack, *covariances), fixed)
        facts = {"log_evidence": float(np.mean(evidence)), "log_evidence_of_chains": list(evidence)}
        return Result(family, model, facts)


def _solve(model: Model, chain: ExactState) -> tuple[Params, Full, float]:
    """(mean, covariance, log evidence) of one chain."""
    names = tuple(pytrees.leaf_names(chain.params))
    design = chain.design.reshape(-1, chain.design.shape[-1])
    residual = chain.residual.ravel()
    weight = np.repeat(chain.weight, residual.size // chain.weight.size)
    prior_mean, prior_std = _prior_moments(model, chain.params, names)
    noise = float(model.likelihood.scale)  # type: ignore[attr-defined]
    likelihood_factor, prior_factor = model.tempering_factors
    scale = np.sqrt(likelihood_factor * weight) / noise
    rows = np.concatenate([scale[:, None] * design, np.diag(np.sqrt(prior_factor) / prior_std)])
    targets = np.concatenate([scale * (residual - design @ prior_mean), np.zeros(len(prior_mean))])
    orthogonal, upper = np.linalg.qr(rows)
    if np.abs(np.diag(upper)).min() <= 1e-12 * np.abs(np.diag(upper)).max():
        raise ValueError("Some weights have a flat prior and the data do not determine them; give them a Normal prior.")
    factor = scipy.linalg.solve_triangular(upper, np.eye(len(upper)))
    mean = prior_mean + factor @ (orthogonal.T @ targets)
    log_determinant = 2 * float(np.log(np.abs(np.diag(upper))).sum())
    errors = (residual - design @ mean) / noise
    log_likelihood = -np.sum(weight * (np.square(errors) / 2 + math.log(math.sqrt(2 * math.pi) * noise)))
    proper = np.isfinite(prior_std)
    standard = ((mean - prior_mean) / prior_std)[proper]
    log_prior = -np.sum(np.square(standard) / 2 + np.log(math.sqrt(2 * math.pi) * prior_std[proper]))
    joint = likelihood_factor * log_likelihood + prior_factor * log_prior
    log_evidence = joint + len(mean) / 2 * math.log(2 * math.pi) - log_determinant / 2
    edges = np.cumsum([leaf.size for leaf in jax.tree.leaves(chain.params)])[:-1]
    leaves = [
        part.reshape(leaf.shape)
        for part, leaf in zip(np.split(mean, edges), jax.tree.leaves(chain.params), strict=True)
    ]
    weights = jax.tree.unflatten(jax.tree.structure(chain.params), leaves)
    return weights, Full(factor, log_determinant, names), float(log_evidence)


def _prior_moments(model: Model, params: Params, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    with jax.enable_x64(True):
        mean, std = _moments(model, params, names)
    return np.asarray(mean), np.asarray(std)


@partial(jit_once, static_argnames="names")
def _moments(model: Model, params: Params, names: tuple[str, ...]) -> tuple[Array, ...]:
    return tuple(gather(part, names) for part in model.full_prior.moments(params, model.network.fan_in_axis))


@jit_once
def _deviation_from_affine(model: Model, params: Params, x: Any) -> Array:
    """Largest |f(a u + (1 - a) v) - a f(u) - (1 - a) f(v)| over a few random u, v, relative to the outputs' size."""

    def deviation(key: Key) -> Array:
        key_u, key_v = jax.random.split(key)
        u, v = pytrees.normal_like(key_u, params), pytrees.normal_like(key_v, params)
        between = jax.tree.map(lambda a, b: -0.7 * a + 1.7 * b, u, v)
        at_u, at_v, at_between = (model.outputs(point, x) for point in (u, v, between))
        size = jnp.max(jnp.abs(at_u)) + jnp.max(jnp.abs(at_v)) + jnp.finfo(at_u.dtype).tiny
        return jnp.max(jnp.abs(at_between + 0.7 * at_u - 1.7 * at_v)) / size

    return jnp.max(jax.lax.map(deviation, jax.random.split(jax.random.key(0), 4)))
