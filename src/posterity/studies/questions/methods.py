"""How near does every approximation come to the posterior, and at what cost?

The distance of a method is that of its predictions from HMC's at the test rows: total variation for classes (with
agreement, the share of rows with the same most probable class), Wasserstein for numbers. The distance of HMC's own
halves from each other is the floor.

Beside it a posterior of two weights with two modes, f(x) = a tanh(b x), which is the same for (a, b) and (-a, -b): each
method's draws are drawn over it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.types import Batch
from posterity.inference import METHODS, Laplace, fit
from posterity.metrics import Estimate, mean_over_rows
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.networks.perceptron import MLP
from posterity.plots import method_marker, method_style
from posterity.plots.palette import CYCLE, FAINT, INK, MUTED, log_axes, name_axes, new_axes
from posterity.posterior.audit import Referee, own_distance
from posterity.studies.questions.claims import Published, Wording, claim, paired
from posterity.studies.questions.question import Report, Study
from posterity.studies.questions.subject import Split, rounded
from posterity.studies.rows import Row
from posterity.studies.study import Size
from posterity.tables.defaults import table_method

TITLE = "How near do approximations come to the posterior, and at what cost?"
REFERENCE = "Izmailov et al. 2021, section 9."
DATA: str | None = "digits"
REFEREE = "hmc"
NOISE = 0.3
AXIS = np.linspace(-3.5, 3.5, 121)
DRAWS = 200
PUBLISHED = {  # CIFAR-10, ResNet-20-FRN: differences of total variation from HMC
    "deep_ensemble": Published(0.136 - 0.115, 0.0005),
    "sghmc": Published(0.136 - 0.109, 0.001),
    "nearest": Published(0.099 - 0.074, 0.007),
}


def settings(size: Size) -> dict[str, Any]:
    judged = [name for name, method in METHODS.items() if method.card.for_tables and name not in (REFEREE, "exact")]
    two = ["hmc", "bayes_by_backprop", "laplace", "deep_ensemble", "swag", "sghmc", "mile"]
    few = ["map", "bayes_by_backprop", "deep_ensemble", "laplace", "sghmc"]
    common = {"hidden": [20], "rows": 300}
    return {
        "full": {**common, "splits": 1, "budget": 300.0, "effort": 1.0, "methods": judged, "two_modes": two},
        "quick": {**common, "splits": 1, "budget": 60.0, "effort": 0.5, "methods": few, "two_modes": two[:4]},
        "tiny": {
            **common,
            "hidden": [3],
            "rows": 60,
            "splits": 1,
            "budget": 3.0,
            "effort": 0.02,
            "methods": ["map", "bayes_by_backprop", "deep_ensemble", "sghmc"],
            "two_modes": ["bayes_by_backprop", "deep_ensemble"],
        },
    }[size]


def measure(study: Study) -> dict[str, Any]:
    chosen, references, floor = study.settings, {}, []
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in chosen["methods"]}
    for number, split in enumerate(study.splits):
        part = study.log.once(f"reference/{number}", partial(_reference, study, split))
        references[f"split {number}"] = part["reference"]
        floor.append(part["floor"])
        for name in chosen["methods"]:
            part = study.log.once(f"{name}/{number}", partial(_measure, study, split, name))
            for key in ("distance", "agreement", "nll", "time"):
                found[name].setdefault(key, []).append(part[key])
    two = {name: study.log.once(f"two-modes/{name}", partial(_two_modes, name, chosen)) for name in chosen["two_modes"]}
    return {
        "is_classes": study.splits[0].is_classes,
        "methods": found,
        "floor": floor,
        "two_modes": two,
        "references": references,
    }


def _reference(study: Study, split: Split) -> dict[str, Any]:
    reference = study.reference(split)
    floor = next(iter(own_distance(reference.posterior, split.x_test).values()))
    return {"reference": reference.facts, "floor": list(floor)}


def _measure(study: Study, split: Split, name: str) -> dict[str, Any]:
    referee = Referee(study.reference(split).posterior.predict(split.x_test))
    method = table_method(name, len(split.y), effort=study.settings["effort"])
    if isinstance(method, Laplace):
        method = Laplace(start=method.start)  # its settings for tables tune the prior: that is another posterior
    posterior = fit(split.model(method), method, split.data, seed=1, progress=False)
    prediction = posterior.predict(split.x_test)
    rows = referee.at_rows(prediction)
    return {
        "distance": rounded(next(iter(rows.values()))),
        "agreement": float(rows["agreement"].mean()) if split.is_classes else None,
        "nll": float(-prediction.log_prob(split.y_test).mean()),
        "time": posterior.receipt.seconds,
    }


def two_mode_problem() -> tuple[Model, tuple[np.ndarray, np.ndarray]]:
    """f(x) = a tanh(b x) with standard normal priors, and twelve points of it."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (12, 1))
    y = 1.2 * np.tanh(1.2 * x[:, 0]) + NOISE * rng.normal(size=len(x))
    return Model(MLP((1,), None, "tanh", bias=False), Gaussian(NOISE)), (x, y)


def _two_modes(name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    model, data = two_mode_problem()
    method = table_method(name, len(data[1]), effort=chosen["effort"])
    posterior = fit(model, method, data, seed=1, progress=False)
    count = min(DRAWS, posterior.family.num_draws or DRAWS)
    weights = posterior.weights(count)["network"]
    return {
        "a": rounded(np.ravel(weights["layer_1"]["weight"])),
        "b": rounded(np.ravel(weights["layer_0"]["weight"])),
    }


def density() -> np.ndarray:
    """The log joint of the two-mode problem on a grid of (b, a), [A, B]."""
    model, (x, y) = two_mode_problem()
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y)))

    def log_joint(a: jax.Array, b: jax.Array) -> jax.Array:
        weights = {"network": {"layer_0": {"weight": b[None, None]}, "layer_1": {"weight": a[None, None]}}}
        return model.log_joint(weights, batch)

    grid = jnp.asarray(AXIS)
    return np.asarray(jax.vmap(lambda a: jax.vmap(lambda b: log_joint(a, b))(grid))(grid), float)


def true_spread() -> float:
    """The standard deviation of b within one mode."""
    weights = np.exp(density() - density().max())[:, AXIS > 0].sum(0)
    places = AXIS[AXIS > 0]
    mean = (weights * places).sum() / weights.sum()
    return float(np.sqrt((weights * (places - mean) ** 2).sum() / weights.sum()))


def conclude(figures: dict[str, Any]) -> list[Row]:
    judges, methods = list(figures["references"].values()), figures["methods"]
    rows, variational = [], "bayes_by_backprop"
    word = "total variation" if figures["is_classes"] else "Wasserstein distance"
    for name in ("deep_ensemble", "sghmc"):
        if name not in methods or variational not in methods:
            continue
        label = METHODS[name].card.label
        told = Wording(
            f"{label} is nearer to the posterior than mean-field variational inference, by {{}} of {word}.",
            f"{label} is farther from the posterior than mean-field variational inference, by {{}} of {word}.",
            f"{label} and mean-field variational inference are about as far from the posterior, {{}} of {word} apart.",
        )
        found = paired(methods[variational]["distance"], methods[name]["distance"])
        published = PUBLISHED[name] if figures["is_classes"] else None
        rows.append(claim(f"{label}: nearer than variational inference", found, told, judges, published=published))
    nearest, found = nearest_method(figures)
    label = METHODS[nearest].card.label
    told = Wording(
        f"no approximation is the posterior: the nearest, {label}, is {{}} of {word} farther away than HMC's own "
        "halves are from each other.",
        f"the nearest approximation, {label}, is closer to HMC than HMC's own halves are to each other, by "
        f"{{}} of {word}.",
        f"the nearest approximation, {label}, cannot be told from the posterior: it lies {{}} of {word} beyond HMC's "
        "own halves.",
    )
    published = PUBLISHED["nearest"] if figures["is_classes"] else None
    rows.append(claim("nearest method: beyond HMC's own halves", found, told, judges, published=published))
    return rows + _two_mode_rows(figures["two_modes"])


def nearest_method(figures: dict[str, Any]) -> tuple[str, Estimate]:
    """The method with the least mean distance, and how far it lies beyond the floor."""
    floors = np.array(figures["floor"], float)
    means = {name: np.mean([np.mean(rows) for rows in found["distance"]]) for name, found in figures["methods"].items()}
    nearest = min(means, key=lambda name: means[name])
    distance = mean_over_rows(np.concatenate([np.asarray(rows) for rows in figures["methods"][nearest]["distance"]]))
    error = np.hypot(distance.standard_error, np.sqrt(np.sum(floors[:, 1] ** 2)) / len(floors))
    return nearest, Estimate(distance.value - float(floors[:, 0].mean()), float(error))


def _two_mode_rows(two: dict[str, Any]) -> list[Row]:
    rows = []
    if "bayes_by_backprop" in two:
        share = larger_share(two["bayes_by_backprop"]["b"])
        told = Wording(
            "of two equal modes, mean-field variational inference takes one: {} of its draws are in it.",
            "mean-field variational inference covers both of two equal modes: the larger share of its draws in one is "
            "{}.",
            "whether mean-field variational inference takes one of two equal modes stays open: {} of its draws are in "
            "one.",
        )
        rows.append(claim("two modes: share of variational draws in one", share, told, least=0.95))
    if "deep_ensemble" in two:
        members = np.abs(two["deep_ensemble"]["b"])
        ratio = members.std(ddof=1) / true_spread()
        missing = Estimate(float(1 - ratio), float(ratio / np.sqrt(2 * (len(members) - 1))))
        told = Wording(
            "an ensemble holds modes and nothing between: within one it lacks {} of the posterior's spread.",
            "an ensemble spreads within a mode as the posterior does: it lacks {} of its spread.",
            "whether an ensemble spreads within a mode stays open: it lacks {} of the posterior's spread.",
        )
        rows.append(claim("two modes: spread that an ensemble lacks", missing, told, least=0.5))
    return rows


def larger_share(b: list[float]) -> Estimate:
    """The share of draws on the fuller side of zero, with an error that does not vanish where all are there."""
    share = max(np.mean(np.array(b) > 0), np.mean(np.array(b) < 0))
    smoothed = (share * len(b) + 1) / (len(b) + 2)
    return Estimate(float(share), float(np.sqrt(smoothed * (1 - smoothed) / len(b))))


def write(report: Report, figures: dict[str, Any]) -> None:
    word = "total variation" if figures["is_classes"] else "Wasserstein distance"
    report.section("Distance and cost", f"Each method's {word} from HMC at the test rows against the time it took.")
    axes, rows = new_axes(size=(4.6, 3.4)), []
    for name, found in figures["methods"].items():
        distance = mean_over_rows(np.concatenate([np.asarray(each) for each in found["distance"]]))
        seconds, label = float(np.mean(found["time"])), METHODS[name].card.label
        agreement = f"{np.mean(found['agreement']):.3f}" if figures["is_classes"] else ""
        rows.append((label, distance, agreement, f"{np.mean(found['nll']):.3f}", f"{seconds:.1f}"))
        colour = method_style(name)["color"]
        axes.plot(seconds, distance.value, method_marker(name), color=colour, ms=5, label=label)
    floor = float(np.mean([each[0] for each in figures["floor"]]))
    axes.axhline(floor, color=INK, lw=0.8, ls=":", label="HMC's own halves")
    axes.plot(*_frontier(figures), color=MUTED, lw=0.8, zorder=0)
    log_axes(axes)
    axes.set_ylim(bottom=0)
    name_axes(axes, "seconds", f"{word} from HMC")
    report.table(
        ("method", f"{word} from HMC", "agreement", "negative log likelihood", "seconds"),
        sorted(rows, key=lambda row: row[1].value),
        f"Nearest first, ± one standard error over rows. HMC's own halves are {floor:.3f} apart.",
    )
    report.pictures({"frontier": axes}, "The grey line joins the methods that no other beats in both.")
    if figures["two_modes"]:
        report.section("Two modes", "Twelve points, two weights, and a posterior whose two modes are mirror images.")
        drawn = {f"two-modes-{name}": _two_mode_axes(name, found) for name, found in figures["two_modes"].items()}
        report.pictures(drawn, "Draws over the posterior of two weights.", "which modes are visited, and how widely.")


def _frontier(figures: dict[str, Any]) -> tuple[list[float], list[float]]:
    """(seconds, distance) of the methods that no other beats in both."""
    points = sorted(
        (float(np.mean(found["time"])), float(np.mean([np.mean(rows) for rows in found["distance"]])))
        for found in figures["methods"].values()
    )
    kept: list[tuple[float, float]] = []
    for seconds, distance in points:
        if not kept or distance < kept[-1][1]:
            kept.append((seconds, distance))
    return [each[0] for each in kept], [each[1] for each in kept]


def _two_mode_axes(name: str, found: dict[str, Any]) -> Any:
    axes = new_axes()
    values = density()
    levels = values.max() - np.array([6.0, 3.0, 1.5, 0.5])
    axes.contourf(AXIS, AXIS, values, [*levels, values.max() + 1e-6], colors=[FAINT, FAINT, FAINT, FAINT], alpha=0.6)
    axes.contour(AXIS, AXIS, values, levels, colors=MUTED, linewidths=0.6)
    axes.plot(found["b"], found["a"], ".", color=CYCLE[1], ms=3.5)
    axes.set_title(METHODS[name].card.label)
    name_axes(axes, "b", "a")
    return axes
