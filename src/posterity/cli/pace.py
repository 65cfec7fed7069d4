"""How long it will take, from one piece that is timed: the gradient of the log joint at some rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from posterity.cli.output import duration, say
from posterity.core.types import Batch
from posterity.inference import METHODS, Method
from posterity.tables.defaults import table_method
from posterity.tables.split import Prepared

MANY_ROWS = 20_000  # with fewer the time is soon known
TIMED_ROWS = (512, 16_384)
NUM_TIMES = 5
LEAST_STEPS = 20  # of a sampler on all rows, before anything can be said of it


class Pace(NamedTuple):
    """The seconds of a gradient: a part that is always there, and a part for each row."""

    fixed: float
    of_row: float

    def __call__(self, num_rows: int) -> float:
        return self.fixed + self.of_row * num_rows


def plan_time(prepared: Prepared, methods: list[str], effort: float, budget: float | None) -> list[str]:
    """On many rows, say how long each method will take, and leave out those whose first steps outlast the budget.

    A budget is looked at between steps, and one step of some samplers goes over all rows hundreds of times.
    """
    num_rows = len(prepared.train[1])
    if num_rows < MANY_ROWS:
        return methods
    pace = measure_pace(prepared)
    chosen = {name: table_method(name, num_rows, effort=effort) for name in methods}
    expected = {name: seconds_of(method, num_rows, pace) for name, method in chosen.items()}
    say(_how_long(num_rows, pace, expected, budget))
    if budget is None:
        return methods
    first = {name: LEAST_STEPS * _longest_step(method, num_rows, pace) for name, method in chosen.items()}
    for name in [name for name in methods if first[name] > budget]:
        say(
            f"{METHODS[name].card.label} is left out: its first {LEAST_STEPS} steps may take {duration(first[name])}, "
            f"and the budget is {duration(budget)}. Give it more, or fewer rows."
        )
    return [name for name in methods if first[name] <= budget]


def _how_long(num_rows: int, pace: Pace, expected: dict[str, float], budget: float | None) -> str:
    longest, total = max(expected, key=lambda name: expected[name]), sum(expected.values())
    text = (
        f"{num_rows:,} rows: about {duration(total)} beside compiling, at most, at this machine's pace of "
        f"{1e6 * pace.of_row:.2g} µs per row and gradient"
    )
    text += f"; {METHODS[longest].card.label} takes {duration(expected[longest])} of it." if len(expected) > 1 else "."
    if budget is None:
        return text + (" A budget makes it shorter: --budget 10m." if total > 60 else "")
    return text + (f" The budget of {duration(budget)} will cut it." if budget < total else "")


def measure_pace(prepared: Prepared) -> Pace:
    """From gradients at few and at many rows; the best of a few, as other programs only ever make them longer."""
    model = prepared.code.model()
    x, y = (jnp.asarray(values[: TIMED_ROWS[1]]) for values in prepared.train)
    params, fixed = model.split(model.init(jax.random.key(0), x[:2]))
    gradient = jax.jit(jax.grad(model.bind(fixed).log_joint))
    sizes = [min(rows, len(y)) for rows in TIMED_ROWS]
    few, many = (_best_time(lambda n=n: gradient(params, Batch(x[:n], y[:n], jnp.ones(n)))) for n in sizes)
    of_row = max(many - few, 0.0) / (sizes[1] - sizes[0]) if sizes[1] > sizes[0] else many / sizes[1]
    return Pace(max(few - of_row * sizes[0], 0.0), of_row)


def _best_time(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(NUM_TIMES + 1):
        begun = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - begun)
    return min(times[1:])  # the first also compiled


def seconds_of(method: Method, num_rows: int, pace: Pace) -> float:
    """Of a whole run, at most, and of what it starts from."""

    def of_stage(stage: Method) -> float:
        steps = sum(phase.num_steps * pace(phase.batch_size or num_rows) for phase in stage.plan(num_rows))
        return _rounds(stage) * steps * stage.card.gradients(stage)

    return sum(map(of_stage, method.stages()))


def _longest_step(method: Method, num_rows: int, pace: Pace) -> float:
    rows = max((phase.batch_size or num_rows for phase in method.plan(num_rows)), default=num_rows)
    return _rounds(method) * pace(rows) * method.card.gradients(method)


def _rounds(method: Method) -> int:
    """Chains that one device runs, one after the other."""
    return -(-(method.card.chains or method.num_chains) // jax.device_count())
