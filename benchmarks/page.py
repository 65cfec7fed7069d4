"""The page of speed, written from the results of the benchmarks: `python benchmarks/page.py results docs/speed.md`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bars import Numbers, judged, missed

INTRODUCTION = """# Speed

`make benchmark` measures, and this page is written from what it left in `results/benchmark-*.json`; no number is typed
by hand. Every number is a ratio within one run on two cores of a CPU: contestants have compiled, wait, and take turns;
the ratio is the median over the turns, with its quartiles where they were kept. What each contestant runs is said at
the head of `benchmarks/core.py`, `samplers.py` and `networks.py`.
"""
WORDS = {
    "core": {
        "ensemble": "a step of ten ensemble members (four layers of 16), in steps of one",
        "bayes_by_backprop": "a step of Bayes by Backprop (784-400-400-10), in steps of plain training",
        "dropout_passes": "100 dropout passes over 10,000 rows, as a share of this machine's matrix-multiply rate",
    },
    "samplers": {
        "hmc_of_bare_loop": "HMC's gradients a second, as a share of those of a bare compiled loop",
        "cores_4x16": "four chains over two cores, in rates of the same on one device: four layers of 16",
        "cores_1x50": "the same, one layer of 50",
        "blackjax": "HMC, four chains, in rates of blackjax's HMC mapped over four chains",
        "numpyro": "the same, in rates of numpyro's",
        "mile": "MILE with its programs compiled, how many times as fast as sklearn-contrib-bde",
        "mile_log_likelihood": "its test log-likelihood less bde's, five seeds; asked: at most two errors below",
        "mile_both_compiling": "how many times as fast where both compile",
    },
    "networks": {
        "resnet20_gradient": "ResNet-20 on 128 images, how many times as fast as eager PyTorch",
        "cnn_lstm_step": "CNN-LSTM on texts, the same",
    },
}
RATES = " gradients_per_second"
BESIDE = """## HMC beside other libraries

Four chains on a network of one layer of 50 units, with 927 rows. Peers are given a density that is written plainly
(`x @ W + b`), as their users would, and ours: the difference is the network's, what is left is the sampler's. numpyro
"on a device a chain" had four devices set by hand before JAX began.
"""


def page(folder: Path) -> str:
    """All parts in the order of WORDS; those that were not measured are named."""
    lines = ["| | ours | quartiles | asked | met |", "| --- | --- | --- | --- | --- |"]
    results = {name: json.loads((folder / f"benchmark-{name}.json").read_text()) for name in WORDS}
    for name, parts in WORDS.items():
        lines += [_line(words, part, results[name].get(part)) for part, words in parts.items()]
    return "\n".join([INTRODUCTION, *lines, "", _rates(results["samplers"]["peers"])])


def _line(words: str, part: str, numbers: Numbers | None) -> str:
    if numbers is None:
        return f"| {words} | not measured | | | |"
    error = f" ± {numbers['gain_standard_error']:.2g}" if "gain" in numbers else ""
    quartiles = " to ".join(f"{value:.3g}" for value in numbers.get("ratio_quartiles", ()))
    bars = [f"{kind.replace('_', ' ')} {numbers[kind]:.2g}" for kind in ("at_least", "at_most") if kind in numbers]
    met = "" if not bars else "**no**" if missed({part: numbers}) else "yes"
    return f"| {words} | {numbers[judged(numbers)]:.3g}{error} | {quartiles} | {''.join(bars)} | {met} |"


def _rates(peers: Numbers) -> str:
    """Who else was measured beside HMC, with no bar: those given our network's code tell what is the sampler's."""
    found = {name.removesuffix(RATES): rate for name, rate in peers.items() if name.endswith(RATES)}
    lines = [f"| {name} | {rate:,.0f} |" for name, rate in sorted(found.items(), key=lambda pair: -pair[1])]
    return "\n".join([BESIDE, "| | gradients a second |", "| --- | --- |", *lines, ""])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(page(Path(sys.argv[1])))
