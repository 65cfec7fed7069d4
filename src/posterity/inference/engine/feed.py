"""Rows that are read as a run goes: those of the next segment, while the chains use those of this one.

Which rows a step sees is the function of key and step that it is for rows on the device (data/batches.py), so a memory
map gives the batches that arrays do. A loader's rows come in its own order, cut into the same batches for all chains.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core.devices import fetch, place
from posterity.core.types import Array, Batch, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.data.batches import pick_rows
from posterity.data.sources import Loaded, Mapped, Source
from posterity.inference.engine.job import ScheduledPhase, Streamed
from posterity.inference.engine.program import Chains, Layout, begin, shuffle_key
from posterity.models.units import in_network_units

FEED_BYTES = 64 * 2**20  # of rows on the way to the devices, for one segment; as many are read ahead


@partial(jax.jit, static_argnames=("layout", "count"))
def _picked(layout: Layout, keys: Key, first_step: Array, count: int) -> tuple[Array, Array]:
    """Rows and padding of so many steps, [C, T, width] each, for keys of shuffles [C]."""
    num_rows = _num_rows(layout)

    def one(key: Key, step: Array) -> tuple[Array, Array]:
        return pick_rows(key, num_rows, step, layout.width, layout.batches, layout.shuffle)

    return jax.vmap(lambda key: jax.vmap(partial(one, key))(first_step + jnp.arange(count)))(keys)


def fitted(phase: Phase, layout: Layout, source: Source, num_chains: int) -> tuple[Phase, Layout]:
    """The phase in strides, and the program with a capacity, whose rows have room on their way to the devices."""
    row = sum(leaf.nbytes for leaf in jax.tree.leaves(tuple(source.sample))) / source.sample.num_rows
    copies = 1 if source.in_order else num_chains
    steps = max(1, int(FEED_BYTES // (copies * layout.width * row)))
    if phase.thin > steps:
        if phase.keep:
            raise ValueError(
                f"thin={phase.thin} steps of {copies} x {layout.width} rows take {phase.thin / steps:.3g} times the "
                f"{FEED_BYTES >> 20} MB that may be on their way: lower thin or batch_size."
            )
        phase = phase._replace(thin=steps)  # where nothing is kept, a stride is what the trace averages over
    capacity = min(layout.capacity, max(1, steps // phase.thin), -(-phase.num_steps // phase.thin))
    return phase, layout._replace(capacity=capacity, feed="shared" if source.in_order else "own")


class Feeder:
    """Batches for the segments of one phase, from a step on; `keys`: of the chains, [C]."""

    def __init__(self, here: ScheduledPhase, streamed: Streamed, keys: Key, first_step: int) -> None:
        self._streamed, self._layout = streamed, here.layout
        self._steps, self._num_steps = here.layout.capacity * here.phase.thin, here.phase.num_steps
        self._next = first_step
        self._keys = jax.vmap(lambda key: shuffle_key(key, here.number))(keys)
        self._pool = ThreadPoolExecutor(1, "rows")
        source = streamed.source
        self._in_order = _in_order(source, here.layout, first_step) if isinstance(source, Loaded) else None
        self._coming = self._begin_reading()

    def __enter__(self) -> Feeder:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def take(self) -> Batch:
        """Those of the next segment, on the devices: [C, T, width, ...], or [T, width, ...] for all chains."""
        rows = self._coming.result()
        self._next += self._steps
        axes = ("chain",) if self._layout.feed == "own" else ()
        placed = place(tuple(rows), self._layout.mesh, *axes)
        if self._next < self._num_steps:
            self._coming = self._begin_reading()
        return Batch(*placed)

    def _begin_reading(self) -> Future[Dataset]:
        """The picks are computed now: once a segment runs, they would wait for the devices."""
        count = min(self._steps, self._num_steps - self._next)
        if self._in_order is not None:
            return self._pool.submit(self._read_on, self._in_order, count)
        position, padding = fetch(_picked(self._layout, self._keys, np.asarray(self._next), self._steps))
        return self._pool.submit(self._read, position[:, :count], padding[:, :count])

    def _read(self, position: np.ndarray, padding: np.ndarray) -> Dataset:
        return _padded(_read_at(self._streamed, position, padding), 1, self._steps)

    def _read_on(self, batches: Iterator[Dataset], count: int) -> Dataset:
        found = [tuple(next(batches)) for _ in range(count)]
        stacked = Dataset(*jax.tree.map(lambda *leaves: np.stack(leaves), *found))
        return _padded(_in_units(self._streamed, stacked), 0, self._steps)


def feeder(here: ScheduledPhase, keys: Key, first_step: int) -> AbstractContextManager[Feeder | None]:
    """What brings a phase its rows; None where they are on the devices, or all steps are done."""
    if here.streamed is None or first_step >= here.phase.num_steps:
        return nullcontext()
    return Feeder(here, here.streamed, keys, first_step)


def begin_chains(here: ScheduledPhase, keys: Key, params: Params, fixed: Params) -> Chains:
    """The first state of each chain of a phase."""
    feed = None if here.streamed is None else _first_batches(here.layout, here.streamed, keys)
    return begin(here.layout, here.shared, keys, params, fixed, feed)


def template(streamed: Streamed, layout: Layout) -> Batch:
    """Rows of the shape of a batch."""
    places = np.arange(layout.width) % streamed.source.sample.num_rows
    return Batch(*place(tuple(_in_units(streamed, streamed.source.sample.take(places))), layout.mesh))


def _first_batches(layout: Layout, streamed: Streamed, keys: Key) -> Batch:
    """What chains with these keys begin with, [C, width, ...]; a loader's first rows for all of them."""
    if streamed.source.in_order:
        places = np.arange(layout.width) % streamed.source.sample.num_rows
        rows = _in_units(streamed, streamed.source.sample.take(np.tile(places, (len(keys), 1))))
    else:
        running = jax.vmap(lambda key: jax.random.split(key)[1])(keys)
        position, padding = fetch(_picked(layout, running, np.asarray(0), 1))
        rows = _read_at(streamed, position[:, 0], padding[:, 0])
    return Batch(*place(tuple(rows), layout.mesh, "chain"))


def _read_at(streamed: Streamed, position: np.ndarray, padding: np.ndarray) -> Dataset:
    """Rows of a memory map, in the shape of their positions, those that pad with weight 0."""
    assert isinstance(streamed.source, Mapped)
    found = tuple(_in_units(streamed, streamed.source.read(position.ravel())))
    rows = Dataset(*jax.tree.map(lambda leaf: leaf.reshape(*position.shape, *leaf.shape[1:]), found))
    return rows._replace(weight=np.where(padding, 0.0, rows.weight))


def _in_order(source: Loaded, layout: Layout, first_step: int) -> Iterator[Dataset]:
    """A loader's rows as batches of the plan: of nearly equal size, padded to one width, whole epochs of them."""
    index = first_step % layout.batches
    size, more = divmod(_num_rows(layout), layout.batches)
    rows = source.rows(skip=index * size + min(index, more))
    held = next(rows)
    while True:
        count = size + (index < more)
        while held.num_rows < count:
            both = (tuple(held), tuple(next(rows)))
            held = Dataset(*jax.tree.map(lambda *parts: np.concatenate(parts), *both))
        places = np.arange(layout.width)
        batch = held.take(np.where(places < count, places, 0))
        yield batch._replace(weight=np.where(places < count, batch.weight, 0.0))
        held = held.take(np.arange(count, held.num_rows))
        index = (index + 1) % layout.batches


def _num_rows(layout: Layout) -> int:
    assert layout.num_rows is not None  # what takes all rows at once is refused
    return layout.num_rows


def _in_units(streamed: Streamed, rows: Dataset) -> Dataset:
    """Targets in the units of the network."""
    _, (y,) = in_network_units(streamed.likelihood, rows.y)
    return rows._replace(y=y)


def _padded(rows: Dataset, axis: int, length: int) -> Dataset:
    """Zeros up to a length that all segments share: no step reads them."""

    def pad(leaf: np.ndarray) -> np.ndarray:
        missing = length - leaf.shape[axis]
        return np.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)]) if missing else leaf

    return Dataset(*jax.tree.map(pad, tuple(rows)))
