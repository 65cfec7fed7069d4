"""Does the posterior of Bayes' rule predict best, or a colder or warmer one?

    posterior   (p(D | w) p(w))^(1/T)        likelihood   p(D | w)^(1/T) p(w)

Both are sampled at several temperatures T and compared row by row with T = 1. The best cold temperature is chosen on
one half of the test rows and judged on the other. Near T = 1 the curve also comes from the draws at T = 1 alone, with
the importance weights p_T / p_1, for as long as their Pareto k is at most 0.7 (Vehtari et al. 2024).

Augmentation is a finite set of K copies of each image (the image and its shifts by a pixel), under three likelihoods:
copies as extra rows, which counts each datum K times; copies that weigh 1/K each; and probabilities averaged over the
copies, which is a proper likelihood of each datum (Nabarro et al. 2022).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array, Key, Params
from posterity.datasets import load
from posterity.metrics import Estimate
from posterity.models.model import Model
from posterity.networks import from_function
from posterity.plots.palette import CYCLE, INK, LINE, log_axes, name_axes, new_axes
from posterity.posterior.posterior import Posterior
from posterity.studies.questions.claims import Published, Wording, best_of, claim, paired
from posterity.studies.questions.question import Report, Study, dots_with_errors
from posterity.studies.questions.subject import JUDGED_ROWS, Split, rounded
from posterity.studies.rows import Row
from posterity.studies.study import Size
from posterity.tables.defaults import table_model

TITLE = "Does the posterior predict best at temperature one?"
REFERENCE = (
    "Izmailov et al. 2021, section 7; Wenzel et al. 2020, How Good is the Bayes Posterior in Deep Neural Networks "
    "Really?; Nabarro et al. 2022, Data Augmentation in Bayesian Neural Networks and the Cold Posterior Effect."
)
DATA: str | None = "digits"
TOLERANCE = 0.02  # nats a row: a gain that matters to nobody
RELIABLE = 0.7  # Pareto k of importance weights
NEAR = np.round(np.geomspace(0.85, 1 / 0.85, 13), 4)
KINDS = {
    "rows": "copies as extra rows",
    "weighted": "copies that weigh 1/K",
    "averaged": "probabilities averaged over copies",
}
PUBLISHED = Published(0.378 - 0.312, 0.01)  # IMDB: T = 0.3, the best cold one, minus T = 1
TINY = {"hidden": [3], "rows": 60, "augmented_rows": 30, "augmented_hidden": [3], "splits": 1, "budget": 2.0}


def settings(size: Size) -> dict[str, Any]:
    common = {"hidden": [20], "rows": 300, "augmented_rows": 100, "augmented_hidden": [10]}
    every = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
    some = [0.1, 0.3, 1.0, 3.0]
    return {
        "full": {**common, "splits": 1, "budget": 300.0, "temperatures": every, "augmented": some[:3]},
        "quick": {**common, "splits": 1, "budget": 40.0, "temperatures": some[1:], "augmented": some[1:3]},
        "tiny": {**common, **TINY, "temperatures": some[1:3], "augmented": some[1:3]},
    }[size]


def measure(study: Study) -> dict[str, Any]:
    chosen, references = study.settings, {}
    curves: dict[str, dict[str, list[Any]]] = {"posterior": {}, "likelihood": {}}
    near = []
    for number, split in enumerate(study.splits):
        for tempering, curve in curves.items():
            for temperature in chosen["temperatures"]:
                kind = "posterior" if temperature == 1 else tempering  # at T = 1 they are the same
                name = f"{kind}/{temperature:g}/{number}"
                part = study.log.once(name, partial(_measure, study, split, temperature, kind))
                curve.setdefault(f"{temperature:g}", []).append(part["nll"])
                references[f"T = {temperature:g}, tempered {kind}, split {number}"] = part["reference"]
                if temperature == 1 and tempering == "posterior":
                    near.append(part["near"])
    augmented: dict[str, dict[str, list[Any]]] = {}
    assert study.subject is not None
    for kind in KINDS if study.subject.title == DATA else ():
        for temperature in chosen["augmented"]:
            part = study.log.once(f"augmented-{kind}/{temperature:g}", partial(_augmented, study, kind, temperature))
            augmented.setdefault(kind, {})[f"{temperature:g}"] = [part["nll"]]
            references[f"T = {temperature:g}, {KINDS[kind]}"] = part["reference"]
    return {"curves": curves, "near": near, "augmented": augmented, "references": references}


def _measure(study: Study, split: Split, temperature: float, tempering: str) -> dict[str, Any]:
    reference = study.reference(split, temperature=temperature, tempering=tempering)
    nll = -reference.posterior.predict(split.x_test).log_prob(split.y_test)
    if not split.is_classes:
        nll = nll - np.log(split.code.target.scale)
    found = {"nll": rounded(nll), "reference": reference.facts}
    return {**found, "near": _near(reference.posterior, split)} if temperature == 1 else found


def _near(posterior: Posterior, split: Split) -> list[list[float]]:
    """[T, Pareto k, mean of the negative log likelihood] from the draws at T = 1 alone."""
    trace = posterior.diagnose(split.at).trace
    log_joint = (trace["log_likelihood"] + trace["log_prior"]).T.ravel().astype(float)  # draw s is of chain s % C
    outputs = jnp.asarray(posterior.predict(split.x_test).outputs)
    log_prob = np.asarray(posterior.model.likelihood(outputs).log_prob(jnp.asarray(split.y_test)), float)
    rows = []
    for temperature in NEAR:
        weights = (1 / temperature - 1) * (log_joint - log_joint.mean())
        weights -= np.logaddexp.reduce(weights)
        nll = -np.logaddexp.reduce(weights[:, None] + log_prob, 0).mean()
        rows.append([float(temperature), pareto_k(weights), float(nll)])
    return rows


def pareto_k(log_weights: np.ndarray) -> float:
    """The shape of the generalised Pareto distribution that the largest weights follow (Zhang & Stephens 2009).

    The tail is the largest min(S / 5, 3 sqrt(S)) of S weights; k above 0.7 means that their mean cannot be trusted.
    Equal weights, which have no tail, have k = 0.
    """
    count = len(log_weights)
    tail = int(min(count / 5, 3 * np.sqrt(count)))
    ordered = np.sort(log_weights)
    excess = np.exp(ordered[-tail:] - ordered[-1]) - np.exp(ordered[-tail - 1] - ordered[-1])
    if not excess[-1] > 0:
        return 0.0
    excess = np.maximum(excess, 1e-300)
    grid = 30 + int(np.sqrt(tail))
    steps = np.arange(1, grid + 1)
    quartile = excess[int(tail / 4 + 0.5) - 1]
    theta = 1 / excess[-1] + (1 - np.sqrt(grid / (steps - 0.5))) / (3 * quartile)
    shapes = np.log1p(-theta[:, None] * excess).mean(1)
    profile = tail * (np.log(-theta / shapes) - shapes - 1)
    likelihood = 1 / np.exp(profile - profile[:, None]).sum(1)
    best = float((theta * likelihood).sum() / likelihood.sum())
    found = float(np.log1p(-best * excess).mean())
    return (tail * found + 5.0) / (tail + 10)  # drawn a little towards 0.5, as for few weights it should be


def _augmented(study: Study, kind: str, temperature: float) -> dict[str, Any]:
    """HMC on few digits and their copies; tested on digits as they are."""
    data = load("digits")
    count = study.settings["augmented_rows"]
    x, x_test = (copies((images.reshape(-1, 8, 8) - 8) / 8) for images in (data.x_train[:count], data.x_train[count:]))
    y, y_test = data.y_train[:count], data.y_train[count:]
    x_test, y_test = x_test[:1000], y_test[:1000]
    model = table_model("classification", 10, hidden=study.settings["augmented_hidden"], temperature=temperature)
    num_copies = x.shape[1]
    if kind == "averaged":
        model = Model(averaging(model.network), model.likelihood, model.prior, temperature)
        rows: tuple[np.ndarray, ...] = (x, y)
        tested = np.repeat(x_test[:, :1], num_copies, 1)
    else:
        weight = 1.0 if kind == "rows" else 1 / num_copies
        rows = (x.reshape(-1, 64), np.repeat(y, num_copies), np.full(y.size * num_copies, weight))
        tested = x_test[:, 0]
    at = tested[:JUDGED_ROWS]
    reference = study.references.get(model, rows, at, study.settings["budget"])
    return {"nll": rounded(-reference.posterior.predict(tested).log_prob(y_test)), "reference": reference.facts}


def copies(images: np.ndarray) -> np.ndarray:
    """An image and its shifts by one pixel, [N, 5, H W]; what comes in at an edge is empty, -1."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), constant_values=-1.0)
    height, width = images.shape[1:]
    places = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    found = [padded[:, row : row + height, column : column + width] for row, column in places]
    return np.stack(found, 1).reshape(len(images), len(places), -1)


def averaging(network: Any) -> Any:
    """Logits of the mean over copies of the class probabilities: x is [N, K, F]."""

    def init(key: Key, x: Array) -> Params:
        return network.init(key, x[:, 0])

    def apply(params: Params, x: Array) -> Array:
        logits = network.apply(params, x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)
        return jax.nn.logsumexp(jax.nn.log_softmax(logits), 1) - jnp.log(x.shape[1])

    return from_function(init, apply)


def conclude(figures: dict[str, Any]) -> list[Row]:
    rows, references = [], figures["references"]
    for tempering, curve in figures["curves"].items():
        cold, gain = best_of(*_cold(curve))
        told = Wording(
            f"no cold posterior effect where the {tempering} is tempered: the best cold temperature, {cold}, gains "
            f"less than {TOLERANCE} nats a row against temperature 1 (it loses {{}}).",
            f"a cold posterior effect where the {tempering} is tempered: temperature {cold} predicts better than "
            f"temperature 1 by more than {TOLERANCE} nats a row (its loss is {{}}).",
            f"whether there is a cold posterior effect where the {tempering} is tempered stays open: temperature "
            f"{cold} loses {{}} nats a row against temperature 1.",
        )
        name = f"tempered {tempering}: loss of the best cold temperature"
        loss = Estimate(-gain.value, gain.standard_error)
        published = PUBLISHED if tempering == "posterior" else None
        judges = _judges(references, cold, f"tempered {tempering}")
        rows.append(claim(name, loss, told, judges, least=-TOLERANCE, published=published))
    for kind, curve in figures["augmented"].items():
        cold, gain = best_of(*_cold(curve))
        told = Wording(
            f"with {KINDS[kind]}, temperature {cold} predicts better than temperature 1, by {{}} nats a row: "
            "augmentation makes a cold posterior look good.",
            f"with {KINDS[kind]}, no cold temperature helps: the best, {cold}, loses {{}} nats a row.",
            f"with {KINDS[kind]}, temperature {cold} and temperature 1 cannot be told apart (gain {{}} nats a row).",
        )
        judges = _judges(references, cold, KINDS[kind])
        rows.append(claim(f"{KINDS[kind]}: gain of the best cold temperature", gain, told, judges))
    return rows


def _cold(curve: dict[str, list[list[float]]]) -> tuple[dict[str, list[list[float]]], list[list[float]]]:
    """Temperatures under 1, and 1."""
    return {name: rows for name, rows in curve.items() if float(name) < 1}, curve["1"]


def _judges(references: dict[str, Any], cold: str, words: str) -> list[dict[str, Any]]:
    """The references at one cold temperature and at 1."""
    asked = [f"T = {cold}, {words}", f"T = 1, {'tempered posterior' if 'tempered' in words else words}"]
    return [facts for name, facts in references.items() if any(name.startswith(start) for start in asked)]


def _curve(axes: Any, curve: dict[str, list[list[float]]], **look: Any) -> Any:
    """Differences from T = 1, row by row."""
    found = [paired(rows, curve["1"]) for rows in curve.values()]
    return dots_with_errors(axes, [float(name) for name in curve], found, **look)


def write(report: Report, figures: dict[str, Any]) -> None:
    report.section(
        "The temperature curve",
        "Each point is a run of HMC. Below 1 the posterior is sharpened towards its mode, above 1 spread out.",
    )
    drawn = {}
    axes = new_axes()
    for (tempering, curve), colour in zip(figures["curves"].items(), CYCLE, strict=False):
        _curve(axes, curve, label=f"the {tempering} is tempered", color=colour)
    drawn["temperatures"] = _finished(axes)
    if figures["near"]:
        drawn["near"] = _drawn_near(figures["near"])
    report.pictures(
        drawn,
        "Negative log likelihood minus that at temperature 1, with two standard errors of the paired difference. "
        "Right: near 1 from the draws at temperature 1 alone, where their importance weights can be trusted "
        f"(Pareto k at most {RELIABLE}), marked as filled points.",
        "points below zero left of one: there a cold posterior predicts better.",
    )
    if figures["augmented"]:
        report.section(
            "Augmentation",
            "The same with K = 5 copies of each image. Copies as extra rows count every datum five times, which is a "
            "cold posterior under another name; copies that weigh 1/K make a likelihood of no model; only "
            "probabilities averaged over copies are the likelihood of one.",
        )
        axes = new_axes()
        for (kind, curve), colour in zip(figures["augmented"].items(), CYCLE, strict=False):
            _curve(axes, curve, label=KINDS[kind], color=colour)
        report.pictures({"augmented": _finished(axes)}, "The temperature curve with augmentation.")


def _finished(axes: Any) -> Any:
    axes.axhline(0, color=INK, lw=0.8, ls=":")
    axes.axvline(1, color=INK, lw=0.8, ls=":")
    log_axes(axes)
    name_axes(axes, "temperature", "nats a row above temperature 1")
    return axes


def _drawn_near(near: list[list[list[float]]]) -> Any:
    table = np.array(near)  # [splits, T, (T, k, nll)]
    middle = int(np.argmin(np.abs(table[0, :, 0] - 1)))
    above = (table[..., 2] - table[:, middle : middle + 1, 2]).mean(0)
    trusted = (table[..., 1] <= RELIABLE).all(0)
    axes = new_axes()
    axes.plot(table[0, :, 0], above, color=LINE, lw=0.8)
    axes.plot(table[0, trusted, 0], above[trusted], "o", color=LINE, ms=4, label="k at most 0.7")
    axes.plot(table[0, ~trusted, 0], above[~trusted], "o", color=LINE, mfc="none", ms=4, label="k above 0.7")
    return _finished(axes)
