"""The compiled programs of a run: start all chains, and advance them by any number of strides.

A segment is a loop with a traced number of steps, so cutting a run into segments costs no compilation and changes no
bit of it. Chains are spread over the mesh's first axis and mapped over within a device. Rows are spread over the
second: there the compiler splits the work and adds the sums, so no method needs to know.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from posterity.core import pytrees
from posterity.core.devices import compiler_options, double_precision, jit_once, place
from posterity.core.types import Array, Batch, Kernel, Key, Params, Phase
from posterity.data.arrays import Dataset
from posterity.data.augment import Augment, augmented
from posterity.data.batches import batch_width, clock, num_batches, padded_size, pick_rows, take_rows
from posterity.inference.engine.early_stopping import stop_early
from posterity.inference.methods.method import Method
from posterity.models.model import Model

T = TypeVar("T")


class Layout(NamedTuple):
    """What a segment's program is specialised to."""

    mesh: Mesh
    num_rows: int | None  # of the data, where batches are picked from them; None: a step sees all, however many
    batches: int  # in an epoch
    width: int  # rows of a batch, padding included: a multiple of the devices that split it
    shuffle: bool
    keep: bool
    capacity: int  # strides a segment can hold
    in_turn: bool  # the chains of a device run one after the other, not side by side
    float64: bool  # parts of the program compute in float64, also where JAX is set to float32
    feed: Literal["", "own", "shared"] = ""  # rows come with each segment: batches of each chain, or the same for all
    augment: Augment | None = None  # what happens to the inputs of each row, at every step anew


SEGMENT_STRIDES = 1024
SEGMENT_BYTES = 64 * 2**20  # of kept draws on the device at a time


class Chains(NamedTuple):
    """All chains between two segments; every leaf has a leading axis [C]."""

    key: Key
    state: Any
    fixed: Params
    failed_at: Array  # the first step with a non-finite value, -1 while there is none


class Extra(NamedTuple):
    """Held-out rows that decide when a chain stops, and how often to look."""

    validation: Batch | None
    every: Any = 1
    patience: Any = 1


class Shared(NamedTuple):
    """What all chains of a phase have in common."""

    method: Method
    model: Model
    data: Batch  # all rows; where they come with each segment, a batch to know shapes by
    num_data: Any  # rows of the data, without padding
    extra: Extra


class Span(NamedTuple):
    """Which strides a segment runs, and where in the plan; traced, so that no cut compiles anything."""

    first_stride: Any
    last_stride: Any  # the one after the last
    thin: Any  # steps of a stride
    num_steps: Any  # of the phase
    offset: Any  # steps of the phases before
    phase: Any


def layout_of(
    mesh: Mesh, phase: Phase, num_rows: int, free: Params, keeps: bool, *, in_turn: bool, float64: bool
) -> Layout:
    """The program a phase needs: its batches, and as many strides as kept draws leave room for.

    `keeps`: some phase of the run keeps draws. Where they take little room the others run the same program, and what
    it kept is left on the device: a second one takes seconds to compile, longer than many a burn-in.
    """
    room = SEGMENT_BYTES // max(1, sum(leaf.nbytes for leaf in jax.tree.leaves(free)))
    keep = phase.keep or (keeps and room >= SEGMENT_STRIDES)
    capacity = int(np.clip(room, 1, SEGMENT_STRIDES)) if keep else SEGMENT_STRIDES
    batches = num_batches(num_rows, phase.batch_size)
    splits = mesh.shape["data"]
    width = batch_width(num_rows, phase.batch_size) if batches > 1 else padded_size(num_rows)
    width = -(-width // splits) * splits
    return Layout(
        mesh, num_rows if batches > 1 else None, batches, width, phase.shuffle, keep, capacity, in_turn, float64
    )


def place_rows(layout: Layout, rows: Dataset) -> Batch:
    """The data on the mesh: split where a step sees all of it, whole on every device where it picks batches."""
    if layout.batches > 1:
        return place(rows.batch(), layout.mesh)
    index = np.arange(layout.width)
    padded = rows.take(np.minimum(index, rows.num_rows - 1)) if layout.width > rows.num_rows else rows
    weight = np.where(index < rows.num_rows, padded.weight, 0.0)
    return place(padded._replace(weight=weight).batch(), layout.mesh, "data")


def pad_chains(chains: Any, num_devices: int) -> Any:
    """Repeat the last chain until the chains fill the devices; the copies are dropped at the end."""
    num_chains = pytrees.num_rows(chains)
    padded = -(-num_chains // num_devices) * num_devices
    return chains if padded == num_chains else pytrees.take_rows(chains, np.minimum(np.arange(padded), num_chains - 1))


def _kernel(shared: Shared, fixed: Params) -> Kernel:
    kernel, extra = shared.method.kernel(shared.model.bind(fixed)), shared.extra
    if extra.validation is None:
        return kernel
    return stop_early(kernel, extra.validation, extra.every, extra.patience)


def _over_chains(layout: Layout, function: Any, shared: Any, chains: Any) -> Any:
    """function(shared, chain) for each chain, on the chain's device."""

    def on_device(shared: Any, chains: Any) -> Any:
        one = partial(function, shared)
        return jax.lax.map(one, chains) if layout.in_turn else jax.vmap(one)(chains)

    mapped = jax.shard_map(
        on_device,
        mesh=layout.mesh,
        in_specs=(P(), P("chain")),
        out_specs=P("chain"),
        axis_names={"chain"},  # the data axis is left to the compiler
        check_vma=False,  # no collective crosses chains, so there is nothing to check
    )
    return mapped(shared, chains)


def _take(layout: Layout, key: Key, data: Batch, step: Array, shuffle: bool) -> Batch:
    if layout.num_rows is None or layout.feed:
        return data
    picked = pick_rows(key, layout.num_rows, step, layout.width, layout.batches, shuffle)
    if layout.mesh.shape["data"] == 1:
        return take_rows(data, *picked)
    # Every device works out all picks: split, each turn of the walk in `permute` would wait for the other devices.
    picked = jax.lax.with_sharding_constraint(picked, P())
    return jax.lax.with_sharding_constraint(take_rows(data, *picked), P("data"))


def chains_at_start(
    layout: Layout, shared: Shared, keys: Key, params: Params, fixed: Params, feed: Batch | None = None
) -> Chains:
    """The first state of each chain; `feed`: what it begins with, [C, width, ...], where rows come with segments."""

    def one(shared: Shared, chain: Any) -> Chains:
        key, params, fixed, own = chain
        key_init, key_run = jax.random.split(key)
        zero = jnp.zeros((), int)
        batch = _take(layout, key_run, shared.data, zero, layout.shuffle) if own is None else own
        now = clock(zero, jnp.ones((), int), zero, layout.batches, shared.num_data)
        state = _kernel(shared, fixed).init(key_init, params, batch, now)
        return Chains(key_run, state, fixed, jnp.full((), -1, int))

    return _over_chains(layout, one, shared, (keys, params, fixed, feed))


_begin = jit_once(chains_at_start, static_argnames="layout")


def begin(
    layout: Layout, shared: Shared, keys: Key, params: Params, fixed: Params, feed: Batch | None = None
) -> Chains:
    """Compute the first state of each chain."""
    with double_precision(layout.float64):
        return _ended(layout, _begin(layout, shared, keys, params, fixed, feed))


def advance(
    layout: Layout, shared: Shared, chains: Chains, span: Span, feed: Batch | None = None
) -> tuple[Chains, Any, Any]:
    """Run the strides of a span, on the rows that come with it where the layout has a feed.

    Returns the chains, the mean Info of each stride [C, R], and the kept parameters [C, R, ...] (None if not kept).
    """
    traced = Span(*(np.asarray(number) for number in span))
    with double_precision(layout.float64):
        return _ended(layout, compiled_advance(layout.in_turn)(layout, shared, chains, traced, feed))


def _ended(layout: Layout, result: T) -> T:
    """The result, once it is there: programs run on after they were called, and the limit on LAPACK's threads must hold
    until they end (default fits of 300 rows took three times as long)."""
    return jax.block_until_ready(result) if layout.float64 else result


@cache
def compiled_advance(convolves: bool) -> Any:
    """Made when it is first called: only then are the devices known."""
    options = compiler_options() if convolves else None
    return jax.jit(_advance, static_argnames="layout", donate_argnames="chains", compiler_options=options)


def shuffle_key(key: Key, phase: Any) -> Key:
    """Of a chain's batches in a phase, or every phase would begin with the same ones."""
    return jax.random.fold_in(jax.random.split(key, 3)[1], phase)


def _advance(layout: Layout, shared: Shared, chains: Chains, span: Span, feed: Batch | None) -> tuple[Chains, Any, Any]:
    first_stride, last_stride, thin, num_steps, offset, phase = span

    def one(common: tuple[Shared, Batch | None], its: tuple[Chains, Batch | None]) -> tuple[Chains, Any, Any]:
        (shared, for_all), (chain, own) = common, its
        fed = for_all if own is None else own
        kernel = _kernel(shared, chain.fixed)
        key_steps, _, key_rest = jax.random.split(chain.key, 3)
        key_shuffle = shuffle_key(chain.key, phase)

        def rows(index: Array) -> Batch:
            if fed is None:
                return _take(layout, key_shuffle, shared.data, index, layout.shuffle)
            batch = jax.tree.map(lambda leaf: leaf[index - first_stride * thin], fed)
            return batch if layout.mesh.shape["data"] == 1 else jax.lax.with_sharding_constraint(batch, P("data"))

        def step(index: Array, carry: Any) -> Any:
            state, failed_at, info_sum = carry
            now = clock(index, num_steps, phase, layout.batches, shared.num_data)
            batch = rows(index)
            if layout.augment is not None:
                batch = augmented(layout.augment, key_rest, offset + index, batch)
            # fold_in: the key of a step depends on its number alone, so a resumed run repeats exactly.
            state, info = kernel.step(jax.random.fold_in(key_steps, offset + index), state, batch, now)
            failed_at = jnp.where((failed_at < 0) & ~pytrees.all_finite(info), offset + index, failed_at)
            info_sum = jax.tree.map(lambda total, value: total + value, info_sum, info)
            return state, failed_at, info_sum

        def stride(index: Array, carry: Any) -> Any:
            state, failed_at, infos, draws = carry
            zero = jax.tree.map(lambda buffer: jnp.zeros((), buffer.dtype), infos)
            begin_step = index * thin
            state, failed_at, info_sum = jax.lax.fori_loop(
                begin_step, jnp.minimum(begin_step + thin, num_steps), step, (state, failed_at, zero)
            )
            count = jnp.minimum(begin_step + thin, num_steps) - begin_step
            slot = index - first_stride
            infos = jax.tree.map(lambda buffer, value: buffer.at[slot].set(value / count), infos, info_sum)
            draws = jax.tree.map(lambda buffer, value: buffer.at[slot].set(value), draws, _kept(state))
            return state, failed_at, infos, draws

        def _kept(state: Any) -> Any:
            return state.params if layout.keep else None

        infos, draws = _buffers(kernel, layout, shared.data, chain, _kept)
        carry = (chain.state, chain.failed_at, infos, draws)
        state, failed_at, infos, draws = jax.lax.fori_loop(first_stride, last_stride, stride, carry)
        return Chains(chain.key, state, chain.fixed, failed_at), infos, draws

    for_all, own = (None, feed) if layout.feed == "own" else (feed, None)
    return _over_chains(layout, one, (shared, for_all), (chains, own))


def adapt(layout: Layout, shared: Shared, chains: Chains, draws: Params, phase: Any, num_steps: Any) -> Chains:
    """Where a phase ends: let each chain look at what the phase kept and change its settings."""
    with double_precision(layout.float64):
        return _adapt(layout, shared, chains, draws, phase, num_steps)


@partial(jit_once, static_argnames="layout", donate_argnames="chains")
def _adapt(layout: Layout, shared: Shared, chains: Chains, draws: Params, phase: Array, num_steps: Array) -> Chains:

    def one(shared: Shared, chain_and_draws: tuple[Chains, Params]) -> Chains:
        chain, kept = chain_and_draws
        now = clock(num_steps, num_steps, phase, layout.batches, shared.num_data)
        adapt_state = shared.method.kernel(shared.model.bind(chain.fixed)).adapt
        assert adapt_state is not None  # a phase that adapts belongs to a method that can
        # The steps use two halves of this split; the third part is fresh, and the phase makes it the phase's own.
        key = jax.random.fold_in(jax.random.split(chain.key, 3)[2], phase)
        return chain._replace(state=adapt_state(key, chain.state, kept, now))

    return _over_chains(layout, one, shared, (chains, draws))


def _buffers(kernel: Kernel, layout: Layout, data: Batch, chain: Chains, kept: Any) -> tuple[Any, Any]:
    """Empty room for the strides of a segment."""
    zero = jnp.zeros((), int)
    now = clock(zero, zero, zero, layout.batches, zero)
    batch = _take(layout, chain.key, data, zero, shuffle=False)
    _, info = jax.eval_shape(kernel.step, chain.key, chain.state, batch, now)
    infos = jax.tree.map(lambda leaf: jnp.zeros((layout.capacity,), jnp.result_type(leaf.dtype, float)), info)
    draws = jax.tree.map(lambda leaf: jnp.zeros((layout.capacity, *leaf.shape), leaf.dtype), kept(chain.state))
    return infos, draws


def replace_chains(layout: Layout, which: np.ndarray, old: Chains, fresh: Chains) -> Chains:
    """The fresh chains where `which` says so, the old ones elsewhere."""
    with double_precision(layout.float64):
        return _replace_chains(which, old, fresh)


@partial(jax.jit, donate_argnames="old")
def _replace_chains(which: Array, old: Chains, fresh: Chains) -> Chains:

    def choose(before: Array, after: Array) -> Array:
        return jnp.where(which.reshape(-1, *[1] * (before.ndim - 1)), after, before)

    return jax.tree.map(choose, old, fresh)
