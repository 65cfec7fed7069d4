"""Kendall & Gal 2017: two kinds of uncertainty. Noise is found where it was added, ignorance where data were removed.

Regression on a line and classes in a plane, where the truth is known everywhere, with HMC, MC dropout at a fixed rate
and with a learned one, on few and on many rows: more rows should lower ignorance and leave noise alone. Both have noise
that the network predicts row by row: a standard deviation in regression, and logits that carry noise for classes (their
eq. 12). Then the same per pixel (kendall2017_pixels).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posterity import HMC, MAP, HeteroscedasticGaussian, MCDropout, Model, NoisyCategorical, Normal, fit, mlp, plots
from posterity.studies.published import kendall2017_pixels as pixels
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog

TITLE = "Noise and ignorance, told apart"
LEFT_OUT = "CamVid, NYU and Make3D, for which digits over textures stand in"
REFERENCE = "Kendall & Gal 2017, What uncertainties do we need in Bayesian deep learning for computer vision?"
METHODS = ("hmc", "fixed dropout", "learned dropout")
NAMES = {
    "hmc": HMC.card.label,
    "fixed dropout": "MC dropout, fixed rate",
    "learned dropout": "MC dropout, learned rate",
}
MISPLACED = {
    "fixed dropout": "units are dropped alike everywhere: the spread follows the size of the function, not the data",
    "learned dropout": "the rate that was learned is close to 0, which leaves next to no spread anywhere",
}
ROUNDED = "the rate that was learned is close to 0: there is next to no spread anywhere, and rounding decides the ratio"
VANISHED = "what is left is next to no spread, and rounding decides how little"
LEAST_SHARE = 1e-6  # of the noise variance, or of its nats: a spread below it is as good as none
NOISE = (0.05, 0.4)  # standard deviation left and right
FLIPPED = 0.25  # share of wrong labels above
GRID = np.linspace(-4, 4, 161)


CONSTANTS = {
    "hidden": [50],
    "prior_scale": 1.0,
    "dropout": 0.1,
    "passes": 400,
    "learning_rate": 5e-3,
    "burn_in": 100,
    "seed": 0,
}


def settings(size: Size) -> dict[str, Any]:
    full = {"rows": [100, 1000], "num_steps": 10_000, "draws": 150, "max_leapfrog": 300, "methods": list(METHODS)}
    full |= CONSTANTS
    sizes = {
        "full": full,
        "quick": full | {"rows": [60, 300], "num_steps": 700, "draws": 30, "max_leapfrog": 100},
        "tiny": full | {"rows": [20], "num_steps": 100, "draws": 10, "max_leapfrog": 10, "methods": ["fixed dropout"]},
    }
    tables = {task: sizes[size] | {"likelihood": likelihood.__name__} for task, (_, likelihood) in TASKS.items()}
    if size == "quick":  # compiling takes long, and every pair of task, method and rows is a program of its own
        del tables["classes"]
    return tables | pixels.settings(size)


def run(log: StudyLog) -> Iterator[Row]:
    for task in (task for task in TASKS if task in log.settings):
        chosen, (compute, _) = log.settings[task], TASKS[task]
        both = list(itertools.product(chosen["methods"], chosen["rows"]))
        jobs = {f"{task}/{name}/{count}": (name, count, chosen) for name, count in both}
        parts = log.each(jobs, compute)
        for method in chosen["methods"]:
            found = {count: parts[f"{task}/{method}/{count}"] for count in chosen["rows"]}
            yield from _rows(f"{task}, {NAMES[method]}", method, found)
        log.picture(task, _picture(log, task, chosen))
    yield from pixels.run(log)


def line(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A wave with noise on the right and a stretch without data in the middle."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-3, -0.7, count // 2), rng.uniform(0.7, 3, count - count // 2)])
    return x[:, None], np.sin(2 * x) + np.where(x > 0, NOISE[1], NOISE[0]) * rng.normal(size=count)


def plane(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Left and right of an axis; labels are wrong in the upper half, and nothing is seen in a disc below."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-3, 3, (8 * count, 2))
    x = x[~_removed(x)][:count]
    wrong = (x[:, 1] > 0) & (rng.uniform(size=len(x)) < FLIPPED)
    return x, ((x[:, 0] > np.sin(x[:, 1])) ^ wrong).astype(int)


def _removed(x: np.ndarray) -> np.ndarray:
    return np.hypot(x[:, 0], x[:, 1] + 2) < 1.2


def regression(method: str, count: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """Standard deviations of both kinds, by place."""
    posterior = _fit(method, HeteroscedasticGaussian(), line(count, chosen["seed"]), chosen)
    prediction = posterior.predict(GRID[:, None], num_draws=_draws(method, chosen))
    noise, ignorance = np.sqrt(prediction.aleatoric), np.sqrt(prediction.epistemic)
    seen = (np.abs(GRID) > 0.9) & (np.abs(GRID) < 2.9)
    return _by_place(noise, ignorance, seen & (GRID > 0), seen & (GRID < 0), np.abs(GRID) < 0.4, seen) | {
        "mean": prediction.mean.tolist(),
        "true noise": NOISE[1] / NOISE[0],
    }


def classes(method: str, count: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """Entropies of both kinds, by place: noise where labels are wrong and away from the border."""
    axis = np.linspace(-3, 3, 41)
    x = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    posterior = _fit(method, NoisyCategorical(2), plane(count, chosen["seed"]), chosen)
    prediction = posterior.predict(x, num_draws=_draws(method, chosen))
    away = np.abs(x[:, 0] - np.sin(x[:, 1])) > 1
    seen = ~_removed(x) & (np.abs(x).max(-1) < 2.8)
    places = (seen & away & (x[:, 1] > 0.3), seen & away & (x[:, 1] < -0.3), np.hypot(x[:, 0], x[:, 1] + 2) < 0.6, seen)
    return _by_place(prediction.aleatoric, prediction.epistemic, *places)


def _by_place(noise: np.ndarray, ignorance: np.ndarray, *places: np.ndarray) -> dict[str, Any]:
    noisy, quiet, removed, seen = places
    return {
        "noise where added": float(noise[noisy].mean()),
        "noise elsewhere": float(noise[quiet].mean()),
        "ignorance where removed": float(ignorance[removed].mean()),
        "ignorance where seen": float(ignorance[seen].mean()),
        "noise where seen": float(noise[seen].mean()),
        "noise": noise.tolist(),
        "ignorance": ignorance.tolist(),
    }


def _fit(method: str, likelihood: Any, data: tuple[np.ndarray, np.ndarray], chosen: dict[str, Any]) -> Any:
    rate = {} if method == "hmc" else {"dropout": chosen["dropout"], "learn_dropout": method == "learned dropout"}
    network = mlp(chosen["hidden"], activation="tanh", **rate)
    descent: dict[str, Any] = {"num_steps": chosen["num_steps"], "learning_rate": chosen["learning_rate"]}
    descent["batch_size"] = "full"
    sampler: Callable[[], Any] = lambda: HMC(  # noqa: E731
        num_draws=chosen["draws"],
        num_burn_in=chosen["burn_in"],
        max_leapfrog=chosen["max_leapfrog"],
        start=MAP(**descent),
    )
    chosen_method = sampler() if method == "hmc" else MCDropout(**descent)
    model = Model(network, likelihood, Normal(0.0, chosen["prior_scale"]))
    return fit(model, chosen_method, data, seed=chosen["seed"], progress=False)


def _draws(method: str, chosen: dict[str, Any]) -> int | None:
    return None if method == "hmc" else chosen["passes"]


def _rows(name: str, method: str, found: dict[int, dict[str, Any]]) -> list[Row]:
    most = found[max(found)]
    noise = most["noise where added"] / most["noise elsewhere"]
    ignorance = most["ignorance where removed"] / most["ignorance where seen"]
    truth = f"the truth is {most['true noise']:.1f}" if "true noise" in most else ""
    vanished = _is_next_to_none(most, "removed") and _is_next_to_none(most, "seen")
    misplaced = ROUNDED if vanished else MISPLACED.get(method, "") if ignorance <= 1 else ""
    rows = [
        Row(f"{name}: noise where it was added / elsewhere", noise, target="above 1", holds=noise > 1, remark=truth),
        Row(
            f"{name}: ignorance where data were removed / where seen",
            ignorance,
            target="above 1",
            holds=ignorance > 1,
            remark=misplaced,
        ),
    ]
    if len(found) < 2:
        return rows
    few = found[min(found)]
    less = {kind: most[f"{kind} where seen"] / few[f"{kind} where seen"] for kind in ("noise", "ignorance")}
    how = f"{min(found)} to {max(found)} rows"
    # A fixed rate fixes the spread of the weights: whatever the data, its ignorance is not asked to shrink.
    asked = method != "fixed dropout"
    return [
        *rows,
        Row(
            f"{name}: ignorance, {how}",
            less["ignorance"],
            target=pixels.FALLS if asked else "",
            holds=pixels.falls_alone(less["ignorance"], less["noise"]) if asked else None,
            remark=VANISHED if vanished else _on_falling(asked, less),
        ),
        Row(f"{name}: noise, {how}", less["noise"], remark="1 would be: no change"),
    ]


def _on_falling(asked: bool, less: dict[str, float]) -> str:
    if not asked:
        return "a fixed rate need not concentrate"
    return "too sure with few rows, so that more of them raise it" if less["ignorance"] > 1 else ""


TASKS: dict[str, tuple[Callable[..., dict[str, Any]], type]] = {
    "regression": (regression, HeteroscedasticGaussian),
    "classes": (classes, NoisyCategorical),
}


def _is_next_to_none(found: dict[str, Any], where: str) -> bool:
    """Ignorance so much smaller than noise that its size is that of rounding."""
    share = found[f"ignorance where {where}"] / found["noise where seen"]
    is_deviation = "true noise" in found  # standard deviations in regression, nats for classes
    return (share**2 if is_deviation else share) < LEAST_SHARE


def _picture(log: StudyLog, task: str, chosen: dict[str, Any]) -> Figure:
    """Each method, few rows above many."""
    counts, methods = chosen["rows"], chosen["methods"]
    figure = Figure(figsize=(3.4 * len(methods), 2.7 * len(counts)), layout="constrained")
    for axes_row, count in zip(figure.subplots(len(counts), len(methods), squeeze=False), counts, strict=True):
        for axes, method in zip(axes_row, methods, strict=True):
            found = log.parts[f"{task}/{method}/{count}"]
            if task == "regression":
                _bands(axes, found, line(count))
            else:
                side = int(np.sqrt(len(found["noise"])))
                axis = np.linspace(-3, 3, side)
                ignorance = np.reshape(found["ignorance"], (side, side))
                plots.class_map(ignorance, (axis, axis), plane(count), axes=axes, cmap="viridis")
            axes.set_title(f"{NAMES[method]}, {count} rows", fontsize=10)
    figure.suptitle("two sd of ignorance, and with noise" if task == "regression" else "ignorance in nats", fontsize=10)
    return figure


def _bands(axes: Any, found: dict[str, Any], data: tuple[np.ndarray, np.ndarray]) -> None:
    mean, noise, ignorance = (np.array(found[key]) for key in ("mean", "noise", "ignorance"))
    total = np.hypot(noise, ignorance)
    axes.fill_between(GRID, mean - 2 * total, mean + 2 * total, color=plots.PALETTE["noise"].light)
    axes.fill_between(GRID, mean - 2 * ignorance, mean + 2 * ignorance, color=plots.PALETTE["ignorance"].light)
    axes.plot(GRID, mean, color=plots.PALETTE["line"].light)
    axes.plot(data[0][:, 0], data[1], ".", ms=2, color=plots.PALETTE["data"].light)
    axes.set_ylim(-3, 3)
