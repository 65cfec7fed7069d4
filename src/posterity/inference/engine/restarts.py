"""Chains that warm-up shows to be stuck start again; what stays stuck is reported and never averaged in silently."""

from __future__ import annotations

import warnings

import jax
import numpy as np

from posterity.core import records
from posterity.core.devices import fetch
from posterity.core.types import Params
from posterity.inference.engine.feed import begin_chains
from posterity.inference.engine.job import Run, ScheduledPhase, Session
from posterity.inference.engine.program import replace_chains
from posterity.inference.engine.run import run_phase
from posterity.inference.engine.schedule import on_devices
from posterity.inference.engine.start import starting_point
from posterity.inference.methods.method import Method
from posterity.inference.methods.step_size import MIN_STRIDES, rounded_away
from posterity.posterior.trace import Trace

MAX_RESTARTS = 2


class StuckError(RuntimeError):
    """No chain came out of its warm-up; the message says what to try."""


def restart_stuck(session: Session, here: ScheduledPhase, run: Run) -> Run:
    """Start stuck chains again, at most MAX_RESTARTS times.

    All chains run again, since one program advances them; only those that were stuck are replaced, and looked at.
    Nothing of it is stored before it is over: a run killed meanwhile finds the same chains stuck and does it again.
    """
    if run.progress.stuck is not None or not here.phase.num_steps:
        return run  # a resumed run has been here before
    stuck = _stuck(session, here.shared.method, run)
    cut_short = run.progress.num_steps < here.last_step  # by the budget: no time to start again
    for attempt in range(1, 1 if cut_short else MAX_RESTARTS + 1):
        if stuck is None or not stuck.any():
            return run
        start = on_devices(starting_point(session.job, attempt), here.layout.mesh)
        fresh = Run(begin_chains(here, *start))
        again = run_phase(session._replace(checkpoint=None, watched=stuck, notify=None), here, fresh, None)
        run = run.update(num_gradients=run.progress.num_gradients + again.progress.num_gradients)
        if again.progress.stops:
            return run.note("interrupted while stuck chains started afresh", ended="interrupted")
        filled = np.zeros(run.chains.failed_at.shape, bool)  # chains that only fill the devices stay as they are
        filled[: session.num_chains] = stuck
        names = ", ".join(map(str, np.flatnonzero(stuck)))
        where = "" if here.shared.method.start is None else " from the network's own initialisation, not from start"
        run = run._replace(
            chains=replace_chains(here.layout, filled, run.chains, again.chains),
            trace=(_replaced(stuck, run.history(), again.history()),),
        ).note(
            f"chain {names} was stuck in warm-up and started afresh{where} (attempt {attempt})",
            num_restarts=run.progress.num_restarts + int(stuck.sum()),
        )
        stuck = _stuck(session, here.shared.method, run)
    return run.update(stuck=None if stuck is None else tuple(stuck.tolist()), cut_short=cut_short)


def _replaced(which: np.ndarray, old: Trace, new: Trace) -> Trace:
    """The new trace of some chains [C], the old one of the others."""
    entries = {name: np.where(which[:, None], new[name], values) for name, values in old.items()}
    return records.replace(old, entries=entries)


def _stuck(session: Session, method: Method, run: Run) -> np.ndarray | None:
    """Which chains [C] the method finds stuck on their trace, and those whose weights are too large for their steps."""
    trace, state, num_chains = run.history().entries, run.chains.state, session.num_chains
    stuck = method.stuck(trace)
    if stuck is None:
        return None
    params, mass = fetch((state.params, method.inverse_mass(state)))
    weights = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(params)], axis=1)
    widths = 1.0 if mass is None else np.sqrt(mass[:num_chains])
    return stuck | rounded_away(trace, weights[:num_chains], widths)


def leave_out_stuck(run: Run) -> Run:
    """Say which chains stayed stuck: they are no draws from the posterior, and would ruin its averages."""
    stuck, cut_short = run.stuck_chains(), run.progress.cut_short
    assert stuck is not None
    names = ", ".join(map(str, np.flatnonzero(stuck)))
    if stuck.all() and cut_short:
        raise StuckError(
            f"The budget ended warm-up after {run.progress.num_taken} steps, before any chain had begun to move. Give "
            "a longer budget, fewer rows, or a method that needs less, such as Laplace."
        )
    if stuck.all():
        raise StuckError(
            f"Every chain stayed stuck in warm-up after {MAX_RESTARTS} fresh starts. Start from an optimum "
            "(start=MAP()), give the scale of a heteroscedastic likelihood a floor, or narrow the prior."
        )
    which = f"chain {names}" if stuck.sum() == 1 else f"chains {names}"
    what = "had not begun to move when the budget ended warm-up" if cut_short else "stayed stuck in warm-up"
    message = f"{which} {what}: left out of the posterior"
    warnings.warn(message, stacklevel=2)
    return run._replace(trace=(run.history().of_chains(~stuck),)).note(message)


def warn_unmoved(run: Run, method: Method, kept: Params) -> Run:
    """Warn of chains that accepted no step while draws [C, D, ...] were kept: these are one point, repeated."""
    accepted, stuck = run.history().get("accepted"), run.stuck_chains()
    if accepted is None or kept is None:
        return run
    num_draws = jax.tree.leaves(kept)[0].shape[1]
    # A draw or two may well be rejected: steps of the warm-up before them then speak too.
    unmoved = ~accepted[:, -max(num_draws, MIN_STRIDES) :].any(1)
    if stuck is not None:
        unmoved &= ~stuck  # which has been said
    if not unmoved.any():
        return run
    names = ", ".join(map(str, np.flatnonzero(unmoved)))
    adapted = method.step_size is None
    remedy = "start from an optimum, start=MAP(), or warm up longer" if adapted else "lower step_size or leave it out"
    message = f"chain {names} accepted no step, so that all draws of it are the same; {remedy}"
    warnings.warn(message, stacklevel=2)
    return run.note(message)
