"""Targets that are known to lie between two bounds only: left, right and interval censoring.

A target is a pair (lower, upper), and with F the cumulative distribution function of the uncensored number

    lower == upper     log p(lower)                observed
    lower = -inf       log F(upper)                censored on the left
    upper = inf        log (1 - F(lower))          censored on the right
    else               log (F(upper) - F(lower))   within an interval

Tails are computed as logs, each from its own side: far out F rounds to 0 or 1, and its log to nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import betainc, gammaincc, log_ndtr

from posterity.core import records
from posterity.core.types import Array
from posterity.models.likelihoods import Kind, Likelihood

LOG_HALF = -0.6931472


@records.record
class Censored(Likelihood):
    """A number of which some rows know bounds only: y [N, 2] holds (lower, upper), equal where it was observed.

    Predictions are of the number itself, whether or not it would be observed. A censored row tells of the outputs
    what its bounds do: Laplace takes the curvature of log p there, with negative directions left out.

    Args:
        likelihood: Of the number itself, one a row: `Gaussian(0.1)`, or one of waiting times of your own.
    """

    likelihood: Likelihood = records.traced()

    def __post_init__(self) -> None:
        wanted = "expected that of one number a row, such as Gaussian(0.1)"
        if not isinstance(self.likelihood, Likelihood):
            raise TypeError(f"Censored({self.likelihood!r}): got no likelihood; {wanted}.")
        name = type(self.likelihood).__name__
        if self.likelihood.kind != "continuous" or isinstance(self.likelihood, Censored):
            raise ValueError(f"Censored({name}): {self.likelihood.kind} cannot be censored here; {wanted}.")
        width = self.num_outputs + sum(leaf.size for leaf in jax.tree.leaves(self.likelihood.init()))
        shown = jax.eval_shape(lambda: self.likelihood(jnp.zeros((1, width))).sample(jax.random.key(0)))
        if shown.shape != (1,):
            raise ValueError(f"Censored({name}): it describes {shown.shape[1:]} numbers a row; {wanted}.")

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        return self.likelihood.kind

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.likelihood.num_outputs

    @property
    def has_marginal(self) -> bool:  # type: ignore[override]
        return self.likelihood.has_marginal

    def __call__(self, outputs: Array) -> dist.Distribution:
        return CensoredDistribution(self.likelihood(outputs))

    def init(self) -> dict[str, Array]:
        return self.likelihood.init()

    def priors(self) -> dict[str, dist.Distribution]:
        return self.likelihood.priors()

    def columns(self, parameters: dict[str, Array]) -> Array | None:
        return self.likelihood.columns(parameters)

    def fisher(self, outputs: Array) -> Array:
        """Of a row that is observed."""
        return self.likelihood.fisher(outputs)

    def information(self, outputs: Array, y: Array) -> Array:
        """The Fisher information of observed rows; of censored ones what is positive of -d^2 log p / d outputs^2."""
        bounds, flat = y.reshape(-1, 2), outputs.reshape(-1, outputs.shape[-1])
        hessian = jax.vmap(jax.hessian(lambda o, pair: self(o).log_prob(pair)))(flat, bounds)
        values, vectors = jnp.linalg.eigh(-hessian)
        positive = jnp.einsum("nik,nk,njk->nij", vectors, jnp.maximum(values, 0.0), vectors)
        observed = (bounds[:, 0] == bounds[:, 1])[:, None, None]
        found = jnp.where(observed, self.fisher(flat), positive)
        return found.reshape(*outputs.shape, outputs.shape[-1])

    def marginal(self, mean: Array, covariance: Array) -> dist.Distribution:
        return CensoredDistribution(self.likelihood.marginal(mean, covariance))

    def mean_variance(self, covariance: Array) -> Array:
        return self.likelihood.mean_variance(covariance)


def uncensored(likelihood: Likelihood) -> Likelihood:
    """The likelihood of the number itself; any other as it is."""
    return likelihood.likelihood if isinstance(likelihood, Censored) else likelihood


class CensoredDistribution(dist.Distribution):
    """Of pairs (lower, upper) around a number z; a sample is one that was observed."""

    pytree_data_fields = ("inner",)
    support = dist.constraints.real_vector  # type: ignore[assignment]

    def __init__(self, inner: dist.Distribution) -> None:
        self.inner = inner
        super().__init__(inner.batch_shape, (2,), validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        return jnp.repeat(jnp.asarray(self.inner.sample(key, sample_shape))[..., None], 2, -1)

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        del intermediates
        lower, upper = value[..., 0], value[..., 1]
        left, right, observed = jnp.isneginf(lower), jnp.isposinf(upper), lower == upper
        # What is not chosen is computed too, at bounds that are finite: gradients of what is not would be NaN.
        lower, upper = jnp.where(left, upper, lower), jnp.where(right, lower, upper)
        within = ~(left | right | observed)
        found = jnp.where(left, log_cdf(self.inner, upper), log_survival(self.inner, lower))
        found = jnp.where(within, _log_between(self.inner, lower, upper, within), found)
        return jnp.where(observed & ~left & ~right, jnp.asarray(self.inner.log_prob(lower)), found)


def _log_between(distribution: dist.Distribution, lower: Array, upper: Array, within: Array) -> Array:
    """log (F(upper) - F(lower)), from the tail that the interval lies in."""
    upper = jnp.where(within, upper, lower + 1.0)
    below = log_cdf(distribution, (lower + upper) / 2) < LOG_HALF
    wide = jnp.where(below, log_cdf(distribution, upper), log_survival(distribution, lower))
    narrow = jnp.where(below, log_cdf(distribution, lower), log_survival(distribution, upper))
    # Of close bounds the difference has few digits; there the density at the middle is as good.
    apart, middle = wide - narrow, (lower + upper) / 2
    close = apart < jnp.finfo(apart.dtype).eps ** (1 / 3)
    by_density = jnp.asarray(distribution.log_prob(middle)) + jnp.log(upper - lower)
    # -log(1 - e^-d) from the side that keeps digits; an upper tail that is 0 leaves the other alone.
    safe = jnp.where(close, 1.0, jnp.minimum(apart, 80.0))
    return jnp.where(close, by_density, wide + jnp.log(-jnp.expm1(-safe)))


def log_cdf(distribution: dist.Distribution, value: Array) -> Array:
    """log P(z <= value)."""
    if isinstance(distribution, dist.Normal | dist.LogNormal):
        return log_ndtr(_normal_score(distribution, value))
    if isinstance(distribution, dist.StudentT):
        df, location, scale = _numbers(distribution, "df", "loc", "scale")
        return _log_student_tail((location - value) / scale, df)
    if (hazard := _cumulative_hazard(distribution, value)) is not None:
        return jnp.log(-jnp.expm1(-hazard))
    return jnp.log(jnp.asarray(distribution.cdf(value)))


def log_survival(distribution: dist.Distribution, value: Array) -> Array:
    """log P(z > value)."""
    if isinstance(distribution, dist.Normal | dist.LogNormal):
        return log_ndtr(-_normal_score(distribution, value))
    if isinstance(distribution, dist.StudentT):
        df, location, scale = _numbers(distribution, "df", "loc", "scale")
        return _log_student_tail((value - location) / scale, df)
    if (hazard := _cumulative_hazard(distribution, value)) is not None:
        return -hazard
    if isinstance(distribution, dist.Gamma):
        concentration, rate = _numbers(distribution, "concentration", "rate")
        return jnp.log(gammaincc(concentration, rate * value))
    return jnp.log1p(-jnp.asarray(distribution.cdf(value)))


def _normal_score(distribution: dist.Normal | dist.LogNormal, value: Array) -> Array:
    location, scale = _numbers(distribution, "loc", "scale")
    return ((jnp.log(value) if isinstance(distribution, dist.LogNormal) else value) - location) / scale


def _cumulative_hazard(distribution: dist.Distribution, value: Array) -> Array | None:
    """-log P(z > value), where it is simpler than its exponential."""
    if isinstance(distribution, dist.Exponential):
        (rate,) = _numbers(distribution, "rate")
        return rate * value
    if isinstance(distribution, dist.Weibull):
        scale, concentration = _numbers(distribution, "scale", "concentration")
        return (value / scale) ** concentration
    return None


def _numbers(distribution: dist.Distribution, *names: str) -> list[Array]:
    """Parameters as arrays, which numpyro may hold as numbers or shapes."""
    return [jnp.asarray(getattr(distribution, name)) for name in names]


def _log_student_tail(score: Array, df: Array) -> Array:
    """log P(t > score)."""
    tail = 0.5 * betainc(0.5 * df, 0.5, df / (df + jnp.square(score)))
    return jnp.where(score > 0, jnp.log(tail), jnp.log1p(-tail))
