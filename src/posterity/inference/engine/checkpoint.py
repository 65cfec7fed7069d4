"""A run on disk: what is fitted to what, the draws and the trace so far, and the whole state of every chain.

Each save adds shards of the draws and strides made since the last one, then the state, then the manifest that names
them; a run killed at any moment resumes from its last manifest and repeats the rest bit for bit, since the key of a
step depends on its number alone.
"""

from __future__ import annotations

import dataclasses
import math
import time
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
from posterity.inference.engine.job import Job, Run
from posterity.inference.engine.program import Chains
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.posterior.saving import posterior_from, posterior_parts, signature
from posterity.storage.codec import StoreError, encode, fingerprint
from posterity.storage.folder import MANIFEST, Reader, Writer, whole_number
from posterity.weights.on_disk import StoredSamples, open_draws

SAVE_SECONDS = 2.0


class Checkpoint:
    """The store of one run; `first_stage` gives that of the method it starts from."""

    def __init__(self, writer: Writer, description: dict[str, Any]) -> None:
        self.writer, self.description = writer, description
        self.progress: dict[str, Any] | None = None
        self._reader: Reader | None = None  # of what was there before this session
        self.seconds = 0.0  # of earlier sessions
        self._begun = self._saved = time.perf_counter()
        self._num_shards = 0
        self._stage: Checkpoint | None = None
        self._has_saved = False
        self._traced = self._kept = 0  # segments of the run that are on disk

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
            "weights": weights,
            "outputs": encode(outputs, arrays, "outputs"),
            "seed": job.seed,
            "num_chains": job.num_chains,
            "mesh": job.mesh,
            "metadata": job.metadata,
            "fingerprint": fingerprint(tuple(job.rows)),
            "given": job.given,
            "precision": precision(),
        }
        writer = Writer(folder, together=True, ours=ours)
        writer.arrays("job", arrays)
        made = cls(writer, description)
        made._write({"progress": None})
        return made

    @classmethod
    def reopen(cls, reader: Reader) -> Checkpoint:
        """Go on writing where a store ends."""
        writer = Writer(reader.folder, together=True)
        writer.files = dict(reader.files)
        with reader.damage_in_words():
            made = cls(writer, reader.body["run"])
            made.progress, made._reader = reader.body["progress"], reader
            if made.progress is not None:
                _check_progress(made.progress)
                made.seconds, made._num_shards = made.progress["seconds"], made.progress["num_shards"]
        return made

    def first_stage(self, job: Job) -> Checkpoint:
        """The store of the method this run starts from, in a folder of its own."""
        folder = self.writer.folder / "start"
        if (folder / MANIFEST).exists():
            reader = Reader(folder)
            if self.has_state and "posterior" not in reader.body:
                raise StoreError(
                    f"{folder}, the stage this run started from, has no result although the run went on from one: "
                    "restore it from a copy."
                )
            self._stage = Checkpoint.reopen(reader)
        elif self.has_state:
            raise StoreError(f"{folder}, the stage this run started from, is missing: restore it from a copy.")
        else:
            self._stage = Checkpoint.create(folder, job, ours=True)
        return self._stage

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
        return self._has_saved or (self._stage is not None and self._stage.has_saved)

    @property
    def is_due(self) -> bool:
        return time.perf_counter() - self._saved > SAVE_SECONDS

    def save(self, run: Run, chains: Chains, phase: int, stride: int) -> None:
        """Everything since the last save; after this line a kill loses nothing before it.

        The run lets go of draws that are on disk: what stands in `run.draws` for them reads them when asked.
        """
        for name in ("posterior", "weights-"):
            self._drop(name)  # of what there was when an earlier session ended
        if not run.draws:
            self._drop("draws-")  # an adaptation used them up
            self._kept = 0
        if run.rewritten:
            self._drop("trace-")
            self._traced, run.rewritten = 0, False
        number = self._num_shards
        new_trace = [{n: parts[i] for n, parts in run.trace.items()} for i in range(self._traced, _length(run.trace))]
        if new_trace:
            joined = {name: np.concatenate([part[name] for part in new_trace], 1) for name in new_trace[0]}
            self.writer.arrays(f"trace-{number:06d}", joined)
        if run.draws[self._kept :]:
            joined = jax.tree.map(lambda *parts: np.concatenate(parts, 1), *run.draws[self._kept :])
            self.writer.arrays(f"draws-{number:06d}", _numbered(joined))
            run.draws[self._kept :] = [open_draws([self.writer.path(f"draws-{number:06d}")], joined)]
        self.writer.arrays(f"state-{number:06d}", _numbered(fetch(chains)))
        self.writer.drop(f"state-{number - 1:06d}")
        self._traced, self._kept, self._num_shards = _length(run.trace), len(run.draws), number + 1
        self._saved, self._has_saved = time.perf_counter(), True
        self.progress = {
            "phase": phase,
            "stride": stride,
            "num_steps": run.num_steps,
            "num_taken": run.num_taken,
            "num_gradients": run.num_gradients,
            "num_restarts": run.num_restarts,
            "unfinished": run.unfinished,
            "stuck": None if run.stuck is None else run.stuck.tolist(),
            "notes": run.notes,
            "num_shards": self._num_shards,
            "seconds": self.seconds + self._saved - self._begun,
        }
        self._write({"progress": self.progress})

    def restore(self, run: Run, template: Chains, mesh: Mesh) -> tuple[Chains, int, int]:
        """(chains, phase, stride) as saved; fills the run with what it had gathered."""
        reader, progress = self._reader, self.progress
        assert progress is not None
        assert reader is not None
        with reader.damage_in_words():
            for name in _shards(reader, "trace-"):
                _add_trace(run, reader.arrays(name))
            for name in _shards(reader, "draws-"):
                run.draws.append(_stored_draws(reader.path(name), template.state.params))
            run.num_steps, run.num_taken = progress["num_steps"], progress["num_taken"]
            run.num_gradients, run.notes = progress["num_gradients"], list(progress["notes"])
            run.num_restarts, run.unfinished = progress.get("num_restarts", 0), progress.get("unfinished", False)
            run.stuck = None if progress["stuck"] is None else np.array(progress["stuck"])
            if run.stuck is not None and run.stuck.shape != (run.num_chains,):
                raise StoreError(f"The store tells of {run.stuck.size} chains where {run.num_chains} belong.")
            self._traced, self._kept = _length(run.trace), len(run.draws)
            stored = reader.arrays(f"state-{progress['num_shards'] - 1:06d}")
            chains = place(_unnumbered(stored, template), mesh, "chain")
        return chains, progress["phase"], progress["stride"]

    def finish(self, posterior: Posterior, goes_on: bool = False) -> Posterior:
        """Write the posterior beside the run, and return it: draws on disk are then those of the posterior.

        `goes_on`: a run that Ctrl-C or a budget ended keeps its own as well, so that `resume` can go on with it.
        """
        body = posterior_parts(posterior, self.writer)
        if not (goes_on and self.progress is not None and self.progress["unfinished"]):
            self._drop("draws-")  # the posterior holds them now
        self._write({"progress": self.progress, "posterior": body})
        family = posterior.family
        if not isinstance(family, StoredSamples):
            return posterior
        draws = open_draws([self.writer.path(name) for name in body["family"]["shards"]], family.draws)
        return dataclasses.replace(posterior, family=StoredSamples.of(draws, family.fixed))

    def _drop(self, prefix: str) -> None:
        for name in [name for name in self.writer.files if name.startswith(prefix)]:
            self.writer.drop(name.removesuffix(".safetensors"))

    def _write(self, body: dict[str, Any]) -> None:
        self.writer.manifest({"run": self.description, **body})


def _encode_rows(rows: Dataset | None, arrays: dict[str, np.ndarray], name: str) -> Any:
    if rows is None:
        return None
    return {"tuple": [encode(part, arrays, f"{name}/{field}") for field, part in rows._asdict().items()]}


def _check_progress(progress: dict[str, Any]) -> None:
    """Refuse what was edited before it is computed with."""
    for name in ("phase", "stride", "num_steps", "num_taken"):
        whole_number(progress, name)
    whole_number(progress, "num_shards", least=1)
    whole_number({"num_restarts": 0, **progress}, "num_restarts")
    if type(progress.get("unfinished", False)) is not bool or (progress.get("unfinished") and not progress["notes"]):
        raise StoreError(f"The store gives unfinished={progress['unfinished']!r}, of which its notes say nothing.")
    for name in ("num_gradients", "seconds"):
        if not (isinstance(progress[name], int | float) and 0 <= progress[name] < math.inf):
            raise StoreError(f"The store gives {name}={progress[name]!r}; expected a number, at least 0.")
    for name, kind in {"notes": str, "stuck": bool}.items():
        values = progress[name] if name == "notes" or progress[name] is not None else []
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise StoreError(f"The store gives {name}={values!r}; expected a list of {kind.__name__}.")


def _shards(reader: Reader, prefix: str) -> list[str]:
    """The files of that beginning in the order they were written."""
    names = [name.removesuffix(".safetensors") for name in reader.files if name.startswith(prefix)]
    return sorted(names, key=lambda name: (len(name), name))


def _add_trace(run: Run, stored: dict[str, np.ndarray]) -> None:
    if run.trace and set(stored) != set(run.trace):
        raise StoreError(f"The store holds traces of {sorted(stored)} where {sorted(run.trace)} belong.")
    for name, values in stored.items():
        if values.ndim != 2 or values.shape[0] != run.num_chains:
            raise StoreError(f"The store holds a trace {name} of shape {values.shape} for {run.num_chains} chains.")
        run.trace.setdefault(name, []).append(values)


def _length(trace: dict[str, list[np.ndarray]]) -> int:
    return len(next(iter(trace.values()))) if trace else 0


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
