"""One phase of a run, in segments of about a second: gather what each brought, save it, and see whether to go on."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np

from posterity.core.devices import agree, fetch
from posterity.core.types import Params, Phase
from posterity.inference.engine.job import Run, ScheduledPhase
from posterity.inference.engine.program import Chains, Layout, Shared, Span, adapt, advance
from posterity.inference.methods.method import Method
from posterity.weights.on_disk import join

SEGMENT_SECONDS = 1.0


class NonFiniteError(FloatingPointError):
    """A run met a NaN or an infinite value; the message names chain and step, `trace` holds what came before."""

    def __init__(self, message: str, trace: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.trace = trace


def run_phase(
    run: Run, layout: Layout, shared: Shared, scheduled: ScheduledPhase, chains: Chains, deadline: float | None
) -> Chains:
    """Advance the chains to the end of a phase, or to where it must stop."""
    phase, checkpoint, num_chains = scheduled.phase, run.checkpoint, run.num_chains
    stride, size, run.unfinished = scheduled.first_stride, 1, False
    while stride < scheduled.num_strides:
        last = min(stride + size, scheduled.num_strides)
        began = time.perf_counter()
        span = Span(stride, last, phase.thin, phase.num_steps, scheduled.offset, scheduled.number)
        chains, infos, draws = advance(layout, shared, chains, span)
        infos = fetch(infos)  # waits for the device
        seconds = time.perf_counter() - began
        _gather(run, infos, draws if phase.keep else None, last - stride)
        run.num_gradients += _gradients(infos, phase, stride, last, num_chains)
        done = min(last * phase.thin, phase.num_steps)
        run.num_steps, run.num_taken = scheduled.offset + done, run.num_taken + done - stride * phase.thin
        run.bar.update(run.num_steps, infos._fields[0], float(np.mean(infos[0][:num_chains, last - stride - 1])))
        _stop_if_failed(run, chains, shared.method)
        # Clocks and keyboards differ between processes; what follows from them must not.
        late = deadline is not None and time.perf_counter() > deadline
        due = checkpoint is not None and checkpoint.is_due
        # The first segment also compiled: it says nothing of the pace.
        growth = 4.0 if stride == scheduled.first_stride else SEGMENT_SECONDS / max(seconds, 1e-6)
        interrupted, late, due, growth = agree(run.interrupted, late, due, growth)
        over = _is_over(run, chains, scheduled, bool(interrupted), bool(late))
        if checkpoint is not None and (over or last == scheduled.num_strides or due):
            checkpoint.save(run, chains, scheduled.number, last)
        if over:
            break
        stride, size = last, int(np.clip(size * min(growth, 16.0), 1, layout.capacity))
    return chains


def adapt_phase(run: Run, layout: Layout, shared: Shared, scheduled: ScheduledPhase, chains: Chains) -> Chains:
    """Let the chains look at what the phase kept; its draws have then served."""
    kept, run.draws = jax.tree.map(np.asarray, join(run.draws)), []
    return adapt(
        layout, shared, chains, kept, np.asarray(scheduled.number), np.asarray(run.num_steps - scheduled.offset)
    )


def _gradients(infos: Any, phase: Phase, first: int, last: int, num_chains: int) -> float:
    """What the strides from first to last cost; each is a mean over its steps, which in a phase's last may be fewer."""
    steps = np.minimum(phase.thin, phase.num_steps - np.arange(first, last) * phase.thin)
    a_step = infos._asdict().get("num_gradients", np.ones((num_chains, len(steps))))
    return float((a_step[:num_chains, : len(steps)] * steps).sum())


def _gather(run: Run, infos: Any, draws: Params, count: int) -> None:
    for name, values in infos._asdict().items():
        run.trace.setdefault(name, []).append(values[: run.num_chains, :count])
    if draws is not None:
        # Cut on the host: on devices every new count would be a new program, while the chains wait.
        run.draws.append(jax.tree.map(lambda leaf: np.array(leaf[:, :count]), fetch(draws)))


def _stop_if_failed(run: Run, chains: Chains, method: Method) -> None:
    failed_at = fetch(chains.failed_at)[: run.num_chains]
    if run.watched is not None:
        failed_at = np.where(run.watched, failed_at, -1)
    if (failed_at < 0).all():
        return
    chain = int(np.argmin(np.where(failed_at < 0, np.iinfo(failed_at.dtype).max, failed_at)))
    raise NonFiniteError(
        f"chain {chain}: non-finite value at step {failed_at[chain]} of {type(method).__name__}. Lower its learning "
        "rate or step size, scale inputs and targets to about unit size, or use float64 (jax.enable_x64).",
        run.history(),
    )


def _is_over(run: Run, chains: Chains, scheduled: ScheduledPhase, interrupted: bool, late: bool) -> bool:
    """Whether a phase ends here although steps are left; an early stop or Ctrl-C ends the run as well."""
    if run.num_steps >= scheduled.last_step:
        return False
    stopped = getattr(chains.state, "stopped", None)
    done = f"after {run.num_steps} of {scheduled.last_step} steps"
    if stopped is not None and bool(fetch(stopped)[: run.num_chains].all()):
        run.stop = True
        run.notes.append(f"stopped early on validation rows {done}")
    elif interrupted:
        run.stop = run.unfinished = True
        run.notes.append(f"interrupted {done}")
    elif late:
        run.unfinished = True
        part = "draws" if scheduled.phase.keep and not scheduled.phase.adapt else f"phase {scheduled.number + 1}"
        taken = f"{run.num_steps - scheduled.offset} of {scheduled.phase.num_steps} steps"
        run.notes.append(f"{part} ended by the budget after {taken}")
        return True
    return run.stop
