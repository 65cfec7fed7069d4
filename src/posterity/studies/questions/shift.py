"""Where the average over the posterior loses to simpler methods: inputs that move away from those trained on, and why.

Test inputs are corrupted at five severities. Directions of input space along which training rows do not vary leave the
first layer's weights free: under the posterior they keep their prior, and when a shifted input has a component there,
every draw answers at random. A point estimate has them at zero (Izmailov et al. 2021b, Dangers of Bayesian Model
Averaging under Covariate Shift). Their remedy, EmpCov, is a prior N(0, S) of each unit's weights with S the covariance
of the inputs. Along its eigenvectors it has independent weights, of variances l_i: which is the old prior on inputs
projected there and multiplied by sqrt(l_i), and so it is done here. All l are scaled by tr(S) / tr(S^2), so that units
vary as much under both priors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from posterity.datasets.corruptions import SEVERITIES, corrupt_table
from posterity.metrics import mean_over_rows
from posterity.plots import method_style
from posterity.plots.palette import CYCLE, INK, LINE, log_axes, name_axes, new_axes
from posterity.posterior.posterior import Posterior
from posterity.studies.questions.claims import Published, Wording, averaged, claim, paired
from posterity.studies.questions.question import Report, Study, dots_with_errors
from posterity.studies.questions.subject import Split, row_scores
from posterity.studies.rows import Row
from posterity.studies.study import Size

TITLE = "Where does the average over the posterior lose?"
REFERENCE = (
    "Izmailov et al. 2021, section 6.2; Izmailov et al. 2021b, Dangers of Bayesian Model Averaging under Covariate "
    "Shift."
)
DATA: str | None = "digits"
LOOKS = {
    "HMC": method_style("hmc"),
    "HMC, EmpCov": {"color": CYCLE[3], "linestyle": "--"},
    "one network": method_style("map"),
    "ensemble": method_style("deep_ensemble"),
}
KINDS = ("noise", "shift", "missing")
STRONG = ("4", "5")
FREE = 0.02  # of the largest eigenvalue: directions that vary less are left free by the data
PUBLISHED = {  # CIFAR-10-C: accuracy of the other minus that of HMC
    "one network": Published(0.7104 - 0.7091, 0.02),
    "ensemble": Published(0.7699 - 0.7091, 0.01),
}


def settings(size: Size) -> dict[str, Any]:
    common = {"hidden": [20], "rows": 300}
    return {
        "full": {**common, "splits": 2, "budget": 300.0, "effort": 1.0},
        "quick": {**common, "splits": 1, "budget": 60.0, "effort": 1.0},
        "tiny": {"hidden": [3], "rows": 60, "splits": 1, "budget": 3.0, "effort": 0.02},
    }[size]


def projected(split: Split) -> tuple[Split, np.ndarray]:
    """The split with inputs for the prior EmpCov, and the matrix that makes them of the old ones."""
    values, vectors = np.linalg.eigh(np.cov(split.x.T).reshape(split.x.shape[1], -1))
    values = np.maximum(values, 0.0)
    scaled = values * values.sum() / np.square(values).sum()
    matrix = vectors * np.sqrt(scaled + 1e-6)
    return split._replace(x=split.x @ matrix, x_test=split.x_test @ matrix), matrix


def measure(study: Study) -> dict[str, Any]:
    parts = [study.log.once(f"split/{i}", partial(_measure, study, split)) for i, split in enumerate(study.splits)]
    scores: dict[str, Any] = {}
    for name in LOOKS:
        for place in parts[0]["scores"][name]:
            for quantity in ("nll", "error"):
                found = [part["scores"][name][place][quantity] for part in parts]
                scores.setdefault(name, {}).setdefault(place, {})[quantity] = found
    return {
        "is_classes": study.splits[0].is_classes,
        "scores": scores,
        "directions": parts[0]["directions"],
        "references": {
            f"{prior}, split {i}": facts for i, part in enumerate(parts) for prior, facts in part["references"].items()
        },
    }


def _measure(study: Study, split: Split) -> dict[str, Any]:
    changed, matrix = projected(split)
    usual, remedy = study.reference(split), study.reference(changed)
    effort = study.settings["effort"]
    point = split.fit("map", effort)
    fits = {
        "HMC": usual.posterior,
        "HMC, EmpCov": remedy.posterior,
        "one network": point,
        "ensemble": split.fit("deep_ensemble", effort),
    }
    places = {"0": split.x_test}
    for kind in KINDS:
        for severity in SEVERITIES:
            moved = corrupt_table(split.x_test, kind, severity, seed=severity, reference=split.x)
            places[f"{kind}/{severity}"] = moved.astype(split.x_test.dtype)
    scores: dict[str, Any] = {name: {} for name in fits}
    for name, posterior in fits.items():
        for place, inputs in places.items():
            at = inputs @ matrix if posterior is remedy.posterior else inputs
            found = row_scores(posterior.predict(at), split)
            scores[name][place] = {quantity: found[quantity] for quantity in ("nll", "error")}
    return {
        "scores": scores,
        "directions": directions(split, usual.posterior, point),
        "references": {"usual prior": usual.facts, "EmpCov": remedy.facts},
    }


def directions(split: Split, posterior: Posterior, point: Posterior) -> dict[str, list[float]]:
    """Along each eigenvector of the inputs' covariance: its variance, and the size of the weights, prior = 1."""
    values, vectors = np.linalg.eigh(np.cov(split.x.T).reshape(split.x.shape[1], -1))
    width = 1 / np.sqrt(split.x.shape[1])
    sizes = {}
    for name, fitted in (("posterior", posterior), ("point", point)):
        weights = np.asarray(fitted.weights(min(200, fitted.family.num_draws or 1))["network"]["layer_0"]["weight"])
        along = np.einsum("fd,sfh->sdh", vectors, weights)
        sizes[name] = np.sqrt(np.square(along).mean((0, 2))) / width
    return {"variance": np.maximum(values, 0.0).tolist(), **{name: size.tolist() for name, size in sizes.items()}}


def strong_rows(figures: dict[str, Any], name: str, quantity: str) -> list[list[float]]:
    """Of each split and test row the mean over all strong corruptions: its corrupted forms are not independent."""
    table = figures["scores"][name]
    places = [found[quantity] for place, found in table.items() if place.endswith(STRONG)]
    return [np.mean(forms, 0).tolist() for forms in zip(*places, strict=True)]


def conclude(figures: dict[str, Any]) -> list[Row]:
    rows = []
    usual = [facts for name, facts in figures["references"].items() if name.startswith("usual")]
    word = {"error": "accuracy" if figures["is_classes"] else "squared error", "nll": "log likelihood"}

    strong = partial(strong_rows, figures)
    for quantity in ("error", "nll"):
        for other in ("one network", "ensemble"):
            called = "an ensemble" if other == "ensemble" else other
            found = paired(strong("HMC", quantity), strong(other, quantity))
            told = Wording(
                f"under strong corruption the average over the posterior loses to {called} in {word[quantity]}, "
                f"by {{}}.",
                f"under strong corruption the average over the posterior does not lose to {called} in "
                f"{word[quantity]}: it is better, by {{}}.",
                f"under strong corruption the average over the posterior and {called} cannot be told apart in "
                f"{word[quantity]} ({{}}).",
            )
            published = PUBLISHED[other] if quantity == "error" and figures["is_classes"] else None
            name = f"strong corruption: {word[quantity]} lost to {called}"
            rows.append(claim(name, found, told, usual, published=published))
    for quantity in ("error", "nll"):
        told = Wording(
            f"a prior from the inputs' covariance, EmpCov, helps under strong corruption: {{}} better "
            f"{word[quantity]}.",
            f"a prior from the inputs' covariance, EmpCov, makes it worse under strong corruption: {{}} worse "
            f"{word[quantity]}.",
            f"a prior from the inputs' covariance, EmpCov, makes no clear difference to {word[quantity]} under strong "
            "corruption ({}).",
        )
        found = paired(strong("HMC", quantity), strong("HMC, EmpCov", quantity))
        rows.append(claim(f"EmpCov: {word[quantity]} gained", found, told, figures["references"].values()))
    return [*rows, *_direction_rows(figures["directions"], usual)]


def _direction_rows(found: dict[str, list[float]], judges: list[dict[str, Any]]) -> list[Row]:
    """Whether weights along directions that the data leave free keep their prior."""
    variance = np.array(found["variance"])
    free = variance < FREE * variance.max()
    if free.sum() < 2:
        return []
    kept = mean_over_rows(np.array(found["posterior"])[free])
    shrunk = float(np.mean(np.array(found["point"])[free]))
    told = Wording(
        f"why: along the {free.sum()} of {len(free)} directions in which training inputs hardly vary, the posterior "
        f"keeps {{}} of the prior's width; one network has {shrunk:.2f} of it.",
        f"along the {free.sum()} of {len(free)} directions in which training inputs hardly vary the posterior does not "
        f"keep its prior: {{}} of its width; one network has {shrunk:.2f}.",
        f"along the {free.sum()} of {len(free)} directions in which training inputs hardly vary the posterior keeps "
        f"{{}} of the prior's width; one network has {shrunk:.2f} of it.",
    )
    return [claim("free directions: width of the posterior over that of the prior", kept, told, judges, least=0.8)]


def write(report: Report, figures: dict[str, Any]) -> None:
    report.section("Scores by severity", "Severity 0 is the test rows as they are.")
    for quantity, label in (("nll", "negative log likelihood"), ("error", "error")):
        drawn = {}
        for kind in KINDS:
            axes = new_axes()
            for name, table in figures["scores"].items():
                places = ["0", *(f"{kind}/{severity}" for severity in SEVERITIES)]
                found = [averaged(table[place][quantity]) for place in places]
                dots_with_errors(axes, range(len(places)), found, label=name, **LOOKS[name])
            axes.set_title(kind)
            name_axes(axes, "severity", label)
            drawn[f"{quantity}-{kind}"] = axes
        report.pictures(drawn, f"The {label} with two standard errors; lower is better.", "where the lines cross.")
    report.section(
        "Why",
        "The size of the first layer's weights along each principal direction of the training inputs, in units of the "
        "prior's width.",
    )
    axes = new_axes()
    found = figures["directions"]
    variance = np.maximum(found["variance"], 1e-8)
    axes.plot(variance, found["posterior"], ".", color=LINE, label="draws of HMC")
    axes.plot(variance, found["point"], ".", color=CYCLE[1], label="one network")
    axes.axhline(1, color=INK, lw=0.8, ls=":")
    log_axes(axes)
    name_axes(axes, "variance of the inputs along a direction", "size of the weights, prior = 1")
    report.pictures({"directions": axes}, "The dotted line is the prior.", "the left, where the data say nothing.")
