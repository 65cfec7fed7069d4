"""A likelihood in the units of the user's own target."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import records
from posterity.core.checks import check_positive
from posterity.core.types import Array
from posterity.models.censored import Censored
from posterity.models.likelihoods import Kind, Likelihood


@records.record
class Rescaled(Likelihood):
    """The target in the user's units: y = shift + scale * z with z ~ likelihood(outputs).

    A network that learns a target of about unit size then predicts, everywhere, in the units the data came in. The
    map leaves the information in the outputs as it is, and shifts log p(y) by -log(scale).

    Args:
        likelihood: Of z; of numbers, not of classes or counts.
        shift: Added to z, in units of the target.
        scale: Multiplies z, in units of the target; above 0.
    """

    likelihood: Likelihood = records.traced()
    shift: float = records.traced(default=0.0)
    scale: float = records.traced(default=1.0)

    def __post_init__(self) -> None:
        check_positive("Rescaled", scale=self.scale)
        if isinstance(self.likelihood, Censored):
            raise ValueError(
                "Rescaled(Censored(...)): bounds have no density to rescale; give Censored(Rescaled(...))."
            )
        if self.likelihood.kind != "continuous":
            raise ValueError(
                f"Rescaled({type(self.likelihood).__name__}): {self.likelihood.kind} have no units to change; use "
                f"{type(self.likelihood).__name__} itself."
            )

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
        return _affine(self.likelihood(outputs), self.shift, self.scale)

    def init(self) -> dict[str, Array]:
        return self.likelihood.init()

    def priors(self) -> dict[str, dist.Distribution]:
        return self.likelihood.priors()

    def columns(self, parameters: dict[str, Array]) -> Array | None:
        return self.likelihood.columns(parameters)

    def fisher(self, outputs: Array) -> Array:
        return self.likelihood.fisher(outputs)

    def information(self, outputs: Array, y: Array) -> Array:
        return self.likelihood.information(outputs, (y - self.shift) / self.scale)

    def marginal(self, mean: Array, covariance: Array) -> dist.Distribution:
        return _affine(self.likelihood.marginal(mean, covariance), self.shift, self.scale)

    def mean_variance(self, covariance: Array) -> Array:
        return jnp.square(self.scale) * self.likelihood.mean_variance(covariance)


def without_units(likelihood: Likelihood) -> tuple[Likelihood, float, float]:
    """(likelihood of z, shift, scale) of a target y = shift + scale * z; the likelihood itself, 0 and 1 of any other.

    In float32 nothing is left of a z of unit size beside a large shift, such as that of dates in seconds: predictions
    are made of z, and brought into the user's units in float64.
    """
    if not isinstance(likelihood, Rescaled):
        return likelihood, 0.0, 1.0
    inner, shift, scale = without_units(likelihood.likelihood)
    return inner, float(likelihood.shift + likelihood.scale * shift), float(likelihood.scale * scale)


def in_network_units(likelihood: Likelihood, *targets: np.ndarray) -> tuple[Likelihood, tuple[np.ndarray, ...]]:
    """What a network is trained by: targets z = (y - shift) / scale, and a likelihood that gives z the density of y.

    For the reason that predictions are made of z: targets become float32 when they are trained on, z keeps its digits.
    """
    if not isinstance(likelihood, Rescaled):
        return likelihood, targets
    inner, shift, scale = without_units(likelihood)
    return _OfUnits(inner, log_scale=math.log(scale)), tuple((y - shift) / scale for y in targets)


@records.record
class _OfUnits(Rescaled):
    """The likelihood of z in the density of y, log p(y) = log p(z) - log(scale): what a run records is of y."""

    log_scale: float = records.traced(default=0.0)  # float32 has room for it, not for every scale

    def describe(self) -> str:
        return self.likelihood.describe()

    @property
    def num_means(self) -> int:
        return self.likelihood.num_means

    def noise_variance(self, outputs: Array) -> Array:
        return self.likelihood.noise_variance(outputs)

    def __call__(self, outputs: Array) -> dist.Distribution:
        return _Affine(self.likelihood(outputs), 0.0, 1.0, self.log_scale)


class _Affine(dist.Distribution):
    """shift + scale * z. numpyro's TransformedDistribution has neither mean nor variance, and forgets z's own."""

    pytree_data_fields = ("inner", "shift", "scale", "log_scale")
    support = dist.constraints.real  # type: ignore[assignment]  # log_prob and cdf know where that of z ends

    def __init__(self, inner: dist.Distribution, shift: Any, scale: Any, log_scale: Any) -> None:
        self.inner, self.shift, self.scale, self.log_scale = inner, shift, scale, log_scale
        super().__init__(inner.batch_shape, inner.event_shape, validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        return self.shift + self.scale * self.inner.sample(key, sample_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Array:
        del intermediates
        log_prob = jnp.asarray(self.inner.log_prob((value - self.shift) / self.scale))
        return log_prob - math.prod(self.event_shape) * self.log_scale

    def cdf(self, value: Any) -> Array:
        return self.inner.cdf((value - self.shift) / self.scale)

    @property
    def mean(self) -> Array:
        return self.shift + self.scale * self.inner.mean

    @property
    def variance(self) -> Array:
        return jnp.square(self.scale) * self.inner.variance


def _affine(distribution: dist.Distribution, shift: Any, scale: Any) -> dist.Distribution:
    """The distribution of shift + scale * z, of the same family where it has a location and a scale."""
    if isinstance(distribution, dist.Independent):
        inner = _affine(distribution.base_dist, shift, scale)
        return inner.to_event(distribution.reinterpreted_batch_ndims)
    if type(distribution) is dist.Normal:
        return dist.Normal(shift + scale * distribution.loc, scale * distribution.scale)
    if type(distribution) is dist.MultivariateNormal:
        return dist.MultivariateNormal(shift + scale * distribution.loc, scale_tril=scale * distribution.scale_tril)
    if type(distribution) is dist.StudentT:
        return dist.StudentT(distribution.df, shift + scale * distribution.loc, scale * distribution.scale)
    return _Affine(distribution, shift, scale, jnp.log(scale))
