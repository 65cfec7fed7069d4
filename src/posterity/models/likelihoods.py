"""Likelihoods: from network outputs to a distribution of the target.

A likelihood is called on outputs [..., K] and gives a numpyro distribution with batch shape [...]. Your own takes one
line: `likelihood(lambda o: dist.Gamma(jnp.exp(o[..., 0]), jnp.exp(o[..., 1])), num_outputs=2)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from posterity.core import records
from posterity.core.checks import check_positive, check_whole
from posterity.core.types import Array

Kind = Literal["continuous", "classes", "counts", "heads"]
CLASSES = (dist.BernoulliLogits, dist.BernoulliProbs, dist.CategoricalLogits, dist.CategoricalProbs)
MINIMUM_SCALE = 1e-3  # a scale that may reach zero lets a chain fall into a spike at one datum and stay there


class Likelihood:
    """What every likelihood can be asked. Subclasses are records and final."""

    kind: Kind = "continuous"
    num_outputs: int
    has_marginal: bool = False
    """Whether `marginal` has a closed form."""

    def describe(self) -> str:
        """Its name, for messages."""
        return type(self).__name__

    @property
    def num_means(self) -> int:
        """How many of the first outputs are means of Gaussian noise that the other outputs give; 0: not such a one."""
        return 0

    def noise_variance(self, outputs: Array) -> Array:
        """Of that noise, [...], whatever the means are."""
        raise NotImplementedError

    def __call__(self, outputs: Array) -> dist.Distribution:
        raise NotImplementedError

    def init(self) -> dict[str, Array]:
        """Parameters of the likelihood's own, at their start; most have none."""
        return {}

    def priors(self) -> dict[str, dist.Distribution]:
        """A prior for each of them."""
        return {}

    def columns(self, parameters: dict[str, Array]) -> Array | None:
        """The constant columns that those parameters append to the network's outputs."""
        del parameters
        return None

    def fisher(self, outputs: Array) -> Array:
        """Expected Fisher information in the outputs, [..., K, K]: E_y[s s^T], s = d log p(y | outputs) / d outputs.

        Here summed over classes, or by 512 fixed draws of y; likelihoods that know it in closed form say so.
        """

        def outer(y: Array) -> Array:
            score = jax.grad(lambda o: jnp.sum(self(o).log_prob(y)))(outputs)
            return score[..., :, None] * score[..., None, :]

        if self.kind == "classes":
            probs = class_probs(self(outputs))
            labels = range(probs.shape[-1])
            return sum((probs[..., c, None, None] * outer(jnp.asarray(c)) for c in labels), jnp.zeros(()))
        draws = jax.lax.stop_gradient(self(outputs).sample(jax.random.key(0), (512,)))
        return jax.lax.map(outer, draws).mean(0)

    def information(self, outputs: Array, y: Array) -> Array:
        """What rows with these targets tell of the outputs, [..., K, K]: `fisher`, unless a target is known in part."""
        del y
        return self.fisher(outputs)

    def marginal(self, mean: Array, covariance: Array) -> dist.Distribution:
        """The target's distribution when the outputs are N(mean, covariance), where it has a closed form."""
        raise NotImplementedError

    def mean_variance(self, covariance: Array) -> Array:
        """The variance of the target's mean then: what is ignorance and not noise."""
        raise NotImplementedError


@records.record
class Gaussian(Likelihood):
    """y ~ N(f, scale^2) with a noise that is known.

    Args:
        scale: Standard deviation of the noise, in units of the target.
        num_outputs: Targets per row; the noise of each is independent.
    """

    has_marginal = True
    scale: float = records.traced(default=1.0)
    num_outputs: int = 1

    def __post_init__(self) -> None:
        check_positive("Gaussian", scale=self.scale)
        check_whole("Gaussian", num_outputs=self.num_outputs)

    @property
    def num_means(self) -> int:
        return self.num_outputs

    def noise_variance(self, outputs: Array) -> Array:
        return jnp.broadcast_to(jnp.square(self.scale), outputs.shape[:-1]).astype(outputs.dtype)

    def __call__(self, outputs: Array) -> dist.Distribution:
        return _normal(outputs, self.scale, self.num_outputs)

    def fisher(self, outputs: Array) -> Array:
        return _diagonal(jnp.ones_like(outputs) / jnp.square(self.scale))

    def marginal(self, mean: Array, covariance: Array) -> dist.Distribution:
        total = covariance + jnp.square(self.scale) * jnp.eye(self.num_outputs, dtype=covariance.dtype)
        if self.num_outputs > 1:  # targets that share weights are correlated
            return dist.MultivariateNormal(mean, total)
        return _normal(mean, jnp.sqrt(total[..., 0]), 1)

    def mean_variance(self, covariance: Array) -> Array:
        variance = jnp.diagonal(covariance, axis1=-2, axis2=-1)
        return variance if self.num_outputs > 1 else variance[..., 0]


@records.record
class GaussianLearnedNoise(Likelihood):
    """y ~ N(f, s^2) with one unknown noise s for all rows, s = e^l + initial / 1000, l ~ N(log initial, spread^2).

    Args:
        initial: The median of e^l under its prior, and where s starts; in units of the target.
        spread: Standard deviation of l under its prior.
        num_outputs: Targets per row, which share s.
    """

    initial: float = records.traced(default=1.0)
    spread: float = records.traced(default=2.0)
    num_outputs: int = 1

    def __post_init__(self) -> None:
        check_positive("GaussianLearnedNoise", initial=self.initial, spread=self.spread)
        check_whole("GaussianLearnedNoise", num_outputs=self.num_outputs)

    @property
    def num_means(self) -> int:
        return self.num_outputs

    def noise_variance(self, outputs: Array) -> Array:
        return jnp.square(MINIMUM_SCALE * self.initial + jnp.exp(outputs[..., self.num_outputs]))

    def __call__(self, outputs: Array) -> dist.Distribution:
        scale = MINIMUM_SCALE * self.initial + jnp.exp(outputs[..., self.num_outputs :])
        return _normal(outputs[..., : self.num_outputs], scale, self.num_outputs)

    def init(self) -> dict[str, Array]:
        return {"log_scale": jnp.log(jnp.asarray(self.initial, dtype=float))}

    def priors(self) -> dict[str, dist.Distribution]:
        return {"log_scale": dist.Normal(jnp.log(jnp.asarray(self.initial, dtype=float)), self.spread)}

    def columns(self, parameters: dict[str, Array]) -> Array:
        return parameters["log_scale"][None]

    def fisher(self, outputs: Array) -> Array:
        exponential = jnp.exp(outputs[..., self.num_outputs :])
        scale = MINIMUM_SCALE * self.initial + exponential
        of_mean = jnp.broadcast_to(1 / jnp.square(scale), outputs[..., : self.num_outputs].shape)
        of_noise = 2 * self.num_outputs * jnp.square(exponential / scale)
        return _diagonal(jnp.concatenate([of_mean, of_noise], -1))


@records.record
class HeteroscedasticGaussian(Likelihood):
    """y ~ N(f_1, exp(f_2)): mean and log variance, both from the network (Kendall & Gal 2017, eq. 8).

    Args:
        minimum_scale: The least standard deviation of the noise, in units of the target; its square is added to the
            variance.
    """

    minimum_scale: float = records.traced(default=MINIMUM_SCALE)
    num_outputs = 2

    def __post_init__(self) -> None:
        if isinstance(self.minimum_scale, int) or not self.minimum_scale >= 0:
            raise ValueError(
                f"HeteroscedasticGaussian({self.minimum_scale!r}): its one setting is minimum_scale, the least noise "
                "it can learn; give a small number such as 0.001, or nothing. It always takes two outputs."
            )

    @property
    def num_means(self) -> int:
        return 1

    def noise_variance(self, outputs: Array) -> Array:
        return jnp.square(self.minimum_scale) + jnp.exp(outputs[..., 1])

    def __call__(self, outputs: Array) -> dist.Distribution:
        return dist.Normal(outputs[..., 0], jnp.sqrt(self.noise_variance(outputs)))

    def fisher(self, outputs: Array) -> Array:
        variance = self.noise_variance(outputs)
        of_log_variance = jnp.square(jnp.exp(outputs[..., 1]) / variance) / 2
        return _diagonal(jnp.stack([1 / variance, of_log_variance], -1))


@records.record
class StudentT(Likelihood):
    """y ~ f + scale * t(df): a regression that outliers do not bend.

    Args:
        df: Degrees of freedom, above 2, so that the variance exists; the smaller, the heavier the tails.
        scale: Of the noise, in units of the target. Its standard deviation is scale * sqrt(df / (df - 2)).
        num_outputs: Targets per row; the noise of each is independent.
    """

    df: float = records.traced(default=4.0)
    scale: float = records.traced(default=1.0)
    num_outputs: int = 1

    def __post_init__(self) -> None:
        check_positive("StudentT", df=self.df, scale=self.scale)
        check_whole("StudentT", num_outputs=self.num_outputs)
        if not self.df > 2:
            raise ValueError(f"StudentT(df={self.df}) has no finite variance to split up; give df above 2, e.g. 4.")

    def __call__(self, outputs: Array) -> dist.Distribution:
        location = outputs[..., 0] if self.num_outputs == 1 else outputs
        distribution = dist.StudentT(self.df, location, self.scale)
        return distribution if self.num_outputs == 1 else distribution.to_event(1)

    def fisher(self, outputs: Array) -> Array:
        information = (self.df + 1) / ((self.df + 3) * jnp.square(self.scale))
        return _diagonal(jnp.ones_like(outputs) * information)


@records.record
class Bernoulli(Likelihood):
    """y in {0, 1} with P(y = 1) = sigmoid(f)."""

    kind = "classes"
    num_outputs = 1

    def __call__(self, outputs: Array) -> dist.Distribution:
        return dist.BernoulliLogits(outputs[..., 0])

    def fisher(self, outputs: Array) -> Array:
        return (jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs))[..., None]


@records.record
class Categorical(Likelihood):
    """y in {0 .. num_classes - 1} with P(y) = softmax(f).

    Args:
        num_classes: Classes, at least 2; the network has an output for each.
    """

    kind = "classes"
    num_classes: int = 2

    def __post_init__(self) -> None:
        check_whole("Categorical", 2, num_classes=self.num_classes)

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return self.num_classes

    def __call__(self, outputs: Array) -> dist.Distribution:
        return dist.CategoricalLogits(outputs)

    def fisher(self, outputs: Array) -> Array:
        probs = jax.nn.softmax(outputs)
        return _diagonal(probs) - probs[..., :, None] * probs[..., None, :]


@records.record
class NoisyCategorical(Likelihood):
    """Softmax of logits that carry noise: p = mean_t softmax(f + sigma e_t), (f, log sigma^2) from the network.

    Kendall & Gal 2017, eq. 12: 2 * num_classes outputs, logits first. The draws e_t are the same for every row and
    call, so that the likelihood is one fixed function.

    Args:
        num_classes: Classes, at least 2; the network has two outputs for each.
        num_noise_draws: Draws e_t, an even number: they come in pairs of opposite sign.
    """

    kind = "classes"
    num_classes: int = 2
    num_noise_draws: int = 32

    def __post_init__(self) -> None:
        check_whole("NoisyCategorical", 2, num_classes=self.num_classes)
        if self.num_noise_draws < 2 or self.num_noise_draws % 2:
            raise ValueError(f"NoisyCategorical(num_noise_draws={self.num_noise_draws}): give an even number above 0.")

    @property
    def num_outputs(self) -> int:  # type: ignore[override]
        return 2 * self.num_classes

    def __call__(self, outputs: Array) -> dist.Distribution:
        logits, log_variance = jnp.split(outputs, 2, axis=-1)
        scale = jnp.exp(log_variance / 2)
        # Antithetic pairs: the noise of each class sums to zero, so small noise leaves the logits unbiased.
        half = jax.random.normal(jax.random.key(0), (self.num_noise_draws // 2, self.num_classes), outputs.dtype)
        noise = jnp.concatenate([half, -half])
        noisy = jnp.expand_dims(logits, -2) + jnp.expand_dims(scale, -2) * noise
        log_probs = jax.nn.logsumexp(jax.nn.log_softmax(noisy), axis=-2) - jnp.log(noise.shape[0])
        return dist.CategoricalLogits(log_probs)


@records.record
class Custom(Likelihood):
    """A likelihood of the user's own function; see `likelihood`."""

    function: Callable[[Array], dist.Distribution]
    num_outputs: int = 1
    kind: Kind = "continuous"

    def __call__(self, outputs: Array) -> dist.Distribution:
        return self.function(outputs)


def likelihood(function: Callable[[Array], dist.Distribution], num_outputs: int = 1) -> Custom:
    """Any function from outputs [..., K] to a numpyro distribution with batch shape [...]; `num_outputs` is K.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpyro.distributions as dist
        >>> import posterity
        >>> waiting_time = posterity.likelihood(lambda outputs: dist.Exponential(jnp.exp(outputs[..., 0])))
        >>> waiting_time.kind, waiting_time.num_outputs
        ('continuous', 1)
    """
    check_whole("likelihood", num_outputs=num_outputs)
    try:
        with _indices_checked():
            shown = function(jnp.zeros((3, num_outputs)))
    except (TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"The likelihood failed on outputs of shape (3, {num_outputs}): {error}. It takes outputs [..., K] and "
            f"returns a numpyro distribution; is num_outputs={num_outputs} right?"
        ) from error
    if not isinstance(shown, dist.Distribution):
        raise TypeError(
            f"The likelihood returned {type(shown).__name__}; expected a numpyro distribution of the target, e.g. "
            "lambda o: numpyro.distributions.Normal(o[..., 0], 0.1)."
        )
    if shown.batch_shape != (3,):
        raise ValueError(
            f"The likelihood gave batch shape {shown.batch_shape} for 3 rows; expected (3,). Index the LAST axis of "
            "the outputs, e.g. o[..., 0], and end with .to_event(1) where a row has several targets."
        )
    kind: Kind = "classes" if isinstance(shown, CLASSES) else "counts" if shown.is_discrete else "continuous"
    single = shown.base_dist if isinstance(shown, dist.Independent) else shown
    told_apart = not (single.event_shape or isinstance(single, CLASSES))
    with suppress(NotImplementedError):  # all predictions begin with the mean and the variance of each number
        has_moments = single.mean is not None and single.variance is not None
        if has_moments and (told_apart or isinstance(shown, (*CLASSES, dist.MultivariateNormal))):
            return Custom(function, num_outputs, kind)
    raise ValueError(
        f"No prediction can be made of {shown}; expected ONE class a row, or numbers with a mean and a variance: a "
        "distribution of one number, of several by .to_event(1), or MultivariateNormal."
    )


@contextmanager
def _indices_checked() -> Iterator[None]:
    """JAX reads o[..., 1] of one column as column 0, which would tie two parameters in silence; here it raises."""
    before = jax.config.jax_check_static_indices  # type: ignore[attr-defined]
    jax.config.update("jax_check_static_indices", True)
    try:
        yield
    finally:
        jax.config.update("jax_check_static_indices", before)


def class_probs(distribution: dist.Distribution) -> Array:
    """Probabilities [..., C] of a distribution over classes; two for a Bernoulli."""
    probs = jnp.asarray(distribution.probs)  # type: ignore[attr-defined]
    if isinstance(distribution, dist.BernoulliLogits | dist.BernoulliProbs):
        return jnp.stack([1 - probs, probs], -1)
    return probs


def _normal(location: Array, scale: Any, num_outputs: int) -> dist.Distribution:
    if num_outputs > 1:
        return dist.Normal(location, scale).to_event(1)
    return dist.Normal(location[..., 0], scale[..., 0] if jnp.ndim(scale) else scale)


def _diagonal(values: Array) -> Array:
    return values[..., :, None] * jnp.eye(values.shape[-1], dtype=values.dtype)
