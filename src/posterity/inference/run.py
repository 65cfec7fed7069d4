"""One phase of a run, in segments of about a second: gather what each brought, save it, and see whether to go on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from posterity.devices import agree, fetch
from posterity.inference.checkpoint import Checkpoint
from posterity.inference.method import Method
from posterity.inference.program import Chains, adapt, advance
from posterity.inference.progress import ProgressBar
from posterity.types import Params, Phase

SEGMENT_SECONDS = 1.0


class NonFiniteError(FloatingPointError):
    """A run met a NaN or an infinite value; the message names chain and step, `trace` holds what came before."""

    def __init__(self, message: str, trace: dict[str, np.ndarray]) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass
class Run:
    """What a run has gathered so far."""

    trace: dict[str, list[np.ndarray]] = field(default_factory=dict)  # [C, R] a segment
    draws: list[Params] = field(default_factory=list)  # [C, R, ...] a segment; of padded chains too
    notes: list[str] = field(default_factory=list)
    num_steps: int = 0  # of the plan that are behind
    num_taken: int = 0  # of these, what was run: a budget may cut phases short
    num_gradients: float = 0.0  # of all chains together
    stop: bool = False
    interrupted: bool = False
    stuck: np.ndarray | None = None  # [C] chains that no restart could free
    cut_short: bool = False  # the budget ended warm-up, so nothing was restarted
    rewritten: bool = False  # restarts have changed the trace of steps already stored

    def interrupt(self) -> None:
        self.interrupted = True

    def history(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts, axis=1) for name, parts in self.trace.items()}

    def kept(self) -> Params:
        return jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *self.draws) if self.draws else None


class Place(NamedTuple):
    """Where in a plan a phase stands."""

    number: int
    phase: Phase
    first_record: int
    offset: int  # steps of the phases before

    @property
    def num_records(self) -> int:
        return -(-self.phase.num_steps // self.phase.thin)

    @property
    def last_step(self) -> int:
        return self.offset + self.phase.num_steps


def run_phase(
    run: Run,
    shared: tuple[Any, Any, Any, Any, Any],
    place: Place,
    chains: Chains,
    num_chains: int,
    deadline: float | None,
    bar: ProgressBar,
    checkpoint: Checkpoint | None,
) -> Chains:
    layout, phase = shared[0], place.phase
    record, size = place.first_record, 1
    while record < place.num_records:
        last = min(record + size, place.num_records)
        began = time.perf_counter()
        span = np.asarray([record, last, phase.thin, phase.num_steps, place.offset, place.number])
        chains, infos, draws = advance(*shared, chains, span)
        infos = fetch(infos)  # waits for the device
        seconds = time.perf_counter() - began
        _gather(run, infos, draws, last - record, num_chains)
        run.num_gradients += _gradients(infos, phase, record, last, num_chains)
        done = min(last * phase.thin, phase.num_steps)
        run.num_steps, run.num_taken = place.offset + done, run.num_taken + done - record * phase.thin
        bar.update(run.num_steps, infos._fields[0], float(np.mean(infos[0][:num_chains, last - record - 1])))
        _stop_if_failed(run, chains, num_chains, shared[1])
        # Clocks and keyboards differ between processes; what follows from them must not.
        late = deadline is not None and time.perf_counter() > deadline
        due = checkpoint is not None and checkpoint.is_due
        # The first segment also compiled: it says nothing of the pace.
        growth = 4.0 if record == place.first_record else SEGMENT_SECONDS / max(seconds, 1e-6)
        interrupted, late, due, growth = agree(run.interrupted, late, due, growth)
        over = _is_over(run, chains, num_chains, place.last_step, bool(interrupted), bool(late))
        if checkpoint is not None and (over or last == place.num_records or due):
            checkpoint.save(run, chains, place.number, last)
        if over:
            break
        record, size = last, int(np.clip(size * min(growth, 16.0), 1, layout.capacity))
    return chains


def adapt_phase(run: Run, shared: tuple[Any, Any, Any, Any, Any], place: Place, chains: Chains) -> Chains:
    """Let the chains look at what the phase kept; its draws have then served."""
    layout, method, model = shared[:3]
    kept, run.draws = run.kept(), []
    return adapt(layout, method, model, chains, kept, np.asarray([place.number, run.num_steps - place.offset]))


def _gradients(infos: Any, phase: Phase, first: int, last: int, num_chains: int) -> float:
    """What the records from first to last cost; each is a mean over its steps, which in a phase's last may be fewer."""
    steps = np.minimum(phase.thin, phase.num_steps - np.arange(first, last) * phase.thin)
    a_step = infos._asdict().get("num_gradients", np.ones((num_chains, len(steps))))
    return float((a_step[:num_chains, : len(steps)] * steps).sum())


def _gather(run: Run, infos: Any, draws: Params, count: int, num_chains: int) -> None:
    for name, values in infos._asdict().items():
        run.trace.setdefault(name, []).append(values[:num_chains, :count])
    if draws is not None:
        # Cut on the host: on devices every new count would be a new program, while the chains wait.
        run.draws.append(jax.tree.map(lambda leaf: np.array(leaf[:, :count]), fetch(draws)))


def _stop_if_failed(run: Run, chains: Chains, num_chains: int, method: Method) -> None:
    failed_at = fetch(chains.failed_at)[:num_chains]
    if (failed_at < 0).all():
        return
    chain = int(np.argmin(np.where(failed_at < 0, np.iinfo(failed_at.dtype).max, failed_at)))
    raise NonFiniteError(
        f"chain {chain}: non-finite value at step {failed_at[chain]} of {type(method).__name__}. Lower its learning "
        "rate or step size, scale inputs and targets to about unit size, or use float64 (jax.enable_x64).",
        run.history(),
    )


def _is_over(run: Run, chains: Chains, num_chains: int, planned: int, interrupted: bool, late: bool) -> bool:
    """Whether a phase ends here although steps are left; an early stop or Ctrl-C ends the run as well."""
    if run.num_steps >= planned:
        return False
    stopped = getattr(chains.state, "stopped", None)
    done = f"after {run.num_steps} of {planned} steps"
    if stopped is not None and bool(fetch(stopped)[:num_chains].all()):
        run.stop = True
        run.notes.append(f"stopped early on validation rows {done}")
    elif interrupted:
        run.stop = True
        run.notes.append(f"interrupted {done}")
    elif late:
        run.notes.append(f"phase ended by the budget {done}")
        return True
    return run.stop
