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

from typing import NamedTuple, cast

import jax.numpy as jnp
import optax

from posterity.core.types import Array, Clock

FIRST_SHARE = 0.05  # of the prior and the entropy, where inference begins
FIRST_WIDTH = 0.1  # of q, in units of the prior's
LEARNING_RATE, LAST_RATE = 0.02, 0.1  # of Adam, and the share of it that is left at the end


class Variational(NamedTuple):
    """q, in units of the prior's widths, and Adam's averages."""

    mean: Array  # [P]
    log_width: Array  # [P]
    averages: optax.OptState


def begin(position: Array, widths: Array) -> Variational:
    """A narrow q around a position."""
    mean, log_width = position / widths, jnp.full_like(position, jnp.log(FIRST_WIDTH))
    return Variational(mean, log_width, _ADAM.init((mean, log_width)))


def share(clock: Clock) -> Array:
    """beta."""
    return jnp.clip(2 * (clock.step + 1) / clock.num_steps, FIRST_SHARE, 1.0)


def centre(q: Variational, widths: Array) -> Array:
    """The mean of q, as weights."""
    return q.mean * widths


def metric(q: Variational, widths: Array) -> Array:
    """The width of each weight under q."""
    return jnp.exp(q.log_width) * widths


def update(q: Variational, noise: Array, gradient: Array, widths: Array, clock: Clock) -> Variational:
    """q after a step, from the gradient at its mean plus the noise times its widths."""
    down = -gradient * widths
    down_width = down * jnp.exp(q.log_width) * noise - share(clock).astype(down.dtype)
    changes, averages = _ADAM.update((down, down_width), q.averages)
    of_mean, of_width = cast(tuple[Array, Array], changes)
    rate = (LEARNING_RATE * (1 - (1 - LAST_RATE) * clock.step / clock.num_steps)).astype(down.dtype)
    return Variational(q.mean - rate * of_mean, q.log_width - rate * of_width, averages)


_ADAM = optax.scale_by_adam()
