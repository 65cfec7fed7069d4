"""The model: a network, a likelihood and a prior make one density over weights.

    posterior tempering   log p_T(w | D) = (log p(D | w) + log p(w)) / T       "cold posterior", as most papers
    likelihood tempering  log p_T(w | D) =  log p(D | w) / T + log p(w)

p(w) includes the hyperprior of learned scales: "posterior" tempers it with the rest, "likelihood" does not.
The scale of a minibatch, the temperature and learned scales are applied here and nowhere else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from posterity.core import pytrees, records
from posterity.core.checks import is_number
from posterity.core.types import Array, Batch, Key, Network, Params
from posterity.models import scales
from posterity.models.heads import Heads, with_joined_outputs
from posterity.models.likelihoods import Likelihood
from posterity.models.priors import Fixed, Prior, prior
from posterity.networks.built_in import BuiltIn
from posterity.networks.computing import in_bfloat16, rematerialised
from posterity.networks.convolutions import with_fast_gradients
from posterity.networks.perceptron import DROPOUT_LOGIT

Tempering = Literal["posterior", "likelihood"]


@records.record
class Model:
    """What is believed before the data (prior) and how data come about (network, likelihood).

    Where the prior has learned scales, the weights that methods move and densities take are standardised
    (`standardise`).

    Args:
        network: From a builder such as `mlp`, an adapter such as `from_nnx`, or a `Network`.
        likelihood: The distribution of the target given the outputs, such as `Gaussian(0.1)`.
        prior: A numpyro distribution of each weight, a mapping from path patterns to distributions, or what `prior`
            returns. None: a standard normal for each weight.
        temperature: T of the tempered posterior; 1 is Bayes' rule.
        tempering: What 1 / T multiplies: "posterior", the log likelihood and the log prior; "likelihood", the log
            likelihood alone.
        fixed: Values of the weights held fixed. None: `fit` sets them.
        half_precision: Compute the network in bfloat16; weights, outputs, the densities and their sums stay as they
            are. For training on devices that are fast at it: energies of HMC are rounded too.
        rematerialise: Compute the network's intermediate values again for its gradient, but for about sqrt(n) of n:
            deep networks then take less memory and more time on a GPU or TPU; on a CPU XLA undoes it.

    Examples:
        >>> from posterity import Gaussian, Model, Normal, mlp
        >>> model = Model(mlp((50, 50)), Gaussian(0.1), Normal(0.0, 1.0))
        >>> model.temperature, model.tempering
        (1.0, 'posterior')
    """

    network: Network | BuiltIn
    likelihood: Likelihood = records.traced()
    prior: Any = records.traced(default=None)
    temperature: Any = records.traced(default=1.0)
    tempering: Tempering = "posterior"
    fixed: Params = records.traced(default=None)
    half_precision: bool = False
    rematerialise: bool = False

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 < self.temperature < float("inf")):
            raise ValueError(
                f"temperature={self.temperature!r} must be a number above 0 and finite; 1 is the posterior of Bayes' "
                "rule."
            )
        if self.tempering not in ("posterior", "likelihood"):
            raise ValueError(f"tempering={self.tempering!r} is not known; choose 'posterior' or 'likelihood'.")
        if not isinstance(self.likelihood, Likelihood):
            raise TypeError(
                f"likelihood is {type(self.likelihood).__name__}; expected e.g. Gaussian(0.1), Categorical(10), or "
                "your own through likelihood(function, num_outputs)."
            )
        if isinstance(self.network, BuiltIn) and self.network.num_outputs is None:
            object.__setattr__(self, "network", self.network.with_outputs(self.likelihood.num_outputs))
        _check_network(self.network)
        if isinstance(self.likelihood, Heads) and not isinstance(self.network, BuiltIn):
            object.__setattr__(self, "network", with_joined_outputs(self.network, self.likelihood))
        object.__setattr__(self, "prior", prior(dist.Normal(0.0, 1.0) if self.prior is None else self.prior))
        object.__setattr__(self, "temperature", float(self.temperature))

    @property
    def full_prior(self) -> Prior:
        """The user's prior after the likelihood's own and after what no prior speaks of."""
        own: dict[str, Any] = {f"likelihood/{name}": d for name, d in self.likelihood.priors().items()}
        own = {name: d for name, d in own.items() if not self.prior.names_own(name)}
        own[f"*{DROPOUT_LOGIT}"] = Fixed()  # a dropout rate is a setting of MC dropout, not a weight
        return dataclasses.replace(
            self.prior,
            patterns=(*own, *self.prior.patterns),
            distributions=(*own.values(), *self.prior.distributions),
        )

    def check_inputs(self, x: Any) -> None:
        """Refuse values that a built-in network cannot read, such as unknown token ids."""
        if isinstance(self.network, BuiltIn):
            self.network.check_inputs(x)

    def check_weights(self, free: Params, fixed: Params, x: Any) -> None:
        """Refuse a network whose outputs at rows x do not fit the likelihood, and a prior that does not fit it."""
        bound = self.bind(fixed)
        wanted = self.likelihood.num_outputs
        try:
            given = jax.eval_shape(lambda p: self.network.apply(bound.complete(p)["network"], x), free)
        except Exception as error:  # the user's own code may raise anything
            shapes = jax.tree.map(lambda leaf: leaf.shape, x)
            raise ValueError(
                f"The network cannot be applied to rows such as these two, of shape {shapes}. It raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(given, jax.ShapeDtypeStruct):
            raise ValueError(_several_outputs(given, type(self.likelihood).__name__))
        if given.ndim < 2 or given.shape[-1] != wanted:
            raise ValueError(
                f"The network gives outputs of shape {given.shape} for {given.shape[0]} rows; "
                f"{type(self.likelihood).__name__} takes {wanted} outputs per row, [N, ..., {wanted}]."
            )
        if not jax.tree.leaves(free):
            raise ValueError("Every weight is Fixed; leave at least one free.")
        jax.eval_shape(self.log_prior, free)  # names a weight that no pattern covers
        weights = bound.complete(free)
        names = pytrees.leaf_names({name: part for name, part in weights.items() if name != scales.SCALES})
        if unused := self.prior.unused(names):
            raise ValueError(
                f"The prior's pattern {', '.join(map(repr, unused))} matches no weight; they are "
                f"{', '.join(names[:12])}{' ...' if len(names) > 12 else ''}."
            )

    def init(self, key: Key, x: Any) -> Params:
        """Weights to start from: the network's own initialisation."""
        params = {"network": self.network.init(key, x)}
        own = self.likelihood.init()
        return self.standardise({**params, "likelihood": own} if own else params)

    def standardise(self, weights: Params) -> Params:
        """What `complete` makes these weights of: each divided by its learned scale, which stands beside it.

        Scales that the weights come with stay where they fit this prior; others begin anew.
        """
        given = weights.get(scales.SCALES)
        weights = {name: part for name, part in weights.items() if name != scales.SCALES}
        if not self.prior.learns_scales:
            return weights
        log_scales = scales.first(self.full_prior.learned, weights, self.network.fan_in_axis)
        if scales.same_shapes(given, log_scales):
            log_scales = jax.tree.map(jnp.log, given)
        return scales.standardise(weights, log_scales)

    def split(self, params: Params, hold_scales: bool = False) -> tuple[Params, Params]:
        """(free, fixed): two trees of one structure, each None where the other has a weight.

        `hold_scales`: learned scales are fixed, too.
        """
        full = self.full_prior

        def is_fixed(name: str) -> bool:
            return (hold_scales and name.startswith(f"{scales.LOG_SCALES}/")) or full.is_fixed(name)

        free = pytrees.map_with_path(lambda name, leaf: None if is_fixed(name) else leaf, params)
        fixed = pytrees.map_with_path(lambda name, leaf: leaf if is_fixed(name) else None, params)
        return free, fixed

    def bind(self, fixed: Params) -> Model:
        """The same model with these values for its fixed weights."""
        return records.replace(self, fixed=fixed)

    def complete(self, params: Params) -> Params:
        """Free weights together with the fixed ones, as the network reads them: times their learned scales."""
        return scales.complete(params if self.fixed is None else pytrees.merge(params, self.fixed))

    def outputs(self, params: Params, x: Any, key: Key | None = None) -> Array:
        """Network outputs [N, ..., K], with the likelihood's own parameters as constant last columns."""
        return with_fast_gradients(self.plain_outputs, params, x, key)

    def plain_outputs(self, params: Params, x: Any, key: Key | None = None) -> Array:
        """The same as the network wrote them; for what maps over rows."""
        params = self.complete(params)
        apply = rematerialised(self.network.apply) if self.rematerialise else self.network.apply
        apply = in_bfloat16(apply) if self.half_precision else apply
        return self.with_columns(apply(params["network"], x, key), params)

    def with_columns(self, outputs: Array, params: Params) -> Array:
        """Outputs of the network with the likelihood's own parameters as constant last columns."""
        columns = self.likelihood.columns(params.get("likelihood", {}))
        if columns is None:
            return outputs
        constant = jnp.broadcast_to(columns.astype(outputs.dtype), (*outputs.shape[:-1], columns.shape[0]))
        return jnp.concatenate([outputs, constant], -1)

    def distribution(self, outputs: Array) -> dist.Distribution:
        """What the outputs say of the target; never tempered."""
        return self.likelihood(outputs)

    def log_likelihood_of(self, outputs: Array, y: Array) -> Array:
        """log p(y_n | outputs_n) for each row, [N]: axes between N and K are summed."""
        log_prob = jnp.asarray(self.likelihood(outputs).log_prob(y))
        return log_prob.reshape(log_prob.shape[0], -1).sum(-1)

    def log_likelihood(self, params: Params, batch: Batch, key: Key | None = None) -> Array:
        """log p(y_n | x_n, w) for each row, [N], neither weighted nor tempered."""
        return self.log_likelihood_of(self.outputs(params, batch.x, key), batch.y)

    def log_priors(self, params: Params) -> Params:
        """log p(w) of every single weight."""
        return self.full_prior.log_probs(params, self.network.fan_in_axis)

    def log_prior(self, params: Params) -> Array:
        return self.full_prior.log_prob(params, self.network.fan_in_axis)

    def temper(self, log_likelihood: Array, log_prior: Array) -> Array:
        """The log of the density that is targeted, from the two parts it is made of."""
        if self.tempering == "posterior":
            return (log_likelihood + log_prior) / self.temperature
        return log_likelihood / self.temperature + log_prior

    def objective(self, log_likelihood: Array, log_prior: Array) -> Array:
        """T times the log of that density, for what only seeks its peak: a learning rate means the same at any T."""
        factor = 1.0 if self.tempering == "posterior" else self.temperature
        return log_likelihood + factor * log_prior

    @property
    def tempering_factors(self) -> tuple[Any, Any]:
        """What the target multiplies log-likelihood and log prior by."""
        return 1 / self.temperature, 1 / self.temperature if self.tempering == "posterior" else 1.0

    def log_joint(self, params: Params, batch: Batch, num_batches: Any = 1.0, key: Key | None = None) -> Array:
        """The tempered log joint density; `num_batches` such batches make up the data, so each row counts once."""
        log_likelihood = num_batches * weighted_sum(self.log_likelihood(params, batch, key), batch.weight)
        return self.temper(log_likelihood, self.log_prior(params))

    def sample_prior(self, key: Key, params: Params) -> Params:
        """A draw from the prior, of the shapes of `params`."""
        return self.full_prior.sample(key, params, self.network.fan_in_axis)


def _check_network(network: Any) -> None:
    """Refuse modules that have functions `init` and `apply` of other arguments, Flax Linen's above all."""
    if all(hasattr(network, name) for name in ("init", "apply", "fan_in_axis", "shares_masks")):
        return
    name = type(network).__name__
    if any(base.__module__.startswith("flax.linen") for base in type(network).__mro__):
        raise TypeError(
            f"network is {name}, a Flax Linen module; give its functions: from_function(module.init, lambda params, x: "
            "module.apply(params, x)). Flax NNX modules go through from_nnx."
        )
    raise TypeError(
        f"network is {name}; expected mlp(...), or a module of your own through from_nnx, from_equinox or "
        "from_function(init, apply)."
    )


def _several_outputs(given: Any, likelihood: str) -> str:
    first = next(iter(given)) if isinstance(given, dict) else 0
    parts = f"a dictionary with {', '.join(map(repr, given))}" if isinstance(given, dict) else type(given).__name__
    return (
        f"The network gives {parts}; {likelihood} takes one array of outputs, [N, ..., K]. Choose one: "
        f"from_function(network.init, lambda params, x, key=None: network.apply(params, x, key)[{first!r}]); "
        "or give a likelihood to each of them by name, Heads(name=...)."
    )


def weighted_sum(values: Array, weight: Array) -> Array:
    """Sum over rows. A padded row holds a copy of a real one, so its value is finite and weight 0 removes it."""
    return jnp.sum(values * weight.astype(values.dtype))


def num_weights(model: Model, x: Any) -> int:
    """How many weights and learned scales the model has, fixed ones included, without computing any."""
    return pytrees.size(jax.eval_shape(model.init, jax.random.key(0), x))
