"""`fit`: the only loop there is.

A run is a few phases of steps. Between segments of about a second (run.py) the driver shows progress, stops at the
first non-finite value, at the end of the budget, at Ctrl-C, or when every chain has stopped early.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from posterity.core import pytrees, records
from posterity.core.devices import device_mesh, fetch, place
from posterity.core.types import Batch, Key, Params, Phase
from posterity.data.arrays import Dataset, calibration_inputs, dataset, stopping_rows
from posterity.data.batches import batch_width
from posterity.inference.engine.checkpoint import Checkpoint
from posterity.inference.engine.interrupt import polite_interrupt
from posterity.inference.engine.job import Job, Run, ScheduledPhase
from posterity.inference.engine.program import (
    Chains,
    Extra,
    Layout,
    Shared,
    begin,
    chains_at_start,
    layout_of,
    pad_chains,
    place_rows,
)
from posterity.inference.engine.progress import ProgressBar
from posterity.inference.engine.restarts import leave_out_stuck, restart_stuck, warn_unmoved
from posterity.inference.engine.run import adapt_phase, run_phase
from posterity.inference.engine.start import (
    RESTARTS,
    chain_keys,
    check_arguments,
    checked_start,
    start_key,
    with_origin,
)
from posterity.inference.methods.method import Method, Result
from posterity.inference.methods.sampler import NoDrawsError
from posterity.models.model import Model, num_weights
from posterity.models.units import in_network_units
from posterity.networks.convolutions import convolves
from posterity.posterior.posterior import Posterior
from posterity.posterior.receipt import make_receipt
from posterity.storage.codec import StoreError, fingerprint, plain_json
from posterity.weights.on_disk import join, settle

LONGEST_WAIT = 50  # steps between two looks at validation rows, where an epoch has fewer


def fit(
    model: Model,
    method: Method,
    data: Any,
    *,
    seed: int = 0,
    chains: int | None = None,
    holdout: Any = None,
    validation: Any = None,
    store: str | Path | None = None,
    mesh: tuple[int, int] | None = None,
    metadata: dict[str, Any] | None = None,
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
        store: A new folder that keeps draws and the whole state as the run goes; `resume(store)` goes on from there.
        mesh: Devices for (chains, rows); by default as many for chains as can be, the rest for rows if that pays.
        metadata: Plain JSON values to keep with the posterior, `posterior.metadata`, for instance column names.
        budget: Seconds after which the run ends with what it has; one with a store can go on later.
        progress: Show a bar on standard error when it is a terminal.
    """
    check_arguments(model, method, seed, chains, budget)
    rows = given = dataset(data, model.likelihood)
    rows, calibration = calibration_inputs(rows, holdout, seed)
    rows, validation_rows = stopping_rows(rows, validation, seed, model.likelihood)
    num_chains = method.num_chains if chains is None else int(chains)
    job = Job(model, method, rows, validation_rows, calibration, int(seed), num_chains, mesh, plain_json(metadata))
    _check_places(job)
    _check_stages(job)
    if store is None:
        return run_job(job, None, budget, progress)
    job = job._replace(given=fingerprint(tuple(given)))
    job = job._replace(method=with_origin(model, method, rows, num_chains))
    return run_job(job, Checkpoint.create(Path(store), job), budget, progress)


def run_job(job: Job, checkpoint: Checkpoint | None, budget: float | None = None, progress: bool = True) -> Posterior:
    """Run a job, from where its checkpoint stands if it has one."""
    deadline = None if budget is None else time.perf_counter() + float(budget)
    posterior = _fit_job(job, checkpoint, deadline, progress)
    if job.calibration is not None:
        posterior = posterior.calibrate(job.calibration)
    return posterior if checkpoint is None else checkpoint.finish(posterior, goes_on=True)


def partial_posterior(job: Job, checkpoint: Checkpoint) -> Posterior:
    """The posterior of what a run had stored when it was cut off; nothing is run."""
    started = None
    if isinstance(job.method.start, Method):
        started = checkpoint.first_stage(job._replace(method=job.method.start)).posterior(job.model)
        model = job.model if started is None else started.model  # the first stage may have tuned it
        job = job._replace(model=model, method=records.replace(job.method, start=None), validation=None)
    if not job.method.anytime:
        raise StoreError(
            f"{type(job.method).__name__} was cut off before its end and has no partial result: resume() finishes it."
        )
    run, states, fixed = _run_phases(job, checkpoint, None, progress=False, go_on=False)
    _add_first_stage(run, started)
    run.notes.append(f"unfinished: the store ends after {run.num_steps} steps")
    try:
        posterior = _posterior(job, run, states, fixed, checkpoint.seconds)
    except NoDrawsError as error:
        folder = str(checkpoint.writer.folder)
        raise StoreError(
            f"The run in {folder} was cut off after {run.num_steps} steps, with no draw kept yet: resume({folder!r}) "
            "goes on with it."
        ) from error
    return posterior if job.calibration is None else posterior.calibrate(job.calibration)


def _fit_job(
    job: Job, checkpoint: Checkpoint | None, deadline: float | None, progress: bool, begins: str | None = None
) -> Posterior:
    """`begins`: the method that starts from this one, and has no result of its own where this one is cut off."""
    begun = time.perf_counter() - (0.0 if checkpoint is None else checkpoint.seconds)
    started = None
    if isinstance(job.method.start, Method):
        first = job._replace(method=job.method.start, calibration=None)
        stage = None if checkpoint is None else checkpoint.first_stage(first)
        # A budget is for both: the first stage may use half of it.
        now = time.perf_counter()
        halfway = None if deadline is None else now + (deadline - now) / 2
        started = None if stage is None else _ended_stage(first, stage)
        if started is None:
            started = _fit_job(first, stage, halfway, progress, begins=type(job.method).__name__)
            started = started if stage is None else stage.finish(started)
        # The validation rows have served: the first stage stopped on them.
        job = job._replace(method=records.replace(job.method, start=started), model=started.model, validation=None)
    run, states, fixed = _run_phases(job, checkpoint, deadline, progress)
    if begins is not None and run.interrupted and run.unfinished:
        kept = "resume() goes on with it" if checkpoint is not None else "give fit a store to go on later"
        raise KeyboardInterrupt(f"{type(job.method).__name__}, where {begins} begins, was cut off: {kept}.")
    _add_first_stage(run, started)
    return _posterior(job, run, states, fixed, time.perf_counter() - begun)


def _ended_stage(job: Job, stage: Checkpoint) -> Posterior | None:
    """What a stage that is over came to, and as its method's start what that stage began from: as after a fit."""
    posterior = stage.posterior(job.model)
    if posterior is None or not isinstance(job.method.start, Method):
        return posterior
    before = job._replace(method=job.method.start)
    began = _ended_stage(before, stage.first_stage(before))
    return dataclasses.replace(posterior, method=records.replace(posterior.method, start=began))


def _add_first_stage(run: Run, started: Posterior | None) -> None:
    """What the method that the run started from cost, and what went unusually there."""
    if started is not None:
        run.num_gradients += started.receipt.num_gradients
        run.notes[:0] = [f"{type(started.method).__name__}: {note}" for note in started.receipt.notes]


def _stages(method: Method) -> list[Method]:
    """The method, then the one it starts from, and so on to the one that runs first."""
    stages = [method]
    while isinstance(stages[-1].start, Method):
        stages.append(stages[-1].start)
    return stages


def _check_places(job: Job) -> None:
    """Refuse devices that are not there, and validation rows where the method that would stop on them cannot."""
    device_mesh(job.num_chains, shape=job.mesh)
    first = _stages(job.method)[-1]
    if job.validation is not None and first.kernel(job.model).validate is None:
        raise ValueError(
            f"{type(first).__name__} cannot stop early on validation rows: leave validation out, or give it a start "
            "that can, start=MAP()."
        )


def _check_stages(job: Job) -> None:
    """What `_starts` would refuse, of the method and of those it starts from, before the first of them is trained.

    A store that was begun can only be resumed, so what cannot run must not begin one either.
    """
    stages = _stages(job.method)
    started = checked_start(job.model, stages[-1], job.rows, jax.random.key(job.seed), job.num_chains)
    free, fixed = pytrees.take_rows(started, 0)
    for method in stages:
        method.plan(job.rows.num_rows)
        method.check(job.model.bind(fixed), free, job.rows)


def _posterior(job: Job, run: Run, states: Any, fixed: Params, seconds: float) -> Posterior:
    kept = pytrees.take_rows(join(run.draws), slice(0, job.num_chains))
    warn_unmoved(run, job.method, kept)
    if run.stuck is not None and run.stuck.any():
        leave_out_stuck(run)
        states, kept, fixed = pytrees.take_rows((states, kept, fixed), ~run.stuck)
        job = job._replace(num_chains=int((~run.stuck).sum()))
    result: Result = job.method.finish(job.model, states, kept, fixed)
    history = run.history()
    receipt = make_receipt(
        model=result.model,
        method=job.method,
        rows=job.rows,
        seed=job.seed,
        num_chains=job.num_chains,
        num_steps=run.num_taken,
        num_gradients=run.num_gradients,
        seconds=seconds,
        restarts=run.num_restarts,
        num_devices=run.num_devices,
        notes=run.notes,
        trace=history,
    )
    family = settle(result.family)
    facts = result.facts or {}
    return Posterior(result.model, family, job.method, receipt, history, facts, job.rows.x, None, job.metadata)


def _run_phases(
    job: Job, checkpoint: Checkpoint | None, deadline: float | None, progress: bool, go_on: bool = True
) -> tuple[Run, Any, Params]:
    """Run every phase; returns the last states and the fixed weights, [C, ...] without padding chains.

    `go_on=False` stops where the checkpoint does.
    """
    method, num_rows = job.method, job.rows.num_rows
    model, data, validation = _in_network_units(job)
    phases = method.plan(num_rows)
    convolving = _convolves(job)
    mesh = _mesh(job, phases, convolving)
    # Convolutions of several sets of weights side by side are grouped ones, for which XLA has no fast code on a CPU.
    in_turn = convolving and jax.default_backend() == "cpu"
    start = _starts(job, mesh)
    total_steps = sum(phase.num_steps for phase in phases)
    keeps = any(phase.keep for phase in phases)
    run = Run(job.num_chains, ProgressBar(type(method).__name__, total_steps, progress), checkpoint)
    run.num_devices = (mesh.shape["chain"], mesh.shape["data"])
    chains, first_phase, first_stride = None, 0, 0
    share_begins = time.perf_counter()
    rows: dict[bool, Batch] = {}  # split over devices or whole on each, as phases need them
    with run.bar, polite_interrupt(run.interrupt, method.anytime):
        for number, phase in enumerate(phases):
            layout = layout_of(mesh, phase, num_rows, start[1], in_turn, keeps)
            picks = layout.batches > 1
            if picks not in rows:
                rows[picks] = place_rows(layout, data)
            extra = place(_extra(method, validation, layout, total_steps), mesh)
            shared = Shared(method, model, rows[picks], extra)
            if chains is None:
                chains, first_phase, first_stride = _first_chains(run, layout, shared, phases, start, go_on)
            if not go_on:
                break
            if number < first_phase:
                continue
            here = ScheduledPhase(number, phase, first_stride if number == first_phase else 0, _offset(phases, number))
            due = _share(phases, number, share_begins, deadline) if method.anytime else None
            chains = run_phase(run, layout, shared, here, chains, due)
            chains = _end_phase(run, layout, shared, here, chains, partial(_starts, job, mesh))
            if run.stop:
                break
    assert chains is not None
    state = chains.state if job.validation is None else chains.state.best
    ended = jax.tree.map(jnp.asarray, fetch((state, chains.fixed)))
    return run, *pytrees.take_rows(ended, slice(0, job.num_chains))


def _in_network_units(job: Job) -> tuple[Model, Dataset, Dataset | None]:
    """The model and the rows that chains see: targets in units of their own are of about unit size there."""
    given = [job.rows] if job.validation is None else [job.rows, job.validation]
    likelihood, targets = in_network_units(job.model.likelihood, *(rows.y for rows in given))
    data, *validation = (rows._replace(y=y) for rows, y in zip(given, targets, strict=True))
    return records.replace(job.model, likelihood=likelihood), data, validation[0] if validation else None


def _first_chains(
    run: Run, layout: Layout, shared: Shared, phases: tuple[Phase, ...], start: tuple[Key, Params, Params], go_on: bool
) -> tuple[Chains, int, int]:
    """The chains at their start, or where the checkpoint has them; with the phase and the stride they are at."""
    if run.checkpoint is None or not run.checkpoint.has_state:
        _say_same_start(run, shared.method, phases, start[1])
        return begin(layout, shared, *start), 0, 0
    template = jax.eval_shape(partial(chains_at_start, layout), shared, *start)
    chains, number, stride = run.checkpoint.restore(run, template, layout.mesh)
    if go_on and run.unfinished:
        run.notes[-1] += ", and resumed"  # it says how the last session ended
    elif not go_on and number < len(phases) and phases[number].adapt:
        run.draws = []  # they serve the adaptation alone
    return chains, number, stride


def _end_phase(
    run: Run, layout: Layout, shared: Shared, scheduled: ScheduledPhase, chains: Chains, starts: Callable[[int], Any]
) -> Chains:
    """What follows a phase: restarts after the first one, and the adaptation, unless the run stops here."""
    if scheduled.number == 0 and not run.stop:
        chains = restart_stuck(run, layout, shared, scheduled, chains, starts)
        if run.checkpoint is not None and run.rewritten:
            run.checkpoint.save(run, chains, scheduled.number, scheduled.num_strides)
    if scheduled.phase.adapt and run.stop:
        run.draws = []  # they serve the adaptation alone
    elif scheduled.phase.adapt:
        chains = adapt_phase(run, layout, shared, scheduled, chains)
        if run.checkpoint is not None:
            run.checkpoint.save(run, chains, scheduled.number + 1, 0)
    return chains


def _mesh(job: Job, phases: tuple[Phase, ...], convolving: bool) -> Mesh:
    """Devices for chains and rows: what splitting rows is worth grows with the rows of a step and the weights.

    On a CPU it depends on the network.
    """
    num_rows = job.rows.num_rows
    widest = max((batch_width(num_rows, phase.batch_size) for phase in phases), default=num_rows)
    work = widest * num_weights(job.model, pytrees.take_rows(job.rows.x, slice(0, 1)))
    return device_mesh(job.num_chains, work, job.mesh, splits_rows=widest > 1 and convolving)


def _convolves(job: Job) -> bool:
    """Whether the network convolves: built-in ones say so, others are traced."""
    row = pytrees.take_rows(job.rows.x, slice(0, 1))
    params = jax.eval_shape(job.model.init, jax.random.key(0), row)
    return getattr(job.model.network, "splits_rows", False) or convolves(job.model.plain_outputs, params, row)


def _starts(job: Job, mesh: Mesh, attempt: int = 0) -> tuple[Key, Params, Params]:
    """Keys, free and fixed weights of each chain, as many as fill the devices; other ones at another attempt."""
    key = start_key(job.seed, job.method.start)
    key_start, key_chains = jax.random.split(key if attempt == 0 else jax.random.fold_in(key, RESTARTS + attempt))
    free, fixed = checked_start(job.model, job.method, job.rows, key_start, job.num_chains, afresh=attempt > 0)
    chains = pad_chains((chain_keys(key_chains, job.num_chains), free, fixed), mesh.shape["chain"])
    return place(chains, mesh, "chain")


def _say_same_start(run: Run, method: Method, phases: tuple[Phase, ...], free: Params) -> None:
    """Say where all chains begin at one point [C, ...]: that samplers agree then says less, and members are copies."""
    leaves = [leaf[: run.num_chains] for leaf in jax.tree.leaves(fetch(free))]
    if run.num_chains == 1 or not all((leaf == leaf[:1]).all() for leaf in leaves):
        return
    began = "all chains began at the same weights, so that"
    if any(phase.keep for phase in phases):
        run.notes.append(f"{began} a low R-hat says less than usual")
    elif method.told_apart_by_start:
        run.notes.append(f"{began} they differ by the order of their batches alone, if at all")
        warnings.warn(
            f"{type(method).__name__}: {run.notes[-1]}. Give each its own: a network from a function of the key, such "
            "as from_nnx(lambda key: Net(nnx.Rngs(key))), and no single set of weights as start.",
            stacklevel=2,
        )


def _offset(phases: tuple[Phase, ...], number: int) -> int:
    return sum(phase.num_steps for phase in phases[:number])


def _share(phases: tuple[Phase, ...], number: int, begins: float, deadline: float | None) -> float | None:
    """When the phase's share of the budget is over."""
    if deadline is None:
        return None
    return begins + _offset(phases, number + 1) / _offset(phases, len(phases)) * (deadline - begins)


def _extra(method: Method, validation: Dataset | None, layout: Layout, num_steps: int) -> Extra:
    """How often to look at the validation rows: once an epoch, or every hundredth of the run where that is more."""
    if validation is None:
        return Extra(None)
    # An epoch may be a single step, and ten steps of Adam without a better loss are nothing to stop for.
    every = max(layout.batches, min(num_steps // 100, LONGEST_WAIT))
    return Extra(validation.batch(), every, getattr(method, "patience", 10))
