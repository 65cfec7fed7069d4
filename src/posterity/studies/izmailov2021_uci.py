"""Izmailov et al. 2021, UCI regression: full-batch HMC on a 1x50 ReLU network with mean and log variance as outputs.

    python -m posterity.studies.izmailov2021_uci concrete yacht boston energy [--splits 5]

The prior's standard deviation is chosen on training rows alone: HMC on four fifths of split 0's training rows, scored
on the last fifth. The log-likelihood is, as theirs, that of the moment-matched Gaussian; log-mean-exp stands beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from posterity import HMC, MAP, HeteroscedasticGaussian, Model, Normal, fit, mlp
from posterity.posterior import Posterior
from posterity.studies import uci

PUBLISHED = {"concrete": -2.67, "yacht": 0.54, "boston": -2.39, "energy": -1.08}
AT_LEAST = {"concrete": -2.78, "yacht": 0.30, "boston": -2.56, "energy": -1.2}
CANDIDATES = (0.3, 0.5, 1.0)  # standard deviations of the prior


def sample(x: np.ndarray, y: np.ndarray, scale: float, num_draws: int, seed: int) -> Posterior:
    model = Model(mlp((50,)), HeteroscedasticGaussian(), Normal(0.0, scale))
    start = MAP(num_steps=3000, learning_rate=1e-2, batch_size="full")
    method = HMC(num_draws=num_draws, num_burn_in=num_draws // 2, max_leapfrog=1500, start=start)
    return fit(model, method, (x, y), seed=seed, chains=4)


def choose_prior(rows: uci.Split, num_draws: int) -> tuple[float, dict[str, float]]:
    """The candidate with the best log-likelihood on a fifth of the training rows."""
    order = np.random.default_rng(0).permutation(len(rows.y_train))
    inner, held_out = order[len(order) // 5 :], order[: len(order) // 5]
    scores = {}
    for scale in CANDIDATES:
        posterior = sample(rows.x_train[inner], rows.y_train[inner], scale, num_draws, seed=0)
        prediction = posterior.predict(rows.x_train[held_out])
        scores[str(scale)] = float(prediction.log_prob_gaussian(rows.y_train[held_out]).mean())
        print(f"  prior {scale}: {scores[str(scale)]:.3f}", file=sys.stderr, flush=True)
    return float(max(scores, key=lambda key: scores[key])), scores


def run_split(name: str, number: int, scale: float, num_draws: int) -> dict[str, Any]:
    rows = uci.split(uci.read(name), number)
    posterior = sample(rows.x_train, rows.y_train, scale, num_draws, seed=number)
    prediction = posterior.predict(rows.x_test)
    target = (rows.y_test - rows.y_mean) / rows.y_std
    error = prediction.mean * rows.y_std + rows.y_mean - rows.y_test
    r_hat = np.ravel(posterior.diagnose(rows.x_test).r_hat)
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "ll_gaussian": float(prediction.log_prob_gaussian(target).mean() - np.log(rows.y_std)),
        "ll": float(prediction.log_prob(target).mean() - np.log(rows.y_std)),
        "r_hat_median": float(np.median(r_hat)),
        "share_r_hat_under_1.1": float((r_hat < 1.1).mean()),
        "acceptance": float(posterior.trace["acceptance"][:, num_draws // 2 :].mean()),
        "seconds": posterior.receipt.seconds,
        "notes": list(posterior.receipt.notes),
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| set | prior sd | RMSE | LL (moment-matched) | published | at least | LL (log-mean-exp) | "
        "median R-hat | R-hat < 1.1 | holds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results:

        def mean(key: str, row: dict[str, Any] = row) -> str:
            values = np.array([split[key] for split in row["splits"]])
            return f"{values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"

        name = row["set"]
        holds = np.mean([split["ll_gaussian"] for split in row["splits"]]) >= AT_LEAST[name]
        cells = [
            name,
            f"{row['prior_scale']:g}",
            mean("rmse"),
            mean("ll_gaussian"),
            f"{PUBLISHED[name]}",
            f"{AT_LEAST[name]}",
            mean("ll"),
            mean("r_hat_median"),
            mean("share_r_hat_under_1.1"),
            "yes" if holds else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", choices=sorted(PUBLISHED))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--draws", type=int, default=150)
    parser.add_argument("--out", type=Path, default=Path("results"))
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in chosen.sets:
        scale, scores = choose_prior(uci.split(uci.read(name), 0), chosen.draws // 3)
        splits = []
        for number in range(chosen.splits):
            splits.append(run_split(name, number, scale, chosen.draws))
            print(name, number, splits[-1], file=sys.stderr, flush=True)
        results.append({"set": name, "prior_scale": scale, "prior_scores": scores, "splits": splits})
        (chosen.out / "izmailov2021-uci.json").write_text(json.dumps(results, indent=1) + "\n")
        (chosen.out / "izmailov2021-uci.md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
