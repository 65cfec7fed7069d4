"""Priors over weights: one distribution for each weight, chosen by the weight's path.

Anything that says what it believes can be a prior: a numpyro distribution (for every weight), or a mapping from path
patterns to distributions, the first match counting: `{"*bias": Flat(), "layer_0/*": Normal(0, 0.1), "*": Normal(0, 1)}`

A Normal may also have a mean and a width for each weight of a leaf, in its shape: what a posterior becomes where it is
the prior of what comes next (`Posterior.as_prior`).

Where a scale is learned (scales.py), the weight is the standardised one, z, and its log scales, under "log_scales/" and
the weight's path, are variables beside it with a distribution of their own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import pytrees, records
from posterity.core.types import Array, Key, Params
from posterity.models.scales import LOG_SCALES, SCALES, Learned

NOT_WEIGHTS = ("likelihood/", f"{LOG_SCALES}/")  # parameters beside the weights: noise, and learned scales


@dataclass(frozen=True)
class Flat:
    """No preference at all: log density 0 everywhere. MAP with it is maximum likelihood; it cannot be sampled."""


@dataclass(frozen=True)
class Fixed:
    """Weights that stay where they start, for every method: a Bayesian head on a frozen trunk."""


jax.tree_util.register_static(Flat)
jax.tree_util.register_static(Fixed)


def scale_mixture(weight: float = 0.5, sigma_1: float = 1.0, sigma_2: float = float(np.exp(-6))) -> dist.Distribution:
    """weight N(0, sigma_1^2) + (1 - weight) N(0, sigma_2^2) (Blundell et al. 2015, eq. 7)."""
    if not 0 < weight < 1 or not sigma_1 > 0 or not sigma_2 > 0:
        raise ValueError(
            f"scale_mixture(weight={weight}, sigma_1={sigma_1}, sigma_2={sigma_2}): "
            "the weight must lie strictly between 0 and 1, both sigmas above 0."
        )
    components = dist.Normal(jnp.zeros(2), jnp.array([sigma_1, sigma_2]))
    return dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([weight, 1 - weight])), components)


@records.record
class Prior:
    """Distributions by path pattern, with an optional factor 1 / sqrt(fan-in) and a common scale.

    A weight w of scale c has log density log p(w / c) - log c.
    """

    patterns: tuple[str, ...]
    distributions: tuple[Any, ...] = records.traced()
    fan_in: bool = False
    scale: Any = records.traced(default=1.0)

    def find(self, name: str) -> Any:
        """The distribution of the weight, or the log scale, with this path."""
        prefix, _, rest = name.partition("/")
        if prefix == LOG_SCALES:
            return self._find(rest.rpartition("/")[0]).log_scale
        if prefix == SCALES:
            raise ValueError("These are complete weights; a prior is of standardised ones: use Model.standardise.")
        found = self._find(name)
        return found.distribution if isinstance(found, Learned) else found

    def learned(self, name: str) -> Learned | None:
        """What is learned of the scale of the weight with this path."""
        found = self._find(name)
        return found if isinstance(found, Learned) else None

    @property
    def learns_scales(self) -> bool:
        return any(isinstance(distribution, Learned) for distribution in self.distributions)

    def _find(self, name: str) -> Any:
        for pattern, distribution in zip(self.patterns, self.distributions, strict=True):
            if pytrees.matches(name, pattern):
                return distribution
        raise ValueError(
            f"The prior has no pattern for the weight {name!r}; it has {', '.join(map(repr, self._shown()))}. "
            "Add '*' as the last pattern to cover all other weights."
        )

    def names_own(self, name: str) -> bool:
        """Whether a pattern means this parameter of the likelihood: "likelihood/*" or "*log_scale" mean the noise.

        "*scale", which also matches it, is about layers.
        """
        own = name.rpartition("/")[2]
        meant = [p for p in self.patterns if p.startswith("likelihood") or p.lstrip("*/") == own]
        return any(pytrees.matches(name, pattern) for pattern in meant)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Patterns that match none of these weights; '*' may well be left with none."""
        known = list(names)
        return [p for p in self._shown() if p != "*" and not any(pytrees.matches(name, p) for name in known)]

    def factor(self, name: str, shape: tuple[int, ...], fan_in_axis: int) -> Any:
        """What the weight's distribution is stretched by."""
        if name.startswith(NOT_WEIGHTS) or self.differs_within(name):
            return 1.0  # tuning the weights' scale leaves these priors alone
        if not self.fan_in or len(shape) < 2 or "embed" in name.lower():
            return self.scale  # rows of an embedding are looked up, one at a time: nothing is summed over them
        # A convolution counts its window too: [..., in, out] here and in Flax, [out, in, ...] in Equinox.
        inputs = shape[:-1] if fan_in_axis == -2 else shape[1:]
        return self.scale / math.sqrt(math.prod(inputs))  # a number of Python takes the precision of the weights

    def log_probs(self, params: Params, fan_in_axis: int = -2) -> Params:
        """log p(w) of every single weight, in the shapes of `params`."""
        return pytrees.map_with_path(lambda name, weight: self._log_density(name, weight, fan_in_axis), params)

    def log_prob(self, params: Params, fan_in_axis: int = -2) -> Array:
        """The sum over all weights."""

        def leaf(name: str, weight: Array) -> Array:
            if not self.is_gaussian(name):
                return self._log_density(name, weight, fan_in_axis).sum()
            # As a product: XLA's sum took 6 % of a training step of the CNN-LSTM, most of whose weights are embeddings.
            normal, factor = self.find(name), self.factor(name, weight.shape, fan_in_axis)
            standard = (weight / factor - normal.loc) / normal.scale
            constant = jnp.log(normal.scale * factor) + 0.5 * np.log(2 * np.pi)
            constants = constant.sum() if normal.batch_shape else weight.size * constant
            return -0.5 * jnp.vdot(standard, standard) - constants

        return pytrees.total(pytrees.map_with_path(leaf, params))

    def _log_density(self, name: str, weight: Array, fan_in_axis: int) -> Array:
        distribution = self.find(name)
        if isinstance(distribution, Flat | Fixed):
            return jnp.zeros_like(weight)
        factor = self.factor(name, weight.shape, fan_in_axis)
        return _log_density(distribution, weight / factor) - jnp.log(factor)

    def sample(self, key: Key, params: Params, fan_in_axis: int = -2) -> Params:
        """A draw of the shapes of `params`; fixed weights keep their values."""
        names = pytrees.leaf_names(params)
        keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))

        def leaf(name: str, weight: Array) -> Array:
            distribution = self.find(name)
            if isinstance(distribution, Fixed):
                return weight
            if isinstance(distribution, Flat):
                raise ValueError(
                    f"The prior of {name!r} is flat and cannot be sampled; give it a proper one, e.g. Normal(0, 1)."
                )
            draw = distribution.sample(keys[name], () if distribution.batch_shape else weight.shape)
            return (draw * self.factor(name, weight.shape, fan_in_axis)).astype(weight.dtype)

        return pytrees.map_with_path(leaf, params)

    def moments(self, params: Params, fan_in_axis: int = -2) -> tuple[Params, Params]:
        """Mean and standard deviation of each weight; infinite where flat."""

        def mean(name: str, weight: Array) -> Array:
            distribution = self.find(name)
            known = not isinstance(distribution, Flat | Fixed)
            factor = self.factor(name, weight.shape, fan_in_axis)
            return jnp.broadcast_to(distribution.mean * factor if known else 0.0, weight.shape)

        def std(name: str, weight: Array) -> Array:
            distribution = self.find(name)
            known = not isinstance(distribution, Flat | Fixed)
            factor = self.factor(name, weight.shape, fan_in_axis)
            return jnp.broadcast_to(standard_deviation(distribution) * factor if known else jnp.inf, weight.shape)

        return pytrees.map_with_path(mean, params), pytrees.map_with_path(std, params)

    def _shown(self) -> list[str]:
        """The patterns a user has given, or could."""
        return [pattern for pattern in self.patterns if not pattern.endswith("dropout_logit")]

    def has_scale(self, name: str) -> bool:
        """Whether the common scale stretches this weight's distribution."""
        scaled = not (name.startswith(NOT_WEIGHTS) or self.differs_within(name))
        return scaled and not isinstance(self.find(name), Flat | Fixed)

    def is_gaussian(self, name: str) -> bool:
        return isinstance(self.find(name), dist.Normal)

    def differs_within(self, name: str) -> bool:
        """Whether each weight of this leaf has a distribution of its own."""
        found = self.find(name)
        return isinstance(found, dist.Normal) and bool(found.batch_shape)

    def is_fixed(self, name: str) -> bool:
        return isinstance(self.find(name), Fixed)

    def __str__(self) -> str:
        parts = [f"{p}: {_describe(d)}" for p, d in zip(self.patterns, self.distributions, strict=True)]
        scale = "" if isinstance(self.scale, float) and self.scale == 1.0 else f", all times {float(self.scale):.4g}"
        return "; ".join(parts) + (", divided by sqrt(fan-in)" if self.fan_in else "") + scale


def prior(distribution: Any, *, fan_in: bool = False) -> Prior:
    """A prior from a distribution, a mapping of patterns to distributions, or a prior.

    Examples:
        >>> from posterity import Flat, Normal, prior
        >>> print(prior({"*bias": Flat(), "*": Normal(0.0, 1.0)}, fan_in=True))
        *bias: Flat; *: Normal(loc=0, scale=1), divided by sqrt(fan-in)
    """
    if isinstance(distribution, Prior):
        return distribution
    table = dict(distribution) if isinstance(distribution, Mapping) else {"*": distribution}
    if not table:
        raise ValueError("The prior is an empty mapping; give at least {'*': Normal(0, 1)}.")
    for pattern, value in table.items():
        _check(pattern, value)
    return Prior(tuple(table), tuple(table.values()), fan_in)


def standard_deviation(distribution: Any) -> Any:
    """Of one weight; infinite or NaN where there is none, or where numpyro does not know it."""
    try:
        return jnp.sqrt(distribution.variance)
    except NotImplementedError:  # a transformed distribution: its density is known, its moments are not
        return jnp.asarray(jnp.nan)


def _check(pattern: str, value: Any) -> None:
    if isinstance(value, Flat | Fixed):
        return
    if isinstance(value, Learned):
        _check_learned(pattern, value)
        return
    if not isinstance(value, dist.Distribution):
        name = type(value).__name__
        # Ours and theirs share some names: Laplace is a method here, StudentT a likelihood.
        meant = f"did you mean numpyro.distributions.{name}?" if hasattr(dist, name) else "e.g. Normal(0, 1)."
        raise TypeError(
            f"The prior of {pattern!r} is {value!r}; expected a numpyro distribution, Learned(...), Flat() or "
            f"Fixed(): {meant}"
        )
    if value.event_shape or value.batch_shape:
        raise ValueError(
            f"The prior of {pattern!r} has shape {value.batch_shape + value.event_shape}; it must be a distribution of "
            "ONE weight, which is then used for each: give its parameters as single numbers."
        )
    if isinstance(value, dist.ImproperUniform):
        raise ValueError(f"The prior of {pattern!r} cannot be sampled; say Flat() for a flat prior.")
    if (np.asarray(standard_deviation(value)) <= 0).any():
        raise ValueError(f"The prior of {pattern!r} has zero width; say Fixed() to hold weights at their start.")
    mixed = isinstance(value, dist.MixtureSameFamily)
    for part in (value.mixing_distribution, value.component_distribution) if mixed else (value,):
        _check_parameters(pattern, part)
    if not isinstance(value.support, type(dist.constraints.real)):
        raise ValueError(
            f"The prior of {pattern!r}, {type(value).__name__}, leaves out some values; a weight may take any, so "
            "choose one on the whole line, e.g. Normal(0, 1) or numpyro.distributions.Laplace(0, 1)."
        )


def _check_learned(pattern: str, value: Learned) -> None:
    if isinstance(value.distribution, Flat | Fixed | Learned) or isinstance(value.log_scale, Flat | Fixed | Learned):
        raise ValueError(
            f"The prior of {pattern!r} is {value!r}; its scale can be learned where `distribution` and `log_scale` are "
            "proper distributions: e.g. Learned(Normal(0, 1))."
        )
    _check(pattern, value.distribution)
    _check(f"{pattern} (log_scale)", value.log_scale)


def _check_parameters(pattern: str, value: Any) -> None:
    """numpyro checks this itself, unless its validation is off; an infinite width it lets pass."""
    for name, argument in value.get_args().items():
        constraint = value.arg_constraints[name]
        allowed = dist.constraints.is_dependent(constraint) or np.all(constraint(argument))
        if not allowed or not np.isfinite(argument).all():
            raise ValueError(
                f"The prior of {pattern!r}, {type(value).__name__}, has {name}={np.asarray(argument)}; every number of "
                "a prior must be finite and a width above 0: e.g. Normal(0, 1), or Flat() for no preference."
            )


def _log_density(distribution: Any, weight: Array) -> Array:
    """A mixture one component after the other: side by side, as in numpyro, they take six times as long."""
    if not isinstance(distribution, dist.MixtureSameFamily):
        return distribution.log_prob(weight)
    mixing: Any = distribution.mixing_distribution
    shares = jnp.log(mixing.probs)
    components = [jax.tree.map(itemgetter(i), distribution.component_distribution) for i in range(shares.size)]
    parts = [share + component.log_prob(weight) for share, component in zip(shares, components, strict=True)]
    return functools.reduce(jnp.logaddexp, parts)


def _describe(distribution: Any) -> str:
    if isinstance(distribution, Flat | Fixed):
        return type(distribution).__name__
    if isinstance(distribution, Learned):
        each = {"layer": "layer", "input": "layer and input", "output": "output"}[distribution.by]
        parts = (_describe(distribution.distribution), f"a scale by {each}", _describe(distribution.log_scale))
        return "{} times {}, whose log is {}".format(*parts)
    if isinstance(distribution, dist.MixtureSameFamily):
        parts = distribution.component_distribution
        if not isinstance(parts, dist.Normal):
            return f"mixture of {type(parts).__name__}"
        columns = (distribution.mixing_distribution.probs, parts.loc, parts.scale)
        terms = zip(*(np.asarray(column) for column in columns), strict=True)
        return " + ".join(f"{weight:.3g} N({mean:.3g}, {scale:.3g}^2)" for weight, mean, scale in terms)
    if distribution.batch_shape:
        return f"{type(distribution).__name__} of each weight"
    names = distribution.arg_constraints
    values = ", ".join(f"{name}={np.asarray(getattr(distribution, name)):.4g}" for name in names)
    return f"{type(distribution).__name__}({values})"
