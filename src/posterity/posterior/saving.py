"""A posterior as a store holds it, and back: weights, model, receipt, and the outputs its network is known by."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.names import printable
from posterity.core.types import Family
from posterity.data.arrays import Dataset
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.posterior.receipt import Receipt
from posterity.posterior.trace import Trace
from posterity.prediction.novelty import Calibration
from posterity.storage.codec import StoreError, alike, decode, encode, find_missing, plain_json
from posterity.storage.folder import Reader, Writer
from posterity.weights.families import Samples
from posterity.weights.on_disk import HELD_BYTES, StoredSamples, open_draws, settle, write_draws

PROBE_ROWS = 4


def posterior_parts(posterior: Posterior, writer: Writer) -> dict[str, Any]:
    """A posterior as JSON; its arrays are written. Outputs at a few rows go along to know the network by."""
    probe = pytrees.take_rows(posterior.inputs, slice(0, PROBE_ROWS))
    calibration = posterior.calibration
    arrays: dict[str, np.ndarray] = {}
    names, signed = signature(posterior.model, posterior.inputs)
    body = {
        "model": encode(records.replace(posterior.model, fixed=None), arrays, "model"),
        "family": _family_parts(posterior.family, arrays, writer),
        "method": encode(posterior.method, arrays, "method"),
        "receipt": dataclasses.asdict(posterior.receipt),
        "metadata": plain_json(posterior.metadata),
        "trace": encode(posterior.trace, arrays, "trace"),
        "facts": encode(posterior.facts, arrays, "facts"),
        "inputs": encode(posterior.inputs, arrays, "inputs"),
        "calibration": None if calibration is None else calibration.name,
        "scores": None if calibration is None else encode(calibration.scores, arrays, "scores"),
        "held_out": None if posterior.held_out is None else encode(tuple(posterior.held_out), arrays, "held_out"),
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
    receipt = _receipt(body["receipt"])
    family = family_from(body["family"], arrays, reader, memory)
    inputs, trace, facts = (decode(body[name], arrays) for name in ("inputs", "trace", "facts"))
    if passed:
        check_network(model, inputs, body["weights"], decode(body["signature"], arrays))
    method, metadata = decode(body["method"], arrays), body["metadata"]
    held_out = decode(body.get("held_out"), arrays)
    if not isinstance(trace, Trace):
        raise StoreError(f"The store holds {type(trace).__name__} where a trace belongs; it is damaged.")
    posterior = Posterior(
        model=model,
        family=family,
        method=method,
        receipt=receipt,
        trace=trace,
        facts=facts,
        inputs=inputs,
        metadata=metadata,
        held_out=None if held_out is None else Dataset(*held_out),
    )
    _check_outputs(posterior, decode(body["outputs"], arrays))
    if body["calibration"] is None:
        return posterior
    name, scores = body["calibration"], decode(body["scores"], arrays)
    distance = posterior.feature_distance() if name == "features" else None
    return dataclasses.replace(posterior, calibration=Calibration(name, scores, distance))


def _receipt(stored: dict[str, Any]) -> Receipt:
    """A receipt is for people: its texts are shown as they are."""
    texts = {name: printable(value) for name, value in stored.items() if isinstance(value, str)}
    versions = {printable(name): printable(version) for name, version in stored["versions"].items()}
    lists = {name: tuple(map(printable, stored[name])) for name in ("notes", "remarks", "warnings") if name in stored}
    return Receipt(**{**stored, **texts, "versions": versions, **lists})


def _check_outputs(posterior: Posterior, expected: np.ndarray) -> None:
    """Refuse a network that is not the stored one."""
    probe = pytrees.take_rows(posterior.inputs, slice(0, PROBE_ROWS))
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
    rows = jax.tree.map(jnp.asarray, pytrees.take_rows(x, slice(0, PROBE_ROWS)))
    template = jax.eval_shape(model.init, jax.random.key(0), rows)
    encode(jax.tree.map(lambda _: 0, template), {}, "weights")  # refuses trees of which no store can be made
    rng = np.random.default_rng(0)

    def numbers(leaf: Any) -> Any:
        return jnp.asarray(rng.normal(size=leaf.shape) / math.sqrt(math.prod(leaf.shape[:-1]) or 1), leaf.dtype)

    outputs = jax.jit(records.replace(model, fixed=None).plain_outputs)(jax.tree.map(numbers, template), rows)
    shapes = [str(leaf.shape) for leaf in jax.tree.leaves(template)]
    names = [f"{name} {shape}" for name, shape in zip(pytrees.leaf_names(template), shapes, strict=True)]
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
        return records.replace(given, **{name: part for name, part in parts.items() if not find_missing(part)})
    missing = find_missing(model)
    if missing:
        raise StoreError(
            f"The store could not hold {', '.join(missing)}: build the model again and pass it, load(path, model)."
        )
    return model


def warn_of_other_beliefs(given: Model | None, kept: Model, facts: Mapping[str, Any] | None = None) -> None:
    """Name a prior or noise that was passed again and is not the stored one, which is kept.

    `facts` of a posterior say what its method has tuned, where another value is no mistake.
    """
    for name, tuned in (("prior", "prior_scale"), ("likelihood", "noise_scale")) if given is not None else ():
        passed, stored = getattr(given, name), getattr(kept, name)
        if tuned not in (facts or {}) and not alike(passed, stored):
            warnings.warn(
                f"The model passed has the {name} {passed}; the store was made with {stored}, which is used.",
                stacklevel=3,
            )
