"""Experiments on trajectories and paths for the study of mixing: HMC with minibatch gradients, and energy barriers.

HMC with minibatch gradients takes each half step with the gradient of rows drawn afresh, times N / n. With the accept
step, on the energy of all rows, it keeps the posterior and accepts little; without, its noise heats the chain.
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Key, Params
from posterity.inference.methods.hamiltonian import relative_widths
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior

NUM_POINTS = 21  # along a path
PathKind = Literal["straight", "curved"]


def whole_batch(data: tuple[np.ndarray, ...]) -> Batch:
    """All rows at once."""
    x, y = (jnp.asarray(values) for values in data[:2])
    return Batch(x, y, jnp.ones(len(y)))


def draw_of(posterior: Posterior, chain: int, draw: int) -> Params:
    """The free weights of a stored draw."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[chain, draw]), posterior.family.draws)


def barriers(posterior: Posterior, data: tuple[np.ndarray, ...], pairs: list[tuple[Any, Any]], kind: PathKind) -> Any:
    """How far the log joint falls along paths between draws (chain, draw), below the mean of both ends, [pairs].

    straight: (1 - t) a + t b. curved: cos(u) a + sin(u) b, u from 0 to pi/2, along which a draw from a Gaussian prior
    around zero stays a typical one, where the straight path passes nearer to zero.
    """
    batch, model = whole_batch(data), posterior.model
    share = jnp.linspace(0.0, 1.0, NUM_POINTS)
    angle = share * jnp.pi / 2
    first, second = (1 - share, share) if kind == "straight" else (jnp.cos(angle), jnp.sin(angle))

    @jax.jit
    def along(a: Params, b: Params) -> Array:
        def at(one: Array, other: Array) -> Array:
            return model.log_joint(jax.tree.map(lambda left, right: one * left + other * right, a, b), batch)

        return jax.vmap(at)(first, second)

    found = [np.asarray(along(draw_of(posterior, *one), draw_of(posterior, *other)), float) for one, other in pairs]
    return np.array([(values[0] + values[-1]) / 2 - values.min() for values in found]), np.array(found)


def minibatch_hmc(
    posterior: Posterior,
    data: tuple[np.ndarray, ...],
    step_size: float,
    *,
    batch_size: int,
    num_leapfrog: int,
    num_trajectories: int,
    accepts: bool,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Acceptance probabilities, and log joints after each trajectory, from a draw of the posterior on."""
    model, batch = posterior.model, whole_batch(data)
    start = draw_of(posterior, 0, -1)
    _, widths = relative_widths(model, start)
    num_rows = len(data[1])
    log_joint = jax.jit(lambda weights: model.log_joint(weights, batch))
    move = jax.jit(lambda key, weights, momentum: _trajectory(
        model, batch, widths, (key, weights, momentum), step_size, num_leapfrog, min(batch_size, num_rows)
    ))  # fmt: skip
    weights, key = start, jax.random.key(seed)
    chances, densities = [], []
    for _ in range(num_trajectories):
        key, key_momentum, key_rows, key_accept = jax.random.split(key, 4)
        momentum = pytrees.normal_like(key_momentum, weights)
        end, turned = move(key_rows, weights, momentum)
        drop = log_joint(end) - log_joint(weights) + _kinetic(momentum) - _kinetic(turned)
        chance = float(jnp.where(jnp.isfinite(drop), jnp.exp(jnp.minimum(drop, 0.0)), 0.0))
        if not accepts or float(jax.random.uniform(key_accept)) < chance:
            weights = end
        chances.append(chance)
        densities.append(float(log_joint(weights)))
    return np.array(chances), np.array(densities)


def _kinetic(momentum: Params) -> Array:
    return pytrees.total(jax.tree.map(jnp.square, momentum)) / 2


def _trajectory(
    model: Model,
    batch: Batch,
    widths: Params,
    begin: tuple[Key, Params, Params],
    step_size: float,
    num_leapfrog: int,
    batch_size: int,
) -> tuple[Params, Params]:
    """Leapfrog steps, each half step of the momentum with the gradient of other rows where a batch is not all rows."""
    num_rows = batch.y.shape[0]

    def gradient(key: Key, weights: Params) -> Params:
        if batch_size == num_rows:
            return jax.grad(model.log_joint)(weights, batch)
        rows = jax.random.choice(key, num_rows, (batch_size,), replace=False)
        return jax.grad(model.log_joint)(weights, pytrees.take_rows(batch, rows), num_rows / batch_size)

    def kick(momentum: Params, key: Key, weights: Params) -> Params:
        return jax.tree.map(lambda p, r, g: p + step_size / 2 * r * g, momentum, widths, gradient(key, weights))

    def step(_: Array, state: tuple[Key, Params, Params]) -> tuple[Key, Params, Params]:
        key, weights, momentum = state
        key, key_first, key_second = jax.random.split(key, 3)
        momentum = kick(momentum, key_first, weights)
        weights = jax.tree.map(lambda w, r, p: w + step_size * r * p, weights, widths, momentum)
        return key, weights, kick(momentum, key_second, weights)

    _, weights, momentum = jax.lax.fori_loop(0, num_leapfrog, step, begin)
    return weights, momentum
