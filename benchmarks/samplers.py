"""The speed of the samplers, as ratios within one run.

    python benchmarks/samplers.py            (or: make benchmark)
    python benchmarks/samplers.py --quick    (small counts, to see that it works; writes nothing)
    python benchmarks/samplers.py peers mile (these parts anew)

1. HMC reaches 0.9 of the gradient rate of a bare compiled loop of the same gradients.
2. Four chains over the cores give 1.8 times the gradients per second of the same four on one device for a 4x16 network,
   1.4 times for a 1x50 one. (Two cores.)
3. On a 1x50 network with 927 rows, four chains give 1.5 times the gradients per second of blackjax's HMC mapped over
   four chains, and twice those of numpyro's mapped likewise ("vectorized"), their log density written plainly
   (x @ W + b). Beside them stand, with no bar: numpyro as it comes; the peers given the code of our network; and
   numpyro with a device for each chain, set by hand before JAX starts. The last runs the gradients that we run, on as
   many cores, and is about as fast.
4. MILE on a 4x16 network with 1,200 rows and ten members takes at most half the time of sklearn-contrib-bde with the
   same numbers of steps, at a test log-likelihood that is equal or better. bde compiles anew in every fit.

Every contestant is a process that has compiled and waits; they run in turn, and a ratio is the median of those within a
turn. The peer of the fourth lives in .benchmark-venv (benchmarks/requirements.txt); without it, it is left out.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

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


def ratios(reports: dict[str, list[dict[str, Any]]], ours: str, theirs: str, key: str) -> float:
    return statistics.median(a[key] / b[key] for a, b in zip(reports[ours], reports[theirs], strict=True))


def medians(reports: dict[str, list[dict[str, Any]]], key: str) -> dict[str, float]:
    return {f"{name} {key}": statistics.median(report[key] for report in each) for name, each in reports.items()}


def bare_loop() -> dict[str, float]:
    reports = take_turns({"hmc": hmc("posterity_hmc", CONCRETE), "bare": hmc("bare", CONCRETE)}, REPEATS)
    return {
        **medians(reports, RATE),
        **medians(reports, COST),
        "ratio": ratios(reports, "hmc", "bare", RATE),
        "at_least": 0.9,
    }


def cores(network: dict[str, Any], at_least: float) -> dict[str, float]:
    several, one = f"{CORES} devices", "1 device"
    contestants = {several: hmc("posterity_hmc", network), one: hmc("posterity_hmc", network, 1)}
    reports = take_turns(contestants, REPEATS)
    numbers = {**medians(reports, RATE), **medians(reports, COST)}
    return {**numbers, "ratio": ratios(reports, several, one, RATE), "at_least": at_least}


def peers() -> dict[str, dict[str, float]]:
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
    to_each = {f"ratio to {name}": ratios(reports, "posterity", name, RATE) for name in list(contestants)[1:]}
    return {
        "peers": {**medians(reports, RATE), **medians(reports, COST), **medians(reports, "acceptance"), **to_each},
        "blackjax": {"ratio": to_each["ratio to blackjax mapped, plain"], "at_least": 1.5},
        "numpyro": {"ratio": to_each["ratio to numpyro mapped, plain"], "at_least": 2.0},
    }


def mile() -> dict[str, float]:
    settings = {**DEEP, **MILE, "test_rows": 1000}
    contestants = {name: worker(f"{name}_mile", **settings) for name in ("posterity", "bde")}
    first = {name: one.first["seconds"] for name, one in contestants.items()}
    reports = take_turns(contestants, 1 if QUICK else 3)
    numbers = {**medians(reports, "seconds"), **medians(reports, "log_likelihood")}
    return {
        **numbers,
        "ratio with compilation": first["bde"] / first["posterity"],
        "ratio": ratios(reports, "bde", "posterity", "seconds"),
        "at_least": 2.0,
        "gain of log_likelihood": numbers["posterity log_likelihood"] - numbers["bde log_likelihood"],
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
        "mile": lambda: {"mile": mile()},
    }
    if not PEERS.exists():
        print(f"bde is left out: there is no {PEERS}; `make benchmark` makes it.", file=sys.stderr)
        del table["mile"]
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(table)
    results: dict[str, dict[str, float]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in chosen:
        for part, numbers in table[name]().items():
            results[part] = numbers
            print(part, {key: float(f"{value:.4g}") for key, value in numbers.items()}, flush=True)
            if not QUICK:
                RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
