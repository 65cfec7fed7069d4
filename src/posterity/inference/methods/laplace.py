"""The Laplace approximation (MacKay 1992), with the network linearised at the mode (Immer et al. 2021).

    precision    = l H + p D,   H = sum_n J_n^T F_n J_n (Gauss-Newton),   D = -d^2 log p(w) / dw^2
    log evidence = log joint at the mode + P/2 log(2 pi) - 1/2 log det precision

l and p are what the temperature makes of the two parts: 1/T and 1/T, or 1/T and 1 where it tempers the likelihood
alone. The log joint is the tempered one, so that away from T = 1 the evidence is its normaliser.

mode.py steps to the mode from a start that is not there.
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
from posterity.inference.methods import mode, wide
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
from posterity.inference.methods.mode import LaplaceState
from posterity.inference.methods.point import MAP
from posterity.inference.methods.sampler import NoDrawsError
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.weights.linearized import Linearized, scatter

Matrix = Literal["full", "kronecker", "diagonal"]
MATRICES = ("full", "kronecker", "diagonal")
TUNABLE = ("prior", "noise")
FALL = 0.05  # nats a target: a round whose evidence falls by less may still predict better than the last
LARGEST_MATRIX = 20_000  # weights whose covariance is kept as one matrix: 3.2 GB in float64
BATCH_ROWS = 256  # so few that a step on thousands of weights takes seconds: a budget can end a pass only between steps


class LaplaceInfo(NamedTuple):
    log_likelihood: Array  # so far
    num_gradients: Array  # a batch's curvature counts as one; predictions, and a pass that is left out, as none


@records.record
class Laplace(Method):
    """A Gaussian at the mode with the curvature there; one pass over the rows.

    With several chains, as from start=DeepEnsemble(), the posterior is the equal mixture of Gaussians at their modes.

    Args:
        start: Finds the mode: a method, a Posterior, or trained weights.
        weights: Which weights get a spread: "all", "last_layer" (the last dense one), or path patterns such as
            "layer_1/*".
        matrix: Their precision: "full", "kronecker" (a block for each dense layer) or "diagonal".
        newton: Whether to take a Gauss-Newton step from the start where it is not at the mode and the step raises the
            log joint.
        batch_size: Rows per step. None: 256, or all rows where there are fewer; "full": all rows. The result is the
            same for any, up to noise where the Fisher information is sampled: for `NegativeBinomial`, and for numbers
            or counts of a `likelihood` of your own.
        tune: ("prior",), ("noise",) or both: scales that maximise the evidence.
        num_rounds: Times to find the mode and tune, each from the last. A round that ends in less evidence than the one
            before, by more than 0.05 for each target, is not kept.
    """

    card = Card(
        name="laplace",
        label="Laplace",
        what="A Gaussian around the most probable weights.",
        when="The first to try: quick, and honest near the data.",
        reference="MacKay 1992",
        ignorance="that of one mode",
        cost="1 + a pass",
        verdict="approximates",
        colour="green",
        line="-",
        marker="P",
        settings=lambda size: {"start": MAP(**size.descent(2_000)), "tune": ("prior",), "num_rounds": 3},
        compared=True,
    )

    _: dataclasses.KW_ONLY
    start: Any = records.host(default=MAP())
    weights: str | tuple[str, ...] = "all"
    matrix: Matrix = "full"
    newton: bool = True
    batch_size: int | str | None = records.host(default=None)
    tune: tuple[str, ...] = records.host(default=())
    num_rounds: int = records.host(default=1)

    holds_scales = True

    def __post_init__(self) -> None:
        if self.matrix not in MATRICES:
            raise ValueError(f"matrix={self.matrix!r} is not known; choose from {', '.join(MATRICES)}.")
        object.__setattr__(self, "tune", (self.tune,) if isinstance(self.tune, str) else tuple(self.tune))
        object.__setattr__(self, "weights", self.weights if isinstance(self.weights, str) else tuple(self.weights))
        if set(self.tune) - set(TUNABLE):
            raise ValueError(f"tune={self.tune} is not known; choose from {', '.join(map(repr, TUNABLE))}.")
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
        batch_size = explicit_batch_size(self.batch_size, num_rows, default=BATCH_ROWS)
        measure = Phase(num_batches(num_rows, batch_size), batch_size)
        return (measure._replace(adapt=True), measure._replace(adapt=True), measure) if self.newton else (measure,)

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        x = jax.tree.map(lambda leaf: np.asarray(leaf[:2]), data.x)
        names = _chosen(self, model, params, x)
        if self.matrix == "kronecker" and (others := others_than_dense(model, params, x, names)):
            raise ValueError(
                f"matrix='kronecker' covers dense layers; these weights are in none: {', '.join(others)}. Choose "
                "matrix='diagonal' or 'full', weights='last_layer', or hold them with the prior Fixed()."
            )
        by_output = [name for name in names if (found := model.full_prior.learned(name)) and found.by == "output"]
        if self.matrix == "kronecker" and by_output:
            raise ValueError(
                f"matrix='kronecker' has one scale for all outputs of a layer; those of {', '.join(by_output)} are "
                "Learned by output. Choose matrix='diagonal' or 'full', or Learned(..., by='layer')."
            )
        if not names:
            raise ValueError(
                f"weights={self.weights!r} leaves no weight a spread; the free weights are "
                f"{', '.join(pytrees.leaf_names(params))}."
            )
        size = num_chosen(params, names)
        if self.matrix == "full" and size > LARGEST_MATRIX:
            raise ValueError(
                f"matrix='full' would hold a {size} x {size} matrix ({8e-9 * size**2:.0f} GB); choose "
                "matrix='kronecker' or 'diagonal', or weights='last_layer'."
            )
        if "noise" in self.tune and not isinstance(model.likelihood, Gaussian):
            raise ValueError(
                f"tune='noise' sets the scale of Gaussian; the likelihood is {type(model.likelihood).__name__}."
            )

    def kernel(self, model: Model) -> Kernel:
        def init(key: Key, params: Params, batch: Batch, clock: Clock) -> LaplaceState:
            del key, clock
            return mode.begin(params, _empty(self, model, params, batch.x))

        def step(key: Key, state: LaplaceState, batch: Batch, clock: Clock) -> tuple[LaplaceState, LaplaceInfo]:
            del key
            measure, search = partial(mode.measure, model, batch, clock), partial(mode.search, model, batch)
            active = (clock.phase == 0) | state.going
            measures = active & (clock.phase != 1)
            state = mode.when(measures, measure, state)
            state = mode.when(active & (clock.phase == 1), search, state) if self.newton else state
            return state, LaplaceInfo(state.log_likelihood.value, measures.astype(float))

        def adapt(key: Key, state: LaplaceState, draws: Params, clock: Clock) -> LaplaceState:
            del key, draws
            # A pass that the budget cut short knows some rows alone: neither a gradient nor a log joint.
            state = state._replace(going=(clock.step >= clock.num_batches) & (state.going | (clock.phase == 0)))
            return jax.lax.cond(clock.phase == 0, partial(mode.propose, model), partial(mode.settle, model), state)

        return Kernel(init, step, adapt=adapt)

    def finish(self, model: Model, states: LaplaceState, kept: Params, fixed: Params) -> Result:
        del kept
        host = wide.on_host(states)
        if not (host.share > 0).all():
            raise NoDrawsError("Laplace was stopped before it had seen a row: give it a longer budget, or resume(...).")
        chains = [_of_all_rows(pytrees.take_rows(host, c)) for c in range(pytrees.num_rows(states.params))]
        facts: dict[str, Any] = {}
        with jax.enable_x64(True):
            tuned = _tuned(self, model, chains)
            covariances = [_covariance(tuned, model, chain) for chain in chains]
            determinants = [float(covariance.log_determinant) for covariance in covariances]
            evidence = [_log_evidence(tuned, model, *pair) for pair in zip(chains, determinants, strict=True)]
            decrements = [_decrement(tuned, model, *pair) for pair in zip(chains, covariances, strict=True)]
        if "prior" in self.tune:
            facts["prior_scale"] = tuned.prior.scale
        if "noise" in self.tune:
            facts["noise_scale"] = tuned.likelihood.scale  # type: ignore[attr-defined]
        if chains[0].share < 1:
            facts["share_of_rows"] = float(chains[0].share)
        facts = {"log_evidence": float(np.mean(evidence)), "log_evidence_of_chains": evidence, **facts}
        facts["newton_decrement"] = max(decrements)
        dtype = jax.tree.leaves(states.params)[0].dtype
        covariance = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), dtype), *covariances)
        result = Result(Linearized(states.params, covariance, fixed), tuned, facts)
        return _unless_worse(self, result, float(chains[0].num_targets))


def _decrement(model: Model, measured: Model, chain: LaplaceState, covariance: Any) -> float:
    gradient = mode.slope(model, chain, _scale(model, measured, chain))[0]
    rows = scatter(gradient, chain.params, chain.curvature.names)
    rows = jax.tree.map(lambda leaf: leaf[None, None, None], rows)
    return float(np.sqrt(covariance.output_covariance(rows).squeeze()))


def _of_all_rows(chain: LaplaceState) -> LaplaceState:
    """Sums over all rows, estimated where the budget left some out; the curvature is scaled where it is used."""
    scaled = {"log_likelihood": chain.log_likelihood / chain.share, "num_targets": chain.num_targets / chain.share}
    return chain._replace(**scaled)


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
    names = tuple(pytrees.leaf_names(params))
    if method.weights == "all":
        return names
    if method.weights == "last_layer":
        return last_layer(model, params, x)
    patterns = (method.weights,) if isinstance(method.weights, str) else method.weights
    return tuple(name for name in names if any(pytrees.matches(name, pattern) for pattern in patterns))


def _empty(method: Laplace, model: Model, params: Params, x: Any) -> Curvature:
    names = _chosen(method, model, params, x)
    if method.matrix == "kronecker":
        return empty_kronecker(model, params, x, names)
    return empty_diagonal(params, names) if method.matrix == "diagonal" else empty_full(params, names)


def _noise_ratio(model: Model, measured: Model) -> float:
    """(noise when the curvature was measured / noise now)^2: a Gaussian's curvature goes as 1 / scale^2."""
    if not isinstance(model.likelihood, Gaussian) or not isinstance(measured.likelihood, Gaussian):
        return 1.0
    return (float(measured.likelihood.scale) / float(model.likelihood.scale)) ** 2


def _scale(model: Model, measured: Model, chain: LaplaceState) -> float:
    """What makes the curvature seen that of all rows, at the noise of `model`."""
    return _noise_ratio(model, measured) / float(chain.share)


def _log_evidence(model: Model, measured: Model, chain: LaplaceState, log_determinant: float | None = None) -> float:
    """The log evidence under `model`, from curvature and likelihood measured under another noise."""
    likelihood_factor, prior_factor = model.tempering_factors
    ratio = _noise_ratio(model, measured)
    log_likelihood = float(chain.log_likelihood)
    if isinstance(measured.likelihood, Gaussian):
        normaliser = float(chain.num_targets) * math.log(math.sqrt(2 * math.pi) * float(measured.likelihood.scale))
        half_squares = log_likelihood + normaliser
        log_likelihood = ratio * half_squares - normaliser + float(chain.num_targets) * math.log(ratio) / 2
    log_prior, _, prior = map(np.asarray, mode.prior_terms(model, chain.params, chain.curvature.names))
    if log_determinant is None:
        scale = _scale(model, measured, chain)
        log_determinant = chain.curvature.log_determinant(prior, scale * likelihood_factor, prior_factor)
    joint = float(model.temper(log_likelihood, log_prior))  # type: ignore[arg-type]
    return joint + len(prior) / 2 * math.log(2 * math.pi) - log_determinant / 2


def _covariance(model: Model, measured: Model, chain: LaplaceState) -> Any:
    likelihood_factor, prior_factor = model.tempering_factors
    prior = np.asarray(mode.prior_terms(model, chain.params, chain.curvature.names)[2])
    return chain.curvature.covariance(prior, _scale(model, measured, chain) * likelihood_factor, prior_factor)


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
