"""MLE, MAP and Bayes as data grow: what a prior and an average are worth with few points, and that all agree with many.

A line has its posterior in closed form, which HMC is held against. A curve and two classes have HMC alone. Sizes share
one program: rows that do not count yet weigh nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpyro.distributions import Normal

from posterity.inference import HMC, MAP, MLE, Exact, fit
from posterity.metrics import Estimate, mean_over_rows
from posterity.models.likelihoods import Categorical, Gaussian
from posterity.models.model import Model
from posterity.networks import linear, mlp
from posterity.plots import method_style
from posterity.plots.palette import CYCLE, INK, log_axes, name_axes, new_axes
from posterity.studies.questions.claims import Wording, claim, paired
from posterity.studies.questions.question import Report, Study, dots_with_errors
from posterity.studies.questions.subject import rounded
from posterity.studies.rows import Row
from posterity.studies.study import Size

TITLE = "What are a prior and an average worth as data grow?"
REFERENCE = "Bernstein-von Mises: the posterior contracts as 1 / sqrt(N). MacKay 1992 on errors of point estimates."
DATA: str | None = None
STEPS: dict[str, Any] = {"num_steps": 2000, "learning_rate": 1e-2, "batch_size": "full"}
METHODS = {"mle": "MLE", "map": "MAP", "hmc": "Bayes (HMC)"}
NOISE = {"line": 0.5, "curve": 0.2}
FAR = np.array([[-8.0, 8.0], [8.0, -8.0], [0.0, 9.0], [0.0, -9.0]])  # far from both classes


def settings(size: Size) -> dict[str, Any]:
    return {
        "full": {"sizes": [3, 10, 30, 100, 300, 1000, 3000], "budget": 120.0, "seeds": 1, "tested": 500},
        "quick": {"sizes": [3, 30, 300], "budget": 25.0, "seeds": 1, "tested": 300},
        "tiny": {"sizes": [3, 30], "budget": 2.0, "seeds": 1, "tested": 50},
    }[size]


def problem(name: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a line, a curve or two classes."""
    rng = np.random.default_rng([seed, len(name)])
    if name == "classes":
        label = rng.integers(0, 2, count)
        x = np.where(label[:, None] == 0, -1.0, 1.0) * np.array([1.0, 0.3]) + 0.9 * rng.normal(size=(count, 2))
        return x, label
    x = rng.uniform(-2, 2, (count, 1))
    mean = 0.8 * x[:, 0] - 0.3 if name == "line" else np.sin(2 * x[:, 0])
    return x, mean + NOISE[name] * rng.normal(size=count)


def model_of(name: str) -> Model:
    if name == "line":
        return Model(linear(), Gaussian(NOISE[name]), Normal(0.0, 1.0))
    network = mlp((20,), activation="tanh")
    likelihood = Categorical(2) if name == "classes" else Gaussian(NOISE[name])
    return Model(network, likelihood, Normal(0.0, 1.0))


def measure(study: Study) -> dict[str, Any]:
    found: dict[str, Any] = {}
    references = {}
    for name in ("line", "curve", "classes"):
        for size in study.settings["sizes"]:
            for seed in range(study.settings["seeds"]):
                part = study.log.once(f"{name}/{size}/{seed}", partial(_measure, study, name, size, seed))
                for key in (*METHODS, "spread", "exact_spread", "far"):
                    found.setdefault(name, {}).setdefault(str(size), {}).setdefault(key, []).append(part[key])
                references[f"{name}, {size} rows, seed {seed}"] = part["reference"]
    return {"problems": found, "references": references}


def _measure(study: Study, name: str, size: int, seed: int) -> dict[str, Any]:
    x, y = problem(name, max(study.settings["sizes"]), seed)
    data = (x, y, (np.arange(len(y)) < size).astype(float))
    x_test, y_test = problem(name, study.settings["tested"], 100 + seed)
    model = model_of(name)
    head = "sampled" if name == "line" else "integrated"  # a line is nothing but its head
    method = HMC(100, num_burn_in=100, head=head)
    reference = study.references.get(model, data, x_test[:50], study.settings["budget"], method, seed)
    fits = {
        "mle": fit(model, MLE(**STEPS), data, seed=seed, progress=False),
        "map": fit(model, MAP(**STEPS), data, seed=seed, progress=False),
        "hmc": reference.posterior,
    }
    predictions = {key: posterior.predict(x_test) for key, posterior in fits.items()}
    exact = None
    if name == "line":
        truth = fit(model, Exact(), data, progress=False).predict(x_test)
        exact = float(np.sqrt(truth.epistemic).mean())
    far = None
    if name == "classes":
        far = {key: float(posterior.predict(FAR).probs.max(-1).mean()) for key, posterior in fits.items()}
    spread = predictions["hmc"].epistemic
    return {
        **{key: rounded(-prediction.log_prob(y_test)) for key, prediction in predictions.items()},
        "spread": float((spread if name == "classes" else np.sqrt(spread)).mean()),
        "exact_spread": exact,
        "far": far,
        "reference": reference.facts,
    }


def _gain(found: dict[str, Any]) -> Estimate:
    """Nats a row that Bayes gains on maximum likelihood at one size."""
    return paired(found["mle"], found["hmc"])


def conclude(figures: dict[str, Any]) -> list[Row]:
    rows = []
    for name, sizes in figures["problems"].items():
        least, most = min(sizes, key=int), max(sizes, key=int)
        judges = _judges(figures, name, (least, most))
        few, many = _gain(sizes[least]), _gain(sizes[most])
        told = Wording(
            f"{_called(name)}: with {least} points Bayes predicts better than maximum likelihood, by {{}} nats a row.",
            f"{_called(name)}: with {least} points Bayes predicts worse than maximum likelihood, by {{}} nats a row.",
            f"{_called(name)}: with {least} points Bayes and maximum likelihood cannot be told apart, {{}} nats a row.",
        )
        rows.append(claim(f"{name}, {least} points: gain on maximum likelihood", few, told, judges))
        shrink = Estimate(few.value - many.value, float(np.hypot(few.standard_error, many.standard_error)))
        told = Wording(
            f"{_called(name)}: from {least} to {most} points the gain shrinks, by {{}} nats a row.",
            f"{_called(name)}: from {least} to {most} points the gain grows, by {{}} nats a row.",
            f"{_called(name)}: whether the gain shrinks from {least} to {most} points stays open, {{}} nats a row.",
        )
        rows.append(claim(f"{name}: gain that is lost from {least} to {most} points", shrink, told, judges))
    return [*rows, *_line_rows(figures), *_far_rows(figures)]


def _called(name: str) -> str:
    return {"line": "A line", "curve": "A curve", "classes": "Two classes"}[name]


def _judges(figures: dict[str, Any], name: str, sizes: tuple[str, ...]) -> list[dict[str, Any]]:
    starts = tuple(f"{name}, {size} rows" for size in sizes)
    return [facts for each, facts in figures["references"].items() if each.startswith(starts)]


def slope(sizes: dict[str, Any]) -> Estimate:
    """Of the log of the spread in log N, and its error from the scatter about the line; from the two largest thirds."""
    used = sorted(sizes, key=int)[len(sizes) // 3 :]
    x = np.log([float(size) for size in used for _ in sizes[size]["spread"]])
    y = np.log([value for size in used for value in sizes[size]["spread"]])
    centred = x - x.mean()
    value = float((centred * y).sum() / (centred**2).sum())
    residual = y - y.mean() - value * centred
    error = np.sqrt((residual**2).sum() / max(len(x) - 2, 1) / (centred**2).sum())
    return Estimate(value, float(max(error, 0.01)))


def _line_rows(figures: dict[str, Any]) -> list[Row]:
    sizes = figures["problems"]["line"]
    ratios = [np.log(np.divide(found["spread"], found["exact_spread"])) for found in sizes.values()]
    off = np.abs(np.concatenate(ratios))
    apart = Estimate(float(0.1 - off.mean()), float(max(off.std(ddof=1), 0.01) / np.sqrt(len(off))))
    told = Wording(
        "on the line HMC's ignorance is that of the closed form to within 10 % ({} to spare).",
        "on the line HMC's ignorance is not that of the closed form: {} more than 10 % apart.",
        "on the line HMC's ignorance is about that of the closed form ({} to spare of 10 %).",
    )
    judges = [facts for each, facts in figures["references"].items() if each.startswith("line")]
    rows = [claim("line: agreement with the closed form", apart, told, judges)]
    found = slope(sizes)
    steep = Estimate(0.1 - abs(found.value + 0.5), found.standard_error)
    told = Wording(
        f"the posterior contracts as 1 / sqrt(N): ignorance falls as N to the power {found.value:.2f} "
        "({} to spare of 0.1).",
        f"the posterior does not contract as 1 / sqrt(N): ignorance falls as N to the power {found.value:.2f} ({{}}).",
        f"whether the posterior contracts as 1 / sqrt(N) stays open: N to the power {found.value:.2f} ({{}}).",
    )
    return [*rows, claim("line: contraction, distance of the power from -1/2", steep, told, judges)]


def _far_rows(figures: dict[str, Any]) -> list[Row]:
    """Far from the data of two classes a network should not be sure: the 60/40 that is a confession."""
    sizes = figures["problems"]["classes"]
    middle = sorted(sizes, key=int)[len(sizes) // 2]
    values = np.array([[each["mle"] - each["hmc"]] for each in sizes[middle]["far"]])
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.02
    told = Wording(
        f"far from {middle} points of two classes, maximum likelihood is surer than Bayes, by {{}} of probability.",
        f"far from {middle} points of two classes, Bayes is surer than maximum likelihood, by {{}}.",
        f"far from {middle} points of two classes, Bayes and maximum likelihood are about as sure ({{}}).",
    )
    found = Estimate(float(values.mean()), float(max(error, 1e-3)))
    return [claim("classes, far away: confidence of maximum likelihood above Bayes", found, told)]


def write(report: Report, figures: dict[str, Any]) -> None:
    report.section("The score as data grow", "Negative log likelihood of test rows, for each number of training rows.")
    drawn = {}
    for name, sizes in figures["problems"].items():
        axes = new_axes()
        for key, label in METHODS.items():
            found = [
                mean_over_rows(np.concatenate([np.asarray(rows) for rows in each[key]])) for each in sizes.values()
            ]
            dots_with_errors(axes, [int(size) for size in sizes], found, label=label, **method_style(key))
        log_axes(axes)
        if name != "classes":
            lowest = min(np.mean(sizes[max(sizes, key=int)]["hmc"]), 0.0)
            axes.set_ylim(lowest - 0.3, lowest + 3.5)
        axes.set_title(_called(name))
        name_axes(axes, "training rows", "negative log likelihood")
        drawn[name] = axes
    report.pictures(drawn, "With two standard errors.", "where the three curves meet.")
    report.section("Contraction", "The mean ignorance of HMC; on the line beside that of the closed form.")
    axes = new_axes()
    for (name, sizes), colour in zip(figures["problems"].items(), CYCLE, strict=False):
        counts = [int(size) for size in sizes]
        axes.plot(counts, [np.mean(each["spread"]) for each in sizes.values()], "o-", ms=3.5, color=colour, label=name)
        if name == "line":
            exact = [np.mean(each["exact_spread"]) for each in sizes.values()]
            axes.plot(counts, exact, color=INK, lw=0.8, ls=":", label="closed form")
    log_axes(axes, "xy")
    name_axes(axes, "training rows", "ignorance")
    far = new_axes()
    sizes = figures["problems"]["classes"]
    for key, label in METHODS.items():
        values = [np.mean([each[key] for each in found["far"]]) for found in sizes.values()]
        far.plot([int(size) for size in sizes], values, marker="o", ms=3.5, label=label, **method_style(key))
    log_axes(far)
    name_axes(far, "training rows", "confidence far from the data")
    report.pictures(
        {"contraction": axes, "far": far},
        "Left: ignorance (standard deviation; for classes nats). Right: how sure each is far from both classes.",
        "a slope of one half on the left, and point estimates that are sure where nothing was seen on the right.",
    )
