"""Izmailov et al. 2021, the synthetic regression of their code: HMC beside the printed trace of theirs.

A 3x100 ReLU network on (x, x^2), noise 0.02, prior N(0, 0.1^2) on every weight; steps of 1e-5 over a trajectory of
0.15708, which is pi/2 prior standard deviations (15,708 leapfrog steps), no jitter; 100 iterations from an optimised
start. Published, iterations 10-99: log-likelihood 304.59 +- 1.96 (standard deviation), mean acceptance 0.847. Standard
errors, of both traces, know that iterations are correlated.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pandas as pd
from matplotlib.figure import Figure

from posterity import HMC, MAP, Gaussian, Model, Normal, fit, mlp, plots
from posterity.metrics import convergence
from posterity.plots.palette import INK, LINE, MUTED, name_axes, style
from posterity.posterior.posterior import Posterior
from posterity.studies.needs import TOY_DATA, TOY_TRACE, published_file
from posterity.studies.rows import Row
from posterity.studies.study import StudyLog

THEIRS = {"log_likelihood": "log_likelihood", "acceptance": "accept_prob"}  # columns of their trace
TOLERANCE = {"log_likelihood": 0.9, "acceptance": 0.08}
BURN_IN = 10
CONSTANTS = {
    "burn_in": BURN_IN,
    "hidden": [100, 100, 100],
    "noise": 0.02,
    "prior_scale": 0.1,
    "map_steps": 20_000,
    "map_learning_rate": 1e-3,
    "seed": 0,
}


def read() -> dict[str, np.ndarray]:
    """f = (x, x^2), y: 120 points; f_, y_: the noiseless curve on a grid."""
    with np.load(published_file(TOY_DATA), allow_pickle=False) as arrays:
        return dict(arrays)


def run(log: StudyLog) -> list[Row]:
    chosen = log.settings["toy"]

    def sampled() -> dict[str, Any]:
        posterior = sample(chosen)
        log.picture("toy", picture(posterior))
        kept = {name: posterior.trace[name][0].astype(float).tolist() for name in THEIRS}
        return {**kept, "picture": f"{log.stem}-toy.png", "receipt": str(posterior.receipt)}

    found = log.once("toy", sampled)
    log.keep_picture(found["picture"])
    trace, rows = pd.read_csv(published_file(TOY_TRACE)), []
    log.picture("toy-trace", traces(found, trace))
    for name, column in THEIRS.items():
        ours, published = (_mean_of_trace(values) for values in (found[name], trace[column]))
        near = abs(ours[0] - published[0]) <= TOLERANCE[name]
        row = Row(f"toy regression, HMC: mean {name.replace('_', ' ')} after {BURN_IN} iterations", *ours, *published)
        if log.size == "full":
            row = row._replace(target=f"within {TOLERANCE[name]} of the published", holds=near)
        rows.append(row)
    return rows


def _mean_of_trace(values: Any) -> tuple[float, float]:
    kept = np.asarray(values, float)[BURN_IN:]
    return float(kept.mean()), float(convergence.standard_error(kept[None]))


def sample(chosen: dict[str, Any]) -> Posterior:
    data, scale, steps = read(), chosen["prior_scale"], chosen["map_steps"]
    model = Model(mlp(chosen["hidden"]), Gaussian(chosen["noise"]), Normal(0.0, scale))
    # Optimised from a draw of the prior: from the usual initialisation, whose first weights are ten times as wide, the
    # inputs of up to 100 leave an optimum so steep that no trajectory of this step size is accepted.
    key = jax.random.key(chosen["seed"])
    draw = model.sample_prior(key, model.init(key, data["f"]))["network"]
    optimum = MAP(
        num_steps=steps,
        learning_rate=optax.cosine_decay_schedule(chosen["map_learning_rate"], steps),
        batch_size="full",
        start=draw,
    )
    method = HMC(
        num_draws=chosen["iterations"] - BURN_IN,
        num_burn_in=BURN_IN,
        step_size=chosen["step_size"],
        trajectory_length=float(np.pi / 2 * scale),
        jitter=0.0,
        start=optimum,
    )
    return fit(model, method, (data["f"], data["y"].ravel()), chains=1, seed=chosen["seed"], progress=False)


def picture(posterior: Posterior) -> Figure:
    """The predictive band on the grid of the data file."""
    data = read()
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    plots.band(posterior.predict(data["f_"]), data["f_"][:, 0], (data["f"][:, 0], data["y"].ravel()), axes)
    axes.plot(data["f_"][:, 0], data["y_"].ravel(), color=INK, lw=0.8, ls=":", label="truth")
    axes.set_title("HMC on the synthetic regression of Izmailov et al. 2021")
    axes.legend()
    return figure


def traces(ours: dict[str, Any], theirs: pd.DataFrame) -> Figure:
    """Log-likelihood and acceptance of every iteration, beside what theirs printed."""
    with style():
        figure = Figure(figsize=(8.5, 3.2), layout="constrained")
        for axes, (name, column) in zip(figure.subplots(1, 2), THEIRS.items(), strict=True):
            published = theirs[column].to_numpy(float)
            axes.plot(np.arange(len(published)), published, color=MUTED, lw=1.2, label="published")
            axes.plot(np.arange(len(ours[name])), ours[name], color=LINE, lw=1.2, label="ours")
            axes.axvline(BURN_IN, color=MUTED, lw=0.8, ls=":")
            kept = np.concatenate([published[BURN_IN:], np.asarray(ours[name], float)[BURN_IN:]])
            margin = 0.15 * (kept.max() - kept.min())
            axes.set_ylim(kept.min() - margin, kept.max() + margin)  # the way there would hide where it arrives
            name_axes(axes, "iteration", name.replace("_", " "))
            axes.legend()
    return figure
