"""Sampling in rounds: `fit(..., until="good")` goes on until a diagnosis is reached, or time is out.

After the phases that the method plans, the draws are diagnosed at the rows asked for. Where they miss

    draws, mixing   the chains go on, for as many draws as the diagnosis asks for and at most twice as many as there are
    burn-in         chains still drift, or accept far less than their step size was adapted for: what was kept is thrown
                    away, not averaged in, and a burn-in twice as long follows, with a step size that is adapted afresh

Each round is a longer phase of the same programs: nothing is compiled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np

from posterity.core import records
from posterity.inference.engine.feed import begin_chains
from posterity.inference.engine.job import Run, ScheduledPhase, Session, Until
from posterity.metrics.convergence import MIN_DRAWS
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.trace import Trace

RANKS = {"not converged": 0, "usable": 1, "good": 2, "independent": 2}
MAX_GROWTH = 64  # times the draws that were planned, where no budget ends a run
LEAST_GROWTH = 0.25  # of the draws there are: a diagnosis costs a second
MARGIN = 1.1  # on the number of draws that the diagnosis asks for, which is an estimate

Runner = Callable[[Sequence[ScheduledPhase], Run], Run]


def lengthened(phases: Sequence[ScheduledPhase], lengths: tuple[int, ...]) -> list[ScheduledPhase]:
    """The phases with other numbers of steps; as planned where there are none."""
    made, offset = [], 0
    for here, num_steps in zip(phases, lengths or [here.phase.num_steps for here in phases], strict=True):
        made.append(here._replace(phase=here.phase._replace(num_steps=num_steps), offset=offset))
        offset += num_steps
    return made


def sample_until(
    goal: Until,
    session: Session,
    planned: Sequence[ScheduledPhase],
    run: Run,
    judge: Callable[[Run], Diagnosis],
    go_on: Runner,
) -> Run:
    """Further rounds of a run whose planned phases are over, until `judge` finds the goal reached."""
    most, before = MAX_GROWTH * planned[-1].phase.num_steps, run
    while not run.progress.ended:
        found = judge(run)
        if RANKS.get(found.verdict, 0) >= RANKS[goal]:
            return run
        lengths = run.progress.lengths or tuple(here.phase.num_steps for here in planned)
        if lengths[-1] >= most:
            return run.note(f"{lengths[-1]} steps of sampling did not make it {goal}: {found.missing} is missing")
        if found.missing == "burn-in":
            lengths, before = (2 * lengths[0], *(here.phase.num_steps for here in planned[1:])), run
            run = _begin_again(session, lengthened(planned, lengths), run, lengths)
        else:
            lengths = (*lengths[:-1], _longer(found, lengths[-1], planned[-1].phase.thin))
            run = run.update(lengths=lengths)
        phases = lengthened(planned, lengths)
        session.bar.extend(phases[-1].last_step)
        run = go_on(phases, run)
    if run.history().is_draw.sum() < MIN_DRAWS <= before.history().is_draw.sum() and session.checkpoint is None:
        # What was thrown away is all there is to diagnose, and its verdict is the right one: not converged.
        return before.note("time was out in a longer burn-in: the draws are those of a burn-in too short", ended="late")
    return run


def _longer(found: Diagnosis, num_steps: int, thin: int) -> int:
    """Steps of a phase that keeps as many draws as are missing, and at most twice as many as there are."""
    asked = max((part.more_draws for part in found.parts.values()), default=0) * MARGIN * thin
    return num_steps + int(np.clip(asked, LEAST_GROWTH * num_steps, num_steps) // thin + 1) * thin


def _begin_again(session: Session, phases: Sequence[ScheduledPhase], run: Run, lengths: tuple[int, ...]) -> Run:
    """The chains where they are, before another burn-in; what they had kept is burn-in now."""
    first, old = phases[0], run.chains
    keys = jax.vmap(lambda key: jax.random.fold_in(key, len(run.trace)))(old.key)
    chains = begin_chains(first, keys, old.state.params, old.fixed)
    trace = tuple(_without_draws(part) for part in run.trace)
    note = f"burn-in was too short: {run.progress.num_steps} steps were thrown away, and {lengths[0]} more follow"
    run = run._replace(chains=chains, trace=trace, draws=()).note(note, lengths=lengths, phase=0, stride=0, num_steps=0)
    return run if session.checkpoint is None else session.checkpoint.save(run)


def _without_draws(part: Trace) -> Trace:
    return records.replace(part, is_draw=np.zeros_like(part.is_draw))
