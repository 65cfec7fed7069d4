"""Continual learning: tasks come one after the other, and the posterior of those before is the prior of the next.

With a coreset, a few rows of each task are set aside and learned last, from all tasks together, for predictions alone:
what is handed on never sees them, so that they count once (variational continual learning; Nguyen et al. 2018).
Kessler et al. (2023, arXiv 2301.01828): exact posteriors, handed on as Gaussians, forget too; see what yours does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import jax
import numpy as np

from posterity.core import pytrees, records
from posterity.core.checks import check_whole
from posterity.data.arrays import Dataset, check_inputs, dataset
from posterity.inference.engine.driver import fit
from posterity.inference.methods.method import Method
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior


def coreset(x: Any, size: int, how: Literal["spread", "random"] = "spread", seed: int = 0) -> np.ndarray:
    """Rows that stand for all: each the furthest from those before (k-centre; Gonzalez 1985), or any at random.

    Args:
        x: Inputs; a pytree of arrays is taken as one row of numbers.
        size: How many.
        how: "spread" covers the inputs; "random" has them as often as they come.
        seed: Of the first row, or of all.
    """
    check_whole("coreset", size=size)
    if how not in ("spread", "random"):
        raise ValueError(f"how={how!r} is not known; choose 'spread' or 'random'.")
    inputs = check_inputs(x)
    num_rows = pytrees.num_rows(inputs)
    if size > num_rows:
        raise ValueError(f"size={size}, and there are {num_rows} rows; ask for at most that many.")
    rng = np.random.default_rng(seed)
    if how == "random":
        return rng.permutation(num_rows)[:size]
    leaves = [np.asarray(leaf, float).reshape(num_rows, -1) for leaf in jax.tree.leaves(inputs)]
    points = np.concatenate(leaves, 1)
    chosen = [int(rng.integers(num_rows))]
    apart = np.full(num_rows, np.inf)
    for _ in range(size - 1):
        apart = np.minimum(apart, np.square(points - points[chosen[-1]]).sum(1))
        apart[chosen] = -1.0
        chosen.append(int(apart.argmax()))
    return np.asarray(chosen)


def continual_learning(
    model: Model,
    method: Method,
    tasks: Iterable[Any],
    *,
    coreset_size: int = 0,
    how: Literal["spread", "random"] = "random",
    coreset_method: Method | None = None,
    seed: int = 0,
) -> list[Posterior]:
    """The posterior to predict with after each of several tasks, which come one after the other.

    Args:
        model: With the prior to begin with.
        method: One whose posterior has a width, such as `BayesByBackprop` or `Laplace`; each task begins at the weights
            that the one before came to.
        tasks: `(x, y)` of each; looked at once.
        coreset_size: Rows of each task that are kept.
        how: Which, as of `coreset`.
        coreset_method: What learns from these rows, which may be too few for the batches of `method`. None: `method`.
        seed: Of fits and of the choice of rows.
    """
    carried: Posterior | None = None
    kept: list[Dataset] = []
    found = []
    for number, task in enumerate(tasks):
        rows = dataset(task, model.likelihood)
        if coreset_size:
            aside = coreset(rows.x, coreset_size, how, seed + number)
            kept.append(rows.take(aside))
            rows = rows.take(np.setdiff1d(np.arange(rows.num_rows), aside))
        carried = _learn(model, method, carried, rows, seed + number)
        last = _learn(model, coreset_method or method, carried, _joined(kept), seed + number) if kept else carried
        found.append(last)
    return found


def _learn(model: Model, method: Method, before: Posterior | None, rows: Dataset, seed: int) -> Posterior:
    """With the posterior before as the prior, from the weights it came to."""
    if before is not None:
        model = records.replace(model, prior=before.as_prior())
        method = method.beginning_at(before)
    return fit(model, method, rows, seed=seed, progress=False)


def _joined(parts: list[Dataset]) -> Dataset:
    return Dataset(*jax.tree.map(lambda *leaves: np.concatenate(leaves), *map(tuple, parts)))
