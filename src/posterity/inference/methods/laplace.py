"""The Laplace approximation (MacKay 1992), with the network linearised at the mode (Immer et al. 2021).

    precision    = l H + p D,   H = sum_n J_n^T F_n J_n (Gauss-Newton),   D = -d^2 log p(w) / dw^2
    log evidence = log joint at the mode + P/2 log(2 pi) - 1/2 log det precision

l and p are what the temperature makes of the two parts: 1/T and 1/T, or 1/T and 1 where it tempers the likelihood
alone. The log joint is the tempered one, so that away from T = 1 the evidence is its normaliser.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from posterity.core import pytrees, records
from posterity.core.checks import check_whole
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.data.batches import num_batches
from posterity.inference.methods.card import Card
from posterity.inference.methods.curvature import (
    Curvature,
    empty_diagonal,
    empty_full,
    empty_kronecker,
    last_layer,
    num_chosen,
    others_than_dense,
)
from posterity.inference.methods.method import Method, Result, explicit_batch_size
from posterity.inference.methods.point import MAP
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model, weighted_sum
from posterity.posterior.posterior import Posterior
from posterity.weights.linearized import Linearized, choose, gather

Structure = Literal["full", "diagonal", "kronecker", "last_layer"]
STRUCTURES = ("full", "diagonal", "kronecker", "last_layer")
TUNABLE = ("prior", "noise")
FALL = 0.05  # nats a target: a round whose evidence falls by less may still predict better than the last
LARGEST_MATRIX = 20_000  # weights whose covariance is kept as one matrix: 3.2 GB in float64


class LaplaceState(NamedTuple):
    params: Params  # the mode
    curvature: Curvature  # of the rows seen so far
    log_likelihood: Array  # of those rows, untempered
    num_targets: Array  # in those rows: the numbers that noise was added to


class LaplaceInfo(NamedTuple):
    log_likelihood: Array  # so far


@records.record
class Laplace(Method):
    """A Gaussian at the mode with the curvature there; one pass over the rows.

    With several chains, as from start=DeepEnsemble(), the posterior is the equal mixture of Gaussians at their modes.
    """

    card = Card(
        name="laplace",
        label="Laplace",
        what="A Gaussian around the most probable weights.",
        when="The first to try: quick, and honest near the data.",
        reference="MacKay 1992",
        ignorance="that of one mode",
        cost="1 + a pass",
        colour="green",
        line="-",
        marker="P",
        settings=lambda size: {"start": MAP(**size.descent(2_000)), "tune": ("prior",), "num_rounds": 3},
        compared=True,
    )

    _: dataclasses.KW_ONLY
    start: Any = records.host(default=MAP())  # finds the mode: a method, a Posterior, or trained weights
    structure: Structure = "full"
    subset: tuple[str, ...] = ()  # path patterns of the weights that get a spread; (): all of them
    batch_size: int | str | None = records.host(default=None)  # rows per step; changes sampled Fisher matrices alone
    tune: tuple[str, ...] = records.host(
        default=()
    )  # ("prior",), ("noise",) or both: scales that maximise the evidence
    num_rounds: int = records.host(default=1)  # times to find the mode and tune, each from the last; see _unless_worse

    anytime = False

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES:
            raise ValueError(f"structure={self.structure!r} is not known; choose from {', '.join(STRUCTURES)}.")
        for name in ("tune", "subset"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if set(self.tune) - set(TUNABLE):
            raise ValueError(f"tune={self.tune} is not known; choose from {', '.join(map(repr, TUNABLE))}.")
        if self.subset and self.structure in ("kronecker", "last_layer"):
            raise ValueError(f"subset goes with structure 'full' or 'diagonal', not {self.structure!r}.")
        check_whole("Laplace", num_rounds=self.num_rounds)
        if self.num_rounds > 1 and not self.tune:
            raise ValueError(f"num_rounds={self.num_rounds} repeats nothing without tune; say tune=('prior',).")

    def stages(self) -> tuple[Method, ...]:
        """A round finds the mode again, from where the round before ended, under the model that one tuned."""
        if self.num_rounds == 1:
            return super().stages()
        before = records.replace(self, num_rounds=self.num_rounds - 1)
        again = self.start if isinstance(self.start, Method) else MAP()
        return (*before.stages(), records.replace(again, start=before), self)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        batch_size = explicit_batch_size(self.batch_size, num_rows, default=1024)
        return (Phase(num_batches(num_rows, batch_size), batch_size, shuffle=False),)

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        x = jax.tree.map(lambda leaf: np.asarray(leaf[:2]), data.x)
        names = _chosen(self, model, params, x)
        if self.structure == "kronecker" and (others := others_than_dense(model, params, x, names)):
            raise ValueError(
                f"structure='kronecker' covers dense layers; these weights are in none: {', '.join(others)}. "
                "Choose structure='diagonal', 'full' or 'last_layer', or hold them with the prior Fixed()."
            )
        if not names:
            raise ValueError(
                f"structure={self.structure!r} with subset={self.subset} leaves no weight a spread; the free weights "
                f"are {', '.join(pytrees.leaf_names(params))}."
            )
        size = num_chosen(params, names)
        if self.structure in ("full", "last_layer") and size > LARGEST_MATRIX:
            raise ValueError(
                f"structure={self.structure!r} would hold a {size} x {size} matrix ({8e-9 * size**2:.0f} GB); choose "
                "'kronecker', 'diagonal' or 'last_layer'."
            )
        if "noise" in self.tune and not isinstance(model.likelihood, Gaussian):
            raise ValueError(
                f"tune='noise' sets the scale of Gaussian; the likelihood is {type(model.likelihood).__name__}."
            )

    def kernel(self, model: Model) -> Kernel:
        def init(key: Key, params: Params, batch: Batch, clock: Clock) -> LaplaceState:
            del key, clock
            zero = jnp.zeros((), jax.tree.leaves(params)[0].dtype)
            return LaplaceState(params, _empty(self, model, params, batch.x), zero, zero)

        def step(key: Key, state: LaplaceState, batch: Batch, clock: Clock) -> tuple[LaplaceState, LaplaceInfo]:
            del key, clock
            rows = weighted_sum(model.log_likelihood(state.params, batch), batch.weight)
            log_likelihood = state.log_likelihood + rows.astype(state.log_likelihood.dtype)
            targets = jnp.sum(batch.weight) * (batch.y.size // batch.y.shape[0])
            num_targets = state.num_targets + targets.astype(state.num_targets.dtype)
            curvature = state.curvature.add(model, state.params, batch)
            return LaplaceState(state.params, curvature, log_likelihood, num_targets), LaplaceInfo(log_likelihood)

        return Kernel(init, step)

    def finish(self, model: Model, states: LaplaceState, kept: Params, fixed: Params) -> Result:
        del kept
        host = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), states)
        chains = [pytrees.take_rows(host, c) for c in range(pytrees.num_rows(states.params))]
        facts: dict[str, Any] = {}
        with jax.enable_x64(True):
            tuned = _tuned(self, model, chains)
            evidence = [_log_evidence(tuned, model, chain) for chain in chains]
            covariances = [_covariance(tuned, model, chain) for chain in chains]
        if "prior" in self.tune:
            facts["prior_scale"] = tuned.prior.scale
        if "noise" in self.tune:
            facts["noise_scale"] = tuned.likelihood.scale  # type: ignore[attr-defined]
        facts = {"log_evidence": float(np.mean(evidence)), "log_evidence_of_chains": evidence, **facts}
        dtype = jax.tree.leaves(states.params)[0].dtype
        covariance = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), dtype), *covariances)
        result = Result(Linearized(states.params, covariance, fixed), tuned, facts)
        return _unless_worse(self, result, float(chains[0].num_targets))


def _unless_worse(method: Laplace, result: Result, num_targets: float) -> Result:
    """The result of this round, or that of the round before where the evidence has fallen since.

    Tuning holds the weights, and the curvature with them. A network that predicts its own noise follows a wider prior
    to an optimum that fits its rows too well, whose noise is too small: each round then ends worse than the last.
    """
    if method.num_rounds == 1 or not isinstance(method.start, Posterior):
        return result
    before: Posterior = method.start.method.start
    facts = result.facts or {}
    evidence = facts["log_evidence"]
    rounds = [*before.facts.get("log_evidence_of_rounds", [before.facts["log_evidence"]]), evidence]
    if evidence < before.facts["log_evidence"] - FALL * num_targets:
        result, facts = Result(before.family, before.model), before.facts
    return result._replace(facts={**facts, "log_evidence_of_rounds": rounds})


def _chosen(method: Laplace, model: Model, params: Params, x: Any) -> tuple[str, ...]:
    """The weights that get a spread."""
    if method.structure == "last_layer":
        return last_layer(model, params, x)
    names = tuple(pytrees.leaf_names(params))
    if not method.subset:
        return names
    return tuple(name for name in names if any(pytrees.matches(name, pattern) for pattern in method.subset))


def _empty(method: Laplace, model: Model, params: Params, x: Any) -> Curvature:
    names = _chosen(method, model, params, x)
    if method.structure == "kronecker":
        return empty_kronecker(model, params, x, names)
    return empty_diagonal(params, names) if method.structure == "diagonal" else empty_full(params, names)


@partial(jax.jit, static_argnames="names")
def _prior_terms(model: Model, params: Params, names: tuple[str, ...]) -> tuple[Array, Array]:
    """The log prior of the weights of `names`, and minus its second derivative for each: it is a sum over weights.

    Weights without a spread are constants, which the evidence conditions on.
    """
    ones = jax.tree.map(jnp.ones_like, params)
    second = jax.jvp(jax.grad(model.log_prior), (params,), (ones,))[1]
    # Where a prior is not log-concave its curvature would take precision away that the data may not have.
    return model.log_prior(choose(params, names)[0]), jnp.maximum(-gather(second, names), 0)


def _noise_ratio(model: Model, measured: Model) -> float:
    """(noise when the curvature was measured / noise now)^2: a Gaussian's curvature goes as 1 / scale^2."""
    if not isinstance(model.likelihood, Gaussian) or not isinstance(measured.likelihood, Gaussian):
        return 1.0
    return (float(measured.likelihood.scale) / float(model.likelihood.scale)) ** 2


def _log_evidence(model: Model, measured: Model, chain: LaplaceState) -> float:
    """The log evidence under `model`, from curvature and likelihood measured under another noise."""
    likelihood_factor, prior_factor = model.tempering_factors
    ratio = _noise_ratio(model, measured)
    log_likelihood = float(chain.log_likelihood)
    if isinstance(measured.likelihood, Gaussian):
        normaliser = float(chain.num_targets) * math.log(math.sqrt(2 * math.pi) * float(measured.likelihood.scale))
        half_squares = log_likelihood + normaliser
        log_likelihood = ratio * half_squares - normaliser + float(chain.num_targets) * math.log(ratio) / 2
    log_prior, prior = map(np.asarray, _prior_terms(model, chain.params, chain.curvature.names))
    log_determinant = chain.curvature.log_determinant(prior, ratio * likelihood_factor, prior_factor)
    joint = float(model.temper(log_likelihood, log_prior))  # type: ignore[arg-type]
    return joint + len(prior) / 2 * math.log(2 * math.pi) - log_determinant / 2


def _covariance(model: Model, measured: Model, chain: LaplaceState) -> Any:
    likelihood_factor, prior_factor = model.tempering_factors
    prior = np.asarray(_prior_terms(model, chain.params, chain.curvature.names)[1])
    return chain.curvature.covariance(prior, _noise_ratio(model, measured) * likelihood_factor, prior_factor)


def _tuned(method: Laplace, model: Model, chains: list[LaplaceState]) -> Model:
    """The model whose prior scale and noise maximise the mean log evidence of the chains, their weights held."""
    if not method.tune:
        return model

    def scaled(log_factors: np.ndarray) -> Model:
        factors = dict(zip(method.tune, np.exp(log_factors), strict=True))
        changed = model
        if "prior" in factors:
            scale = float(model.prior.scale) * float(factors["prior"])
            changed = records.replace(changed, prior=records.replace(model.prior, scale=scale))
        if "noise" in factors:
            scale = float(model.likelihood.scale) * float(factors["noise"])  # type: ignore[attr-defined]
            changed = records.replace(changed, likelihood=records.replace(model.likelihood, scale=scale))
        return changed

    growth = _normaliser_growth(method, model, chains[0])

    def loss(log_factors: np.ndarray) -> float:
        evidence = np.mean([_log_evidence(scaled(log_factors), model, chain) for chain in chains])
        return float(growth @ log_factors - evidence)

    options = {"xatol": 1e-6, "fatol": 1e-9, "initial_simplex": _simplex(len(method.tune))}
    found = scipy.optimize.minimize(loss, np.zeros(len(method.tune)), method="Nelder-Mead", options=options)
    if not np.isfinite(found.fun) or np.abs(found.x).max() > 20:
        raise ValueError(
            f"The evidence has no maximum over {method.tune}: it was still rising at factors {np.exp(found.x)}. Give "
            "the model a prior that is not flat, or leave out tune."
        )
    return scaled(found.x)


def _normaliser_growth(method: Laplace, model: Model, chain: LaplaceState) -> np.ndarray:
    """By how much log normalisers of tempered densities grow with the log of each tuned scale; nothing at T = 1.

    p(w)^a integrates to scale^(1 - a) times a constant, for each weight, and a Gaussian's density of each target
    likewise. Left in the evidence, that would decide the scale in place of the data.
    """
    likelihood_factor, prior_factor = model.tempering_factors
    prior, names = model.full_prior, chain.curvature.names
    weights = num_chosen(chain.params, tuple(name for name in names if prior.has_scale(name)))
    grows = {"prior": (1 - prior_factor) * weights, "noise": (1 - likelihood_factor) * float(chain.num_targets)}
    return np.array([float(grows[name]) for name in method.tune])


def _simplex(size: int) -> np.ndarray:
    return np.concatenate([np.zeros((1, size)), 0.5 * np.eye(size)])
