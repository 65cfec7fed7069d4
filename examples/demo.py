"""Every method on one curve with a gap, and the three kinds of uncertainty on one map of classes.

    python examples/demo.py [folder for the pictures, default: demo]

Prints a table, writes two pictures, and says where they are.
"""

import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from rich.console import Console
from rich.table import Table

from posterity import (
    HMC,
    MAP,
    MLE,
    SWAG,
    BayesByBackprop,
    Categorical,
    DeepEnsemble,
    Gaussian,
    Laplace,
    MCDropout,
    Model,
    Normal,
    evaluate,
    fit,
    mlp,
    plots,
)

STEPS = {"num_steps": 4000, "learning_rate": 5e-3}
NOISE = 0.15


def curve(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A wave observed on two stretches, with nothing in between."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-2.2, -0.7, count // 2), rng.uniform(0.6, 1.8, count - count // 2)])[:, None]
    return x, np.sin(2.5 * x[:, 0]) + 0.3 * x[:, 0] + NOISE * rng.normal(size=count)


def moons(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two interleaved half circles that touch."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, count)
    angle = rng.uniform(0, np.pi, count)
    x = np.stack([np.cos(angle) * (1 - 2 * label) + label, np.sin(angle) * (1 - 2 * label) + 0.5 * label], 1)
    return x + 0.25 * rng.normal(size=(count, 2)), label


def regression(folder: Path, console: Console) -> Path:
    data, test = curve(60, seed=0), curve(400, seed=1)
    grid = np.linspace(-3.5, 3.5, 241)[:, None]
    plain = Model(mlp((32,), activation="tanh"), Gaussian(NOISE), Normal(0.0, 1.0))
    dropping = Model(mlp((64, 64), dropout=0.1), Gaussian(NOISE), Normal(0.0, 1.0))
    methods = {
        "MLE": (plain, MLE(**STEPS)),
        "MAP": (plain, MAP(**STEPS)),
        "MC dropout": (dropping, MCDropout(**STEPS)),
        "Bayes by Backprop": (plain, BayesByBackprop(**STEPS)),
        "Deep ensemble": (plain, DeepEnsemble(num_members=8, anchored=True, **STEPS)),
        "SWAG": (plain, SWAG(start=MAP(**STEPS))),
        "Laplace": (plain, Laplace(start=MAP(**STEPS))),
        "HMC": (plain, HMC(num_draws=200, num_burn_in=100)),
    }
    table = Table("method", "RMSE", "NLL", "CRPS", "90 % coverage", "ignorance in the gap", "seconds")
    figure, axes = plt.subplots(2, 4, figsize=(14, 6), sharex=True, sharey=True, layout="constrained")
    for (name, (model, method)), ax in zip(methods.items(), axes.flat, strict=True):
        began = time.perf_counter()
        posterior = fit(model, method, data)
        prediction = posterior.predict(grid)
        scores = evaluate(posterior.predict(test[0]), test[1])
        gap = np.sqrt(posterior.predict(np.array([[0.0]])).epistemic[0])
        numbers = [str(scores[key]) for key in ("rmse", "nll", "crps", "coverage_90")]
        table.add_row(name, *numbers, f"{gap:.3f}", f"{time.perf_counter() - began:.1f}")
        plots.band(prediction, grid, data, ax).set_title(name)
    axes[0, 0].legend(fontsize=8)
    axes[0, 0].set_ylim(-3, 3)
    console.print(table)
    figure.savefig(folder / "methods.png", dpi=110)
    return folder / "methods.png"


def classification(folder: Path) -> Path:
    data = moons(120, seed=0)
    model = Model(mlp((32,), activation="tanh"), Categorical(2), Normal(0.0, 1.5))
    posterior = fit(model, HMC(num_draws=150, num_burn_in=100), data, holdout=0.2)
    axis = np.linspace(-4, 5, 90)
    rows = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    prediction = posterior.predict(rows)
    pictures = {
        "P(class 1)": prediction.probs[:, 1],
        "noise (aleatoric, nats)": prediction.aleatoric,
        "ignorance (epistemic, nats)": prediction.epistemic,
        "unfamiliar input (p-value)": prediction.ood,
    }
    figure, axes = plt.subplots(1, 4, figsize=(17, 4), sharey=True, layout="constrained")
    for (name, values), ax in zip(pictures.items(), axes, strict=True):
        plots.class_map(values.reshape(90, 90), (axis, axis), data, ax, cmap="viridis").set_title(name)
    figure.savefig(folder / "classes.png", dpi=110)
    return folder / "classes.png"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo")
    folder.mkdir(parents=True, exist_ok=True)
    console = Console()
    console.print("Fitting eight methods to a curve with a gap, then HMC to two classes (about a minute) ...")
    pictures = [regression(folder, console), classification(folder)]
    console.print("Pictures: " + ", ".join(str(picture.resolve()) for picture in pictures), soft_wrap=True)


if __name__ == "__main__":
    main()
