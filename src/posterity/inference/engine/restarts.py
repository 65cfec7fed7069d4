"""Chains that warm-up shows to be stuck start again; what stays stuck is reported and never averaged in silently."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from posterity.core.devices import fetch
from posterity.core.types import Params
from posterity.inference.engine.job import Run, ScheduledPhase
from posterity.inference.engine.program import Chains, Layout, Shared, begin, replace_chains
from posterity.inference.engine.run import run_phase
from posterity.inference.methods.method import Method
from posterity.inference.methods.step_size import MIN_STRIDES, rounded_away

MAX_RESTARTS = 2


class StuckError(RuntimeError):
    """No chain came out of its warm-up; the message says what to try."""


def restart_stuck(
    run: Run, layout: Layout, shared: Shared, scheduled: ScheduledPhase, chains: Chains, starts: Callable[[int], Any]
) -> Chains:
    """Start stuck chains again from `starts(attempt)`, at most MAX_RESTARTS times.

    All chains run again, since one program advances them; only those that were stuck are replaced, and looked at.
    Nothing of it is stored before it is over: a run killed meanwhile finds the same chains stuck and does it again.
    """
    if run.stuck is not None or not scheduled.phase.num_steps:
        return chains  # a resumed run has been here before
    stuck = _stuck(run, shared, chains)
    cut_short = run.num_steps < scheduled.last_step  # by the budget: no time to start again
    for attempt in range(1, 1 if cut_short else MAX_RESTARTS + 1):
        if stuck is None or not stuck.any():
            return chains
        again = Run(run.num_chains, run.bar, num_steps=run.num_steps, asked=run.asked, watched=stuck)
        fresh = begin(layout, shared, *starts(attempt))
        fresh = run_phase(again, layout, shared, scheduled._replace(first_stride=0), fresh, None)
        run.num_gradients += again.num_gradients
        if again.stop:
            run.stop = run.unfinished = True
            run.notes.append("interrupted while stuck chains started afresh")
            return chains
        filled = np.zeros(chains.failed_at.shape, bool)  # chains that only fill the devices stay as they are
        filled[: run.num_chains] = stuck
        chains = replace_chains(filled, chains, fresh)
        pairs = {name: (values, again.history()[name]) for name, values in run.history().items()}
        run.num_restarts += int(stuck.sum())
        run.trace = {name: [np.where(stuck[:, None], new, old)] for name, (old, new) in pairs.items()}
        names = ", ".join(map(str, np.flatnonzero(stuck)))
        where = "" if shared.method.start is None else " from the network's own initialisation, not from start"
        run.notes.append(f"chain {names} was stuck in warm-up and started afresh{where} (attempt {attempt})")
        stuck = _stuck(run, shared, chains)
        run.rewritten = True
    run.stuck, run.cut_short = stuck, cut_short
    return chains


def _stuck(run: Run, shared: Shared, chains: Chains) -> np.ndarray | None:
    """Which chains [C] the method finds stuck on their trace, and those whose weights are too large for their steps."""
    stuck = shared.method.stuck(run.history())
    if stuck is None:
        return None
    params, mass = fetch((chains.state.params, getattr(chains.state, "inverse_mass", None)))
    weights = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(params)], axis=1)
    widths = 1.0 if mass is None else np.sqrt(mass[: run.num_chains])
    return stuck | rounded_away(run.history(), weights[: run.num_chains], widths)


def leave_out_stuck(run: Run) -> None:
    """Say which chains stayed stuck: they are no draws from the posterior, and would ruin its averages."""
    assert run.stuck is not None
    names = ", ".join(map(str, np.flatnonzero(run.stuck)))
    if run.stuck.all() and run.cut_short:
        raise StuckError(
            f"The budget ended warm-up after {run.num_taken} steps, before any chain had begun to move. Give a longer "
            "budget, fewer rows, or a method that needs less, such as Laplace."
        )
    if run.stuck.all():
        raise StuckError(
            f"Every chain stayed stuck in warm-up after {MAX_RESTARTS} fresh starts. Start from an optimum "
            "(start=MAP()), give the scale of a heteroscedastic likelihood a floor, or narrow the prior."
        )
    which = f"chain {names}" if run.stuck.sum() == 1 else f"chains {names}"
    told = "had not begun to move when the budget ended warm-up" if run.cut_short else "stayed stuck in warm-up"
    message = f"{which} {told}: left out of the posterior"
    warnings.warn(message, stacklevel=2)
    run.notes.append(message)
    run.trace = {name: [values[~run.stuck]] for name, values in run.history().items()}


def warn_unmoved(run: Run, method: Method, kept: Params) -> None:
    """Warn of chains that accepted no step while draws [C, D, ...] were kept: these are one point, repeated."""
    accepted = run.history().get("accepted")
    if accepted is None or kept is None:
        return
    num_draws = jax.tree.leaves(kept)[0].shape[1]
    # A draw or two may well be rejected: steps of the warm-up before them then speak too.
    unmoved = ~accepted[:, -max(num_draws, MIN_STRIDES) :].any(1)
    if run.stuck is not None:
        unmoved &= ~run.stuck  # which has been said
    if not unmoved.any():
        return
    names = ", ".join(map(str, np.flatnonzero(unmoved)))
    adapted = getattr(method, "step_size", None) is None
    remedy = "start from an optimum, start=MAP(), or warm up longer" if adapted else "lower step_size or leave it out"
    message = f"chain {names} accepted no step, so that all draws of it are the same; {remedy}"
    warnings.warn(message, stacklevel=2)
    run.notes.append(message)
