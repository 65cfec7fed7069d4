"""The extrapolation picture of Gal & Ghahramani 2016: MC dropout on CO2 beyond the last year, ReLU against tanh.

The variance of a ReLU network grows with the distance from the data, that of a tanh network, whose units saturate, does
not. 200 weekly values, some eleven weeks apart, centred and scaled; hidden layers of 1024 units, dropout 0.1, 1,000
passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posterity import Gaussian, MCDropout, Model, Normal, fit, mlp
from posterity.datasets import load
from posterity.plots.palette import DATA, IGNORANCE, LINE, MUTED, name_axes, style
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog

ACTIVATIONS = ("relu", "tanh")
CONSTANTS = {"rows": 200, "dropout": 0.1, "noise": 0.1, "prior_scale": 1.0, "learning_rate": 1e-3, "seed": 0}
SIZES: dict[Size, dict[str, Any]] = {
    "full": {"hidden": [1024] * 4, "num_steps": 2_000, "passes": 1000},
    "quick": {"hidden": [256] * 3, "num_steps": 1_000, "passes": 300},
    "tiny": {"hidden": [32], "num_steps": 100, "passes": 20},
}


def settings(size: Size) -> dict[str, Any]:
    return {**SIZES[size], **CONSTANTS}


def rows_of(data: Any, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evenly spaced weeks, years scaled to about [-1.7, 1.7], and a grid that goes on for as long again."""
    keep = np.linspace(0, len(data.y_train) - 1, count).astype(int)
    year, value = np.asarray(data.x_train, float).reshape(-1)[keep], data.y_train[keep]
    x, y = (year - year.mean()) / year.std(), (value - value.mean()) / value.std()
    return x[:, None], y, np.linspace(x.min(), x.max() + (x.max() - x.min()), 241)[:, None]


def curve(activation: str, x: np.ndarray, y: np.ndarray, grid: np.ndarray, chosen: dict[str, Any]) -> dict[str, Any]:
    network = mlp(chosen["hidden"], activation=activation, dropout=chosen["dropout"])
    model = Model(network, Gaussian(chosen["noise"]), Normal(0.0, chosen["prior_scale"]))
    method = MCDropout(num_steps=chosen["num_steps"], learning_rate=chosen["learning_rate"], batch_size="full")
    posterior = fit(model, method, (x, y), seed=chosen["seed"], progress=False)
    prediction = posterior.predict(grid, num_draws=chosen["passes"])
    return {"mean": prediction.mean.tolist(), "epistemic": np.sqrt(prediction.epistemic).tolist()}


def run(log: StudyLog) -> list[Row]:
    chosen = log.settings["co2"]
    x, y, grid = rows_of(load("co2"), chosen["rows"])
    inside = grid[:, 0] <= x.max()
    jobs = {activation: (activation, x, y, grid, chosen) for activation in ACTIVATIONS}
    parts = log.each({f"co2/{activation}": job for activation, job in jobs.items()}, curve)
    found = {activation: parts[f"co2/{activation}"] for activation in ACTIVATIONS}
    log.picture("co2", _picture(x, y, grid, found))
    growth = {}
    for activation, one in found.items():
        spread = np.array(one["epistemic"])
        growth[activation] = float(spread[~inside][-20:].mean() / spread[inside].mean())
    rows = [Row(f"CO2, {name}: epistemic sd at the far end / within the data", growth[name]) for name in ACTIVATIONS]
    larger = growth["relu"] / growth["tanh"]
    return [*rows, Row("CO2: growth of relu / growth of tanh", larger, target="above 1", holds=larger > 1)]


def _picture(x: np.ndarray, y: np.ndarray, grid: np.ndarray, found: dict[str, Any]) -> Figure:
    with style():
        figure = Figure(figsize=(8.5, 3.2), layout="constrained")
        for axes, (activation, one) in zip(figure.subplots(1, 2, sharey=True), found.items(), strict=True):
            mean, spread = np.array(one["mean"]), np.array(one["epistemic"])
            axes.plot(x[:, 0], y, ".", ms=2, color=DATA)
            axes.plot(grid[:, 0], mean, color=LINE)
            axes.fill_between(grid[:, 0], mean - 2 * spread, mean + 2 * spread, color=IGNORANCE, lw=0, alpha=0.6)
            axes.axvline(x.max(), color=MUTED, lw=0.8, ls=":")
            axes.set_title(f"{activation}: mean and two sd of ignorance")
            name_axes(axes, "time, standardised", "CO2, standardised")
    return figure
