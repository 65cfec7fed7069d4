"""Labels that MNIST takes: `python benchmarks/active.py --data FOLDER [--seeds 2] [--labels 200] [--tiny]`.

A pool of 5,000 images for each seed, 20 labels at first, two of each digit; LeNet-5 with MC dropout; 50 draws to score
with. BatchBALD in batches of 5, BALD one at a time, a random choice; and, where each image stands twice, BatchBALD and
BALD in batches of 10. Kirsch et al. (2019) reach 90 and 95 % at 95 and 195 labels by BatchBALD and at 89 and 199 by
BALD one at a time, from a pool of all 60,000, with another convolutional network and a validation set to stop on.
Written to results/benchmark-active.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from posterity import Categorical, MCDropout, Model, Normal, active_learning, lenet
from posterity.datasets import load
from posterity.posterior.receipt import installed_versions

RESULTS = Path("results/benchmark-active.json")
NUM_DRAWS = 50
RUNS = {  # name: (score, labels a round, copies of each image)
    "batchbald of 5": ("batchbald", 5, 1),
    "bald of 1": ("bald", 1, 1),
    "random of 5": ("random", 5, 1),
    "repeated: batchbald of 10": ("batchbald", 10, 2),
    "repeated: bald of 10": ("bald", 10, 2),
}


def pool(data: Any, seed: int, size: int, copies: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, their labels, and the rows that are known at first: two of each digit."""
    rows = np.random.default_rng(seed).permutation(len(data.y_train))[: size // copies]
    labels = data.y_train[rows]
    first = np.concatenate([np.flatnonzero(labels == digit)[:2] for digit in range(10)])
    return np.tile(_scaled(data.x_train[rows]), (copies, 1, 1)), np.tile(labels, copies), first


def _scaled(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / 255


def measure(data: Any, name: str, options: argparse.Namespace) -> dict[str, Any]:
    score, k, copies = RUNS[name]
    model = Model(lenet(dropout=0.5), Categorical(10), Normal(0.0, 1.0))
    method = MCDropout(num_steps=options.steps, batch_size="full", learning_rate=1e-3)
    curves, begun = [], time.perf_counter()
    for seed in range(options.seeds):
        x, y, first = pool(data, seed, options.pool, copies)
        curves.append(
            active_learning(
                model,
                method,
                (x, y),
                (_scaled(data.x_test[: options.test]), data.y_test[: options.test]),
                score=score,
                initial=first,
                k=k,
                num_rounds=max((options.labels - 20) // k, 1),
                num_draws=NUM_DRAWS,
                seeds=(seed,),
            )
        )
    values = np.concatenate([curve.values for curve in curves])
    reached = {share: [curve.labels_to(share) for curve in curves] for share in (0.9, 0.95)}
    return {
        "labels": curves[0].num_labels.tolist(),
        "accuracy": values.tolist(),
        **{f"labels to {share:.0%}": [None if np.isinf(n) else n for n in each] for share, each in reached.items()},
        "seconds": time.perf_counter() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=list(RUNS), help="by default all")
    parser.add_argument("--data", default=os.environ.get("POSTERITY_DATA"), help="the folder of the data files")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--labels", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1_000, help="of Adam, each round")
    parser.add_argument("--pool", type=int, default=5_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--tiny", action="store_true", help="in a minute or two, to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.seeds, options.labels, options.steps, options.pool, options.test = 1, 30, 50, 200, 200
    if options.data is not None:
        os.environ["POSTERITY_DATA"] = options.data
    data = load("mnist")
    found: dict[str, Any] = {}
    for name in options.runs:
        found[name] = measure(data, name, options)
        print(name, {key: value for key, value in found[name].items() if key.startswith("labels to")}, flush=True)
        print("  accuracy", np.mean(found[name]["accuracy"], 0).round(3).tolist(), flush=True)
        if not options.tiny:
            settings = {key: value for key, value in vars(options).items() if key != "data"}
            RESULTS.write_text(json.dumps({**found, "settings": settings, "versions": installed_versions()}, indent=1))


if __name__ == "__main__":
    main()
