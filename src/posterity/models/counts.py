"""Likelihoods of counts, whose densities are computed in logs: a rate itself may round to zero or to infinity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from posterity.core import records
from posterity.core.types import Array
from posterity.models.likelihoods import Likelihood


@records.record
class Poisson(Likelihood):
    """Counts with mean exp(f)."""

    kind = "counts"
    num_outputs = 1

    def __call__(self, outputs: Array) -> dist.Distribution:
        return _Poisson(outputs[..., 0])

    def fisher(self, outputs: Array) -> Array:
        return jnp.exp(outputs)[..., None]


@records.record
class NegativeBinomial(Likelihood):
    """Counts with mean exp(f_1) and variance mean + mean^2 / exp(f_2): more spread than Poisson allows."""

    kind = "counts"
    num_outputs = 2

    def __call__(self, outputs: Array) -> dist.Distribution:
        return _NegativeBinomial(outputs[..., 0], outputs[..., 1])


class _Poisson(dist.Poisson):
    """Its log density is one of the log rate: the rate itself may round to zero or to infinity."""

    pytree_data_fields = ("log_rate",)

    def __init__(self, log_rate: Array) -> None:
        self.log_rate = log_rate
        super().__init__(jnp.exp(log_rate))

    def log_prob(self, value: Any) -> Array:
        y = jnp.maximum(jnp.asarray(value, float), 1.0)
        return jnp.where(value > 0, _log_poisson(y, self.log_rate - jnp.log(y)), -jnp.exp(self.log_rate))


class _NegativeBinomial(dist.NegativeBinomial2):
    """As the binomial law of Poisson counts y and a, concentration, given a + y, times a / (a + y); in logs too."""

    pytree_data_fields = ("log_mean", "log_concentration")

    def __init__(self, log_mean: Array, log_concentration: Array) -> None:
        self.log_mean, self.log_concentration = log_mean, log_concentration
        super().__init__(jnp.exp(log_mean), jnp.exp(log_concentration))

    def log_prob(self, value: Any) -> Array:
        y = jnp.maximum(jnp.asarray(value, float), 1.0)
        log_a = jnp.clip(self.log_concentration, -40, 40)  # beyond, squares within the gradient leave float32
        a, log_y = jnp.exp(log_a), jnp.log(y)
        got, expected = (jax.nn.softplus(log - log_a) for log in (log_y, self.log_mean))
        apart = _log_poisson(y, self.log_mean - log_y + got - expected) + _log_poisson(a, got - expected)
        return jnp.where(value > 0, apart - _log_poisson(a + y, 0.0) - got, -a * expected)


def _log_poisson(y: Array, above: Any) -> Array:
    """log Poisson(y; mean y e^above) for y > 0, whole or not; by Stirling's series where lgamma would cost digits."""
    small, large = jnp.where(y < 10, y, 1.0), jnp.where(y < 10, 10.0, y)
    series = -jnp.log(2 * jnp.pi * large) / 2 - (1 - 1 / (30 * jnp.square(large))) / (12 * large)
    peak = jnp.where(y < 10, small * jnp.log(small) - small - jax.lax.lgamma(small + 1), series)
    return peak - y * (jnp.expm1(above) - above)
