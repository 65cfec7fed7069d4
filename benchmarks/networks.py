"""The speed of image and sequence networks, as ratios within one run.

    python benchmarks/networks.py            (or: make benchmark)
    python benchmarks/networks.py --quick    (few steps, to see that it works; writes nothing)

1. A step of ResNet-20 with filter response normalisation on 128 images of 32 x 32 x 3, in `fit` with its rows split
   over the cores as `fit` does it, takes at most as long as the gradient of the same network in eager PyTorch on the
   same cores, in whichever of its two memory layouts is faster.
2. An epoch of the CNN-LSTM for texts (25,000 reviews of 100 tokens in batches of 80, SGD with momentum) likewise: 313
   steps over all rows, timed as what a run of an epoch and 62 steps takes longer than one of 62 steps.

Every contestant is a process that has compiled and waits; they run in turn, and a ratio is the median of those within a
turn, with its quartiles. PyTorch lives in .benchmark-venv (benchmarks/requirements.txt). A bar that is missed is named,
and the exit code is 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bars import Numbers, end, medians, ratios, show
from samplers import CORES
from workers import PEERS, Worker, take_turns

RESNET: dict[str, Any] = {"rows": 128, "width": 16, "steps": 10}
TEXT: dict[str, Any] = {"vocabulary": 20_000, "rows": 25_000, "batch": 80, "steps": 313}  # those of an epoch
REPEATS = 11
SAME_LOSS = 1e-3  # float32 through twenty layers
QUICK = "--quick" in sys.argv


def worker(contestant: str, **settings: Any) -> Worker:
    python = PEERS if contestant.startswith("torch") else sys.executable
    return Worker("network_contestants.py", {"contestant": contestant, "cores": CORES, **settings}, CORES, python)


def compare(contestants: dict[str, Worker]) -> Numbers:
    """Ours is named posterity; the ratio is to the fastest of the others."""
    reports = take_turns(contestants, 2 if QUICK else REPEATS)
    first = {name: each[0] for name, each in reports.items()}
    losses = [report["loss"] for report in first.values()]
    assert max(losses) - min(losses) < SAME_LOSS, f"These are not the same network: their losses are {losses}."
    to_each = [ratios(reports, name, "posterity", "ms") for name in contestants if name != "posterity"]
    return {
        **medians(reports, "ms"),
        **medians(reports, "processor_ms"),
        "compile_seconds": first["posterity"]["compile_seconds"],
        "loss": losses[0],
        **min(to_each, key=lambda found: found["ratio"]),
        "at_least": 1.0,
    }


def resnet() -> Numbers:
    layouts = {"torch channels first": False, "torch channels last": True}
    peers = {name: worker("torch_resnet", channels_last=last, **RESNET) for name, last in layouts.items()}
    return compare({"posterity": worker("posterity_resnet", **RESNET), **peers})


def text() -> Numbers:
    """Of the steps of an epoch; "ms" is that of one of them."""
    found = compare({"posterity": worker("posterity_text", **TEXT), "torch": worker("torch_text", **TEXT)})
    epochs = {
        f"{name} seconds of an epoch": TEXT["steps"] * found[f"{name} ms"] / 1e3 for name in ("posterity", "torch")
    }
    return {**epochs, **found}


def main() -> None:
    if not PEERS.exists():
        raise SystemExit(f"There is no {PEERS}, where PyTorch lives; `make benchmark` makes it.")
    if QUICK:
        RESNET.update(steps=5)
        TEXT.update(steps=20, rows=1600)
    table = {"resnet20_gradient": resnet, "cnn_lstm_epoch": text}
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(table)
    results: dict[str, Numbers] = {}
    for name in chosen:
        results[name] = table[name]()
        show(name, results[name])
    if not QUICK and chosen == list(table):
        Path("results").mkdir(exist_ok=True)
        Path("results/benchmark-networks.json").write_text(json.dumps(results, indent=1) + "\n")
    if not QUICK:  # whose numbers are too small to judge
        end(results)


if __name__ == "__main__":
    main()
