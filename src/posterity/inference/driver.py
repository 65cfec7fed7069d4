"""`fit`: the only loop there is.

A run is a few phases of steps. Between segments of about a second the driver shows progress, stops at the first
non-finite value, at the end of the budget, at Ctrl-C, or when every chain has stopped early.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity import tree
from posterity.data.dataset import Dataset, check_inputs, dataset, holdout_split
from posterity.devices import chain_mesh
from posterity.inference.checkpoint import Checkpoint
from posterity.inference.interrupt import polite_interrupt
from posterity.inference.method import Method, Result
from posterity.inference.program import (
    Chains,
    Extra,
    Layout,
    adapt,
    advance,
    begin,
    layout_of,
    pad_chains,
    replicate,
)
from posterity.inference.progress import ProgressBar
from posterity.inference.start import chain_keys, check_arguments, check_shapes, starting_weights
from posterity.model import Model
from posterity.posterior import Posterior, make_receipt
from posterity.store import StoreError, plain_json
from posterity.types import Key, Params, Phase

MAX_RESTARTS = 2
SEGMENT_SECONDS = 1.0


class StuckError(RuntimeError):
    """No chain came out of its warm-up; the message says what to try."""


class NonFiniteError(FloatingPointError):
    """A run met a NaN or an infinite value; the message names chain and step, `trace` holds what came before."""

    def __init__(self, message: str, trace: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass
class _Run:
    """What a run has gathered so far."""

    trace: dict[str, list[np.ndarray]] = field(default_factory=dict)  # [C, R] a segment
    draws: list[Params] = field(default_factory=list)  # [C, R, ...] a segment; of padded chains too
    notes: list[str] = field(default_factory=list)
    num_steps: int = 0  # of the plan that are behind
    num_taken: int = 0  # of these, what was run: a budget may cut phases short
    stop: bool = False
    interrupted: bool = False
    stuck: np.ndarray | None = None  # [C] chains that no restart could free
    rewritten: bool = False  # restarts have changed the trace of steps already stored

    def interrupt(self) -> None:
        self.interrupted = True

    def history(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts, axis=1) for name, parts in self.trace.items()}

    def kept(self) -> Params:
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *self.draws) if self.draws else None


class Job(NamedTuple):
    """One run: what is fitted to what. Everything a resumed run needs to know again."""

    model: Model
    method: Method
    rows: Dataset
    validation: Dataset | None
    calibration: Any  # inputs set aside, or None
    seed: int
    num_chains: int
    metadata: dict[str, Any]  # of the user's own, plain JSON, kept with the posterior


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
        metadata: Plain JSON values to keep with the posterior, `posterior.metadata`, for instance column names.
        budget: Seconds after which the run ends with what it has.
        progress: Show a bar on standard error when it is a terminal.
    """
    check_arguments(model, method, seed, chains, budget)
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
    job = Job(model, method, rows, validation_rows, calibration, int(seed), num_chains, plain_json(metadata))
    checkpoint = None if store is None else Checkpoint.create(Path(store), job)
    return run_job(job, checkpoint, budget, progress)


def run_job(job: Job, checkpoint: Checkpoint | None, budget: float | None = None, progress: bool = True) -> Posterior:
    """Run a job, from where its checkpoint stands if it has one."""
    deadline = None if budget is None else time.perf_counter() + budget
    posterior = _fit_job(job, checkpoint, deadline, progress)
    if job.calibration is not None:
        posterior = posterior.calibrate(job.calibration)
    return posterior if checkpoint is None else checkpoint.finish(posterior)


def so_far(job: Job, checkpoint: Checkpoint) -> Posterior:
    """The posterior of what a run had stored when it was cut off; nothing is run."""
    if isinstance(job.method.start, Method):
        job = job._replace(method=tree.replace(job.method, start=None), validation=None)
    if not job.method.anytime:
        raise StoreError(
            f"{type(job.method).__name__} was cut off before its end, and half of it is nothing: resume it."
        )
    run, states, fixed = _run_phases(job, checkpoint, None, progress=False, go_on=False)
    run.notes.append(f"unfinished: the store ends after {run.num_steps} steps")
    posterior = _posterior(job, run, states, fixed, checkpoint.seconds)
    return posterior if job.calibration is None else posterior.calibrate(job.calibration)


def _fit_job(job: Job, checkpoint: Checkpoint | None, deadline: float | None, progress: bool) -> Posterior:
    begun = time.perf_counter() - (0.0 if checkpoint is None else checkpoint.seconds)
    if isinstance(job.method.start, Method):
        first = job._replace(method=job.method.start, calibration=None)
        stage = None if checkpoint is None else checkpoint.first_stage(first)
        started = _fit_job(first, stage, deadline, progress)
        if stage is not None:
            stage.finish(started)
        # The validation rows have served: the first stage stopped on them.
        job = job._replace(method=tree.replace(job.method, start=started), model=started.model, validation=None)
    run, states, fixed = _run_phases(job, checkpoint, deadline, progress)
    return _posterior(job, run, states, fixed, time.perf_counter() - begun)


def _posterior(job: Job, run: _Run, states: Any, fixed: Params, seconds: float) -> Posterior:
    kept = tree.take_rows(run.kept(), slice(0, job.num_chains))
    if run.stuck is not None and run.stuck.any():
        _leave_out(run)
        states, kept, fixed = tree.take_rows((states, kept, fixed), ~run.stuck)
        job = job._replace(num_chains=int((~run.stuck).sum()))
    result: Result = job.method.finish(job.model, states, kept, fixed)
    history, steps = run.history(), run.num_taken
    receipt = make_receipt(
        result.model, job.method, job.rows, job.seed, job.num_chains, steps, seconds, run.notes, history
    )
    family = jax.tree.map(jnp.asarray, result.family)
    facts = result.facts or {}
    return Posterior(result.model, family, job.method, receipt, history, facts, job.rows.x, None, job.metadata)


def _run_phases(
    job: Job, checkpoint: Checkpoint | None, deadline: float | None, progress: bool, go_on: bool = True
) -> tuple[_Run, Any, Params]:
    """Run every phase; returns the last states and the fixed weights, [C, ...] without padding chains.

    `go_on=False` stops where the checkpoint does.
    """
    method, model, num_rows = job.method, job.model, job.rows.num_rows
    mesh = chain_mesh(job.num_chains)
    start = _starts(job, mesh)
    phases = method.plan(num_rows)
    total_steps = sum(phase.num_steps for phase in phases)
    batch = replicate(job.rows.batch(), mesh)
    run, chains, first_phase, first_record = _Run(), None, 0, 0
    share_begins = time.perf_counter()
    bar_shown = ProgressBar(type(method).__name__, total_steps, progress)
    with bar_shown as bar, polite_interrupt(run.interrupt, method.anytime):
        for number, phase in enumerate(phases):
            layout = layout_of(mesh, phase, num_rows, start[1])
            extra = _extra(method, model, job.validation, layout)
            shared = (layout, method, model, batch, replicate(extra, mesh))
            if chains is None and checkpoint is not None and checkpoint.has_state:
                template = jax.eval_shape(partial(begin, layout), *shared[1:], *start)
                chains, first_phase, first_record = checkpoint.restore(run, template, mesh)
            elif chains is None:
                chains = begin(*shared, *start)
            if not go_on:
                break
            if number < first_phase:
                continue
            place = _Place(number, phase, first_record if number == first_phase else 0, _offset(phases, number))
            due = _share(phases, number, share_begins, deadline) if method.anytime else None
            chains = _run_phase(run, shared, place, chains, job.num_chains, due, bar, checkpoint)
            if number == 0 and not run.stop:
                chains = _restart_stuck(job, run, shared, place, chains, bar)
                if checkpoint is not None and run.rewritten:
                    checkpoint.save(run, chains, number, -(-phase.num_steps // phase.thin))
            if phase.adapt and not run.stop:
                chains = _adapt(run, shared, number, phase, chains)
                if checkpoint is not None:
                    checkpoint.save(run, chains, number + 1, 0)
            if run.stop:
                break
    assert chains is not None
    state = chains.state if job.validation is None else chains.state.best
    if chains.key.shape[0] == job.num_chains:
        return run, state, chains.fixed
    return run, *tree.take_rows((state, chains.fixed), slice(0, job.num_chains))


def _restart_stuck(job: Job, run: _Run, shared: Any, place: _Place, chains: Chains, bar: ProgressBar) -> Chains:
    """Start chains that warm-up shows to be stuck again from a fresh start, at most MAX_RESTARTS times.

    Nothing of it is stored before it is over: a run killed meanwhile finds the same chains stuck and does it again.
    """
    if run.stuck is not None or not place.phase.num_steps:
        return chains  # a resumed run has been here before
    stuck = job.method.stuck(run.history())
    cut_short = run.num_steps < place.offset + place.phase.num_steps  # by the budget: no time to start again
    for attempt in range(1, 1 if cut_short else MAX_RESTARTS + 1):
        if stuck is None or not stuck.any():
            return chains
        again = _Run(num_steps=run.num_steps)
        fresh = begin(*shared, *_starts(job, shared[0].mesh, attempt))
        fresh = _run_phase(again, shared, place._replace(first_record=0), fresh, job.num_chains, None, bar, None)
        chains = jax.tree.map(partial(_take_stuck, stuck), chains, fresh)
        pairs = {name: (values, again.history()[name]) for name, values in run.history().items()}
        run.trace = {name: [np.where(stuck[:, None], new, old)] for name, (old, new) in pairs.items()}
        names = ", ".join(map(str, np.flatnonzero(stuck)))
        run.notes.append(f"chain {names} was stuck in warm-up and started afresh (attempt {attempt})")
        stuck = job.method.stuck(run.history())
        run.rewritten = True
    run.stuck = stuck
    return chains


def _take_stuck(stuck: np.ndarray, old: Any, fresh: Any) -> Any:
    """The fresh rows for stuck chains; chains that only fill the devices stay as they are."""
    rows = np.arange(old.shape[0])
    rows[: len(stuck)] += old.shape[0] * stuck
    return jnp.concatenate([old, fresh])[rows]


class _Place(NamedTuple):
    """Where in a plan a phase stands."""

    number: int
    phase: Phase
    first_record: int
    offset: int  # steps of the phases before


def _starts(job: Job, mesh: Any, attempt: int = 0) -> tuple[Key, Params, Params]:
    """Keys, free and fixed weights of each chain, as many as fill the devices; other ones at another attempt."""
    key = jax.random.key(job.seed)
    key_start, key_chains = jax.random.split(key if attempt == 0 else jax.random.fold_in(key, attempt))
    free, fixed = starting_weights(job.model, job.method, job.rows, key_start, job.num_chains)
    one_free, one_fixed = tree.take_rows((free, fixed), 0)
    check_shapes(job.model, one_free, one_fixed, job.rows)
    job.method.check(job.model.bind(one_fixed), one_free, job.rows)
    return pad_chains((chain_keys(key_chains, job.num_chains), free, fixed), mesh.devices.shape[0])


def _leave_out(run: _Run) -> None:
    """Say which chains stayed stuck: they are no draws from the posterior, and would ruin its averages."""
    assert run.stuck is not None
    names = ", ".join(map(str, np.flatnonzero(run.stuck)))
    if run.stuck.all():
        raise StuckError(
            f"Every chain stayed stuck in warm-up after {MAX_RESTARTS} fresh starts. Start from an optimum "
            "(start=MAP()), give the scale of a heteroscedastic likelihood a floor, or narrow the prior."
        )
    message = f"chain {names} stayed stuck in warm-up and is left out of the posterior"
    warnings.warn(message, stacklevel=2)
    run.notes.append(message)
    run.trace = {name: [values[~run.stuck]] for name, values in run.history().items()}


def _offset(phases: tuple[Phase, ...], number: int) -> int:
    return sum(phase.num_steps for phase in phases[:number])


def _share(phases: tuple[Phase, ...], number: int, begins: float, deadline: float | None) -> float | None:
    """When the phase's share of the budget is over."""
    if deadline is None:
        return None
    return begins + _offset(phases, number + 1) / _offset(phases, len(phases)) * (deadline - begins)


def _run_phase(
    run: _Run,
    shared: Any,
    place: _Place,
    chains: Chains,
    num_chains: int,
    deadline: float | None,
    bar: ProgressBar,
    checkpoint: Checkpoint | None,
) -> Chains:
    layout, phase = shared[0], place.phase
    num_records = -(-phase.num_steps // phase.thin)
    record, size = place.first_record, 1
    while record < num_records:
        last = min(record + size, num_records)
        began = time.perf_counter()
        span = jnp.asarray([record, last, phase.thin, phase.num_steps, place.offset, place.number])
        chains, infos, draws = advance(*shared, chains, span)
        infos = jax.tree.map(np.asarray, infos)  # waits for the device
        seconds = time.perf_counter() - began
        _gather(run, infos, draws, last - record, num_chains)
        done = min(last * phase.thin, phase.num_steps)
        run.num_steps, run.num_taken = place.offset + done, run.num_taken + done - record * phase.thin
        bar.update(run.num_steps, infos._fields[0], float(np.mean(infos[0][:num_chains, last - record - 1])))
        _stop_if_failed(run, chains, num_chains, shared[1])
        over = _is_over(run, chains, num_chains, place.offset + phase.num_steps, deadline)
        if checkpoint is not None and (over or last == num_records or checkpoint.is_due):
            checkpoint.save(run, chains, place.number, last)
        if over:
            break
        # The first segment also compiled: it says nothing of the pace.
        growth = 4.0 if record == place.first_record else SEGMENT_SECONDS / max(seconds, 1e-6)
        record, size = last, int(np.clip(size * min(growth, 16.0), 1, layout.capacity))
    return chains


def _gather(run: _Run, infos: Any, draws: Params, count: int, num_chains: int) -> None:
    for name, values in infos._asdict().items():
        run.trace.setdefault(name, []).append(values[:num_chains, :count])
    if draws is not None:
        run.draws.append(jax.tree.map(lambda leaf: np.asarray(leaf[:, :count]), draws))


def _adapt(run: _Run, shared: Any, number: int, phase: Phase, chains: Chains) -> Chains:
    layout, method, model, data, _ = shared
    kept, run.draws = run.kept(), []
    return adapt(layout, method, model, data, chains, kept, jnp.asarray([number, phase.num_steps]))


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


def _extra(method: Method, model: Model, validation: Dataset | None, layout: Layout) -> Extra:
    if validation is None:
        return Extra(None)
    if method.kernel(model).validate is None:
        raise ValueError(
            f"{type(method).__name__} cannot stop early on validation rows: leave validation out, or give it a start "
            "that can, start=MAP()."
        )
    return Extra(validation.batch(), layout.batches, getattr(method, "patience", 10))
