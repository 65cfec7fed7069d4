"""Izmailov et al. 2021, the synthetic regression of their code: HMC beside the printed trace of theirs.

    python -m posterity.studies.izmailov2021 [--iterations 100]

A 3x100 ReLU network on (x, x^2), noise 0.02, prior N(0, 0.1^2) on every weight; steps of 1e-5 over a trajectory of
0.15708, which is pi/2 prior standard deviations (15,708 leapfrog steps), no jitter; 100 iterations from an optimised
start. Published, iterations 10-99: log-likelihood 304.59 +- 1.96 (standard deviation), mean acceptance 0.847.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
import optax

from posterity import HMC, MAP, Gaussian, Model, Normal, fit, mlp, plots
from posterity.posterior import Posterior
from posterity.studies.uci import data_root

PUBLISHED = {"log_likelihood": 304.59, "acceptance": 0.847}
TOLERANCE = {"log_likelihood": 0.9, "acceptance": 0.08}
BURN_IN = 10


def read() -> dict[str, np.ndarray]:
    """f = (x, x^2), y: 120 points; f_, y_: the noiseless curve on a grid."""
    with np.load(data_root() / "toy" / "bnn_hmc_synth_reg_data.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def run(iterations: int, step_size: float = 1e-5, seed: int = 0) -> Posterior:
    data = read()
    model = Model(mlp((100, 100, 100)), Gaussian(0.02), Normal(0.0, 0.1))
    # Optimised from a draw of the prior: from the usual initialisation, whose first weights are ten times as wide, the
    # inputs of up to 100 leave an optimum so steep that no trajectory of this step size is accepted.
    key = jax.random.key(seed)
    draw = model.sample_prior(key, model.init(key, data["f"]))["network"]
    optimum = MAP(
        num_steps=20_000,
        learning_rate=optax.cosine_decay_schedule(1e-3, 20_000),
        batch_size="full",
        start=draw,
    )
    method = HMC(
        num_draws=iterations - BURN_IN,
        num_burn_in=BURN_IN,
        step_size=step_size,
        trajectory_length=float(np.pi / 2 * 0.1),
        jitter=0.0,
        start=optimum,
    )
    return fit(model, method, (data["f"], data["y"].ravel()), chains=1, seed=seed)


def summary(posterior: Posterior) -> dict[str, Any]:
    """Means after burn-in, with standard errors, beside the published ones."""
    found: dict[str, Any] = {"seconds": posterior.receipt.seconds, "receipt": str(posterior.receipt)}
    for name, published in PUBLISHED.items():
        values = posterior.trace[name][0, BURN_IN:].astype(float)
        found[name] = {
            "mean": float(values.mean()),
            "sd": float(values.std(ddof=1)),
            "published": published,
            "tolerance": TOLERANCE[name],
            "holds": bool(abs(values.mean() - published) <= TOLERANCE[name]),
        }
    return found


def picture(posterior: Posterior, path: Path) -> None:
    """The predictive band on the grid of the data file."""
    import matplotlib.pyplot as plt

    data = read()
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    plots.band(posterior.predict(data["f_"]), data["f_"][:, 0], (data["f"][:, 0], data["y"].ravel()), axes)
    axes.plot(data["f_"][:, 0], data["y_"].ravel(), color="black", lw=0.8, ls=":", label="truth")
    axes.set_title("HMC on the synthetic regression of Izmailov et al. 2021")
    axes.legend()
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--step-size", type=float, default=1e-5)
    parser.add_argument("--out", type=Path, default=Path("results"))
    chosen = parser.parse_args(arguments)
    mpl.use("Agg")
    began = time.perf_counter()
    posterior = run(chosen.iterations, chosen.step_size)
    found = summary(posterior)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "izmailov2021-toy.json").write_text(json.dumps(found, indent=1) + "\n")
    picture(posterior, chosen.out / "izmailov2021-toy.png")
    for name in PUBLISHED:
        print(name, {key: round(value, 3) for key, value in found[name].items()})
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
