"""One phase of a run, in segments of about a second: gather what each brought, save it, and see whether to go on."""

from __future__ import annotations

import time

import jax
import numpy as np

from posterity.core.devices import agree, fetch
from posterity.core.types import Batch, Params
from posterity.data.sources import LoaderError
from posterity.inference.engine.early_stopping import EarlyStoppingState
from posterity.inference.engine.feed import Feeder, feeder
from posterity.inference.engine.job import Run, ScheduledPhase, Session
from posterity.inference.engine.program import Span, adapt, advance
from posterity.inference.methods.method import Method
from posterity.posterior.trace import Trace
from posterity.weights.on_disk import join

SEGMENT_SECONDS = 1.0


class NonFiniteError(FloatingPointError):
    """A run met a NaN or an infinite value; the message names chain and step, `trace` holds what came before."""

    def __init__(self, message: str, trace: Trace) -> None:
        super().__init__(message)
        self.trace = trace


def run_phase(session: Session, here: ScheduledPhase, run: Run, deadline: float | None) -> Run:
    """Advance the chains to the end of a phase, or to where it must stop."""
    first = run.progress.stride if run.progress.phase == here.number else 0
    run = run.update(phase=here.number, stride=first, ended="")
    with feeder(here, run.chains.key, first * here.phase.thin) as feed:
        return _run_segments(session, here, run, deadline, feed)


def _run_segments(session: Session, here: ScheduledPhase, run: Run, deadline: float | None, feed: Feeder | None) -> Run:
    checkpoint, first = session.checkpoint, run.progress.stride
    size = 1 if feed is None else here.layout.capacity  # rows are read for as many strides as there is room for
    while run.progress.stride < here.num_strides:
        began, stride = time.perf_counter(), run.progress.stride
        run = _run_segment(session, here, run, min(stride + size, here.num_strides), feed)
        seconds = time.perf_counter() - began
        _stop_if_failed(session, run, here.shared.method)
        # Clocks and keyboards differ between processes; what follows from them must not.
        late = deadline is not None and time.perf_counter() > deadline
        due = checkpoint is not None and checkpoint.is_due
        # The first segment also compiled: it says nothing of the pace.
        growth = 4.0 if stride == first else SEGMENT_SECONDS / max(seconds, 1e-6)
        interrupted, late, due, growth = agree(session.asked.is_set(), late, due, growth)
        run = _see_end(session, here, run, bool(interrupted), bool(late))
        if checkpoint is not None and (due or run.progress.ended or run.progress.stride == here.num_strides):
            run = checkpoint.save(run)
        if session.notify is not None:
            session.notify(run)
        if run.progress.ended:
            break
        if feed is None:
            size = int(np.clip(size * min(growth, 16.0), 1, here.layout.capacity))
    return run


def adapt_phase(here: ScheduledPhase, run: Run) -> Run:
    """Let the chains look at what the phase kept; its draws have then served."""
    kept = jax.tree.map(np.asarray, join(run.draws))
    num_steps = np.asarray(run.progress.num_steps - here.offset)
    chains = adapt(here.layout, here.shared, run.chains, kept, np.asarray(here.number), num_steps)
    return run._replace(chains=chains, draws=()).update(phase=here.number + 1, stride=0)


def _run_segment(session: Session, here: ScheduledPhase, run: Run, last: int, feed: Feeder | None) -> Run:
    """The strides up to `last`."""
    phase, before = here.phase, run.progress
    rows = None if feed is None else _next_rows(session, run, feed)
    span = Span(before.stride, last, phase.thin, phase.num_steps, here.offset, here.number)
    chains, infos, draws = advance(here.layout, here.shared, run.chains, span, rows)
    infos = fetch(infos)  # waits for the device
    # A phase's last stride may have fewer steps than the others.
    steps = np.minimum(phase.thin, phase.num_steps - np.arange(before.stride, last) * phase.thin)
    entries = {name: values[: session.num_chains, : len(steps)] for name, values in infos._asdict().items()}
    part = Trace(entries, np.full(len(steps), here.keeps_draws), steps)
    num_steps = here.offset + min(last * phase.thin, phase.num_steps)
    session.bar.update(num_steps, infos._fields[0], float(np.mean(part[infos._fields[0]][:, -1])))
    return run._replace(
        chains=chains,
        trace=(*run.trace, part),
        draws=(*run.draws, *_gather(draws if phase.keep else None, len(steps))),
    ).update(
        stride=last,
        num_steps=num_steps,
        num_taken=before.num_taken + int(steps.sum()),
        num_gradients=before.num_gradients + _gradients(part),
    )


def _next_rows(session: Session, run: Run, feed: Feeder) -> Batch:
    """The rows of a segment; where there are none, the run is stored as far as it has come."""
    try:
        return feed.take()
    except LoaderError as error:
        kept = "Give fit a store to keep what a run has when its loader fails."
        if session.checkpoint is not None:
            session.checkpoint.save(run)
            folder = str(session.checkpoint.writer.folder)
            kept = f"The run is stored up to step {run.progress.num_steps}: resume({folder!r}, data=...) goes on there."
        raise LoaderError(f"{error} {kept}") from error


def _gather(draws: Params, count: int) -> tuple[Params, ...]:
    """What a segment kept. Cut on the host: on devices every new count would be a new program; the chains wait."""
    return () if draws is None else (jax.tree.map(lambda leaf: np.array(leaf[:, :count]), fetch(draws)),)


def _gradients(part: Trace) -> float:
    """What the strides cost; each holds the mean over its steps."""
    num_chains = len(next(iter(part.values())))
    a_step = part.get("num_gradients", np.ones((num_chains, len(part.num_steps))))
    return float((a_step * part.num_steps).sum())


def _stop_if_failed(session: Session, run: Run, method: Method) -> None:
    failed_at = fetch(run.chains.failed_at)[: session.num_chains]
    if session.watched is not None:
        failed_at = np.where(session.watched, failed_at, -1)
    if (failed_at < 0).all():
        return
    chain = int(np.argmin(np.where(failed_at < 0, np.iinfo(failed_at.dtype).max, failed_at)))
    raise NonFiniteError(
        f"chain {chain}: non-finite value at step {failed_at[chain]} of {type(method).__name__}. Lower its learning "
        "rate or step size, scale inputs and targets to about unit size, or use float64 (jax.enable_x64).",
        run.history(),
    )


def _see_end(session: Session, here: ScheduledPhase, run: Run, interrupted: bool, late: bool) -> Run:
    """Whether a phase ends here although steps are left; an early stop or Ctrl-C ends the run as well."""
    num_steps, state = run.progress.num_steps, run.chains.state
    if num_steps >= here.last_step:
        return run
    done = f"after {num_steps} of {here.last_step} steps"
    if isinstance(state, EarlyStoppingState) and bool(fetch(state.stopped)[: session.num_chains].all()):
        return run.note(f"stopped early on validation rows {done}", ended="stopped")
    if interrupted:
        return run.note(f"interrupted {done}", ended="interrupted")
    if late:
        part = "draws" if here.keeps_draws else f"phase {here.number + 1}"
        taken = f"{num_steps - here.offset} of {here.phase.num_steps} steps"
        return run.note(f"{part} ended by the budget after {taken}", ended="late")
    return run
