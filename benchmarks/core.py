"""The costs the core promises, as ratios within one run.

    python benchmarks/core.py            (or: make benchmark)

1. Ten ensemble members (4x16 network, batch 128, Adam) cost at most 4.5 times one.
2. A Bayes-by-Backprop step (784-400-400-10, batch 128, Adam, one sample, Gaussian prior) costs at most 3 times a
   deterministic one; the share of random numbers is stated.
3. 100 dropout passes over 10,000 rows of that network reach 60 % of this machine's float32 matrix-multiply rate,
   counting only the multiplications a draw needs (a layer that no mask touches is computed once).

A bar that is missed is named, and the exit code is 1.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from bars import end, show

from posterity import MAP, BayesByBackprop, Categorical, DeepEnsemble, Gaussian, Model, Normal, fit, mlp
from posterity.core import records
from posterity.prediction.streaming import DEFAULT_MEMORY, OutputStream
from posterity.weights.families import DropoutMasks

REPEATS = 5


def seconds(function: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median wall time, after one call that compiles."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def step_seconds(model: Model, method: Any, data: Any, num_steps: int) -> float:
    """Time of one step inside `fit`, from the difference of a long and a short run so that the rest cancels."""

    def run(count: int) -> float:
        began = time.perf_counter()
        fit(model, records.replace(method, num_steps=count), data, progress=False)
        return time.perf_counter() - began

    run(num_steps // 10)
    return statistics.median([(run(num_steps) - run(num_steps // 10)) / (0.9 * num_steps) for _ in range(REPEATS)])


def ensemble() -> dict[str, float]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1200, 8))
    data = (x, np.sin(x[:, 0]))
    model = Model(mlp((16, 16, 16, 16)), Gaussian(0.1), Normal(0.0, 1.0))
    one = step_seconds(model, DeepEnsemble(num_members=1, batch_size=128), data, 4000)
    ten = step_seconds(model, DeepEnsemble(num_members=10, batch_size=128), data, 4000)
    return {"one_member_us": one * 1e6, "ten_members_us": ten * 1e6, "ratio": ten / one, "at_most": 4.5}


def digits_like(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.uniform(size=(rows, 784)).astype(np.float32), rng.integers(0, 10, rows)


def bayes_by_backprop() -> dict[str, float]:
    data = digits_like(2560)
    model = Model(mlp((400, 400)), Categorical(10), Normal(0.0, 1.0))
    deterministic = step_seconds(model, MAP(batch_size=128), data, 200)
    bayesian = step_seconds(model, BayesByBackprop(batch_size=128), data, 200)
    count = 784 * 400 + 400 + 400 * 400 + 400 + 400 * 10 + 10
    normals = seconds(jax.jit(lambda: jax.random.normal(jax.random.key(0), (count,))))
    return {
        "deterministic_ms": deterministic * 1e3,
        "bayesian_ms": bayesian * 1e3,
        "ratio": bayesian / deterministic,
        "share_of_random_numbers": normals / bayesian,
        "at_most": 3.0,
    }


def dropout_passes() -> dict[str, float]:
    rows, passes = 10_000, 100
    x, _ = digits_like(rows)
    network = mlp((400, 400), dropout=0.2)
    model = Model(network, Categorical(10), Normal(0.0, 1.0))
    params = {"network": model.network.init(jax.random.key(0), jnp.asarray(x[:1]))}
    free, fixed = (jax.tree.map(lambda leaf: leaf[None], part) for part in model.split(params))

    def run() -> Any:
        family = DropoutMasks(free, fixed)
        stream = OutputStream(model, family, jax.random.key(1), x, np.arange(passes), False, DEFAULT_MEMORY)
        return [block.outputs for _, _, block in stream._blocks()]

    def rate_of_multiplication() -> float:
        size = 2048
        a = jnp.ones((size, size))
        return 2 * size**3 / seconds(jax.jit(lambda: a @ a))

    peak = rate_of_multiplication()
    taken = seconds(run)
    work = 2 * rows * (784 * 400 + passes * (400 * 400 + 400 * 10))
    return {
        "seconds": taken,
        "gigaflops": work / taken / 1e9,
        "peak_gigaflops": max(peak, rate_of_multiplication()) / 1e9,
        "ratio": work / taken / peak,
        "at_least": 0.6,
    }


def main() -> None:
    chosen = sys.argv[1:] or ["ensemble", "bayes_by_backprop", "dropout_passes"]
    table = {"ensemble": ensemble, "bayes_by_backprop": bayes_by_backprop, "dropout_passes": dropout_passes}
    results = {name: table[name]() for name in chosen}
    for name, numbers in results.items():
        show(name, numbers)
    if len(chosen) == len(table):
        Path("results").mkdir(exist_ok=True)
        Path("results/benchmark-core.json").write_text(json.dumps(results, indent=1) + "\n")
    end(results)


if __name__ == "__main__":
    main()
