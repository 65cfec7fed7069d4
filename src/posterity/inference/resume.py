"""Back from disk: a finished posterior, what a run has so far, or the run itself to go on with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from posterity.data.dataset import Dataset, dataset
from posterity.inference.checkpoint import Checkpoint
from posterity.inference.driver import Job, run_job, so_far
from posterity.inference.method import Method
from posterity.model import Model
from posterity.posterior import Posterior, posterior_from, stored_model
from posterity.store import Reader, StoreError, decode, find_missing, fingerprint


def load(path: str | Path, model: Model | None = None) -> Posterior:
    """The posterior of a store; of a run that was cut off, the one of what it has stored so far.

    Networks, likelihoods and priors of this package are rebuilt from the manifest; a network of your own is passed
    again in `model`, and checked against stored outputs.
    """
    reader = Reader(path)
    if "posterior" in reader.body:
        return posterior_from(reader.body["posterior"], reader.arrays("posterior"), model)
    job = _job(reader, model, None, None)
    checkpoint = Checkpoint.reopen(reader)
    if not checkpoint.has_state:
        raise StoreError(f"The run in {path} was cut off before it stored a state: resume({str(path)!r}) begins it.")
    return so_far(job, checkpoint)


def resume(
    path: str | Path,
    model: Model | None = None,
    data: Any = None,
    *,
    method: Method | None = None,
    budget: float | None = None,
    progress: bool = True,
) -> Posterior:
    """Go on with the run in a store; the result is that of an uninterrupted run, bit for bit, on the same devices.

    `model` and `method` are needed only where they hold functions of your own; `data` only to be checked.
    """
    reader = Reader(path)
    if "posterior" in reader.body:
        return load(path, model)
    job = _job(reader, model, method, data)
    return run_job(job, Checkpoint.reopen(reader), budget, progress)


def _job(reader: Reader, model: Model | None, method: Method | None, data: Any) -> Job:
    if "run" not in reader.body:
        raise StoreError(f"{reader.folder} holds neither a run nor a posterior; it is damaged.")
    stored, arrays = reader.body["run"], reader.arrays("job")
    precision = "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]
    if stored["precision"] != precision:
        raise StoreError(f"The run was made in {stored['precision']}, this process computes in {precision}: change it.")
    model = stored_model(stored["model"], arrays, model)
    if method is None:
        method = decode(stored["method"], arrays)
        if missing := find_missing(method):
            raise StoreError(f"The store could not hold {', '.join(missing)}: pass resume(path, method=...) again.")
    assert isinstance(method, Method)
    rows = Dataset(*decode(stored["rows"], arrays))
    if data is not None:
        _check_data(data, model, stored["fingerprint"])
    validation = decode(stored["validation"], arrays)
    return Job(
        model,
        method,
        rows,
        None if validation is None else Dataset(*validation),
        decode(stored["calibration"], arrays),
        stored["seed"],
        stored["num_chains"],
        stored["metadata"],
    )


def _check_data(data: Any, model: Model, expected: str) -> None:
    given = dataset(data, model.likelihood)
    if fingerprint(tuple(given)) != expected:
        raise StoreError(
            "These are not the rows the run was fitted to (their fingerprint differs): pass the same arrays, less any "
            "rows that were held out, or leave data away, since the store holds them."
        )
