"""Rows that do not fit into memory: memory maps, of which any rows can be read, and loaders, which have an order.

Methods that take minibatches read them as they go (inference/engine/feed.py). Of all rows only a sample is kept: to
make weights from, to check shapes by, and to compare new inputs with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from posterity.core import pytrees
from posterity.core.checks import is_number, is_whole
from posterity.data.arrays import (
    Dataset,
    calibration_inputs,
    check_inputs,
    check_like,
    check_numbers,
    check_targets,
    evenly_spaced,
    read_targets,
    split_places,
    stopping_rows,
)
from posterity.models.likelihoods import Likelihood

RESIDENT_BYTES = 2**30  # memory maps up to this size are read whole, as arrays are
SAMPLE_ROWS = 1000


class LoaderError(RuntimeError):
    """A loader raised, ended early, or gave what does not fit; the message says where, and what became of the run."""


@dataclass(frozen=True, eq=False)
class Mapped:
    """Memory-mapped inputs, with targets and weights in memory; `index`: which of the rows, None for all."""

    x: Any
    y: np.ndarray
    weight: np.ndarray
    index: np.ndarray | None = None

    in_order = False

    @property
    def num_rows(self) -> int:
        return len(self.y) if self.index is None else len(self.index)

    @cached_property
    def sample(self) -> Dataset:
        """A few of the rows."""
        return self.read(evenly_spaced(self.num_rows, SAMPLE_ROWS))

    @property
    def remark(self) -> str:
        return f"rows were read from memory maps of {_num_bytes(self.x) / 2**30:.3g} GB"

    def take(self, rows: np.ndarray) -> Mapped:
        """Some of the rows, of which none is read."""
        return Mapped(self.x, self.y, self.weight, rows if self.index is None else self.index[rows])

    def read(self, rows: np.ndarray) -> Dataset:
        """These rows in memory, checked."""
        rows = rows if self.index is None else self.index[rows]
        x = jax.tree.map(lambda leaf: np.asarray(leaf[rows]), self.x)
        for leaf in jax.tree.leaves(x):
            if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
                bad = int(rows[np.argwhere(~np.isfinite(leaf))[0][0]])
                raise LoaderError(f"Row {bad} of the memory map has a NaN or infinite value: fill it in.")
        return Dataset(x, self.y[rows], self.weight[rows])

    def fingerprint(self) -> str:
        """Of targets, weights, shapes, and a sample of the inputs: reading all of them may take minutes."""
        shapes = [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(self.x)]
        rows = Mapped(self.x, self.y, self.weight).sample
        return _digest(shapes, [self.y, self.weight, *jax.tree.leaves(rows.x)])


class Loaded:
    """Batches (x, y) or (x, y, weight) from a loader, an epoch of `num_rows` rows after the other.

    What can be iterated again is, once an epoch. An iterator, such as a generator, is read on and on.
    """

    in_order = True

    def __init__(self, loader: Iterable[Any], num_rows: int, likelihood: Likelihood) -> None:
        self.loader, self.num_rows, self.likelihood = loader, num_rows, likelihood
        iterator = iter(loader)
        self._is_iterator = iterator is loader
        try:
            first = next(iterator)
        except StopIteration:
            raise LoaderError("The loader is empty: it gave no batch (x, y).") from None
        self.sample = self._checked(first, "The first batch", None)
        self._pending: list[Any] = [first] if self._is_iterator else []

    @property
    def remark(self) -> str:
        return "the order of rows is the loader's, and the same for all chains: another run need not repeat it"

    def fingerprint(self) -> str:
        """Of what can be known of a loader: its rows may come in any order."""
        shapes = [(leaf.shape[1:], str(leaf.dtype)) for leaf in jax.tree.leaves(tuple(self.sample))]
        return _digest([self.num_rows, *shapes], [])

    def rows(self, skip: int) -> Iterator[Dataset]:
        """Batches without end, those of the first `skip` rows of an epoch left out."""
        skip, epoch = (0 if self._is_iterator else skip), 0
        while True:
            seen = 0
            for number, batch in enumerate(self._epoch(f"of epoch {epoch}")):
                where = f"Batch {number} of epoch {epoch}"
                checked = self._checked(batch, where, self.sample)
                seen += checked.num_rows
                if seen > self.num_rows and not self._is_iterator:
                    raise LoaderError(f"{where} exceeds num_rows={self.num_rows}: give the rows of a whole epoch.")
                if skip < checked.num_rows:
                    yield checked.take(np.arange(skip, checked.num_rows))
                skip = max(0, skip - checked.num_rows)
            if self._is_iterator or seen < self.num_rows:
                used_up = "an iterator is used up: give what can be iterated again"
                remedy = used_up if self._is_iterator else "correct num_rows, or the loader"
                raise LoaderError(
                    f"The loader ended after {seen} rows of an epoch of num_rows={self.num_rows}; {remedy}."
                )
            epoch += 1

    def _epoch(self, where: str) -> Iterator[Any]:
        pending, self._pending = self._pending, []
        yield from pending
        number = len(pending)
        try:
            for batch in self.loader:
                yield batch
                number += 1
        except LoaderError:
            raise
        except Exception as error:  # the user's own code may raise anything
            raise LoaderError(f"The loader raised {type(error).__name__} at batch {number} {where}: {error}") from error

    def _checked(self, batch: Any, where: str, like: Dataset | None) -> Dataset:
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise LoaderError(f"{where} of the loader is {type(batch).__name__}; expected (x, y) or (x, y, weight).")
        try:
            x, y = check_inputs(batch[0]), read_targets(batch[1], self.likelihood)
            count = pytrees.num_rows(x)
            weight = np.ones(count) if len(batch) == 2 else check_numbers(batch[2], "weight").astype(float)
            made = Dataset(x, check_targets(y, self.likelihood, some=True), weight)
            if {len(made.y), len(weight)} != {count} or not (weight > 0).all():
                shapes = f"x has {count} rows, y {len(made.y)}, weight {len(weight)}"
                raise ValueError(f"{shapes}; expected as many of each, and weights above 0")
            if like is not None:
                check_like(made.x, like.x)
                check_like(made.y, like.y, "y")
        except (TypeError, ValueError) as error:
            raise LoaderError(f"{where} of the loader does not fit: {error}") from error
        return made


@dataclass(frozen=True, eq=False)
class Elsewhere:
    """What a store knows of rows that it does not hold."""

    sample: Dataset
    num_rows: int
    in_order: bool
    remark: str


Source = Mapped | Loaded | Elsewhere


def source_of(data: Any, likelihood: Likelihood, num_rows: int | None) -> Mapped | Loaded | None:
    """What reads these data as a run goes; None where they are arrays, to be held in memory."""
    if isinstance(data, tuple | list | Dataset):
        if num_rows is not None:
            raise ValueError(f"num_rows={num_rows} is for loaders; the arrays of (x, y) have a length of their own.")
        return _mapped(data, likelihood)
    if not isinstance(data, Iterable) or isinstance(data, dict | str | np.ndarray | jax.Array):
        return None  # refused, with a remedy, as data are
    if not (is_whole(num_rows) and num_rows > 0):
        raise TypeError(
            f"data is {type(data).__name__}, a loader of batches, and num_rows is {num_rows!r}; expected the rows of "
            "an epoch: fit(..., num_rows=len(loader.dataset))."
        )
    return Loaded(data, int(num_rows), likelihood)


def _mapped(data: Any, likelihood: Likelihood) -> Mapped | None:
    is_mapped = len(data) in (2, 3) and any(isinstance(leaf, np.memmap) for leaf in jax.tree.leaves(data[0]))
    if not is_mapped or _num_bytes(data[0]) <= RESIDENT_BYTES:
        return None
    few = jax.tree.map(lambda leaf: leaf[:1], data[0])
    check_inputs(few)
    x = data[0]
    lengths = {len(leaf) for leaf in jax.tree.leaves(x)}
    y = check_targets(read_targets(data[1], likelihood), likelihood)
    weight = np.ones(len(y)) if len(data) == 2 else check_numbers(data[2], "weight").astype(float)
    if {*lengths, len(weight)} != {len(y)} or not (weight > 0).all():
        raise ValueError(
            f"x has {sorted(lengths)} rows, y {len(y)}, weight {len(weight)}; expected as many of each, and weights "
            "above 0 for the rows of a memory map."
        )
    return Mapped(x, y, weight)


def set_aside(
    source: Mapped | Loaded, holdout: Any, validation: Any, seed: int, likelihood: Likelihood
) -> tuple[Mapped | Loaded, tuple[Any, Dataset | None], Dataset | None]:
    """(rows to fit, inputs to calibrate by and their targets, rows to stop by): as of arrays, and the same rows."""
    aside: dict[str, Dataset] = {}
    for name, given in {"holdout": holdout, "validation": validation}.items():
        if not is_number(given):
            continue
        if not isinstance(source, Mapped):
            what = "inputs x" if name == "holdout" else "(x, y)"
            raise ValueError(f"{name}={given} cannot be taken from a loader: give {what} that it does not have.")
        kept, others = split_places(source.num_rows, given, seed, name)
        aside[name] = source.read(others)
        source = source.take(kept)
    sample = source.sample
    _, *held_out = calibration_inputs(sample, None if "holdout" in aside else holdout, seed)
    if "holdout" in aside:
        held_out = [aside["holdout"].x, aside["holdout"]]
    rows = aside.get("validation") or stopping_rows(sample, validation, seed, likelihood)[1]
    return source, (held_out[0], held_out[1]), rows


def refuse_full_batches(name: str, source: Source) -> None:
    """Refuse a step that needs all rows at once."""
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(tuple(source.sample))) / source.sample.num_rows
    raise ValueError(
        f"{name} takes all {source.num_rows} rows at every step, {held * source.num_rows / 2**30:.3g} GB in memory: "
        "give them as arrays (x, y) if they fit, or use minibatches: SGHMC(), Laplace(), or batch_size=128 where it is "
        "a setting."
    )


def _num_bytes(x: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(x))


def _digest(described: list[Any], arrays: list[np.ndarray]) -> str:
    made = hashlib.sha256(repr(described).encode())
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.hexdigest()
