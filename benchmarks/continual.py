"""Tasks one after the other on MNIST: `python benchmarks/continual.py --data FOLDER [permuted split] [--ways ...]`.

Permuted MNIST: ten tasks, each with the pixels in an order of its own; two layers of 100 units, one head for all.
Split MNIST: five tasks of two digits each; a head for each task, 256 units. Bayes by Backprop with the posterior of the
tasks before as its prior, without a coreset and with 200 (split: 40) random rows of each task; beside it fine-tuning
(MAP from where the last task ended) and joint training (MAP on all tasks at once). Mean accuracy over all tasks at the
end. Nguyen et al. (2018) report 90 % (93 % with the coreset) and 97 %. Written to results/benchmark-continual.json, to
which a run with other names or ways adds its own.

Widths begin at 0.05. On three tasks of 5,000 rows, 2,000 steps from 0.01 at a learning rate of 0.001 ended at widths of
at most 0.07 under a prior of 1, and learned the third task to 80 %; from 0.05 at 0.003 to 90 %. On ten tasks of 60,000
rows a rate of 0.003 forgets more than 0.001 does: 83 % at the end instead of 87 % (one seed each).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity import MAP, BayesByBackprop, Categorical, Model, Normal, Posterior, continual_learning, fit, mlp
from posterity.core.types import Network
from posterity.datasets import load
from posterity.posterior.receipt import installed_versions

RESULTS = Path("results/benchmark-continual.json")
Rows = tuple[Any, np.ndarray]
Task = tuple[Rows, Rows]  # to train on, and to test on
CORESET = {"permuted": 200, "split": 40}
WAYS = ("handed on", "with a coreset", "fine-tuned", "joint")
LEARNING_RATE = 1e-3


def permuted(data: Any, options: argparse.Namespace, seed: int) -> tuple[Model, list[Task]]:
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(options.tasks or 10):
        order = rng.permutation(28 * 28)
        train = rng.permutation(len(data.y_train))[: options.rows]
        tasks.append(
            (
                (_flat(data.x_train[train])[:, order], data.y_train[train]),
                (_flat(data.x_test[: options.test])[:, order], data.y_test[: options.test]),
            )
        )
    return Model(mlp((100, 100)), Categorical(10), Normal(0.0, 1.0)), tasks


def split(data: Any, options: argparse.Namespace, seed: int) -> tuple[Model, list[Task]]:
    rng, tasks = np.random.default_rng(seed), []
    for number in range(options.tasks or 5):
        parts = []
        for x, y, most in (
            (data.x_train, data.y_train, options.rows),
            (data.x_test, data.y_test, options.test),
        ):
            rows = rng.permutation(np.flatnonzero(y // 2 == number))[:most]
            inputs = {"image": _flat(x[rows]), "task": np.full(len(rows), number)}
            parts.append((inputs, y[rows] % 2))
        tasks.append((parts[0], parts[1]))
    return Model(_heads(len(tasks)), Categorical(2), Normal(0.0, 1.0)), tasks


def _heads(count: int, width: int = 256) -> Network:
    """A body for all tasks and a head for each."""
    body = mlp((width,), num_outputs=width)

    def init(key: jax.Array, x: Any) -> Any:
        key_body, key_heads = jax.random.split(key)
        heads = jax.random.normal(key_heads, (count, width, 2)) / np.sqrt(width)
        return {"body": body.init(key_body, x["image"]), "heads": heads, "biases": jnp.zeros((count, 2))}

    def apply(params: Any, x: Any, key: jax.Array | None = None) -> jax.Array:
        del key
        hidden = jax.nn.relu(body.apply(params["body"], x["image"]))
        every = jnp.einsum("nh,thk->ntk", hidden, params["heads"]) + params["biases"]
        return jnp.take_along_axis(every, x["task"][:, None, None], 1)[:, 0]

    return Network(init, apply)


def _flat(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / 255


def _join(parts: list[Rows]) -> Rows:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def fine_tuned(model: Model, tasks: list[Rows], settings: dict[str, Any], seed: int) -> Posterior:
    posterior: Posterior | None = None
    for rows in tasks:
        posterior = fit(model, MAP(**settings, start=posterior), rows, seed=seed, progress=False)
    assert posterior is not None
    return posterior


def measure(name: str, data: Any, options: argparse.Namespace) -> dict[str, Any]:
    make = {"permuted": permuted, "split": split}[name]
    found: dict[str, Any] = {}
    for seed in range(options.seeds):
        model, tasks = make(data, options, seed)
        train = [rows for rows, _ in tasks]
        num_rows = len(train[0][1])
        settings = {"num_steps": options.epochs * max(num_rows // 256, 1), "batch_size": min(256, num_rows)}
        settings["learning_rate"] = LEARNING_RATE
        method = BayesByBackprop(**settings)
        aside = {
            "coreset_size": min(CORESET[name], num_rows // 2),
            # Few rows at first, 2,000 at last.
            "coreset_method": dataclasses.replace(method, batch_size=None, num_steps=1_000),
        }
        runs: dict[str, Callable[[], Posterior]] = {
            "handed on": lambda: continual_learning(model, method, train, seed=seed)[-1],  # noqa: B023
            "with a coreset": lambda: continual_learning(model, method, train, **aside, seed=seed)[-1],  # noqa: B023
            "fine-tuned": lambda: fine_tuned(model, train, settings, seed),  # noqa: B023
            "joint": lambda: fit(model, MAP(**settings), _join(train), seed=seed, progress=False),  # noqa: B023
        }
        for how in options.ways:
            begun = time.perf_counter()
            posterior = runs[how]()
            each = [float(np.mean(posterior.predict(x, num_draws=_draws(posterior)).label == y)) for _, (x, y) in tasks]
            record = found.setdefault(how, {"accuracy": [], "of tasks": [], "seconds": []})
            for key, value in {
                "accuracy": float(np.mean(each)),
                "of tasks": each,
                "seconds": time.perf_counter() - begun,
            }.items():
                record[key].append(value)
            print(name, how, f"seed {seed}: {np.mean(each):.3f}", flush=True)
    return found


def _draws(posterior: Posterior) -> int | None:
    return 20 if posterior.family.num_draws is None else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CORESET), help="permuted, split; by default both")
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS, help="by default all")
    parser.add_argument("--data", default=os.environ.get("POSTERITY_DATA"), help="the folder of the data files")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rows", type=int, default=60_000, help="of each task, at most")
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=None)
    parser.add_argument("--tiny", action="store_true", help="in a minute, to see that it works")
    options = parser.parse_args()
    if options.tiny:
        options.seeds, options.epochs, options.rows, options.test, options.tasks = 1, 20, 1_000, 500, 2
    if options.data is not None:
        os.environ["POSTERITY_DATA"] = options.data
    data = load("mnist")
    for name in options.names:
        found = measure(name, data, options)
        if not options.tiny:
            chosen = vars(options).items()
            _add(name, found, {key: value for key, value in chosen if key not in ("data", "names", "ways")})


def _add(name: str, found: dict[str, Any], settings: dict[str, Any]) -> None:
    """To what is in the file already, with the settings of each."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    ways = known.setdefault(name, {})
    ways.update({how: record | {"settings": settings} for how, record in found.items()})
    RESULTS.write_text(json.dumps({**known, "versions": installed_versions()}, indent=1))


if __name__ == "__main__":
    main()
