"""The speed of the samplers, as ratios within one run.

    python benchmarks/samplers.py            (or: make benchmark)
    python benchmarks/samplers.py --quick    (small counts, to see that it works; writes nothing)
    python benchmarks/samplers.py peers mile (these parts alone; writes nothing: a results file is one whole run)

1. HMC reaches 0.9 of the gradient rate of a bare compiled loop of the same gradients.
2. Four chains over the cores give 1.8 times the gradients per second of the same four on one device for a 4x16 network,
   1.4 times for a 1x50 one. (Two cores.)
3. On a 1x50 network with 927 rows, four chains give 1.5 times the gradients per second of blackjax's HMC mapped over
   four chains, and twice those of numpyro's mapped likewise ("vectorized"), their log density written plainly
   (x @ W + b). Beside them stand, with no bar: numpyro as it comes; the peers given the code of our network; and
   numpyro with a device for each chain, set by hand before JAX starts. The last runs the gradients that we run, on as
   many cores, and is about as fast.
4. MILE on a 4x16 network with 1,200 rows and ten members takes at most half the time of sklearn-contrib-bde with the
   same numbers of steps, at a test log-likelihood that is better, or equal within two standard errors of the turns,
   each of which has a seed of its own. bde compiles anew in every fit, and that time is in it; ours is a second fit,
   whose programs are there. With both compiling, which is what a single fit costs, the ratio stands beside it in a part
   of its own, with no bar.

Every contestant is a process that has compiled and waits; they run in turn, and a ratio is the median of those within a
turn, with its quartiles. The peer of the fourth lives in .benchmark-venv (benchmarks/requirements.txt); without it, it
is left out and nothing is written. A bar that is missed is named, and the exit code is 1.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from bars import Numbers, end, medians, ratios, show
from workers import PEERS, Worker, take_turns

CORES = len(os.sched_getaffinity(0))
CONCRETE: dict[str, Any] = {"hidden": [50], "rows": 927}
DEEP: dict[str, Any] = {"hidden": [16, 16, 16, 16], "rows": 1200}  # four times the time of the other
HMC: dict[str, Any] = {"chains": 4, "draws": 300, "leapfrog": 100, "step_size": 1e-3}
MILE: dict[str, Any] = {"members": 10, "epochs": 1000, "learning_rate": 5e-3, "warmup": 2000, "steps": 1000, "thin": 5}
REPEATS = 5
RATE, COST = "gradients_per_second", "processor_us_per_gradient"
QUICK = "--quick" in sys.argv
RESULTS = Path("results/benchmark-samplers.json")


def worker(contestant: str, devices: int = CORES, **settings: Any) -> Worker:
    python = PEERS if contestant == "bde_mile" else sys.executable
    return Worker("contestants.py", {"contestant": contestant, **settings}, devices, python)


def hmc(contestant: str, network: dict[str, Any], devices: int = CORES, **more: Any) -> Worker:
    draws = HMC["draws"] // 4 if network is DEEP else HMC["draws"]
    return worker(contestant, devices, **{**HMC, "draws": draws}, **network, **more)


def bare_loop() -> Numbers:
    reports = take_turns({"hmc": hmc("posterity_hmc", CONCRETE), "bare": hmc("bare", CONCRETE)}, REPEATS)
    return {
        **medians(reports, RATE),
        **medians(reports, COST),
        **ratios(reports, "hmc", "bare", RATE),
        "at_least": 0.9,
    }


def cores(network: dict[str, Any], at_least: float) -> Numbers:
    several, one = f"{CORES} devices", "1 device"
    contestants = {several: hmc("posterity_hmc", network), one: hmc("posterity_hmc", network, 1)}
    reports = take_turns(contestants, REPEATS)
    numbers = {**medians(reports, RATE), **medians(reports, COST)}
    return {**numbers, **ratios(reports, several, one, RATE), "at_least": at_least}


def peers() -> dict[str, Numbers]:
    """Against a density written plainly, as their users do; beside it, theirs given the code of our network."""
    contestants = {"posterity": hmc("posterity_hmc", CONCRETE)}
    for density in ("plain", "ours"):
        more = {"density": density}
        contestants |= {
            f"blackjax mapped, {density}": hmc("blackjax_hmc", CONCRETE, 1, **more),
            f"numpyro mapped, {density}": hmc("numpyro_hmc", CONCRETE, 1, chain_method="vectorized", **more),
            f"numpyro as it comes, {density}": hmc("numpyro_hmc", CONCRETE, 1, chain_method="parallel", **more),
            f"numpyro on a device a chain, {density}": hmc(
                "numpyro_hmc", CONCRETE, HMC["chains"], chain_method="parallel", **more
            ),
        }
    reports = take_turns(contestants, 3)  # nine of them
    to_each = {name: ratios(reports, "posterity", name, RATE) for name in list(contestants)[1:]}
    shown = {f"ratio to {name}": found["ratio"] for name, found in to_each.items()}
    return {
        "peers": {**medians(reports, RATE), **medians(reports, COST), **medians(reports, "acceptance"), **shown},
        "blackjax": {**to_each["blackjax mapped, plain"], "at_least": 1.5},
        "numpyro": {**to_each["numpyro mapped, plain"], "at_least": 2.0},
    }


def mile() -> dict[str, Numbers]:
    settings = {**DEEP, **MILE, "test_rows": 1000}
    contestants = {name: worker(f"{name}_mile", **settings) for name in ("posterity", "bde")}
    first = {name: one.first["seconds"] for name, one in contestants.items()}
    reports = take_turns(contestants, 2 if QUICK else REPEATS)
    scores = medians(reports, "log_likelihood")
    ours, theirs = ([one["log_likelihood"] for one in reports[name]] for name in contestants)
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    return {
        "mile": {
            **medians(reports, "seconds"),
            **ratios(reports, "bde", "posterity", "seconds"),
            "at_least": 2.0,
        },
        "mile_log_likelihood": {
            **scores,
            "gain": statistics.mean(gains),
            "gain_standard_error": error,
            "at_least": -2 * error,
        },
        "mile_both_compiling": {
            **{f"{name} seconds of a first fit": seconds for name, seconds in first.items()},
            "ratio": first["bde"] / first["posterity"],
        },
    }


def main() -> None:
    if QUICK:
        global REPEATS
        REPEATS = 3
        HMC.update(draws=20)
        MILE.update(epochs=200, warmup=500, steps=200)
    table = {
        "hmc_of_bare_loop": lambda: {"hmc_of_bare_loop": bare_loop()},
        "cores": lambda: {"cores_4x16": cores(DEEP, 1.8), "cores_1x50": cores(CONCRETE, 1.4)},
        "peers": peers,
        "mile": mile,
    }
    whole = list(table)
    if not PEERS.exists():
        print(f"bde is left out: there is no {PEERS}; `make benchmark` makes it.", file=sys.stderr)
        del table["mile"]
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(table)
    results: dict[str, Numbers] = {}
    for name in chosen:
        for part, numbers in table[name]().items():
            results[part] = numbers
            show(part, numbers)
    if not QUICK and chosen == whole:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if not QUICK:  # whose numbers are too small to judge
        end(results)


if __name__ == "__main__":
    main()
