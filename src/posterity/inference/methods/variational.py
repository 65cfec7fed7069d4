"""A metric for HMC from mean-field variational inference on the density that its trajectories move on.

    q(u) = prod_i N(mu_i, sigma_i^2),    u_i = theta_i / s_i,    s_i the prior's width of weight i
    ELBO = E_q[log p(D | theta)] + beta (E_q[log p(theta)] + H[q]),    beta from FIRST_SHARE to 1 over the first half
    d/d mu_i = E_q[s_i g_i],    d/d log sigma_i = E_q[s_i g_i sigma_i e_i] + beta,    theta = s (mu + sigma e)

with g the gradient of the tempered density and e ~ N(0, I), by Adam with one draw a step and a rate that falls to a
tenth. Each chain has a q of its own, from where it starts. Trajectories then move in (u - mu) / sigma, where directions
that data pin down and directions that they leave free have about the same width: fixed widths leave HMC exact, and
mean-field widths, which are conditional ones (Turner & Sahani 2011), are those that limit its step size.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from posterity.core.types import Array, Clock, Params

FIRST_SHARE = 0.05  # of the prior and the entropy, where inference begins
FIRST_WIDTH = 0.1  # of q, in units of the prior's
LEARNING_RATE, LAST_RATE = 0.02, 0.1  # of Adam, and the share of it that is left at the end


class Variational(NamedTuple):
    """q, in units of the prior's widths, and Adam's averages."""

    mean: Params
    log_width: Params
    averages: optax.OptState


def begin(position: Params, widths: Params) -> Variational:
    """A narrow q around a position."""
    mean = jax.tree.map(lambda weight, width: weight / width.astype(weight.dtype), position, widths)
    log_width = jax.tree.map(lambda weight: jnp.full_like(weight, jnp.log(FIRST_WIDTH)), position)
    return Variational(mean, log_width, _ADAM.init((mean, log_width)))


def share(clock: Clock) -> Array:
    """beta."""
    return jnp.clip(2 * (clock.step + 1) / clock.num_steps, FIRST_SHARE, 1.0)


def centre(q: Variational, widths: Params) -> Params:
    """The mean of q, as weights."""
    return jax.tree.map(lambda mean, width: mean * width.astype(mean.dtype), q.mean, widths)


def metric(q: Variational, widths: Params) -> Params:
    """The width of each weight under q."""
    return jax.tree.map(
        lambda log_width, width: jnp.exp(log_width) * width.astype(log_width.dtype), q.log_width, widths
    )


def update(q: Variational, noise: Params, gradient: Params, widths: Params, clock: Clock) -> Variational:
    """q after a step, from the gradient at its mean plus the noise times its widths."""
    down = jax.tree.map(lambda g, width: -g * width.astype(g.dtype), gradient, widths)
    down_width = jax.tree.map(
        lambda g, log_width, e: g * jnp.exp(log_width) * e - share(clock).astype(g.dtype), down, q.log_width, noise
    )
    changes, averages = _ADAM.update((down, down_width), q.averages)
    rate = LEARNING_RATE * (1 - (1 - LAST_RATE) * clock.step / clock.num_steps)
    mean, log_width = jax.tree.map(
        lambda value, change: value - rate.astype(value.dtype) * change, (q.mean, q.log_width), changes
    )
    return Variational(mean, log_width, averages)


_ADAM = optax.scale_by_adam()
