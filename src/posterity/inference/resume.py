"""Back from disk: a finished posterior, what a run has so far, or the run itself to go on with."""

from __future__ import annotations

import dataclasses
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
from posterity.stored import HELD_BYTES, settle


def load(path: str | Path, model: Model | None = None, *, memory: int = HELD_BYTES) -> Posterior:
    """The posterior of a store; of a run that was cut off, the one of what it has stored so far.

    Networks, likelihoods and priors of this package are rebuilt from the manifest; a network of your own is passed
    again in `model`, and checked against stored outputs. Draws that take at most `memory` bytes, by default 64 MB, are
    read now; more of them stay on disk, and predictions read them in pieces. `memory=0` leaves all of them there.
    """
    reader = Reader(path)
    if "posterior" in reader.body:
        with reader.damage_in_words():
            return posterior_from(reader, model, memory)
    job = _job(reader, model, None, None)
    checkpoint = Checkpoint.reopen(reader)
    if not checkpoint.has_state:
        raise StoreError(f"The run in {path} was cut off before it stored a state: resume({str(path)!r}) begins it.")
    posterior = so_far(job, checkpoint)
    return dataclasses.replace(posterior, family=settle(posterior.family, memory))


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
    reader.check_files()  # before anything is compiled
    with reader.damage_in_words():
        job, expected = _stored_job(reader, model, method)
    if data is not None:
        _check_data(data, job.model, expected)
    return job


def _stored_job(reader: Reader, model: Model | None, method: Method | None) -> tuple[Job, str]:
    """The job of a store, and the fingerprint of its rows."""
    stored, arrays = reader.body["run"], reader.arrays("job")
    precision = "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]
    if stored["precision"] != precision:
        raise StoreError(f"The run was made in {stored['precision']}, this process computes in {precision}: change it.")
    model = stored_model(stored["model"], arrays, model)
    if method is None:
        method = decode(stored["method"], arrays)
        if missing := find_missing(method):
            raise StoreError(f"The store could not hold {', '.join(missing)}: pass resume(path, method=...) again.")
    if not isinstance(method, Method):
        raise StoreError(f"The store holds {type(method).__name__} where a method belongs; it is damaged.")
    validation, mesh = decode(stored["validation"], arrays), stored["mesh"]
    job = Job(
        model,
        method,
        rows=Dataset(*decode(stored["rows"], arrays)),
        validation=None if validation is None else Dataset(*validation),
        calibration=decode(stored["calibration"], arrays),
        seed=stored["seed"],
        num_chains=stored["num_chains"],
        mesh=None if mesh is None else tuple(mesh),
        metadata=stored["metadata"],
    )
    return job, stored["fingerprint"]


def _check_data(data: Any, model: Model, expected: str) -> None:
    given = dataset(data, model.likelihood)
    if fingerprint(tuple(given)) != expected:
        raise StoreError(
            "These are not the rows the run was fitted to (their fingerprint differs): pass the same arrays, less any "
            "rows that were held out, or leave data away, since the store holds them."
        )
