"""Does the average over the posterior beat one network, and an ensemble of them?

One network is MAP; the ensemble is of MAP networks from independent starts; the average is over draws of HMC. A single
draw of HMC stands beside them: it is worse than MAP, and only the average over many is better.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from posterity.metrics import Estimate
from posterity.plots import method_style, score_dots
from posterity.plots.palette import log_axes, name_axes, new_axes
from posterity.studies.questions.claims import Published, Wording, averaged, claim, paired
from posterity.studies.questions.question import Report, Study, dots_with_errors
from posterity.studies.questions.subject import Split, row_scores
from posterity.studies.rows import Row
from posterity.studies.study import Size

TITLE = "Does the average over the posterior beat one network, and an ensemble?"
REFERENCE = "Izmailov et al. 2021, What Are Bayesian Neural Network Posteriors Really Like?, section 6."
DATA: str | None = "digits"
AVERAGE, ENSEMBLE, POINT, DRAW = "HMC", "ensemble", "one network", "one draw of HMC"
STYLES = {AVERAGE: "hmc", ENSEMBLE: "deep_ensemble", POINT: "map", DRAW: "nuts"}
PUBLISHED = {  # CIFAR-10, ResNet-20: differences of the paper's figure, in the direction of the claims below
    (POINT, "nll"): Published(0.80 - 0.307, 0.01),
    (ENSEMBLE, "nll"): Published(0.33 - 0.307, 0.01),
    (POINT, "error"): Published(0.907 - 0.834, 0.003),
    (ENSEMBLE, "error"): Published(0.907 - 0.892, 0.003),
    (POINT, "calibration"): Published(0.121 - 0.060, 0.003),
    (ENSEMBLE, "calibration"): Published(0.031 - 0.060, 0.003),
}
QUANTITIES = {"nll": "negative log likelihood", "error": "error", "calibration": "calibration error"}


def settings(size: Size) -> dict[str, Any]:
    common = {"hidden": [20], "rows": 300}
    return {
        "full": {**common, "splits": 5, "budget": 120.0, "effort": 1.0, "averaged": [1, 2, 5, 10, 20, 50, 100, 200]},
        "quick": {**common, "splits": 1, "budget": 60.0, "effort": 1.0, "averaged": [1, 5, 20, 100]},
        "tiny": {"hidden": [3], "rows": 60, "splits": 1, "budget": 2.0, "effort": 0.02, "averaged": [1]},
    }[size]


def measure(study: Study) -> dict[str, Any]:
    splits = study.splits
    parts = [study.log.once(f"split/{i}", partial(_measure, study, split)) for i, split in enumerate(splits)]
    names = list(parts[0]["scores"])
    return {
        "is_classes": splits[0].is_classes,
        "scores": {
            name: {quantity: [part["scores"][name][quantity] for part in parts] for quantity in QUANTITIES}
            for name in names
        },
        "growth": {name: [part["growth"][name] for part in parts] for name in parts[0]["growth"]},
        "references": {f"split {i}": part["reference"] for i, part in enumerate(parts)},
    }


def _measure(study: Study, split: Split) -> dict[str, Any]:
    chosen = study.settings
    reference = study.reference(split)
    ensemble = split.fit("deep_ensemble", chosen["effort"])
    found = {AVERAGE: reference.posterior, ENSEMBLE: ensemble, POINT: split.fit("map", chosen["effort"])}
    scores = {name: row_scores(posterior.predict(split.x_test), split) for name, posterior in found.items()}
    scores[DRAW] = row_scores(reference.posterior.predict(split.x_test, num_draws=1), split)
    growth = {}
    for name in (AVERAGE, ENSEMBLE):
        most = found[name].family.num_draws or 1
        counts = [count for count in chosen["averaged"] if count <= most]
        means = [
            float(-found[name].predict(split.x_test, num_draws=count).log_prob(split.y_test).mean()) for count in counts
        ]
        growth[name] = [counts, means]
    return {"scores": scores, "growth": growth, "reference": reference.facts}


def conclude(figures: dict[str, Any]) -> list[Row]:
    judges = list(figures["references"].values())
    error = "wrong classes" if figures["is_classes"] else "squared error"
    names = {"nll": "log likelihood", "error": "accuracy" if figures["is_classes"] else "squared error"}
    rows = []
    for quantity, unit in (("nll", "nats a row"), ("error", error)):
        for other in (POINT, ENSEMBLE):
            told = Wording(
                f"the average over the posterior beats {_called(other)} in {names[quantity]}, by {{}} {unit}.",
                f"the average over the posterior loses to {_called(other)} in {names[quantity]}, by {{}} {unit}.",
                f"in {names[quantity]} the average over the posterior and {_called(other)} cannot be told apart, "
                f"{{}} {unit}.",
            )
            found = paired(figures["scores"][other][quantity], figures["scores"][AVERAGE][quantity])
            published = PUBLISHED[other, quantity] if figures["is_classes"] else None
            rows.append(claim(f"against {_called(other)}: {names[quantity]}", found, told, judges, published=published))
    for other in (POINT, ENSEMBLE):
        told = Wording(
            f"the average over the posterior is better calibrated than {_called(other)}, by {{}}.",
            f"the average over the posterior is worse calibrated than {_called(other)}, by {{}}.",
            f"the average over the posterior is calibrated about as well as {_called(other)}, {{}}.",
        )
        found = _difference(figures["scores"][other]["calibration"], figures["scores"][AVERAGE]["calibration"])
        published = PUBLISHED[other, "calibration"] if figures["is_classes"] else None
        rows.append(claim(f"against {_called(other)}: calibration", found, told, judges, published=published))
    return rows


def _called(name: str) -> str:
    return "an ensemble" if name == ENSEMBLE else name


def _difference(first: list[list[float]], second: list[list[float]]) -> Estimate:
    """Of two calibration errors, whose bootstrap errors are taken as independent, which is cautious."""
    values = [one[0] - other[0] for one, other in zip(first, second, strict=True)]
    within = [np.hypot(one[1], other[1]) for one, other in zip(first, second, strict=True)]
    between = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return Estimate(float(np.mean(values)), float(max(np.sqrt(np.sum(np.square(within))) / len(values), between)))


def estimates(figures: dict[str, Any], quantity: str) -> dict[str, Estimate]:
    """A quantity of every method over all splits."""
    found = {name: scores[quantity] for name, scores in figures["scores"].items()}
    if quantity == "calibration":
        return {name: _difference(values, [[0.0, 0.0]] * len(values)) for name, values in found.items()}
    return {name: averaged(values) for name, values in found.items()}


def write(report: Report, figures: dict[str, Any]) -> None:
    report.section(
        "The scores",
        "Test rows are scored one by one, and claims compare rows in pairs, so differences are known better than the "
        "scores themselves.",
    )
    found = {quantity: estimates(figures, quantity) for quantity in QUANTITIES}
    rows = [(name, *(found[quantity][name] for quantity in QUANTITIES)) for name in figures["scores"]]
    report.table(("", *QUANTITIES.values()), rows, "Means over test rows and splits, ± one standard error.")
    styles = {name: {"color": method_style(STYLES[name])["color"]} for name in STYLES}
    drawn = {}
    for quantity, label in QUANTITIES.items():
        averages = {name: score for name, score in found[quantity].items() if name != DRAW}
        axes = score_dots(averages, styles=styles)
        axes.set_title(label)
        drawn[quantity] = axes
    report.pictures(drawn, "Scores with two standard errors; lower is better.", "whether HMC lies left of the others.")
    report.section(
        "How many to average", "One draw of HMC is worse than one trained network; it is the average that counts."
    )
    axes = new_axes()
    for name, splits in figures["growth"].items():
        curves = np.array([means for _, means in splits])
        spread = curves.std(0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else np.zeros(curves.shape[1])
        points = [Estimate(float(mean), float(error)) for mean, error in zip(curves.mean(0), spread, strict=True)]
        dots_with_errors(axes, splits[0][0], points, label=name, **method_style(STYLES[name]))
    log_axes(axes)
    name_axes(axes, "networks averaged", "negative log likelihood")
    report.pictures({"growth": axes}, "The score over the number of networks averaged.", "where each curve is flat.")
