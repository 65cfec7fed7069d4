"""Does HMC converge on real tables? The model that `compare` judges methods on, eight chains, until the verdict is good
at all test inputs or the time is out: `python benchmarks/referee.py --data FOLDER [SET ...] [--split 0] [--share 1.0]`.
With `--learned` the default model of the estimators, whose scales are learned.

For each set: seconds of wall time on this machine, compiling included; gradients; the largest rank-normalised split
R-hat over all test inputs, of the predictive mean and of the noise, and that of the log joint; the least number of
effective draws; the test negative log-likelihood in units of the standardised target. Chains start apart, from the
network's own initialisation. Written to results/benchmark-referee.json after each set, and docs/referee.md from that.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from posterity import HMC, fit
from posterity.posterior.receipt import installed_versions
from posterity.studies.published import uci
from posterity.tables.comparison import COMPARED
from posterity.tables.defaults import table_model

MINUTES = {"yacht": 5, "boston": 5, "concrete": 5, "wine": 5, "energy": 10, "kin8nm": 15, "power": 15}
LONGEST = 20  # minutes, of the sets that are not named above
ASKED = {"energy": 1.02, "kin8nm": 1.02, "power": 1.02}
RESULTS, PAGE = Path("results/benchmark-referee.json"), Path("docs/referee.md")
NUM_CHAINS = 8
INTRODUCTION = """# The referee on real tables

HMC judges every other method here, so it must converge itself. This page is written from
`results/benchmark-referee.json`, which `benchmarks/referee.py` leaves; no number is typed by hand. The model is the one
that `compare` judges methods on (50 tanh units, mean and log variance, fan-in prior) or, where scales are "learned",
the default of the estimators (two layers of 32, a scale for each layer and input). The linear head of the mean is
integrated out, and eight chains from eight starts sample the rest in a variational metric until the diagnosis is good
at **every** test input, or the time is out. R-hat is rank-normalised and split, in function space; the largest over all
test inputs counts. Seconds are wall time, with compiling.
"""


def measure(name: str, number: int, share: float, learned: bool) -> dict[str, Any]:
    """One set: fitted until it is good, or for its share of the minutes."""
    rows = uci.split(uci.read(name), number)
    budget = 60.0 * MINUTES.get(name, LONGEST) * share
    begun = time.perf_counter()
    posterior = fit(
        table_model("regression", prior="learned") if learned else table_model("regression", **COMPARED),
        HMC(num_draws=100, num_burn_in=100, metric="variational"),
        (rows.x_train, rows.y_train),
        chains=NUM_CHAINS,
        until="good",
        at=rows.x_test,
        budget=budget,
        progress=False,
    )
    seconds = time.perf_counter() - begun
    found, prediction = posterior.diagnose(rows.x_test), posterior.predict(rows.x_test)
    acceptance = posterior.trace.of_draws()["acceptance"].mean(1)
    target = (rows.y_test - rows.y_mean) / rows.y_std
    return {
        "rows": len(rows.y_train),
        "scales": "learned" if learned else "fixed",
        "split": number,
        "seconds": seconds,
        "budget": budget,
        "asked": ASKED.get(name, 1.01),
        "verdict": found.verdict,
        "missing": found.missing,
        "r_hat": {part: float(np.nanmax(one.r_hat)) for part, one in found.parts.items()},
        "least_ess": float(np.nanmin(found.ess_bulk)),
        "draws": found.num_draws,
        "gradients": posterior.receipt.num_gradients,
        "gradients_of_a_draw": float(posterior.trace.of_draws()["num_gradients"].mean()),
        "step_size": float(np.median(posterior.trace["step_size"][:, -1])),
        "acceptance": [float(acceptance.min()), float(acceptance.max())],
        "negative_log_likelihood": -float(np.mean(prediction.log_prob(target))),
        "notes": list(posterior.receipt.notes),
    }


def page(results: dict[str, Any]) -> str:
    """The table in Markdown."""
    lines = [
        INTRODUCTION,
        "| set (rows) | scales | asked | R-hat: mean | noise | log joint | least ESS | draws a chain | "
        "gradients a draw | seconds (budget) | verdict | test NLL |",
        "|" + "---|" * 12,
    ]
    for name, one in results["sets"].items():
        r_hat = one["r_hat"]
        worst = max(r_hat.get("mean", np.nan), r_hat.get("log_std", np.nan))
        mark = "**" if worst < one["asked"] else ""
        lines.append(
            f"| {name.split()[0]} ({one['rows']:,}) | {one['scales']} | {one['asked']} | "
            f"{mark}{r_hat.get('mean', np.nan):.3f}{mark} | {mark}{r_hat.get('log_std', np.nan):.3f}{mark} | "
            f"{r_hat.get('log_joint', np.nan):.3f} | {one['least_ess']:,.0f} | {one['draws']:,} | "
            f"{one['gradients_of_a_draw']:.0f} | {one['seconds']:.0f} ({one['budget']:.0f}) | "
            f"{one['verdict']} | {one['negative_log_likelihood']:.3f} |"
        )
    made = results["made"]
    lines += ["", f"Split {made['split']} of each set; {made['cores']} cores; {made['versions']}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=[*MINUTES, "naval", "protein"])
    parser.add_argument("--data", default=os.environ.get("POSTERITY_DATA", "../shared/data"))
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--learned", action="store_true", help="the model of the estimators, whose scales are learned")
    parser.add_argument("--share", type=float, default=1.0, help="of each set's minutes")
    asked = parser.parse_args()
    os.environ["POSTERITY_DATA"] = asked.data
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"sets": {}}
    versions = ", ".join(f"{name} {version}" for name, version in installed_versions().items())
    results["made"] = {"split": asked.split, "cores": len(os.sched_getaffinity(0)), "versions": versions}
    for name in asked.sets:
        key = f"{name} learned" if asked.learned else name
        results["sets"][key] = measure(name, asked.split, asked.share, asked.learned)
        print(key, json.dumps(results["sets"][key]), flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
