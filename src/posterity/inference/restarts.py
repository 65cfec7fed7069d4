"""Chains that warm-up shows to be stuck start again; what stays stuck is reported and never averaged in silently."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from posterity.inference.method import Method
from posterity.inference.program import Chains, begin, replace_chains
from posterity.inference.progress import ProgressBar
from posterity.inference.run import Place, Run, run_phase

MAX_RESTARTS = 2


class StuckError(RuntimeError):
    """No chain came out of its warm-up; the message says what to try."""


def restart_stuck(
    run: Run,
    method: Method,
    shared: Any,
    place: Place,
    chains: Chains,
    num_chains: int,
    starts: Callable[[int], Any],
    bar: ProgressBar,
) -> Chains:
    """Start stuck chains again from `starts(attempt)`, at most MAX_RESTARTS times.

    Nothing of it is stored before it is over: a run killed meanwhile finds the same chains stuck and does it again.
    """
    if run.stuck is not None or not place.phase.num_steps:
        return chains  # a resumed run has been here before
    stuck = method.stuck(run.history())
    cut_short = run.num_steps < place.last_step  # by the budget: no time to start again
    for attempt in range(1, 1 if cut_short else MAX_RESTARTS + 1):
        if stuck is None or not stuck.any():
            return chains
        again = Run(num_steps=run.num_steps)
        fresh = begin(*shared, *starts(attempt))
        fresh = run_phase(again, shared, place._replace(first_record=0), fresh, num_chains, None, bar, None)
        filled = np.zeros(chains.failed_at.shape, bool)  # chains that only fill the devices stay as they are
        filled[:num_chains] = stuck
        chains = replace_chains(filled, chains, fresh)
        pairs = {name: (values, again.history()[name]) for name, values in run.history().items()}
        run.num_gradients += again.num_gradients
        run.trace = {name: [np.where(stuck[:, None], new, old)] for name, (old, new) in pairs.items()}
        names = ", ".join(map(str, np.flatnonzero(stuck)))
        run.notes.append(f"chain {names} was stuck in warm-up and started afresh (attempt {attempt})")
        stuck = method.stuck(run.history())
        run.rewritten = True
    run.stuck, run.cut_short = stuck, cut_short
    return chains


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
    message = f"chain {names} stayed stuck in warm-up and is left out of the posterior"
    warnings.warn(message, stacklevel=2)
    run.notes.append(message)
    run.trace = {name: [values[~run.stuck]] for name, values in run.history().items()}
