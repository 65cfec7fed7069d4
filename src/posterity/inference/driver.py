"""`fit`: the only loop there is.

A run is a few phases of steps. Between segments of about a second the driver shows progress, stops at the first
non-finite value, at the end of the budget, at Ctrl-C, or when every chain has stopped early.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity import tree
from posterity.data.batches import batch_width, num_batches
from posterity.data.dataset import Dataset, check_inputs, dataset, holdout_split
from posterity.devices import chain_mesh
from posterity.inference.method import Method, Result
from posterity.inference.program import Chains, Extra, Layout, adapt, advance, begin, replicate
from posterity.inference.progress import ProgressBar
from posterity.model import Model
from posterity.posterior import Posterior, make_receipt
from posterity.types import Key, Params, Phase

SEGMENT_SECONDS = 1.0
SEGMENT_RECORDS = 1024
SEGMENT_BYTES = 64 * 2**20  # of kept draws on the device at a time


class NonFiniteError(FloatingPointError):
    """A run met a NaN or an infinite value; the message names chain and step, `trace` holds what came before."""

    def __init__(self, message: str, trace: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass
class _Run:
    """What a run has gathered so far."""

    trace: dict[str, list[np.ndarray]] = field(default_factory=dict)  # [C, R] a segment
    draws: list[Params] = field(default_factory=list)  # [C, R, ...] a segment
    notes: list[str] = field(default_factory=list)
    num_steps: int = 0
    stop: bool = False
    interrupted: bool = False

    def history(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts, axis=1) for name, parts in self.trace.items()}

    def kept(self) -> Params:
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *self.draws) if self.draws else None

    def take_kept(self) -> Params:
        draws, self.draws = self.kept(), []
        return draws


def fit(
    model: Model,
    method: Method,
    data: Any,
    *,
    seed: int = 0,
    chains: int | None = None,
    holdout: Any = None,
    validation: Any = None,
    budget: float | None = None,
    progress: bool = True,
) -> Posterior:
    """Infer the weights of a model from data by a method.

    Args:
        model: Network, likelihood, prior, temperature.
        method: What infers: `MAP()`, `Laplace()`, `HMC()`, with its settings.
        data: `(x, y)` or `(x, y, weight)`; x may be any pytree of arrays with a common first axis.
        seed: The same seed gives the same result on the same machine, versions and devices.
        chains: Independent runs, all in one program; the posterior is their equal mixture.
        holdout: A share of the rows (0.1), or inputs, set aside to calibrate out-of-distribution p-values.
        validation: A share of the rows, or `(x, y)`, on which each chain stops early.
        budget: Seconds after which the run ends with what it has.
        progress: Show a bar on standard error when it is a terminal.
    """
    _check_arguments(model, method, seed, chains, budget)
    rows = dataset(data, model.likelihood)
    calibration = None
    if holdout is not None and isinstance(holdout, float | int):
        rows, aside = holdout_split(rows, holdout, seed, "holdout")
        calibration = aside.x
    elif holdout is not None:
        calibration = check_inputs(holdout, "holdout")
    if validation is not None and isinstance(validation, float | int):
        rows, validation_rows = holdout_split(rows, validation, seed, "validation")
    else:
        validation_rows = None if validation is None else dataset(validation, model.likelihood)
    num_chains = method.num_chains if chains is None else chains
    begun = time.perf_counter()
    deadline = None if budget is None else begun + budget
    posterior = _fit_rows(model, method, rows, validation_rows, seed, num_chains, begun, deadline, progress)
    return posterior if calibration is None else posterior.calibrate(calibration)


def _fit_rows(
    model: Model,
    method: Method,
    rows: Dataset,
    validation: Dataset | None,
    seed: int,
    num_chains: int,
    begun: float,
    deadline: float | None,
    progress: bool,
) -> Posterior:
    key_start, key_chains = jax.random.split(jax.random.key(seed))
    if isinstance(method.start, Method):
        started = _fit_rows(model, method.start, rows, validation, seed, num_chains, begun, deadline, progress)
        method = tree.replace(method, start=started)
        validation = None  # the rows have served: the first stage stopped on them
        model = started.model
    free, fixed = _starting_weights(model, method, rows, key_start, num_chains)
    _check_shapes(model, tree.take_rows(free, 0), tree.take_rows(fixed, 0), rows)
    first = model.bind(tree.take_rows(fixed, 0))
    method.check(first, tree.take_rows(free, 0), rows)
    run = _Run()
    keys = chain_keys(key_chains, num_chains)
    states, fixed = _run_phases(run, model, method, rows, validation, keys, free, fixed, deadline, progress)
    result: Result = method.finish(model, states, tree.take_rows(run.kept(), slice(0, num_chains)), fixed)
    family = jax.tree.map(jnp.asarray, result.family)
    receipt = make_receipt(
        result.model, method, rows, seed, num_chains, run.num_steps, time.perf_counter() - begun, run.notes
    )
    return Posterior(result.model, family, method, receipt, run.history(), result.facts or {}, rows.x)


def _run_phases(
    run: _Run,
    model: Model,
    method: Method,
    rows: Dataset,
    validation: Dataset | None,
    keys: Key,
    free: Params,
    fixed: Params,
    deadline: float | None,
    progress: bool,
) -> tuple[Any, Params]:
    """Run every phase; returns the last states and the fixed weights, [C, ...] without padding chains."""
    num_chains = keys.shape[0]
    mesh = chain_mesh(num_chains)
    keys, free, fixed = _pad_chains((keys, free, fixed), mesh.devices.shape[0])
    phases = method.plan(rows.num_rows)
    total_steps = sum(phase.num_steps for phase in phases)
    batch = replicate(rows.batch(), mesh)
    chains: Any = None
    share_begins = time.perf_counter()
    bar_shown = ProgressBar(type(method).__name__, total_steps, progress)
    with bar_shown as bar, _polite_interrupt(run, method.anytime):
        for number, phase in enumerate(phases):
            layout = _layout(mesh, phase, rows.num_rows, free)
            extra = _extra(method, model, validation, layout)
            shared = (layout, method, model, batch, replicate(extra, mesh))
            if chains is None:
                chains = begin(*shared, keys, free, fixed)
            phase_deadline = None
            if deadline is not None and method.anytime:
                share = sum(earlier.num_steps for earlier in phases[: number + 1]) / total_steps
                phase_deadline = share_begins + share * (deadline - share_begins)
            chains = _run_phase(run, shared, number, phase, chains, num_chains, phase_deadline, bar)
            if phase.adapt and not run.stop:
                chains = _adapt(run, shared, number, phase, chains)
            if run.stop:
                break
    state = chains.state if validation is None else chains.state.best
    if chains.key.shape[0] == num_chains:
        return state, chains.fixed
    return tree.take_rows((state, chains.fixed), slice(0, num_chains))


def _run_phase(
    run: _Run,
    shared: Any,
    number: int,
    phase: Phase,
    chains: Chains,
    num_chains: int,
    deadline: float | None,
    bar: ProgressBar,
) -> Chains:
    layout = shared[0]
    num_records = -(-phase.num_steps // phase.thin)
    offset, record, size = run.num_steps, 0, 1
    while record < num_records:
        last = min(record + size, num_records)
        began = time.perf_counter()
        span = jnp.asarray([record, last, phase.thin, phase.num_steps, offset, number])
        chains, infos, draws = advance(*shared, chains, span)
        infos = jax.tree.map(np.asarray, infos)  # waits for the device
        seconds = time.perf_counter() - began
        _gather(run, infos, draws, last - record, num_chains)
        run.num_steps = offset + min(last * phase.thin, phase.num_steps)
        bar.update(run.num_steps, infos._fields[0], float(np.mean(infos[0][:num_chains, last - record - 1])))
        _stop_if_failed(run, chains, num_chains, shared[1])
        if _is_over(run, chains, num_chains, offset + phase.num_steps, deadline):
            break
        # The first segment also compiled: it says nothing of the pace.
        growth = 4.0 if record == 0 else SEGMENT_SECONDS / max(seconds, 1e-6)
        record, size = last, int(np.clip(size * min(growth, 16.0), 1, layout.capacity))
    return chains


def _gather(run: _Run, infos: Any, draws: Params, count: int, num_chains: int) -> None:
    for name, values in infos._asdict().items():
        run.trace.setdefault(name, []).append(values[:num_chains, :count])
    if draws is not None:
        run.draws.append(jax.tree.map(lambda leaf: np.asarray(leaf[:, :count]), draws))


def _adapt(run: _Run, shared: Any, number: int, phase: Phase, chains: Chains) -> Chains:
    layout, method, model, data, _ = shared
    return adapt(layout, method, model, data, chains, run.take_kept(), jnp.asarray([number, phase.num_steps]))


def _stop_if_failed(run: _Run, chains: Chains, num_chains: int, method: Method) -> None:
    failed_at = np.asarray(chains.failed_at)[:num_chains]
    if (failed_at < 0).all():
        return
    chain = int(np.argmin(np.where(failed_at < 0, np.iinfo(failed_at.dtype).max, failed_at)))
    raise NonFiniteError(
        f"chain {chain}: non-finite value at step {failed_at[chain]} of {type(method).__name__}. Lower its learning "
        "rate or step size, scale inputs and targets to about unit size, or use float64 (jax.enable_x64).",
        run.history(),
    )


def _is_over(run: _Run, chains: Chains, num_chains: int, planned: int, deadline: float | None) -> bool:
    """Whether a phase ends here although steps are left; an early stop or Ctrl-C ends the run as well."""
    if run.num_steps >= planned:
        return False
    stopped = getattr(chains.state, "stopped", None)
    done = f"after {run.num_steps} of {planned} steps"
    if stopped is not None and bool(np.asarray(stopped)[:num_chains].all()):
        run.stop = True
        run.notes.append(f"stopped early on validation rows {done}")
    elif run.interrupted:
        run.stop = True
        run.notes.append(f"interrupted {done}")
    elif deadline is not None and time.perf_counter() > deadline:
        run.notes.append(f"phase ended by the budget {done}")
        return True
    return run.stop


@contextmanager
def _polite_interrupt(run: _Run, allowed: bool) -> Iterator[None]:
    """The first Ctrl-C lets the segment end, so that nothing is lost; the second one stops at once."""
    if not allowed or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: Any) -> None:
        del number, frame
        if run.interrupted:
            raise KeyboardInterrupt
        run.interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _layout(mesh: Any, phase: Phase, num_rows: int, free: Params) -> Layout:
    capacity = SEGMENT_RECORDS
    if phase.keep:
        bytes_per_record = max(1, sum(leaf.nbytes for leaf in jax.tree.leaves(free)))
        capacity = int(np.clip(SEGMENT_BYTES // bytes_per_record, 1, SEGMENT_RECORDS))
    batches = num_batches(num_rows, phase.batch_size)
    return Layout(mesh, batches, batch_width(num_rows, phase.batch_size), phase.shuffle, phase.keep, capacity)


def _extra(method: Method, model: Model, validation: Dataset | None, layout: Layout) -> Extra:
    if validation is None:
        return Extra(None)
    if method.kernel(model).validate is None:
        raise ValueError(
            f"validation is for methods that optimise; {type(method).__name__} uses every row: leave it out."
        )
    return Extra(validation.batch(), layout.batches, getattr(method, "patience", 10))


def _pad_chains(chains: Any, num_devices: int) -> Any:
    """Repeat the last chain until the chains fill the devices; the copies are dropped at the end."""
    num_chains = tree.num_rows(chains)
    padded = -(-num_chains // num_devices) * num_devices
    return chains if padded == num_chains else tree.take_rows(chains, np.minimum(np.arange(padded), num_chains - 1))


def _starting_weights(model: Model, method: Method, rows: Dataset, key: Key, num_chains: int) -> tuple[Params, Params]:
    """(free, fixed) weights of each chain, [C, ...]."""
    x = jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), rows.x)
    if method.start is None:
        params = _init_chains(model, chain_keys(key, num_chains), x)
    elif isinstance(method.start, Posterior):
        params = method.start.starting_weights(num_chains)
    else:
        params = _given_weights(model, method.start, x, num_chains)
    # A weak type at the start would become a strong one after a step, and compile everything twice.
    return model.split(jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), params))


@partial(jax.jit, static_argnames="num_chains")
def chain_keys(key: Key, num_chains: int) -> Key:
    """Chain c's key depends on c alone: a chain is the same in any company."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_chains))


@jax.jit
def _init_chains(model: Model, keys: Key, x: Any) -> Params:
    return jax.vmap(lambda key: model.init(key, x))(keys)


def _given_weights(model: Model, start: Params, x: Any, num_chains: int) -> Params:
    """Weights the user has: those of the network, or with the likelihood's own under 'likelihood'."""
    template = jax.eval_shape(model.init, jax.random.key(0), x)
    given = start if isinstance(start, dict) and set(start) == set(template) else {"network": start}
    own = model.likelihood.init()
    if own and "likelihood" not in given:
        given = {**given, "likelihood": own}
    if jax.tree.structure(given) != jax.tree.structure(template):
        raise ValueError(
            f"start holds the weights {tree.leaf_names(given)}, but the network has {tree.leaf_names(template)}."
        )
    for name, got, wanted in zip(
        tree.leaf_names(template), jax.tree.leaves(given), jax.tree.leaves(template), strict=True
    ):
        if jnp.shape(got) != wanted.shape:
            raise ValueError(f"start has shape {jnp.shape(got)} for {name}; the network has {wanted.shape}.")
    return jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf)[None], num_chains, 0), given)


def _check_shapes(model: Model, free: Params, fixed: Params, rows: Dataset) -> None:
    """Outputs must fit the likelihood, and what it describes must fit the targets."""
    x = jax.tree.map(lambda leaf: jnp.asarray(leaf[:2]), rows.x)
    bound = model.bind(fixed)
    wanted = model.likelihood.num_outputs
    given = jax.eval_shape(lambda p: model.network.apply(bound.complete(p)["network"], x), free)
    if given.ndim < 2 or given.shape[-1] != wanted:
        raise ValueError(
            f"The network gives outputs of shape {given.shape} for {given.shape[0]} rows; "
            f"{type(model.likelihood).__name__} takes {wanted} outputs a row, [N, ..., {wanted}]."
        )
    sample = jax.eval_shape(lambda p: model.likelihood(bound.outputs(p, x)).sample(jax.random.key(0)), free)
    described = sample.shape[1:]
    if described != rows.y.shape[1:]:
        raise ValueError(
            f"y has shape {rows.y.shape}, but {type(model.likelihood).__name__} on this network describes targets of "
            f"shape {('N', *described)}."
        )
    if not jax.tree.leaves(free):
        raise ValueError("Every weight is Fixed; leave at least one free.")
    jax.eval_shape(model.log_prior, free)  # names a weight that no pattern covers


def _check_arguments(model: Any, method: Any, seed: Any, chains: Any, budget: Any) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"model is {type(model).__name__}; expected Model(network, likelihood, prior).")
    if not isinstance(method, Method):
        hint = f"{method.__name__}()" if isinstance(method, type) else "for instance MAP()"
        raise TypeError(f"method is {method!r}; expected a method object, {hint}.")
    if chains is not None and (not isinstance(chains, int) or chains < 1):
        raise ValueError(f"chains={chains!r} must be a whole number, at least 1.")
    if budget is not None and not budget > 0:
        raise ValueError(f"budget={budget} must be above 0 seconds.")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ValueError(f"seed={seed!r} must be a whole number, at least 0.")
