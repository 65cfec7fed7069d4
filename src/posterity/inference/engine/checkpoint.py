"""A run on disk: what is fitted to what, the draws and the trace so far, and the whole state of every chain.

Each save adds shards of the draws and strides made since the last one, then the state, then the manifest that names
them; a run killed at any moment resumes from its last manifest and repeats the rest bit for bit, since the key of a
step depends on its number alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from posterity.core import pytrees
from posterity.core.devices import fetch, is_key, place, precision
from posterity.core.types import Params
from posterity.data.arrays import Dataset
from posterity.inference.engine.job import Job, Progress, Run
from posterity.inference.engine.program import Chains
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.posterior.saving import posterior_from, posterior_parts, signature
from posterity.posterior.trace import Trace
from posterity.storage.codec import StoreError, decode, encode, fingerprint
from posterity.storage.folder import MANIFEST, Reader, Writer
from posterity.weights.on_disk import StoredArray, StoredSamples, join, open_draws

SAVE_SECONDS = 2.0


class Checkpoint:
    """The store of one stage of a run; that of the stage before lies in its folder `start`."""

    def __init__(self, writer: Writer, description: dict[str, Any]) -> None:
        self.writer, self.description = writer, description
        self.progress: Progress | None = None  # as it was last stored
        self._reader: Reader | None = None  # of what was there before this session
        self.seconds = 0.0  # of earlier sessions
        self._begun = self._saved = time.perf_counter()
        self._before: Checkpoint | None = None
        self._has_saved = False
        self._traced: tuple[Trace, ...] = ()  # what of the trace is on disk

    @classmethod
    def create(cls, folder: Path, job: Job, ours: bool = False) -> Checkpoint:
        """Begin a store; what it could not hold in the end is refused now. `ours`: the folder lies within a store."""
        if (folder / MANIFEST).exists():
            raise StoreError(
                f"{folder} holds a run already: go on with resume({str(folder)!r}), or choose a new folder."
            )
        arrays: dict[str, np.ndarray] = {}
        weights, outputs = signature(job.model, job.rows.x)
        description = {
            "model": encode(job.model, arrays, "model"),
            "method": encode(job.method, arrays, "method"),
            "rows": _encode_rows(job.rows, arrays, "data"),
            "validation": _encode_rows(job.validation, arrays, "validation"),
            "calibration": encode(job.calibration, arrays, "holdout"),
            "held_out": _encode_rows(job.held_out, arrays, "held_out"),
            "weights": weights,
            "outputs": encode(outputs, arrays, "outputs"),
            "seed": job.seed,
            "num_chains": job.num_chains,
            "mesh": job.mesh,
            "metadata": job.metadata,
            "fingerprint": fingerprint(tuple(job.rows)),
            "given": job.given,
            "until": job.until,
            "at": encode(job.at, arrays, "at"),
            "precision": precision(),
        }
        if job.source is not None:
            description["source"] = {
                "num_rows": job.source.num_rows,
                "in_order": job.source.in_order,
                "remark": job.source.remark,
                "shares": job.shares,
            }
        if job.augment is not None:
            description["augment"] = True
        writer = Writer(folder, together=True, ours=ours)
        writer.arrays("job", arrays)
        made = cls(writer, description)
        made._write({})
        return made

    @classmethod
    def reopen(cls, reader: Reader) -> Checkpoint:
        """Go on writing where a store ends."""
        writer = Writer(reader.folder, together=True)
        writer.files = dict(reader.files)
        with reader.damage_in_words():
            made = cls(writer, reader.body["run"])
            made._reader = reader
            if reader.body["progress"] is not None:
                made.progress = stored_progress(reader)
                made.seconds = made.progress.seconds
        return made

    def of_stages(self, jobs: Sequence[Job]) -> list[Checkpoint]:
        """The stores of all stages, first to last; this is the last one's."""
        stores: list[Checkpoint] = [self]
        for job in reversed(jobs[:-1]):
            stores.append(stores[-1].of_stage_before(job))
        return stores[::-1]

    def of_stage_before(self, job: Job) -> Checkpoint:
        """The store of the stage this one starts from, in a folder of its own."""
        folder = self.writer.folder / "start"
        if (folder / MANIFEST).exists():
            reader = Reader(folder)
            if self.has_state and "posterior" not in reader.body:
                raise StoreError(
                    f"{folder}, the stage this run started from, has no result although the run went on from one: "
                    "restore it from a copy."
                )
            self._before = Checkpoint.reopen(reader)
        elif self.has_state:
            raise StoreError(f"{folder}, the stage this run started from, is missing: restore it from a copy.")
        else:
            self._before = Checkpoint.create(folder, job, ours=True)
        return self._before

    def posterior(self, model: Model) -> Posterior | None:
        """What a stage that is over came to."""
        reader = self._reader
        if reader is None or "posterior" not in reader.body:
            return None
        with reader.damage_in_words():
            return posterior_from(reader, model)

    @property
    def has_state(self) -> bool:
        return self.progress is not None

    @property
    def has_saved(self) -> bool:
        """Whether this session has saved anything: errors after that are the run's own, not those of what it read."""
        return self._has_saved or (self._before is not None and self._before.has_saved)

    @property
    def is_due(self) -> bool:
        return time.perf_counter() - self._saved > SAVE_SECONDS

    def save(self, run: Run) -> Run:
        """Everything since the last save; after this line a kill loses nothing before it.

        The run that is returned has let go of draws that are on disk: what stands for them reads them when asked.
        """
        for name in ("posterior", "weights-"):
            self._drop(name)  # of what there was when an earlier session ended
        if not run.draws:
            self._drop("draws-")  # an adaptation used them up
        if any(old is not new for old, new in zip(self._traced, run.trace, strict=False)):
            self._drop("trace-")  # restarts have changed what was recorded
            self._traced = ()
        number = 0 if self.progress is None else self.progress.num_shards
        if new_trace := run.trace[len(self._traced) :]:
            self.writer.arrays(f"trace-{number:06d}", _trace_arrays(Trace.join(new_trace)))
        if new_draws := [part for part in run.draws if not _is_stored(part)]:
            self.writer.arrays(f"draws-{number:06d}", _numbered(join(new_draws)))
            stored = open_draws([self.writer.path(f"draws-{number:06d}")], new_draws[0])
            run = run._replace(draws=(*filter(_is_stored, run.draws), stored))
        self.writer.arrays(f"state-{number:06d}", _numbered(fetch(run.chains)))
        self.writer.drop(f"state-{number - 1:06d}")
        self._traced, self._saved, self._has_saved = run.trace, time.perf_counter(), True
        run = run.update(num_shards=number + 1, seconds=self.seconds + self._saved - self._begun)
        self.progress = run.progress
        self._write({})
        return run

    def restore(self, template: Chains, num_chains: int, mesh: Mesh) -> Run:
        """The run as it was saved."""
        reader, progress = self._reader, self.progress
        assert progress is not None
        assert reader is not None
        with reader.damage_in_words():
            if progress.stuck is not None and len(progress.stuck) != num_chains:
                raise StoreError(f"The store speaks of {len(progress.stuck)} chains where {num_chains} belong.")
            trace = tuple(_trace(reader.arrays(name), num_chains) for name in _shards(reader, "trace-"))
            if any(set(part) != set(trace[0]) for part in trace):
                raise StoreError("The traces in the store are not all of the same quantities; restore it from a copy.")
            paths = [reader.path(name) for name in _shards(reader, "draws-")]
            draws = tuple(_stored_draws(path, template.state.params) for path in paths)
            stored = reader.arrays(f"state-{progress.num_shards - 1:06d}")
            chains = place(_unnumbered(stored, template), mesh, "chain")
        self._traced = trace
        return Run(chains, progress, trace, draws)

    def finish(self, posterior: Posterior, goes_on: bool = False) -> Posterior:
        """Write the posterior beside the run, and return it: draws on disk are then those of the posterior.

        `goes_on`: a run that Ctrl-C or a budget ended keeps its own as well, so that `resume` can go on with it.
        """
        body = posterior_parts(posterior, self.writer)
        if not (goes_on and self.progress is not None and self.progress.is_unfinished):
            self._drop("draws-")  # the posterior holds them now
        self._write({"posterior": body})
        family = posterior.family
        if not isinstance(family, StoredSamples):
            return posterior
        draws = open_draws([self.writer.path(name) for name in body["family"]["shards"]], family.draws)
        return dataclasses.replace(posterior, family=StoredSamples.of(draws, family.fixed))

    def _drop(self, prefix: str) -> None:
        for name in [name for name in self.writer.files if name.startswith(prefix)]:
            self.writer.drop(name.removesuffix(".safetensors"))

    def _write(self, body: dict[str, Any]) -> None:
        self.writer.manifest({"run": self.description, "progress": encode(self.progress, {}, "progress"), **body})


def _encode_rows(rows: Dataset | None, arrays: dict[str, np.ndarray], name: str) -> Any:
    if rows is None:
        return None
    return {"tuple": [encode(part, arrays, f"{name}/{field}") for field, part in rows._asdict().items()]}


def stored_progress(reader: Reader) -> Progress:
    """How far the run of a store had come."""
    progress = decode(reader.body["progress"], {})
    if not isinstance(progress, Progress) or not progress.num_shards:
        raise StoreError(f"The store {reader.folder} does not say how far its run had come; restore it from a copy.")
    return progress


def _shards(reader: Reader, prefix: str) -> list[str]:
    """The files of that beginning in the order they were written."""
    names = [name.removesuffix(".safetensors") for name in reader.files if name.startswith(prefix)]
    return sorted(names, key=lambda name: (len(name), name))


def _trace_arrays(trace: Trace) -> dict[str, np.ndarray]:
    entries = {f"entries/{name}": values for name, values in trace.items()}
    return {**entries, "is_draw": trace.is_draw, "num_steps": trace.num_steps}


def _trace(stored: dict[str, np.ndarray], num_chains: int) -> Trace:
    entries = {name.removeprefix("entries/"): values for name, values in stored.items() if "/" in name}
    trace = Trace(entries, stored["is_draw"], stored["num_steps"])
    for name, values in entries.items():
        if values.shape != (num_chains, trace.is_draw.size) or trace.num_steps.shape != trace.is_draw.shape:
            raise StoreError(f"The store holds a trace {name} of shape {values.shape} for {num_chains} chains.")
    return trace


def _is_stored(draws: Params) -> bool:
    return all(isinstance(leaf, StoredArray) for leaf in jax.tree.leaves(draws))


def _numbered(values: Any) -> dict[str, np.ndarray]:
    """Leaves by their place; keys as the numbers they are made of."""
    return {f"{i:04d}": np.asarray(_key_data(leaf)) for i, leaf in enumerate(jax.tree.leaves(values))}


def _stored_draws(path: Path, template: Params) -> Params:
    """The draws of a file, [C, R, ...], left where they are."""
    draws = open_draws([path], template)
    leaves, wanted = jax.tree.leaves(draws), jax.tree.leaves(template)
    for array, leaf in zip(leaves, wanted, strict=True):
        if array.shape[2:] != leaf.shape[1:]:
            raise StoreError(f"The store holds draws of shape {array.shape[2:]} where {leaf.shape[1:]} belongs.")
    return pytrees.take_rows(draws, _rows_for_chains(leaves[0].shape[0], wanted[0].shape[0]))


def _rows_for_chains(stored: int, wanted: int) -> np.ndarray:
    """Rows for chains: another number of devices pads to another number of chains."""
    return np.minimum(np.arange(wanted), stored - 1)


def _unnumbered(stored: dict[str, np.ndarray], template: Any) -> Any:
    """Leaves back into the tree they came from."""
    leaves, structure = jax.tree.flatten(template)
    if len(leaves) != len(stored):
        raise StoreError("The stored state is that of another model or method; pass the ones the run began with.")
    made = []
    for i, leaf in enumerate(leaves):
        values = stored[f"{i:04d}"]
        values = values[_rows_for_chains(len(values), leaf.shape[0])]
        values = jax.random.wrap_key_data(jnp.asarray(values)) if is_key(leaf) else values.astype(leaf.dtype)
        if values.shape[1:] != leaf.shape[1:]:
            raise StoreError(f"The store holds an array of shape {values.shape} where {leaf.shape} belongs.")
        made.append(values)
    return jax.tree.unflatten(structure, made)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf
