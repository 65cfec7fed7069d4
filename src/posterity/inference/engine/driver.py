"""`fit`: the only loop there is.

A run is a list of stages, each from where the one before ended, and a stage a few phases of steps. Between segments of
about a second (run.py) it shows progress, and stops at the first non-finite value, at the end of the budget, at Ctrl-C,
or when every chain has stopped early.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from posterity.core import pytrees, records
from posterity.core.checks import is_number
from posterity.core.devices import check_process, device_mesh, double_precision, fetch
from posterity.core.types import Params
from posterity.data.arrays import calibration_inputs, dataset, diagnosed_inputs, stopping_rows
from posterity.data.augment import REMARK, Augment, check_augment
from posterity.data.batches import num_batches
from posterity.data.sources import refuse_full_batches, set_aside, source_of
from posterity.inference.engine.callbacks import Callback, averages
from posterity.inference.engine.checkpoint import Checkpoint
from posterity.inference.engine.concerns import of_loss, warn_of_rows, with_warnings
from posterity.inference.engine.feed import begin_chains
from posterity.inference.engine.interrupt import polite_interrupt
from posterity.inference.engine.job import Job, Run, ScheduledPhase, Session, Until
from posterity.inference.engine.program import chains_at_start
from posterity.inference.engine.progress import ProgressBar
from posterity.inference.engine.restarts import leave_out_stuck, restart_stuck, warn_unmoved
from posterity.inference.engine.rounds import lengthened, sample_until
from posterity.inference.engine.run import adapt_phase, run_phase
from posterity.inference.engine.schedule import schedule
from posterity.inference.engine.start import (
    Start,
    check_arguments,
    check_goal,
    check_shapes,
    starting_point,
    with_origin,
)
from posterity.inference.methods.method import Method, Result
from posterity.inference.methods.sampler import NoDrawsError, Sampler
from posterity.models.model import Model
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior
from posterity.posterior.receipt import make_receipt
from posterity.storage.codec import StoreError, fingerprint, plain_json
from posterity.storage.lock import hold
from posterity.weights.on_disk import join, settle


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
    until: Until | None = None,
    at: Any = None,
    num_rows: int | None = None,
    augment: Augment | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> Posterior:
    """Infer the weights of a model from data by a method.

    Args:
        model: Network, likelihood, prior, temperature.
        method: What infers: `MAP()`, `Laplace()`, `HMC()`, with its settings.
        data: `(x, y)` or `(x, y, weight)`; x may be any pytree of arrays with a common first axis. Memory maps of more
            than 1 GB are read as the run goes, and so is a loader: any iterable of such batches.
        seed: The same seed gives the same result on the same machine, versions and devices.
        chains: Independent runs, all in one program; the posterior is their equal mixture.
        holdout: A share of the rows (0.1), or inputs, set aside to calibrate out-of-distribution p-values. A share
            calibrates intervals too, `posterior.conformal()`, and so do rows with targets, a `posterity.data.Dataset`.
        validation: A share of the rows, or `(x, y)`, on which each chain stops early.
        store: A new folder that keeps draws and the whole state as the run goes; `resume(store)` goes on from there.
        mesh: Devices for (chains, rows); by default as many for chains as can be, the rest for rows if that pays.
        metadata: Plain JSON values to keep with the posterior, `posterior.metadata`, for instance column names.
        budget: Seconds after which the run ends with what it has; one with a store can go on later.
        until: "good" or "usable": sample in rounds until the diagnosis says so, or the budget ends.
        at: Inputs to diagnose at; by default those held out, or a hundred of the rows.
        num_rows: Rows of an epoch of a loader.
        augment: A function of a key and the inputs of one row, which changes them at random at every step of training.
        callbacks: Functions of (step, metrics, posterior), called about once a second, such as `CSVLog("log.csv")`.
        progress: Show a bar on standard error when it is a terminal.

    Examples:
        >>> import numpy as np
        >>> from posterity import Exact, Gaussian, Model, fit, linear
        >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]))
        >>> posterior
        Posterior(Exact(): 2 weights, 20 rows, 1 chains, fresh draws)
    """
    check_process()
    check_arguments(model, method, seed, chains, budget)
    check_goal(method, until, at)
    source = all_rows = source_of(data, model.likelihood, num_rows)
    if source is None:
        rows = given = dataset(data, model.likelihood)
        rows, calibration, held_out = calibration_inputs(rows, holdout, seed)
        rows, validation_rows = stopping_rows(rows, validation, seed, model.likelihood)
    else:
        source, aside, validation_rows = set_aside(source, holdout, validation, seed, model.likelihood)
        calibration, held_out = aside
        rows = given = source.sample
    num_chains = method.num_chains if chains is None else int(chains)
    job = Job(model, method, rows, validation_rows, calibration, int(seed), num_chains, mesh, plain_json(metadata))
    job = job._replace(held_out=held_out)
    if until is not None:
        job = job._replace(until=until, at=diagnosed_inputs(at, rows, calibration))
    shares = tuple(float(share) if is_number(share) else None for share in (holdout, validation))
    job = job._replace(source=source, shares=shares, augment=augment)
    start = _checked_start(job)
    warn_of_rows(rows, model)
    if store is None:
        return run_job(job, None, budget, progress, start, callbacks)
    job = job._replace(given=fingerprint(tuple(given)) if all_rows is None else all_rows.fingerprint())
    job = job._replace(method=with_origin(model, method, rows, num_chains))
    with hold(Path(store)):
        return run_job(job, Checkpoint.create(Path(store), job), budget, progress, start, callbacks)


def run_job(
    job: Job,
    checkpoint: Checkpoint | None,
    budget: float | None = None,
    progress: bool = True,
    start: Start | None = None,
    callbacks: Sequence[Callback] = (),
) -> Posterior:
    """Run the stages of a job, from where its checkpoint stands if it has one; `start`: of the first, if known."""
    begun = time.perf_counter()
    start = _checked_start(job) if start is None else start
    stages = job.stages()
    stores = [None] * len(stages) if checkpoint is None else checkpoint.of_stages(stages)
    posterior, losses = None, ()
    for number, (stage, store) in enumerate(zip(stages, stores, strict=True)):
        is_last = number == len(stages) - 1
        stage = stage.after(posterior)
        ended = None if is_last or store is None else store.posterior(job.model)
        if ended is not None:  # what it began from is its method's start, as after a fit
            posterior = dataclasses.replace(ended, method=records.replace(ended.method, start=stage.method.start))
            continue
        # A budget is for all stages: those before the last may use half of it, those before the one before a quarter.
        deadline = None if budget is None else begun + budget / 2 ** (len(stages) - 1 - number)
        phases, start, execution = schedule(stage, start if posterior is None else starting_point(stage))
        run = _run_stage(stage, store, phases, start, deadline, progress, callbacks)
        if run.progress.ended == "interrupted" and not is_last:
            names = [type(each.method).__name__ for each in stages[number : number + 2]]
            kept = "resume() goes on with it" if store is not None else "give fit a store to go on later"
            raise KeyboardInterrupt(f"{names[0]}, where {names[1]} begins, was cut off: {kept}.")
        seconds = time.perf_counter() - begun + (0.0 if store is None else store.seconds)
        posterior = _posterior(stage, posterior, run, phases[0].layout.mesh, seconds, execution.remarks)
        if number == 0 and stage.method.start is None:  # what begins at an optimum may well rise from it
            losses += of_loss(type(stage.method).__name__, posterior.trace)
        if store is not None and not is_last:
            posterior = store.finish(posterior)
    assert posterior is not None
    posterior = with_warnings(_calibrated(posterior, job), job, losses)
    return posterior if checkpoint is None else checkpoint.finish(posterior, goes_on=True)


def partial_posterior(job: Job, checkpoint: Checkpoint) -> Posterior:
    """The posterior of what a run had stored when it was cut off; nothing is run."""
    *stages, _ = job.stages()
    before = checkpoint.of_stage_before(stages[-1]).posterior(job.model) if stages else None
    if not job.method.anytime:
        raise StoreError(
            f"{type(job.method).__name__} was cut off before its end and has no partial result: resume() finishes it."
        )
    job = job.after(before)
    phases, start, execution = schedule(job, starting_point(job))
    run = _restored(phases[0], start, checkpoint, job.num_chains)
    num_steps = run.progress.num_steps
    if run.progress.phase < len(phases) and phases[run.progress.phase].phase.adapt:
        run = run._replace(draws=())  # they serve the adaptation alone
    try:
        run = run.note(f"unfinished: the store ends after {num_steps} steps")
        posterior = _posterior(job, before, run, phases[0].layout.mesh, checkpoint.seconds, execution.remarks)
    except NoDrawsError as error:
        folder = str(checkpoint.writer.folder)
        raise StoreError(
            f"The run in {folder} was cut off after {num_steps} steps, with no draw kept yet: resume({folder!r}) "
            "goes on with it."
        ) from error
    return _calibrated(posterior, job)


def _calibrated(posterior: Posterior, job: Job) -> Posterior:
    """The posterior with what the rows that were set aside are for: p-values, intervals that hold."""
    posterior = posterior if job.calibration is None else posterior.calibrate(job.calibration)
    return dataclasses.replace(posterior, held_out=job.held_out)


def _checked_start(job: Job) -> Start:
    """Where the first stage begins, once all stages are seen to be able to run, before the first of them is trained.

    A store that was begun can only be resumed, so what cannot run must not begin one either.
    """
    device_mesh(job.num_chains, shape=job.mesh)
    stages = job.stages()
    first = stages[0].method
    if job.validation is not None and first.kernel(job.model).validate is None:
        raise ValueError(
            f"{type(first).__name__} cannot stop early on validation rows: leave validation out, or give it a start "
            "that can, start=MAP()."
        )
    start = starting_point(stages[0])
    free, fixed = pytrees.take_rows((start.free, start.fixed), 0)
    check_shapes(job.model, free, fixed, job.rows)
    for stage in stages:
        phases = stage.method.plan(job.num_rows)
        if job.source is not None and any(num_batches(job.num_rows, phase.batch_size) == 1 for phase in phases):
            refuse_full_batches(type(stage.method).__name__, job.source)
        stage.method.check(job.model.bind(fixed), free, job.rows)
    if job.augment is not None:
        check_augment(job.augment, job.rows)
        if isinstance(job.method, Sampler) and not job.method.augments:
            raise ValueError(
                f"{type(job.method).__name__} samples one fixed density, which augment would change at every step: "
                "leave augment out, or use SGHMC() or another method of minibatches."
            )
    return start


def _run_stage(
    job: Job,
    checkpoint: Checkpoint | None,
    phases: Sequence[ScheduledPhase],
    start: Start,
    deadline: float | None,
    progress: bool,
    callbacks: Sequence[Callback],
) -> Run:
    """Run what is left of every phase of a stage, and further rounds of it where a verdict is asked for."""
    session = Session(job, ProgressBar(type(job.method).__name__, phases[-1].last_step, progress), Event(), checkpoint)
    if callbacks:
        session = session._replace(notify=partial(_notify, callbacks, job, phases[0].layout.mesh))

    def run_phases(phases: Sequence[ScheduledPhase], run: Run) -> Run:
        begins, last_step = time.perf_counter(), phases[-1].last_step
        for here in phases[run.progress.phase :]:
            if run.progress.stops:
                break
            due = None
            if deadline is not None and job.method.anytime:  # each phase has its share of the budget
                due = begins + here.last_step / last_step * (deadline - begins)
            run = _end_phase(session, here, run_phase(session, here, run, due))
        return run

    def judge(run: Run) -> Diagnosis:
        return _posterior(job, None, run, phases[0].layout.mesh, 0.0).diagnose(job.at)

    with session.bar, polite_interrupt(session.asked.set, job.method.anytime):
        run = _first_run(session, phases, start)
        run = run_phases(lengthened(phases, run.progress.lengths), run)
        return run if job.until is None else sample_until(job.until, session, phases, run, judge, run_phases)


def _notify(callbacks: Sequence[Callback], job: Job, mesh: Mesh, run: Run) -> None:
    """Call all callbacks with what the last segment brought."""
    for callback in callbacks:
        callback(run.progress.num_steps, averages(run.trace[-1]), lambda: _posterior(job, None, run, mesh, 0.0))


def _end_phase(session: Session, here: ScheduledPhase, run: Run) -> Run:
    """What follows a phase: restarts after the first one, and the adaptation, unless the run stops here."""
    restarts, adapted = run.progress.num_restarts, False
    if here.number == 0 and not run.progress.stops:
        run = restart_stuck(session, here, run)
    if here.phase.adapt and run.progress.stops:
        run = run._replace(draws=())  # they serve the adaptation alone
    elif here.phase.adapt:
        run, adapted = adapt_phase(here, run), True
    changed = adapted or run.progress.num_restarts > restarts
    return session.checkpoint.save(run) if session.checkpoint is not None and changed else run


def _posterior(
    job: Job, before: Posterior | None, run: Run, mesh: Mesh, seconds: float, remarks: tuple[str, ...] = ()
) -> Posterior:
    """What a stage came to. What the stages before it cost, and what went unusually there, is reported with it."""
    if before is not None:
        notes = [f"{type(before.method).__name__}: {note}" for note in before.receipt.notes]
        num_gradients = run.progress.num_gradients + before.receipt.num_gradients
        run = run.update(notes=(*notes, *run.progress.notes), num_gradients=num_gradients)
    state = run.chains.state if job.validation is None else run.chains.state.best
    ended = jax.tree.map(jnp.asarray, fetch((state, run.chains.fixed)))
    states, fixed = pytrees.take_rows(ended, slice(0, job.num_chains))
    kept = pytrees.take_rows(join(run.draws), slice(0, job.num_chains))
    run = warn_unmoved(run, job.method, kept)
    stuck = run.stuck_chains()
    if stuck is not None and stuck.any():
        run = leave_out_stuck(run)
        states, kept, fixed = pytrees.take_rows((states, kept, fixed), ~stuck)
        job = job._replace(num_chains=int((~stuck).sum()))
    result: Result = job.method.finish(job.model, states, kept, fixed)
    receipt = make_receipt(
        model=result.model,
        method=job.method,
        rows=job.rows,
        num_data=job.num_rows,
        seed=job.seed,
        num_chains=job.num_chains,
        num_steps=run.progress.num_taken,
        num_gradients=run.progress.num_gradients,
        seconds=seconds,
        restarts=run.progress.num_restarts,
        num_devices=(mesh.shape["chain"], mesh.shape["data"]),
        notes=run.progress.notes,
        remarks=(*remarks, *_unusual(job)),
        trace=run.history(),
    )
    return Posterior(
        model=result.model,
        family=settle(result.family),
        method=job.method,
        receipt=receipt,
        trace=run.history(),
        facts=result.facts or {},
        inputs=job.rows.x,
        metadata=job.metadata,
    )


def _unusual(job: Job) -> tuple[str, ...]:
    """What is to be known of the rows of a run, and of how its network was computed."""
    read = () if job.source is None else (job.source.remark,)
    changed = () if job.augment is None else (REMARK,)
    return (*read, *changed, *(("the network was computed in bfloat16",) if job.model.half_precision else ()))


def _first_run(session: Session, phases: Sequence[ScheduledPhase], start: Start) -> Run:
    """The chains at their start, or where the checkpoint has them."""
    if session.checkpoint is None or not session.checkpoint.has_state:
        run = Run(begin_chains(phases[0], *start))
        return _note_same_start(session, phases, run, start.free)
    run = _restored(phases[0], start, session.checkpoint, session.num_chains)
    if not run.progress.is_unfinished:
        return run
    *notes, ending = run.progress.notes  # the last one says how the last session ended
    return run.update(ended="", notes=(*notes, f"{ending}, and resumed"))


def _restored(first: ScheduledPhase, start: Start, checkpoint: Checkpoint, num_chains: int) -> Run:
    with double_precision(first.layout.float64):
        template = jax.eval_shape(partial(chains_at_start, first.layout), first.shared, *start)
        return checkpoint.restore(template, num_chains, first.layout.mesh)


def _note_same_start(session: Session, phases: Sequence[ScheduledPhase], run: Run, free: Params) -> Run:
    """Note where all chains begin at one point [C, ...]: that samplers agree then says less, and members are copies."""
    method = phases[0].shared.method
    leaves = [leaf[: session.num_chains] for leaf in jax.tree.leaves(fetch(free))]
    if session.num_chains == 1 or not all((leaf == leaf[:1]).all() for leaf in leaves):
        return run
    began = "all chains began at the same weights, so that"
    if any(here.phase.keep for here in phases):
        return run.note(f"{began} a low R-hat says less than usual")
    if not method.told_apart_by_start:
        return run
    note = f"{began} they differ by the order of their batches alone, if at all"
    warnings.warn(
        f"{type(method).__name__}: {note}. Give each its own: a network from a function of the key, such "
        "as from_nnx(lambda key: Net(nnx.Rngs(key))), and no single set of weights as start.",
        stacklevel=2,
    )
    return run.note(note)
