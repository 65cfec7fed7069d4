"""What a run is asked for, and what it has gathered so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from posterity.core.types import Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.engine.progress import ProgressBar
from posterity.inference.methods.method import Method
from posterity.models.model import Model

if TYPE_CHECKING:
    from posterity.inference.engine.checkpoint import Checkpoint


class Job(NamedTuple):
    """One run: what is fitted to what. Everything a resumed run needs to know again."""

    model: Model
    method: Method
    rows: Dataset
    validation: Dataset | None
    calibration: Any  # inputs set aside, or None
    seed: int
    num_chains: int
    mesh: tuple[int, int] | None  # devices for chains and for rows; None: chosen
    metadata: dict[str, Any]  # of the user's own, plain JSON, kept with the posterior
    given: str = ""  # fingerprint of all rows as they were passed to `fit`, those set aside included


class ScheduledPhase(NamedTuple):
    """Where in a plan a phase stands."""

    number: int
    phase: Phase
    first_stride: int
    offset: int  # steps of the phases before

    @property
    def num_strides(self) -> int:
        return -(-self.phase.num_steps // self.phase.thin)

    @property
    def last_step(self) -> int:
        return self.offset + self.phase.num_steps


@dataclass
class Run:
    """What a run has gathered so far, and where it shows and keeps it."""

    num_chains: int  # without those that only fill the devices
    bar: ProgressBar
    checkpoint: Checkpoint | None = None
    trace: dict[str, list[np.ndarray]] = field(default_factory=dict)  # [C, R] a segment
    draws: list[Params] = field(default_factory=list)  # [C, R, ...] a segment; of padded chains too
    notes: list[str] = field(default_factory=list)
    num_steps: int = 0  # of the plan, done or skipped
    num_taken: int = 0  # of these, done: a budget may cut phases short
    num_gradients: float = 0.0  # of all chains together
    num_restarts: int = 0  # chains that were started afresh, counted each time
    num_devices: tuple[int, int] = (1, 1)  # for chains and for rows
    stop: bool = False
    unfinished: bool = False  # the phase ended by Ctrl-C or the budget, with steps left
    asked: Event = field(default_factory=Event)  # to stop, by Ctrl-C
    watched: np.ndarray | None = None  # [C] chains whose non-finite values stop the run; None: all
    stuck: np.ndarray | None = None  # [C] chains that no restart could free
    cut_short: bool = False  # the budget ended warm-up, so nothing was restarted
    rewritten: bool = False  # restarts have changed the trace of steps already stored

    def interrupt(self) -> None:
        self.asked.set()

    @property
    def interrupted(self) -> bool:
        return self.asked.is_set()

    def history(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate(parts, axis=1) for name, parts in self.trace.items()}
