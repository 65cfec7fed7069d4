"""Draws that stay on disk: arrays in pieces of files, of which only what is asked for is read.

Files are read at offsets and never mapped: the pages of a mapped file count as memory of the process. A file is checked
against its checksum once, when it is opened; later reads refuse a file whose size or date is no longer the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import records
from posterity.core.types import Array, Family, Key, Params
from posterity.storage.codec import StoreError
from posterity.storage.folder import Writer, open_file
from posterity.weights.families import DrawsAtHand, Samples, WeightFamily

SHARD_BYTES = 64 * 2**20  # of a file of draws; a single draw of every chain may take more
HELD_BYTES = 64 * 2**20  # draws of at most this size are read into memory
HEADER_BYTES = 16 * 2**20  # some hundred bytes for each array
NUMBERS = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "BOOL": np.bool_,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
}


class StoredFile(NamedTuple):
    """A file as it was when its checksum was found right."""

    path: Path
    size: int
    modified: int

    @classmethod
    def of(cls, path: Path) -> StoredFile:
        status = path.lstat()
        return cls(path, status.st_size, status.st_mtime_ns)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        try:
            unchanged = StoredFile.of(self.path) == self
        except OSError:
            unchanged = False
        if not unchanged:
            raise StoreError(
                f"{self.path} holds draws of this posterior and was moved or changed since: load the posterior again."
            )
        with open_file(self.path) as file:
            yield file


class Piece(NamedTuple):
    """Where a file holds some draws of an array, [C, d, ...]."""

    file: StoredFile
    offset: int  # of the first byte
    num_draws: int


class StoredArray:
    """An array [C, D, ...] in pieces along its draws. `array[chains]` is stored too; `np.asarray` reads everything."""

    def __init__(self, pieces: tuple[Piece, ...], chains: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.pieces, self.chains, self.dtype = pieces, chains, dtype
        self._ends = np.cumsum([piece.num_draws for piece in pieces])
        self.shape = (len(chains), int(self._ends[-1]), *shape)

    @property
    def bytes_of_draw(self) -> int:
        return math.prod(self.shape[2:]) * self.dtype.itemsize

    def __getitem__(self, chains: Any) -> StoredArray:
        return StoredArray(self.pieces, self.chains[chains], self.shape[2:], self.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # there is nothing to share
        whole = self.between(0, self.shape[1])
        return whole if dtype is None else whole.astype(dtype)

    def between(self, first: int, last: int) -> np.ndarray:
        """Draws first .. last - 1 of all chains."""
        chains, draws = np.divmod(np.arange(self.shape[0] * (last - first)), last - first)
        return self.read(chains, first + draws).reshape(self.shape[0], last - first, *self.shape[2:])

    def columns(self, chosen: np.ndarray) -> np.ndarray:
        """Single weights of every draw, [C, D, len(chosen)]; `chosen` counts in the flattened array of one draw."""
        step = max(1, SHARD_BYTES // max(1, self.shape[0] * self.bytes_of_draw))
        picked = []
        for first in range(0, self.shape[1], step):
            some = self.between(first, min(first + step, self.shape[1]))
            picked.append(some.reshape(*some.shape[:2], -1)[:, :, chosen])
        return np.concatenate(picked, 1)

    def read(self, chains: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Draw draws[i] of chain chains[i], for all i."""
        made = np.empty((len(draws), *self.shape[2:]), self.dtype)
        home = np.searchsorted(self._ends, draws, side="right")
        for number in np.unique(home) if made.size else ():
            piece = self.pieces[number]
            here = np.flatnonzero(home == number)
            rows = self.chains[chains[here]] * piece.num_draws + draws[here] - (self._ends[number] - piece.num_draws)
            order = np.argsort(rows, kind="stable")
            here, rows = here[order], rows[order]
            with piece.file.open() as file:
                for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
                    made[here[run]] = self._read_rows(file, piece.offset, rows[run[0]], len(run))
        return made

    def _read_rows(self, file: IO[bytes], offset: int, first: int, count: int) -> np.ndarray:
        buffer = bytearray(count * self.bytes_of_draw)
        file.seek(offset + int(first) * self.bytes_of_draw)
        if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]
            raise StoreError(f"{file.name} ends before its draws do; load the posterior again.")
        return np.frombuffer(buffer, self.dtype).reshape(count, *self.shape[2:])


@records.record
class StoredSamples(WeightFamily):
    """Draws on disk, [C, D, ...]: `Samples` whose memory is what is asked of it at a time."""

    leaves: tuple[StoredArray, ...]
    structure: Any  # of the tree that the leaves make
    fixed: Params = records.traced(default=None)

    @classmethod
    def of(cls, draws: Params, fixed: Params) -> StoredSamples:
        leaves, structure = jax.tree.flatten(draws)
        return cls(tuple(leaves), structure, fixed)

    @property
    def draws(self) -> Params:  # type: ignore[override]
        """The arrays, each to be read with `np.asarray`."""
        return jax.tree.unflatten(self.structure, self.leaves)

    @property
    def num_chains(self) -> int:
        return self.leaves[0].shape[0]

    @property
    def num_draws(self) -> int:  # type: ignore[override]
        return self.num_chains * self.leaves[0].shape[1]

    @property
    def bytes_of_draw(self) -> int:  # type: ignore[override]
        return sum(leaf.bytes_of_draw for leaf in self.leaves)

    def point(self) -> Params:
        return jax.tree.map(jnp.asarray, self._read(self.num_draws - self.num_chains + np.arange(self.num_chains)))

    def draw(self, key: Key, index: Array) -> Params:
        """Inside a compiled program the draw is read as it runs."""
        del key
        dtypes = [jax.dtypes.canonicalize_dtype(leaf.dtype) for leaf in self.leaves]

        def read(index: Any) -> list[np.ndarray]:
            wanted = np.asarray(index)
            rows = jax.tree.leaves(self._read(wanted.ravel()))
            return [
                part.reshape(*wanted.shape, *part.shape[1:]).astype(dtype)
                for part, dtype in zip(rows, dtypes, strict=True)
            ]

        shapes = [jax.ShapeDtypeStruct(leaf.shape[2:], dtype) for leaf, dtype in zip(self.leaves, dtypes, strict=True)]
        leaves = jax.pure_callback(read, shapes, index, vmap_method="broadcast_all")
        return jax.tree.unflatten(self.structure, leaves)

    def at_hand(self, key: Key, draws: np.ndarray) -> tuple[Family, np.ndarray]:
        del key
        rows = jax.tree.map(jnp.asarray, self._read(draws))
        return DrawsAtHand(rows, jnp.asarray(draws % self.num_chains), self.fixed), np.arange(len(draws))

    def _read(self, draws: np.ndarray) -> Params:
        """[len(draws), ...]."""
        draws, chains = np.divmod(draws, self.num_chains)
        return jax.tree.unflatten(self.structure, [leaf.read(chains, draws) for leaf in self.leaves])


def open_draws(paths: Iterable[Path], template: Params) -> Params:
    """The draws in files that `write_draws` or a run made, as StoredArrays in the tree of `template`.

    Leaves that are numbers say which array belongs there. The checksums must have been found right before.
    """
    leaves, structure = jax.tree.flatten(template)
    paths = list(paths)
    if len(set(paths)) != len(paths):
        raise StoreError("The store names a file of draws several times; it was edited: restore it from a copy.")
    files = [StoredFile.of(path) for path in paths]
    tables = [_extents(file) for file in files]
    if len({shape[0] for table in tables for _, shape, _ in table.values()}) != 1:
        raise StoreError("The files of draws hold none, or of other numbers of chains; restore them from a copy.")
    arrays = []
    for position, leaf in enumerate(leaves):
        number = leaf if type(leaf) is int else position
        found = [table.get(f"{number:04d}") for table in tables]
        shapes = {(extent.shape[2:], extent.dtype) for extent in found if extent is not None}
        if len(shapes) != 1 or None in found or any(len(table) != structure.num_leaves for table in tables):
            raise StoreError("The files of draws do not fit each other or the model; pass the one the run began with.")
        extents = list(filter(None, found))
        pieces = tuple(Piece(file, extent.offset, extent.shape[1]) for file, extent in zip(files, extents, strict=True))
        _, shape, dtype = extents[0]
        arrays.append(StoredArray(pieces, np.arange(shape[0]), shape[2:], dtype))
    return jax.tree.unflatten(structure, arrays)


def write_draws(writer: Writer, draws: Params, prefix: str) -> list[str]:
    """Write draws [C, D, ...], in memory or on disk, to files of at most SHARD_BYTES; returns their names."""
    leaves = jax.tree.leaves(draws)
    num_draws = leaves[0].shape[1]
    each = sum(leaf.shape[0] * math.prod(leaf.shape[2:]) * leaf.dtype.itemsize for leaf in leaves)
    step = max(1, SHARD_BYTES // max(1, each))
    names = []
    for first in range(0, num_draws, step):
        names.append(f"{prefix}-{len(names):06d}")
        last = min(first + step, num_draws)
        writer.arrays(names[-1], {f"{i:04d}": _between(leaf, first, last) for i, leaf in enumerate(leaves)})
    return names


def join(parts: Sequence[Params]) -> Params:
    """Draws of several stretches of a run, [C, R, ...] each, as one tree: on disk where all of them are."""
    if not parts:
        return None
    if not all(isinstance(leaf, StoredArray) for leaf in jax.tree.leaves(list(parts))):
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)

    def joined(*leaves: StoredArray) -> StoredArray:
        pieces = tuple(piece for leaf in leaves for piece in leaf.pieces)
        return StoredArray(pieces, leaves[0].chains, leaves[0].shape[2:], leaves[0].dtype)

    return jax.tree.map(joined, *parts)


def settle(family: Family, memory: float = HELD_BYTES) -> Family:
    """A family ready for use: on the device, or left on disk where its draws are there and take more than `memory`."""
    draws, fixed = family.draws, family.fixed
    if any(isinstance(leaf, StoredArray) for leaf in jax.tree.leaves(draws)):
        stored = StoredSamples.of(draws, jax.tree.map(jnp.asarray, fixed))
        if stored.num_draws * stored.bytes_of_draw > memory:
            return stored
        family = Samples(jax.tree.map(np.asarray, draws), fixed)
    return jax.tree.map(jnp.asarray, family)


def _between(leaf: Any, first: int, last: int) -> np.ndarray:
    return leaf.between(first, last) if isinstance(leaf, StoredArray) else np.asarray(leaf)[:, first:last]


class _Extent(NamedTuple):
    """Where in a file an array lies."""

    offset: int
    shape: tuple[int, ...]  # [C, d, ...]
    dtype: np.dtype


def _extents(file: StoredFile) -> dict[str, _Extent]:
    """Every array of a safetensors file: a length, a header in JSON, then the numbers.

    A checksum says nothing of what a file holds, so every number in the header is checked before it is used.
    """
    try:
        with file.open() as opened:
            first = 8 + int.from_bytes(opened.read(8), "little")
            if first > min(file.size, HEADER_BYTES):
                raise ValueError(f"a header of {first - 8} bytes")
            header = json.loads(opened.read(first - 8))
        header.pop("__metadata__", None)
        extents = {name: _extent(entry, first, file.size) for name, entry in header.items()}
        if len({extent.shape[1] for extent in extents.values()}) > 1:
            raise ValueError("arrays of other numbers of draws")
        if sum(math.prod(extent.shape) * extent.dtype.itemsize for extent in extents.values()) > file.size:
            raise ValueError("arrays that share their bytes")
    except StoreError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise StoreError(
            f"{file.path} is damaged: its header does not describe draws ({error}). Restore it from a copy."
        ) from error
    return extents


def _extent(entry: Any, first: int, size: int) -> _Extent:
    """An entry of a header whose shape, type and bytes agree; the numbers of the file begin at `first`."""
    (begin, end), shape, dtype = entry["data_offsets"], tuple(entry["shape"]), np.dtype(NUMBERS[entry["dtype"]])
    if not all(type(number) is int and number >= 0 for number in (begin, end, *shape)):
        raise ValueError(f"shape {shape} at {begin} .. {end}")
    if len(shape) < 2 or min(shape[:2]) < 1 or first + end > size or end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"shape {shape} of {dtype} in {end - begin} bytes")
    if shape[0] * shape[1] > size:  # draws without weights take no bytes, however many there are
        raise ValueError(f"shape {shape} in a file of {size} bytes")
    return _Extent(first + begin, shape, dtype)
