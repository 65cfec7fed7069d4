"""Back from disk: a finished posterior, what a run has so far, or the run itself to go on with."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import numpy as np

from posterity.core import records
from posterity.core.checks import check_budget, is_number
from posterity.core.devices import check_process, device_mesh, precision
from posterity.data.arrays import Dataset, check_inputs, check_like, dataset
from posterity.data.augment import Augment, check_augment
from posterity.data.sources import Elsewhere, set_aside, source_of
from posterity.inference.engine.callbacks import Callback
from posterity.inference.engine.checkpoint import Checkpoint, stored_progress
from posterity.inference.engine.driver import partial_posterior, run_job
from posterity.inference.engine.job import Job, Until
from posterity.inference.methods.method import Method
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.posterior.saving import check_network, posterior_from, stored_model, warn_of_other_beliefs
from posterity.storage.codec import StoreError, decode, encode, find_missing, fingerprint
from posterity.storage.folder import Reader, whole_number
from posterity.storage.lock import hold
from posterity.weights.on_disk import HELD_BYTES, settle


def load(path: str | Path, model: Model | None = None, *, memory: int = HELD_BYTES) -> Posterior:
    """The posterior of a store; of a run that was cut off, the one of what it has stored so far.

    Networks, likelihoods and priors of this package are rebuilt from the manifest; a network of your own is passed
    again in `model`, and checked against stored outputs. Draws that take at most `memory` bytes, by default 64 MB, are
    read now; more of them stay on disk, and predictions read them in pieces. `memory=0` leaves all of them there.

    Examples:
        >>> import numpy as np
        >>> from posterity import Exact, Gaussian, Model, fit, linear, load
        >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]))
        >>> posterior.save("line")
        >>> load("line").predict(x).mean.shape
        (20,)
    """
    check_process()
    if not (is_number(memory) and memory >= 0):
        raise ValueError(f"load(memory={memory!r}) must be a number of bytes, 0 or more; 500e6 are 500 MB.")
    reader = Reader(path)
    reader.check_files()
    if "posterior" in reader.body:
        with reader.damage_in_words():
            posterior = posterior_from(reader, model, memory)
            warn_of_other_beliefs(model, posterior.model, posterior.facts)
            return posterior
    job = _job(reader, model, None, None)
    checkpoint = Checkpoint.reopen(reader)
    if not checkpoint.has_state:
        raise StoreError(f"The run in {path} was cut off before it stored a state: resume({str(path)!r}) begins it.")
    with reader.damage_in_words():
        posterior = partial_posterior(job, checkpoint)
        return dataclasses.replace(posterior, family=settle(posterior.family, memory))


def resume(
    path: str | Path,
    model: Model | None = None,
    data: Any = None,
    *,
    method: Method | None = None,
    num_rows: int | None = None,
    augment: Augment | None = None,
    callbacks: Sequence[Callback] = (),
    budget: float | None = None,
    progress: bool = True,
) -> Posterior:
    """Go on with the run in a store; the result is that of an uninterrupted run, bit for bit, on the same devices.

    A run that Ctrl-C or a budget ended goes on too; phases that a budget cut short stay as short as they are, but for
    the last one. A run that was over is only loaded.
    `model` and `method` are needed only where they hold functions of your own; `data` only to be checked, unless it was
    read as the run went: memory maps, or a loader with its `num_rows`, are passed again, and so is `augment`. A loader
    begins an epoch anew, and its rows up to where the run stands are left out.
    """
    check_process()
    check_budget(budget)
    with nullcontext() if _is_over(Reader(path)) else hold(Path(path)):
        reader = Reader(path)  # as it is now that nobody else writes to it
        if _is_over(reader):
            posterior = load(path, model)
            if data is not None and "source" not in reader.body.get("run", {}):
                _check_data(data, posterior.model, _fingerprints(reader))
            return posterior
        job = _job(reader, model, method, data)
        job = _with_rows(job, reader, data, num_rows, augment)
        checkpoint = Checkpoint.reopen(reader)
        with reader.damage_in_words(unless=lambda: checkpoint.has_saved):
            return run_job(job, checkpoint, budget, progress, callbacks=callbacks)


def _is_over(reader: Reader) -> bool:
    return "posterior" in reader.body and not _ended_early(reader)


def _ended_early(reader: Reader) -> bool:
    """Whether Ctrl-C or a budget ended the run of a store, which then holds a posterior and the means to go on."""
    with reader.damage_in_words():
        return reader.body.get("progress") is not None and stored_progress(reader).is_unfinished


def _job(reader: Reader, model: Model | None, method: Method | None, data: Any) -> Job:
    if "run" not in reader.body:
        raise StoreError(f"{reader.folder} holds neither a run nor a posterior; it is damaged.")
    reader.check_files()  # before anything is compiled
    with reader.damage_in_words():
        job = _stored_job(reader, model, method)
    _check_mesh(job)
    if data is not None and job.source is None:
        _check_data(data, job.model, _fingerprints(reader))
    return job


def _stored_job(reader: Reader, model: Model | None, method: Method | None) -> Job:
    stored, arrays = reader.body["run"], reader.arrays("job")
    if stored["precision"] != precision():
        raise StoreError(
            f"The run was made in {stored['precision']}, this process computes in {precision()}: set "
            f"jax_enable_x64 to {stored['precision'] == 'float64'} before resuming."
        )
    rows = Dataset(*decode(stored["rows"], arrays))
    if fingerprint(tuple(rows)) != stored["fingerprint"]:
        raise StoreError(f"The rows in {reader.folder} are not those of the run; restore it from a copy.")
    given, model = model, stored_model(stored["model"], arrays, model)
    if given is not None:
        check_network(model, rows.x, stored["weights"], decode(stored["outputs"], arrays))
    warn_of_other_beliefs(given, model)
    method = _method(decode(stored["method"], arrays), method)
    validation, calibration, mesh = decode(stored["validation"], arrays), stored["calibration"], stored["mesh"]
    held_out = decode(stored.get("held_out"), arrays)
    return Job(
        model,
        method,
        rows=rows,
        validation=None if validation is None else Dataset(*validation),
        calibration=None if calibration is None else _like(decode(calibration, arrays), rows.x),
        seed=whole_number(stored, "seed"),
        num_chains=whole_number(stored, "num_chains", least=1),
        mesh=None if mesh is None else tuple(mesh),
        metadata={**stored["metadata"]},
        until=_goal(stored["until"]),
        at=None if stored["at"] is None else _like(decode(stored["at"], arrays), rows.x),
        held_out=None if held_out is None else Dataset(*held_out),
        source=_stored_source(stored, rows),
    )


def _stored_source(stored: dict[str, Any], rows: Dataset) -> Elsewhere | None:
    """What a store knows of rows that it does not hold."""
    if "source" not in stored:
        return None
    about = stored["source"]
    return Elsewhere(rows, whole_number(about, "num_rows", least=1), about["in_order"] is True, str(about["remark"]))


def _with_rows(job: Job, reader: Reader, data: Any, num_rows: int | None, augment: Augment | None) -> Job:
    """The job with the rows and the function that the store could not hold."""
    if (augment is not None) != ("augment" in reader.body["run"]):
        asked = "began with augment: pass that function again" if augment is None else "began without augment"
        raise StoreError(f"The run in {reader.folder} {asked}.")
    if augment is not None:
        check_augment(augment, job.rows)
        job = job._replace(augment=augment)
    if job.source is None:
        return job
    if data is None:
        raise StoreError(
            f"The store {reader.folder} does not hold the {job.source.num_rows} rows of this run, which were read as "
            "it went: pass resume(path, data=...) the memory maps, or the loader with num_rows=, that fit was given."
        )
    source = source_of(data, job.model.likelihood, num_rows)
    if source is None or source.fingerprint() != reader.body["run"]["given"]:
        raise StoreError("These are not the rows that fit was given (their fingerprint differs): pass those.")
    holdout, validation = reader.body["run"]["source"]["shares"]
    source, *_ = set_aside(source, holdout, validation, job.seed, job.model.likelihood)
    return job._replace(source=source)


def _method(stored: Any, given: Method | None) -> Method:
    """The method of a run; where it holds functions of the user's own, the one given again, if it is that one."""
    if not isinstance(stored, Method):
        raise StoreError(f"The store holds {type(stored).__name__} where a method belongs; it is damaged.")
    if given is None:
        if missing := find_missing(stored):
            raise StoreError(f"The store could not hold {', '.join(missing)}: pass resume(path, method=...) again.")
        return stored
    if type(given) is not type(stored):
        raise StoreError(f"The run is one of {type(stored).__name__}, not of {type(given).__name__}: pass that again.")
    for field in dataclasses.fields(stored):  # type: ignore[arg-type]
        kept, passed = getattr(stored, field.name), getattr(given, field.name)
        if field.name != "start" and not find_missing(kept) and not _equal(kept, passed):
            raise StoreError(
                f"The run began with {type(stored).__name__}({field.name}={kept!r}), not {passed!r}: pass the method "
                "it began with, or none where the store can hold it."
            )
    start = _method(stored.start, given.start) if isinstance(stored.start, Method) else stored.start
    return records.replace(given, start=start)


def _equal(kept: Any, passed: Any) -> bool:
    """Whether a setting that was read is the one that is given; a store makes arrays and tuples of what it holds."""
    arrays: tuple[dict[str, np.ndarray], ...] = ({}, {})
    same = encode(kept, arrays[0], "method") == encode(passed, arrays[1], "method")
    return same and all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])


def _goal(stored: Any) -> Until | None:
    if stored is not None and stored not in get_args(Until):
        raise StoreError(f"The store gives until={stored!r}; expected one of {', '.join(get_args(Until))}.")
    return stored


def _like(inputs: Any, training: Any) -> Any:
    """Inputs that were set aside: they are used when all is done, which would be late to find them damaged."""
    checked = check_inputs(inputs)
    check_like(checked, training)
    return checked


def _check_mesh(job: Job) -> None:
    """Another machine may have fewer devices, which is not damage."""
    try:
        device_mesh(job.num_chains, shape=job.mesh)
    except (TypeError, ValueError) as error:
        raise StoreError(f"The run in the store cannot go on with these devices: {error}") from error


def _fingerprints(reader: Reader) -> tuple[str, ...]:
    """Of the rows of a run, and of all rows it was given, of which some may have been set aside."""
    try:
        run = reader.body["run"]
        return run["fingerprint"], run["given"]
    except (LookupError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{reader.folder} holds a posterior without the run that made it, so its rows cannot be checked: leave out "
            "data."
        ) from error


def _check_data(data: Any, model: Model, expected: tuple[str, ...]) -> None:
    given = dataset(data, model.likelihood)
    if fingerprint(tuple(given)) not in expected:
        raise StoreError(
            "These are not the rows the run was fitted to (their fingerprint differs): pass the arrays that fit was "
            "given, or leave out data: the store holds the rows."
        )
