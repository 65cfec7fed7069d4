"""A run on disk: what is fitted to what, the draws and the trace so far, and the whole state of every chain.

Each save adds shards of the draws and records made since the last one, then the state, then the manifest that names
them; a run killed at any moment resumes from its last manifest and repeats the rest bit for bit, since the key of a
step depends on its number alone.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from posterity import tree
from posterity.data.dataset import Dataset
from posterity.devices import fetch, place
from posterity.model import Model
from posterity.posterior import Posterior, posterior_from, posterior_parts
from posterity.store import MANIFEST, Reader, StoreError, Writer, encode, fingerprint
from posterity.stored import StoredSamples, open_draws
from posterity.types import Params

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
        self._traced = self._kept = 0  # segments of the run that are on disk

    @classmethod
    def create(cls, folder: Path, job: Any) -> Checkpoint:
        if (folder / MANIFEST).exists():
            raise StoreError(
                f"{folder} holds a run already: go on with resume({str(folder)!r}), or choose a new folder."
            )
        writer = Writer(folder, together=True)
        arrays: dict[str, np.ndarray] = {}
        description = {
            "model": encode(job.model, arrays, "model"),
            "method": encode(job.method, arrays, "method"),
            "rows": encode(_plain(job.rows), arrays, "rows"),
            "validation": encode(_plain(job.validation), arrays, "validation"),
            "calibration": encode(job.calibration, arrays, "calibration"),
            "seed": job.seed,
            "num_chains": job.num_chains,
            "mesh": job.mesh,
            "metadata": job.metadata,
            "fingerprint": fingerprint(tuple(job.rows)),
            "precision": "float64" if jax.config.jax_enable_x64 else "float32",  # type: ignore[attr-defined]
        }
        writer.arrays("job", arrays)
        made = cls(writer, description)
        made._write({"progress": None})
        return made

    @classmethod
    def reopen(cls, reader: Reader) -> Checkpoint:
        """Go on writing where a store ends."""
        writer = Writer(reader.folder, together=True)
        writer.files = dict(reader.files)
        made = cls(writer, reader.body["run"])
        made.progress, made._reader = reader.body["progress"], reader
        if made.progress is not None:
            made.seconds, made._num_shards = made.progress["seconds"], made.progress["num_shards"]
        return made

    def first_stage(self, job: Any) -> Checkpoint:
        """The store of the method this run starts from, in a folder of its own."""
        folder = self.writer.folder / "start"
        return Checkpoint.reopen(Reader(folder)) if (folder / MANIFEST).exists() else Checkpoint.create(folder, job)

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
    def is_due(self) -> bool:
        return time.perf_counter() - self._saved > SAVE_SECONDS

    def save(self, run: Any, chains: Any, phase: int, record: int) -> None:
        """Everything since the last save; after this line a kill loses nothing before it.

        The run lets go of draws that are on disk: what stands in `run.draws` for them reads them when asked.
        """
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
        self._saved = time.perf_counter()
        self.progress = {
            "phase": phase,
            "record": record,
            "num_steps": run.num_steps,
            "num_taken": run.num_taken,
            "num_gradients": run.num_gradients,
            "stuck": None if run.stuck is None else run.stuck.tolist(),
            "notes": run.notes,
            "num_shards": self._num_shards,
            "seconds": self.seconds + self._saved - self._begun,
        }
        self._write({"progress": self.progress})

    def restore(self, run: Any, template: Any, mesh: Mesh) -> tuple[Any, int, int]:
        """(chains, phase, record) as saved; fills the run with what it had gathered."""
        reader = self._reader
        assert self.progress is not None
        assert reader is not None
        numbers = range(self.progress["num_shards"])
        for number in numbers:
            if f"trace-{number:06d}.safetensors" in reader.files:
                for name, values in reader.arrays(f"trace-{number:06d}").items():
                    run.trace.setdefault(name, []).append(values)
            if f"draws-{number:06d}.safetensors" in reader.files:
                run.draws.append(_stored_draws(reader.path(f"draws-{number:06d}"), template.state.params))
        run.num_steps, run.num_taken = self.progress["num_steps"], self.progress["num_taken"]
        run.num_gradients, run.notes = self.progress["num_gradients"], list(self.progress["notes"])
        run.stuck = None if self.progress["stuck"] is None else np.array(self.progress["stuck"])
        self._traced, self._kept = _length(run.trace), len(run.draws)
        stored = reader.arrays(f"state-{numbers[-1]:06d}")
        chains = place(_unnumbered(stored, template), mesh, "chain")
        return chains, self.progress["phase"], self.progress["record"]

    def finish(self, posterior: Posterior) -> Posterior:
        """Write the posterior beside the run, and return it: draws on disk are then those of the posterior."""
        body = posterior_parts(posterior, self.writer)
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


def _plain(rows: Dataset | None) -> Any:
    return None if rows is None else tuple(rows)


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
    return tree.take_rows(draws, _spread(leaves[0].shape[0], wanted[0].shape[0]))


def _spread(stored: int, wanted: int) -> np.ndarray:
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
        values = values[_spread(len(values), leaf.shape[0])]
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            made.append(jax.random.wrap_key_data(jnp.asarray(values)))
            continue
        if values.shape[1:] != leaf.shape[1:]:
            raise StoreError(f"The store holds an array of shape {values.shape} where {leaf.shape} belongs.")
        made.append(values.astype(leaf.dtype))
    return jax.tree.unflatten(structure, made)


def _key_data(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
