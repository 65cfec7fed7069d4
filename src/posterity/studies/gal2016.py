"""Gal & Ghahramani 2016, Table 1: MC dropout on UCI regression, split by split beside the published results.

    python -m posterity.studies.gal2016 concrete yacht --epochs 10x

Their loss is MSE + lambda ||W||^2 with lambda = l^2 p / (2 N tau) on standardised targets, tau in the units of the
targets. Ours is a negative log joint, so it has the same minimum when the noise is 1 / sqrt(tau) in those units and a
weight's prior precision s_y^2 l^2 / 2 (s_y the targets' scale; the 2 is their missing 1/2); biases are not penalised.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist

from posterity import MCDropout, Model, fit
from posterity.likelihoods import Gaussian
from posterity.networks import mlp
from posterity.priors import Flat
from posterity.studies import uci

NUM_PASSES = 10_000


class Setting(NamedTuple):
    """What Bayesian optimisation chose for a data set in 2016."""

    rate: float
    length_scale: float
    precision: float  # tau, in units of the targets
    hidden: int = 50
    epochs: int = 40


SETTINGS = {
    "boston": Setting(0.05, 1e-2, 0.159708),
    "concrete": Setting(0.01, 1e-2, 0.055732),
    "energy": Setting(0.05, 1e-2, 0.427115),
    "kin8nm": Setting(0.05, 1e-2, 192.482910),
    "naval": Setting(0.05, 1e0, 42173.5152),
    "power": Setting(0.005, 1e-2, 0.087111),
    "protein": Setting(0.005, 1e-2, 0.064442, hidden=100, epochs=20),
    "wine": Setting(0.05, 1e-2, 2.958337),
    "yacht": Setting(0.01, 1e-1, 0.541870),
}
VARIANTS = {"original": (10, "bo_2016_results"), "10x": (100, "bo_2016_results_10x_epochs")}


def run_split(name: str, number: int, variant: str, num_passes: int = NUM_PASSES) -> dict[str, float]:
    """RMSE and log-likelihood of one split, in units of the targets."""
    setting, rows = SETTINGS[name], uci.split(uci.read(name), number)
    network = mlp((setting.hidden,), input_dropout=setting.rate, dropout=setting.rate)
    noise = setting.precision**-0.5 / rows.y_std
    prior = {"*bias": Flat(), "*": dist.Normal(0.0, np.sqrt(2) / (rows.y_std * setting.length_scale))}
    method = MCDropout(num_epochs=setting.epochs * VARIANTS[variant][0], batch_size=128, learning_rate=1e-3)
    began = time.perf_counter()
    posterior = fit(Model(network, Gaussian(noise), prior), method, (rows.x_train, rows.y_train), seed=number)
    prediction = posterior.predict(rows.x_test, num_draws=num_passes)
    error = prediction.mean * rows.y_std + rows.y_mean - rows.y_test
    log_prob = prediction.log_prob((rows.y_test - rows.y_mean) / rows.y_std) - np.log(rows.y_std)
    seconds = time.perf_counter() - began
    return {"rmse": float(np.sqrt(np.mean(error**2))), "ll": float(log_prob.mean()), "seconds": seconds}


def compare(name: str, variant: str, splits: list[dict[str, float]]) -> dict[str, Any]:
    """Ours, theirs, and the paired difference per split (positive: ours is better), each with its standard error."""
    theirs = uci.published()[uci.NAMES[name]][VARIANTS[variant][1]]
    found: dict[str, Any] = {"set": name, "variant": variant, "splits": splits}
    for ours_name, theirs_name, sign in (("rmse", "MC_rmse", -1), ("ll", "ll", 1)):
        ours = np.array([one[ours_name] for one in splits])
        published = np.array(theirs[theirs_name])[: len(ours)]
        better = sign * (ours - published)
        for label, values in (("ours", ours), ("published", published), ("better_by", better)):
            error = values.std(ddof=1) / np.sqrt(len(values))
            found[f"{ours_name}_{label}"] = [float(values.mean()), float(error)]
        mean, error = found[f"{ours_name}_better_by"]
        found[f"{ours_name}_holds"] = bool(mean >= -2 * error)
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Markdown: mean +- standard error over splits."""
    lines = [
        "| set | epochs | RMSE ours | published | better by | LL ours | published | better by | within two s.e. |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:
        cells = [f"{row[key][0]:.4f} ± {row[key][1]:.4f}" for key in _columns()]
        holds = "yes" if row["rmse_holds"] and row["ll_holds"] else "no"
        lines.append(f"| {row['set']} | {row['variant']} | {' | '.join(cells)} | {holds} |")
    return "\n".join(lines) + "\n"


def _columns() -> list[str]:
    return [f"{metric}_{label}" for metric in ("rmse", "ll") for label in ("ours", "published", "better_by")]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=sorted(SETTINGS))
    parser.add_argument("--epochs", choices=sorted(VARIANTS), default="10x")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results"))
    chosen = parser.parse_args(arguments)
    results = []
    with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
        for name in chosen.sets:
            count = min(chosen.splits, len(uci.read(name)["train"]))
            jobs = [pool.submit(run_split, name, number, chosen.epochs) for number in range(count)]
            splits = []
            for number, job in enumerate(jobs):
                splits.append(job.result())
                print(f"{name} split {number}: {splits[-1]}", file=sys.stderr, flush=True)
            results.append(compare(name, chosen.epochs, splits))
    chosen.out.mkdir(parents=True, exist_ok=True)
    stem = chosen.out / f"gal2016-{chosen.epochs}"
    stem.with_suffix(".json").write_text(json.dumps(results, indent=1))
    stem.with_suffix(".md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
