"""What `fit` returns: weights, the model they belong to, how they were found, and the receipt."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity import diagnostics, tree
from posterity.checks import is_number, is_whole
from posterity.data.dataset import check_inputs, check_like
from posterity.diagnosis import Diagnosis
from posterity.encoding import StoreError, decode, encode, find_missing, plain_json
from posterity.families import DropoutMasks, Samples
from posterity.model import Model
from posterity.outofdistribution import SCORES, Calibration, FeatureDistance, Score, feature_distance
from posterity.prediction import Prediction
from posterity.receipt import Receipt
from posterity.store import MANIFEST, Reader, Writer
from posterity.stored import HELD_BYTES, StoredSamples, open_draws, settle, write_draws
from posterity.streaming import DEFAULT_MEMORY, OutputStream
from posterity.types import Family, Key, Params

DEFAULT_DRAWS = 100
PROBE_ROWS = 4
DRAWING = 2**28  # folded into the keys of draws, clear of what `fit` and samples of targets fold in


@dataclass(frozen=True, repr=False)
class Posterior:
    """A family of weights with the model it belongs to. `predict` is what most people want."""

    model: Model
    family: Family
    method: Any
    receipt: Receipt
    trace: dict[str, np.ndarray]  # name -> [C, R], one record every few steps
    facts: dict[str, Any]  # what a method learned beside the weights, e.g. log_evidence
    inputs: Any  # the training inputs, for feature distances
    calibration: Calibration | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the user's own, plain JSON

    def __repr__(self) -> str:
        facts = self.receipt
        return (
            f"Posterior({facts.method}: {facts.num_weights} weights, {facts.num_data} rows, {facts.num_chains} chains, "
            f"{self.family.num_draws or 'fresh'} draws)"
        )

    def predict(
        self,
        x: Any,
        *,
        num_draws: int | None = None,
        seed: int = 0,
        memory: int = DEFAULT_MEMORY,
        closed_form: bool = True,
    ) -> Prediction:
        """The predictive distribution at rows x.

        Args:
            x: Inputs shaped as in training.
            num_draws: Draws to mix; by default all stored ones, or 100 fresh ones.
            seed: Of fresh draws; the same seed gives the same draws at any rows.
            memory: Bytes to stay within, about; draws on disk are read in pieces that fit.
            closed_form: Use Gaussian formulas where method and likelihood have them, instead of draws.
        """
        _check_memory(memory)
        inputs = check_inputs(x)
        self._check_rows(inputs)
        closed = closed_form and num_draws is None and self._has_closed_form
        stream = OutputStream(self.model, self.family, _draw_key(seed), inputs, self._choose(num_draws), closed, memory)
        # p-values compare with scores of held-out rows, which were predicted as is usual.
        fresh = self.family.num_draws is None and not closed
        usual = num_draws in (None, self.family.num_draws) and closed_form and not (fresh and seed)
        return Prediction(stream, self.calibration, None if usual else partial(self.predict, inputs, memory=memory))

    def diagnose(self, x: Any, *, seed: int = 0, memory: int = DEFAULT_MEMORY) -> Diagnosis:
        """Whether the chains agree on what they predict at rows x, in numbers and, printed, in words."""
        return diagnostics.diagnose(self, x, seed=seed, memory=memory)

    def calibrate(self, x: Any, score: Score | None = None) -> Posterior:
        """The same posterior with out-of-distribution p-values, from rows it was not trained on.

        `score`: "epistemic", "total", or "features" (distance of the last hidden features); by default epistemic, or
        features where one draw leaves nothing to disagree.
        """
        if score is not None and score not in SCORES:
            raise ValueError(f"score={score!r} is not known; choose from {', '.join(SCORES)}.")
        inputs = check_inputs(x)
        single = self.family.num_draws == 1 and not self._has_closed_form
        chosen: Score = score or ("features" if single else "epistemic")
        distance = None
        if chosen == "features":
            distance = self.feature_distance()
        blank = Calibration(chosen, np.zeros(0), distance)
        scores = np.sort(blank.score(self.predict(inputs), inputs))
        return dataclasses.replace(self, calibration=blank._replace(scores=scores))

    def feature_distance(self) -> FeatureDistance:
        """How far a row's last hidden features lie from those of the training rows."""
        return feature_distance(self.model, self._complete_weights(), self.inputs)

    def save(self, path: str | Path) -> None:
        """Write everything into a new folder; `load(path)` reads it again. Draws go into files of about 64 MB."""
        folder = Path(path)
        if (folder / MANIFEST).exists():
            raise StoreError(f"{folder} holds a store already; choose a new folder.")
        writer = Writer(folder)
        writer.manifest({"posterior": posterior_parts(self, writer)})

    def weights(self, num_draws: int | None = None, seed: int = 0) -> Params:
        """Complete weights of draws, [S, ...]; by default of all stored ones, or of one where fresh ones are made."""
        family: Any = self.family
        if isinstance(family, DropoutMasks):
            raise TypeError(
                "The draws of MC dropout are masks on units, not weights: posterior.starting_weights(1) gives the "
                "weights they act on, predict(x).outputs what the draws come to."
            )
        fresh = num_draws is None and family.num_draws is None
        family, draws = family.at_hand(self._choose(1 if fresh else num_draws))
        key = _draw_key(seed)
        return jax.vmap(lambda index: family.weights(self.model, key, index))(jnp.asarray(draws))

    def starting_weights(self, num_chains: int) -> Params:
        """Complete weights for so many chains of another method, [C, ...]; chains are used again where too few."""
        index = jnp.arange(num_chains) % self.family.num_chains
        return tree.take_rows(self._complete_weights(), index)

    def _complete_weights(self) -> Params:
        fixed = self.family.fixed  # type: ignore[attr-defined]
        return tree.merge(self.family.point(), fixed)

    @property
    def _has_closed_form(self) -> bool:
        """Of rows whose target is one number or vector: the pixels of an image are correlated, which it leaves out."""
        if not (hasattr(self.family, "moments") and self.model.likelihood.has_marginal):
            return False
        row = tree.take_rows(self.inputs, slice(0, 1))
        outputs = jax.eval_shape(lambda params: self.model.outputs(params, row), self._one_weight_vector())
        return outputs.ndim == 2

    def _one_weight_vector(self) -> Params:
        return tree.take_rows(self._complete_weights(), 0)

    def _choose(self, num_draws: int | None) -> np.ndarray:
        stored = self.family.num_draws
        if num_draws is not None:
            _check_draws(num_draws)
        if stored is None:
            per_chain = self.family.num_chains
            wanted = -(-DEFAULT_DRAWS // per_chain) * per_chain if num_draws is None else num_draws
            return np.arange(wanted)
        if num_draws is None or num_draws == stored:
            return np.arange(stored)
        if num_draws > stored:
            raise ValueError(f"num_draws={num_draws}, but {stored} draws are stored; ask for at most that many.")
        return _spread(num_draws, self.family.num_chains, stored // self.family.num_chains)

    def _check_rows(self, inputs: Any) -> None:
        check_like(inputs, self.inputs)
        self.model.check_inputs(inputs)


def _check_draws(num_draws: Any) -> None:
    if not (is_whole(num_draws) and num_draws >= 1):
        raise ValueError(f"num_draws={num_draws!r} must be a whole number, at least 1.")


def _check_memory(memory: Any) -> None:
    if not (is_number(memory) and memory > 0):
        raise ValueError(f"memory={memory!r} must be a number of bytes above 0, for instance 2**30 for 1 GB.")


def _draw_key(seed: int) -> Key:
    """The key of fresh draws; not the one that `fit` begins with at the same seed."""
    return jax.random.fold_in(jax.random.key(seed), DRAWING)


def _spread(count: int, num_chains: int, num_draws: int) -> np.ndarray:
    """So many of the draws s = draw * C + chain: as many of each chain as can be, evenly spaced along it."""
    per_chain = np.full(num_chains, count // num_chains)
    per_chain[np.linspace(0, num_chains - 1, count % num_chains).round().astype(int)] += 1
    places = [
        np.linspace(0, num_draws - 1, size).round().astype(int) * num_chains + chain
        for chain, size in enumerate(per_chain)
    ]
    return np.sort(np.concatenate(places))


def posterior_parts(posterior: Posterior, writer: Writer) -> dict[str, Any]:
    """A posterior as JSON; its arrays are written. Outputs at a few rows go along to know the network by."""
    probe = tree.take_rows(posterior.inputs, slice(0, PROBE_ROWS))
    calibration = posterior.calibration
    arrays: dict[str, np.ndarray] = {}
    names, signed = signature(posterior.model, posterior.inputs)
    body = {
        "model": encode(tree.replace(posterior.model, fixed=None), arrays, "model"),
        "family": _family_parts(posterior.family, arrays, writer),
        "method": encode(posterior.method, arrays, "method"),
        "receipt": dataclasses.asdict(posterior.receipt),
        "metadata": plain_json(posterior.metadata),
        "trace": encode(posterior.trace, arrays, "trace"),
        "facts": encode(posterior.facts, arrays, "facts"),
        "inputs": encode(posterior.inputs, arrays, "inputs"),
        "calibration": None if calibration is None else calibration.name,
        "scores": None if calibration is None else encode(calibration.scores, arrays, "scores"),
        "weights": names,
        "signature": encode(signed, arrays, "signature"),
        "outputs": encode(posterior.predict(probe, num_draws=1).outputs, arrays, "outputs"),
    }
    writer.arrays("posterior", arrays)
    return body


def _family_parts(family: Any, arrays: dict[str, np.ndarray], writer: Writer) -> Any:
    """A family as JSON. Draws go into files of their own, which name them by their place in the tree of weights."""
    if not isinstance(family, Samples | StoredSamples):
        return encode(family, arrays, "family")
    structure = jax.tree.structure(family.draws)
    places = jax.tree.unflatten(structure, range(structure.num_leaves))
    return {
        "shards": write_draws(writer, family.draws, "weights"),
        "draws": encode(places, arrays, "draws"),
        "fixed": encode(family.fixed, arrays, "family/fixed"),
    }


def family_from(stored: Any, arrays: dict[str, np.ndarray], reader: Reader, memory: float) -> Family:
    """The family again; draws of more than `memory` bytes stay where they are."""
    if "shards" not in stored:
        return jax.tree.map(jnp.asarray, decode(stored, arrays))
    places, fixed = decode(stored["draws"], arrays), decode(stored["fixed"], arrays)
    draws = open_draws([reader.path(name) for name in stored["shards"]], places)
    return settle(StoredSamples.of(draws, fixed), memory)


def posterior_from(reader: Reader, model: Model | None, memory: float = HELD_BYTES) -> Posterior:
    """The posterior of a store; a network of the user's own comes with `model` and must give the stored outputs."""
    body, arrays = reader.body["posterior"], reader.arrays("posterior")
    passed = model is not None
    model = stored_model(body["model"], arrays, model)
    receipt = Receipt(**{**body["receipt"], "notes": tuple(body["receipt"]["notes"])})
    family = family_from(body["family"], arrays, reader, memory)
    inputs, trace, facts = (decode(body[name], arrays) for name in ("inputs", "trace", "facts"))
    if passed and "signature" in body:  # stores of earlier versions have none
        check_network(model, inputs, body["weights"], decode(body["signature"], arrays))
    method, metadata = decode(body["method"], arrays), body["metadata"]
    posterior = Posterior(model, family, method, receipt, trace, facts, inputs, None, metadata)
    if "signature" in body or family.num_draws is not None:  # fresh draws of earlier versions had another key
        _check_outputs(posterior, decode(body["outputs"], arrays))
    if body["calibration"] is None:
        return posterior
    name, scores = body["calibration"], decode(body["scores"], arrays)
    distance = posterior.feature_distance() if name == "features" else None
    return dataclasses.replace(posterior, calibration=Calibration(name, scores, distance))


def _check_outputs(posterior: Posterior, expected: np.ndarray) -> None:
    """Refuse a network that is not the stored one."""
    probe = tree.take_rows(posterior.inputs, slice(0, PROBE_ROWS))
    try:
        outputs = posterior.predict(probe, num_draws=1).outputs
    except StoreError:
        raise
    except (TypeError, ValueError, KeyError) as error:
        raise StoreError(f"This network does not take the stored weights: {error}") from error
    if outputs.shape != expected.shape or not np.allclose(outputs, expected, rtol=1e-3, atol=1e-4):
        raise StoreError("This network gives other outputs than the stored one did for the same weights and inputs.")


def signature(model: Model, x: Any) -> tuple[list[str], np.ndarray]:
    """What a network is known by: names and shapes of its weights, and its outputs at a few rows for certain weights.

    Not for those it begins with: in many networks some of them are zero, and hide what they are multiplied with.
    """
    rows = jax.tree.map(jnp.asarray, tree.take_rows(x, slice(0, PROBE_ROWS)))
    template = jax.eval_shape(model.init, jax.random.key(0), rows)
    encode(jax.tree.map(lambda _: 0, template), {}, "weights")  # refuses trees of which no store can be made
    rng = np.random.default_rng(0)

    def numbers(leaf: Any) -> Any:
        return jnp.asarray(rng.normal(size=leaf.shape) / math.sqrt(math.prod(leaf.shape[:-1]) or 1), leaf.dtype)

    outputs = jax.jit(tree.replace(model, fixed=None).plain_outputs)(jax.tree.map(numbers, template), rows)
    shapes = [str(leaf.shape) for leaf in jax.tree.leaves(template)]
    names = [f"{name} {shape}" for name, shape in zip(tree.leaf_names(template), shapes, strict=True)]
    return names, np.asarray(outputs)


def check_network(model: Model, x: Any, weights: list[str], outputs: np.ndarray) -> None:
    """Refuse a network that is not the one that was stored: nothing else would tell."""
    try:
        found, given = signature(model, x)
    except Exception as error:  # a function of the user's own may raise anything
        raise StoreError(f"The network passed does not take the stored rows: {error}") from error
    if found != weights:
        other = [name for name in found if name not in weights] or found
        lacking = [name for name in weights if name not in found] or weights
        raise StoreError(
            f"The network passed has the weights {', '.join(other[:4])} where the stored one has "
            f"{', '.join(lacking[:4])}: pass that network."
        )
    if given.shape != outputs.shape or not np.allclose(given, outputs, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise StoreError(
            "The network passed gives other outputs than the stored one did, for the same weights and inputs: pass "
            "that network."
        )


def stored_model(stored: Any, arrays: dict[str, np.ndarray], given: Model | None) -> Model:
    """The model of a store; a given one brings the network and what else the store could not hold.

    Likelihood and prior are the stored ones where they can be: a run may have tuned them. The target must be the same,
    or a run would go on with draws of another one.
    """
    model = decode(stored, arrays)
    if given is not None:
        kept, passed = ((float(each.temperature), each.tempering) for each in (model, given))
        if not np.isclose(kept[0], passed[0], atol=0.0) or kept[1] != passed[1]:
            raise StoreError(
                f"The store was made at temperature {kept[0]:.6g} with {kept[1]} tempering; the model passed has "
                f"temperature {passed[0]:.6g} with {passed[1]} tempering. Pass a model with the stored ones."
            )
        parts = {name: getattr(model, name) for name in ("likelihood", "prior")}
        return tree.replace(given, **{name: part for name, part in parts.items() if not find_missing(part)})
    missing = find_missing(model)
    if missing:
        raise StoreError(
            f"The store could not hold {', '.join(missing)}: build the model again and pass it, load(path, model)."
        )
    return model


def prior_predictive(model: Model, x: Any, *, num_draws: int = 100, seed: int = 0) -> Prediction:
    """What the model says before it has seen a datum: draws of functions from the prior, as a prediction at rows x."""
    _check_draws(num_draws)
    inputs = check_inputs(x)
    model.check_inputs(inputs)
    key_init, key_draws, key = jax.random.split(jax.random.key(seed), 3)
    two = jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), inputs)
    start = model.init(key_init, two)
    free, fixed = model.split(start)
    model.check_weights(free, fixed, two)

    def draw(key: Key) -> Params:
        return model.split(model.sample_prior(key, start))[0]

    draws = jax.vmap(draw)(jax.random.split(key_draws, num_draws))
    # A chain for each draw: they are independent, and their errors those of independent draws.
    draws = jax.tree.map(lambda leaf: leaf[:, None], draws)
    family = Samples(draws, jax.tree.map(lambda leaf: jnp.repeat(leaf[None], num_draws, 0), fixed))
    return Prediction(OutputStream(model, family, key, inputs, np.arange(num_draws), False, DEFAULT_MEMORY))
