"""What a run is asked for, what it carries from one segment to the next, and what it needs while it runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from posterity.core import records
from posterity.core.types import Params, Phase
from posterity.data.arrays import Dataset
from posterity.data.augment import Augment
from posterity.data.sources import Source
from posterity.inference.engine.program import Chains, Layout, Shared
from posterity.inference.engine.progress import ProgressBar
from posterity.inference.methods.method import Method
from posterity.models.likelihoods import Likelihood
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.posterior.trace import Trace

if TYPE_CHECKING:
    from posterity.inference.engine.checkpoint import Checkpoint

Until = Literal["good", "usable"]
Ending = Literal["", "stopped", "interrupted", "late"]
COUNTS = ("phase", "stride", "num_steps", "num_taken", "num_restarts", "num_shards")


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
    until: Until | None = None  # the verdict to sample for
    at: Any = None  # inputs that it is made at
    held_out: Dataset | None = None  # the inputs set aside with their targets, where these are known
    source: Source | None = None  # of rows that are read as the run goes; `rows` are then a sample of them
    shares: tuple[float | None, float | None] = (None, None)  # of its rows that were set aside: holdout, validation
    augment: Augment | None = None  # what happens to inputs at every step

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows if self.source is None else self.source.num_rows

    def stages(self) -> list[Job]:
        """A job for each stage of the method, first to last."""
        *first, _ = self.method.stages()
        return [*(self._replace(method=method, calibration=None, until=None, at=None) for method in first), self]

    def after(self, before: Posterior | None) -> Job:
        """The job of a stage that begins where another ended, under the model that one may have tuned."""
        if before is None:
            return self
        # The validation rows have served: the first stage stopped on them.
        method = records.replace(self.method, start=before)
        return self._replace(method=method, model=before.model, validation=None)


class Streamed(NamedTuple):
    """Rows that are read as a run goes, and the likelihood whose units their targets are in."""

    source: Source
    likelihood: Likelihood


class ScheduledPhase(NamedTuple):
    """A phase, where in the plan it stands, and its program."""

    number: int
    phase: Phase
    offset: int  # steps of the phases before
    layout: Layout
    shared: Shared
    streamed: Streamed | None = None  # None: all rows are on the devices

    @property
    def num_strides(self) -> int:
        return -(-self.phase.num_steps // self.phase.thin)

    @property
    def last_step(self) -> int:
        return self.offset + self.phase.num_steps

    @property
    def keeps_draws(self) -> bool:
        """Whether what it keeps are draws of the posterior; those of a phase that adapts serve the adaptation alone."""
        return self.phase.keep and not self.phase.adapt


@records.record
class Progress:
    """How far a run has come, as a store holds it."""

    phase: int = 0  # of the plan
    stride: int = 0  # of that phase, the next one to run
    num_steps: int = 0  # of the plan, done or skipped
    num_taken: int = 0  # of these, done: a budget may cut phases short
    num_gradients: float = 0.0  # of all chains together
    num_restarts: int = 0  # chains that were started afresh, counted each time
    ended: Ending = ""  # what ended the last phase before its last step: validation rows, Ctrl-C or the budget
    stuck: tuple[bool, ...] | None = None  # chains that no restart could free
    cut_short: bool = False  # the budget ended warm-up, so nothing was restarted
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # of all sessions, when it was stored
    num_shards: int = 0
    lengths: tuple[int, ...] = ()  # steps of each phase in the present round; as planned in the first

    def __post_init__(self) -> None:
        """A store may have been edited: what is wrong is refused before it is computed with."""
        amounts = (self.num_gradients, self.seconds)
        right = (
            all(type(getattr(self, name)) is int and getattr(self, name) >= 0 for name in COUNTS)
            and all(type(amount) in (int, float) and 0 <= amount < math.inf for amount in amounts)
            and type(self.notes) is tuple
            and all(type(note) is str for note in self.notes)
            and type(self.lengths) is tuple
            and all(type(length) is int and length >= 0 for length in self.lengths)
            and (self.stuck is None or type(self.stuck) is tuple)
            and all(type(chain) is bool for chain in self.stuck or ())
            and (self.ended == "" or (self.ended in get_args(Ending) and self.notes != ()))
        )
        if not right:
            raise ValueError(f"{self} is not how far a run can come; it was edited: restore it from a copy.")

    @property
    def stops(self) -> bool:
        """Whether the run ends with this phase."""
        return self.ended in ("stopped", "interrupted")

    @property
    def is_unfinished(self) -> bool:
        """Whether there are steps left that a resumed run may take."""
        return self.ended in ("interrupted", "late")


class Run(NamedTuple):
    """All that a run carries from one segment to the next."""

    chains: Chains
    progress: Progress = Progress()
    trace: tuple[Trace, ...] = ()  # a part a segment; of chains that only fill the devices nothing
    draws: tuple[Params, ...] = ()  # [C, R, ...] a segment, in memory or on disk; of all chains

    def history(self) -> Trace:
        return Trace.join(self.trace)

    def update(self, **changes: Any) -> Run:
        """The run with other values of its progress."""
        return self._replace(progress=records.replace(self.progress, **changes))

    def note(self, *notes: str, **changes: Any) -> Run:
        return self.update(notes=(*self.progress.notes, *notes), **changes)

    def stuck_chains(self) -> np.ndarray | None:
        """[C], once it is known."""
        return None if self.progress.stuck is None else np.array(self.progress.stuck)


class Session(NamedTuple):
    """What a run needs while it runs, of which nothing is stored."""

    job: Job
    bar: ProgressBar
    asked: Event  # to stop, by Ctrl-C
    checkpoint: Checkpoint | None = None
    watched: np.ndarray | None = None  # [C] chains whose non-finite values stop the run; None: all
    notify: Callable[[Run], None] | None = None  # called after each segment

    @property
    def num_chains(self) -> int:
        """Without those that only fill the devices."""
        return self.job.num_chains
