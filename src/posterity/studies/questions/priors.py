"""Does the prior matter: its scale over two decades, and its family at equal variance?

The scale multiplies every width of the prior of tables. Families share the mean and the variance of each weight with
the Gaussian; the learned prior is a Gaussian whose scales, one a layer, are inferred with the weights (Neal 1996).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpyro.distributions as dist

from posterity.core import records
from posterity.inference import HMC, fit
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.models.priors import Prior, prior, scale_mixture
from posterity.models.scales import Learned
from posterity.networks import mlp
from posterity.plots import score_dots
from posterity.plots.palette import CYCLE, INK, LINE, log_axes, name_axes, new_axes
from posterity.plots.palette import DATA as POINTS
from posterity.posterior.posterior import prior_predictive
from posterity.studies.questions.claims import Published, Wording, averaged, best_of, claim, paired
from posterity.studies.questions.question import Report, Study, dots_with_errors
from posterity.studies.questions.subject import Split, rounded, row_scores
from posterity.studies.rows import Row
from posterity.studies.study import Size
from posterity.tables.defaults import table_method, table_prior

TITLE = "Does the prior matter?"
REFERENCE = "Izmailov et al. 2021, section 7 and appendix; Neal 1996 for learned scales."
DATA: str | None = "digits"
TOLERANCE = {"error": 0.02, "nll": 0.05}  # what a change of scale may cost where it is robust
RANGE = (0.35, 2.24)  # of standard deviations, around the usual: variances 1/40 to 1 around 1/5, as in the paper
FAMILIES = {
    "Gaussian": lambda scale: dist.Normal(0.0, scale),
    "Laplace": lambda scale: dist.Laplace(0.0, scale / np.sqrt(2)),
    "Student-t": lambda scale: dist.StudentT(5.0, 0.0, scale * np.sqrt(3 / 5)),
    "logistic": lambda scale: dist.Logistic(0.0, scale * np.sqrt(3) / np.pi),
    "scale mixture": lambda scale: scale_mixture(0.5, scale * np.sqrt(1.91), 0.3 * scale),  # 0.5 (1.91 + 0.09) = 1
    "learned": lambda scale: Learned(dist.Normal(0.0, scale)),
}
PUBLISHED_SCALE = Published(0.867 - 0.880, 0.003)  # CIFAR-10, accuracy: variance 1/40 minus the best, 1
PUBLISHED_FAMILY = Published(0.311 - 0.304, 0.01)  # IMDB: Gaussian minus logistic
GRID = np.linspace(-3.0, 3.0, 61)[:, None]
SHOWN = 12  # functions in a picture


def settings(size: Size) -> dict[str, Any]:
    common = {"hidden": [20], "rows": 300}
    wide = [0.1, 0.35, 1.0, 2.24, 10.0]
    return {
        "full": {**common, "splits": 1, "budget": 300.0, "effort": 1.0, "scales": wide, "families": list(FAMILIES)},
        "quick": {
            **common,
            "splits": 1,
            "budget": 60.0,
            "effort": 0.5,
            "scales": [0.35, 1.0, 2.24],
            "families": ["Gaussian", "Laplace", "learned"],
        },
        "tiny": {
            **common,
            "hidden": [3],
            "rows": 60,
            "splits": 1,
            "budget": 2.0,
            "effort": 0.02,
            "scales": [0.35, 1.0],
            "families": ["Gaussian", "Laplace"],
        },
    }[size]


def family_prior(split: Split, family: str) -> Prior:
    """The prior of tables with another family, each weight's variance as it was."""
    usual = table_prior(split.code.task, num_hidden=len(split.hidden))
    widths = {pattern: float(each.scale) for pattern, each in zip(usual.patterns, usual.distributions, strict=True)}
    return prior({pattern: FAMILIES[family](width) for pattern, width in widths.items()}, fan_in=usual.fan_in)


def measure(study: Study) -> dict[str, Any]:
    chosen, references = study.settings, {}
    scales: dict[str, Any] = {}
    points: dict[str, Any] = {}
    families: dict[str, Any] = {}
    for number, split in enumerate(study.splits):
        usual = family_prior(split, "Gaussian")
        for factor in chosen["scales"]:
            stretched = records.replace(usual, scale=factor)
            part = study.log.once(f"scale-{factor:g}/{number}", partial(_measure, study, split, stretched))
            _add(scales, f"{factor:g}", part)
            references[f"scale {factor:g}, split {number}"] = part["reference"]
            part = study.log.once(f"map-{factor:g}/{number}", partial(_point, study, split, stretched))
            _add(points, f"{factor:g}", part)
        for family in chosen["families"]:
            if family == "Gaussian":
                part = study.log.parts[f"scale-1/{number}"]
            else:
                changed = partial(_measure, study, split, family_prior(split, family))
                part = study.log.once(f"{family}/{number}", changed)
            _add(families, family, part)
            references[f"{family}, split {number}"] = part["reference"]
    return {
        "is_classes": study.splits[0].is_classes,
        "scales": scales,
        "points": points,
        "families": families,
        "functions": study.log.once("functions", partial(_functions, chosen)),
        "references": references,
    }


def _add(table: dict[str, Any], name: str, part: dict[str, Any]) -> None:
    for quantity in ("nll", "error"):
        table.setdefault(name, {}).setdefault(quantity, []).append(part[quantity])


def _measure(study: Study, split: Split, changed: Prior) -> dict[str, Any]:
    reference = study.reference(split, prior=changed)
    return {**row_scores(reference.posterior.predict(split.x_test), split), "reference": reference.facts}


def _point(study: Study, split: Split, changed: Prior) -> dict[str, Any]:
    method = table_method("map", len(split.y), effort=study.settings["effort"])
    posterior = fit(split.model(method, prior=changed), method, split.data, seed=1, progress=False)
    return row_scores(posterior.predict(split.x_test), split)


def _functions(chosen: dict[str, Any]) -> dict[str, Any]:
    """Functions of a network in one input, before and after forty points, at three scales of the prior."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-2, -0.6, 20), rng.uniform(0.6, 2, 20)])[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=len(x))
    found = {}
    for factor in (0.3, 1.0, 3.0):
        usual = records.replace(table_prior("regression"), scale=factor)
        model = Model(mlp(chosen["hidden"], activation="tanh"), Gaussian(0.1), usual)
        posterior = fit(model, HMC(50, num_burn_in=100), (x, y), seed=2, progress=False)
        found[f"{factor:g}"] = {
            "prior": rounded(prior_predictive(model, GRID, num_draws=SHOWN).outputs[..., 0]),
            "posterior": rounded(posterior.predict(GRID, num_draws=SHOWN).outputs[..., 0]),
        }
    return {"by_scale": found, "x": rounded(x[:, 0]), "y": rounded(y)}


def conclude(figures: dict[str, Any]) -> list[Row]:
    rows = []
    words = {"nll": "log likelihood", "error": "accuracy" if figures["is_classes"] else "squared error"}
    inside = {name: found for name, found in figures["scales"].items() if RANGE[0] <= float(name) <= RANGE[1]}
    for quantity in ("error", "nll"):
        worst = max(inside, key=lambda name: averaged(inside[name][quantity]).value)
        best = min(inside, key=lambda name: averaged(inside[name][quantity]).value)
        found = paired(inside[best][quantity], inside[worst][quantity])
        told = Wording(
            f"the scale of the prior hardly matters to {words[quantity]}: between {RANGE[0]} and {RANGE[1]} times the "
            f"usual, the worst ({worst}) costs less than {TOLERANCE[quantity]} against the best ({best}): {{}}.",
            f"the scale of the prior matters to {words[quantity]}: between {RANGE[0]} and {RANGE[1]} times the usual, "
            f"the worst ({worst}) costs more than {TOLERANCE[quantity]} against the best ({best}): {{}}.",
            f"whether the scale of the prior matters to {words[quantity]} stays open: the worst ({worst}) against the "
            f"best ({best}) is {{}}.",
        )
        published = PUBLISHED_SCALE if figures["is_classes"] and quantity == "error" else None
        judges = _judges(figures, (f"scale {worst}", f"scale {best}"))
        name = f"scale: {words[quantity]} at the worst minus the best"
        rows.append(claim(name, found, told, judges, least=-TOLERANCE[quantity], published=published))
    others = {name: found["nll"] for name, found in figures["scales"].items() if name != "1"}
    best, gain = best_of(others, figures["scales"]["1"]["nll"])
    told = Wording(
        f"a prior {best} times as wide as the usual one predicts better, by {{}} nats a row.",
        f"no other scale predicts better than the usual one: the best of them, {best}, loses {{}} nats a row.",
        f"no other scale is clearly better than the usual one: the best of them, {best}, gains {{}} nats a row.",
    )
    rows.append(claim("scale: gain of another one", gain, told, _judges(figures, (f"scale {best}", "scale 1,"))))
    return rows + _family_rows(figures)


def _family_rows(figures: dict[str, Any]) -> list[Row]:
    others = {name: found["nll"] for name, found in figures["families"].items() if name != "Gaussian"}
    if not others:
        return []
    best, gain = best_of(others, figures["families"]["Gaussian"]["nll"])
    told = Wording(
        f"the family of the prior matters: {best} predicts better than a Gaussian of the same variance, by {{}} nats "
        "a row.",
        f"no family predicts better than the Gaussian: the best of the others, {best}, loses {{}} nats a row.",
        f"the family of the prior makes no clear difference: the best, {best}, gains {{}} nats a row on the Gaussian.",
    )
    judges = _judges(figures, (best, "Gaussian"))
    return [claim("family: gain of the best on the Gaussian", gain, told, judges, published=PUBLISHED_FAMILY)]


def _judges(figures: dict[str, Any], starts: tuple[str, ...]) -> list[dict[str, Any]]:
    return [facts for name, facts in figures["references"].items() if name.startswith(starts)]


def write(report: Report, figures: dict[str, Any]) -> None:
    report.section("The scale", "All widths of the prior times a factor; 1 is the prior of tables.")
    drawn = {}
    for quantity, label in (("nll", "negative log likelihood"), ("error", "error")):
        axes = new_axes()
        for (name, table), colour in zip((("HMC", figures["scales"]), ("MAP", figures["points"])), CYCLE, strict=False):
            found = [averaged(values[quantity]) for values in table.values()]
            dots_with_errors(axes, [float(each) for each in table], found, label=name, color=colour)
        for edge in RANGE:
            axes.axvline(edge, color=INK, lw=0.8, ls=":")
        log_axes(axes)
        name_axes(axes, "scale of the prior", label)
        drawn[f"scale-{quantity}"] = axes
    report.pictures(drawn, "Scores with two standard errors; dotted lines bound the range of the paper.")
    report.section("The family", "Other families with the same variances, minus the Gaussian, row by row.")
    base = figures["families"]["Gaussian"]["nll"]
    found = {name: paired(table["nll"], base) for name, table in figures["families"].items() if name != "Gaussian"}
    axes = score_dots(found)
    axes.axvline(0, color=INK, lw=0.8, ls=":")
    axes.set_title("nats a row above the Gaussian")
    report.pictures({"families": axes}, "Left of zero a family predicts better than the Gaussian.")
    report.section("Functions", "Draws of a network in one input from the prior (left) and from the posterior (right).")
    functions = figures["functions"]
    drawn = {}
    for factor, both in functions["by_scale"].items():
        for kind, values in both.items():
            axes = new_axes()
            axes.plot(GRID[:, 0], np.array(values).T, color=LINE, lw=0.7, alpha=0.6)
            axes.plot(functions["x"], functions["y"], ".", color=POINTS, ms=3.5)
            axes.set_ylim(-4, 4)
            axes.set_title(f"{kind}, scale {factor}")
            drawn[f"functions-{factor}-{kind}"] = axes
    report.pictures(
        drawn, "Functions before and after forty points.", "which priors hold the wave to be likely at all."
    )
