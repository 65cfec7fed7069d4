"""Several methods on one table: what each predicts at the test rows, how well, and how far it is from a reference."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posterity import metrics
from posterity.core.types import Task
from posterity.data.arrays import evenly_spaced
from posterity.inference import HMC, METHODS, resume
from posterity.inference.methods.card import Card
from posterity.metrics import Estimate
from posterity.posterior.audit import Referee, own_distance
from posterity.posterior.diagnosis import Diagnosis, Verdict
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.storage.folder import MANIFEST
from posterity.tables.baselines import Baseline, baselines
from posterity.tables.defaults import table_method
from posterity.tables.split import Prepared
from posterity.tables.verdict import Ruling, rule

REFERENCE = HMC.card  # what the others are judged by
DIAGNOSED_ROWS = 200
MAX_JUDGED_ROWS = 2000  # more would not change a mean distance by what its standard error already allows
MOMENT = 1e-3  # seconds
FAILURES = (ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError)  # of one method: the others go on


@dataclass(frozen=True)
class Entry:
    """One method: its posterior, and what it says of the test rows."""

    card: Card
    posterior: Posterior
    prediction: Prediction  # at the test rows
    scores: dict[str, Estimate]  # of metrics.evaluate
    referee: dict[str, Estimate]  # distances from the reference; empty for that one itself, or without it
    seconds: float
    remarks: tuple[str, ...] = ()  # what the budget cut, stuck chains
    diagnosis: Diagnosis | None = None  # of its chains, at some test rows

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def label(self) -> str:
        return self.card.label

    @property
    def convergence(self) -> Verdict:
        return "independent" if self.diagnosis is None else self.diagnosis.verdict


@dataclass(frozen=True)
class Comparison:
    """All methods on one table."""

    title: str
    task: Task
    target: str
    features: tuple[str, ...]
    labels: tuple[str, ...]  # classes; empty for regression
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    frame: pd.DataFrame | None  # the raw test inputs
    entries: tuple[Entry, ...]
    failures: dict[str, str] = field(default_factory=dict)  # label -> the message
    remarks: tuple[str, ...] = ()  # what was done with columns and rows
    baselines: tuple[Baseline, ...] = ()  # what predicts without a network
    settings: dict[str, Any] = field(default_factory=dict)  # seed, budget, split, ...; `reference`: can it be trusted

    def verdict(self) -> list[str]:
        """What the numbers say, in sentences."""
        return list(self._ruling.sentences)

    def recommended(self) -> Entry | None:
        """The method that the verdict says to use; None where it says of none."""
        return self._ruling.recommended

    @property
    def reference(self) -> Entry | None:
        """The entry that the others are judged by, if it is there."""
        return next((entry for entry in self.entries if entry.card is REFERENCE), None)

    @cached_property
    def _ruling(self) -> Ruling:
        return rule(self, REFERENCE.label)


# One model for all methods, on which the referee converges: its scales are fixed, as point estimates hold them anyway.
COMPARED: dict[str, Any] = {"hidden": (50,), "prior": "fixed"}


class TableRun(NamedTuple):
    """How methods are fitted to one prepared table."""

    prepared: Prepared
    effort: float = 1.0
    store: Path | None = None  # a folder for one method's run
    progress: bool = True
    model: dict[str, Any] | None = None  # settings of the model that are not the default ones

    @property
    def is_begun(self) -> bool:
        return self.store is not None and (self.store / MANIFEST).exists()

    def compile(self, name: str) -> None:
        """Run a method for a moment, so that the time it is given later is not spent on compiling its programs."""
        method = table_method(name, len(self.prepared.train[1]), effort=self.effort)
        if not method.anytime:  # it would run to its end
            return
        # A moment is too short for chains to come off their start: that is for the true run to judge.
        with suppress(RuntimeError, ArithmeticError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.prepared.code.fit(
                method,
                self.prepared.train,
                model=self.model,
                chains=method.card.chains,
                seed=self.prepared.seed,
                budget=MOMENT,
                progress=False,
            )

    def fit(self, name: str, budget: float | None = None) -> Posterior:
        """Fit a method, or go on with it where the store holds a run."""
        if self.is_begun:
            assert self.store is not None
            return resume(self.store, budget=budget, progress=self.progress)
        return replace(self.prepared.code, settings=self._settings(name, budget)).fit(
            name,
            self.prepared.train,
            effort=self.effort,
            model=self.model,
            seed=self.prepared.seed,
            holdout=self.prepared.aside,
            store=self.store,
            budget=budget,
            progress=self.progress,
        )

    def _settings(self, name: str, budget: float | None) -> dict[str, Any]:
        """Those of the estimator that the store opens as."""
        num_rows, num_aside = (
            len(self.prepared.train[1]),
            0 if self.prepared.aside is None else self.prepared.aside.num_rows,
        )
        # With another effort the name would stand for other settings: the estimator then has the method itself.
        method = {"method": name} if self.effort == 1 else {}
        holdout = num_aside / (num_rows + num_aside) if num_aside else None
        return {
            **method,
            "prior": None,
            **(self.model or {}),
            "holdout": holdout,
            "budget": budget,
            "random_state": self.prepared.seed,
        }


def compared() -> list[str]:
    """The methods that are compared when none are named."""
    return [name for name, method in METHODS.items() if method.card.compared]


def compare(
    prepared: Prepared,
    methods: Sequence[str] | None = None,
    *,
    budget: float | None = None,
    effort: float = 1.0,
    folder: Path | None = None,
    remarks: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    progress: bool = True,
) -> Comparison:
    """Fit every method to one split of a table and judge them at the same test rows.

    Args:
        prepared: The table, by `prepare`.
        methods: Keys of METHODS, None for the usual ones; with REFERENCE among them the others are compared with it.
        budget: Seconds for all methods together; each gets its part, and what it leaves goes to those after it. The
            time that compiling takes is not counted, or little would be left for the last, which is the referee.
        effort: Scales the number of steps of every method.
        folder: Keeps each method's run in a folder of its name; what is there already is resumed or read.
        remarks: Sentences on how the table was read, to go along.
        say: Called with a sentence when something begins or ends.
        progress: Show bars on standard error when it is a terminal.
    """
    code, methods = prepared.code, compared() if methods is None else methods
    say = say or (lambda _: None)
    for remark in prepared.remarks:
        say(remark)
    run = TableRun(prepared, effort, folder, progress, COMPARED)
    posteriors, failures = _fit_all(run, methods, budget, say)
    say("Judging them at the test rows ...")
    entries, reference, unjudged = _judge(prepared, posteriors)
    rivals = tuple(baselines(code.task, prepared.train, prepared.test, prepared.seed)) if entries else ()
    for label, message in unjudged.items():
        say(f"  {label} failed: {message}")
    return Comparison(
        title=code.title,
        task=code.task,
        target=code.target_name,
        features=tuple(map(str, code.inputs.features)),
        labels=code.labels,
        train=prepared.train,
        test=prepared.test,
        frame=prepared.frame,
        entries=entries,
        failures=failures | unjudged,
        remarks=(*remarks, *prepared.remarks),
        baselines=rivals,
        settings={
            "seed": prepared.seed,
            "budget": budget,
            "test_share": prepared.test_share,
            "effort": effort,
            "methods": list(methods),
            "reference": reference,
        },
    )


def _fit_all(
    run: TableRun, methods: Sequence[str], budget: float | None, say: Callable[[str], None]
) -> tuple[dict[str, Posterior], dict[str, str]]:
    """Every method in turn. One that fails is reported and does not stop the others."""
    deadline, compiling = None if budget is None else time.perf_counter() + budget, 0.0
    posteriors: dict[str, Posterior] = {}
    failures: dict[str, str] = {}
    methods = sorted(methods, key=lambda name: METHODS[name].card is REFERENCE)  # it uses the time that others leave
    for number, name in enumerate(methods):
        label, one, share = METHODS[name].card.label, run._replace(store=run.store and run.store / name), None
        say(f"{label} ...")
        try:
            if deadline is not None:
                if not one.is_begun:
                    began = time.perf_counter()
                    one.compile(name)
                    compiling += time.perf_counter() - began
                share = _share(methods[number:], deadline + compiling - time.perf_counter())
            posteriors[name] = one.fit(name, share)
        except FAILURES as error:
            told = "" if share is None else f" It had {share:.1f} s of the budget."
            failures[label] = (str(error) or type(error).__name__) + told
            say(f"  failed: {failures[label]}")
            continue
        receipt = posteriors[name].receipt
        told = "" if share is None else f" of {share:.1f} s"
        say(f"  {receipt.seconds:.1f} s{told}" + "".join(f"; {note}" for note in (*receipt.notes, *receipt.warnings)))
    if compiling > 1:
        say(f"Compiling took {compiling:.0f} s on top of the budget.")
    return posteriors, failures


def _share(methods: Sequence[str], seconds: float) -> float:
    """Of the seconds left, the part of the first of the methods that are left; a moment where none is left."""
    parts = [METHODS[name].card.share for name in methods]
    return max(0.1, seconds * parts[0] / sum(parts))


def _judge(
    prepared: Prepared, posteriors: dict[str, Posterior]
) -> tuple[tuple[Entry, ...], dict[str, Any] | None, dict[str, str]]:
    """Scores of each method, its distances from the reference, whether that may be believed, and who was not judged."""
    x = prepared.test[0]
    some, diagnosed = (x[evenly_spaced(len(x), most)] for most in (MAX_JUDGED_ROWS, DIAGNOSED_ROWS))
    entries, failures = {}, {}
    judge = reference = None
    # The reference first: where it cannot be judged itself, nothing is held against it.
    for name in sorted(posteriors, key=lambda name: name != REFERENCE.name):
        card, posterior = METHODS[name].card, posteriors[name]
        try:
            diagnosis = posterior.diagnose(diagnosed)
            entries[name] = _entry(card, posterior, prepared.test, some, diagnosis, judge)
            if card is REFERENCE:
                judge, reference = Referee(posterior.predict(some)), _trust(posterior, diagnosis, some)
        except FAILURES as error:
            entries.pop(name, None)
            failures[card.label] = f"It was fitted, and cannot be judged: {str(error) or type(error).__name__}"
    return tuple(entries[name] for name in posteriors if name in entries), reference, failures


def _entry(
    card: Card,
    posterior: Posterior,
    test: tuple[np.ndarray, np.ndarray],
    some: np.ndarray,
    diagnosis: Diagnosis,
    judge: Referee | None,
) -> Entry:
    """One method at the test rows, and at some of them how far it is from the reference."""
    x, y = test
    prediction = posterior.predict(x)
    apart = {}
    if judge is not None:
        apart = judge.distances(prediction if len(some) == len(x) else posterior.predict(some))
    found, receipt = metrics.evaluate(prediction, y), posterior.receipt
    about = (receipt.seconds, (*receipt.notes, *(words.rstrip(".") for words in receipt.warnings)), diagnosis)
    return Entry(card, posterior, prediction, found, apart, *about)


def _trust(reference: Posterior, found: Diagnosis, x: np.ndarray) -> dict[str, Any]:
    """What the reference's own chains say about it, in plain numbers."""
    known = found.r_hat_of_inputs[~np.isnan(found.r_hat_of_inputs)]
    own = own_distance(reference, x)
    return {
        "verdict": found.verdict,
        "doubts": list(found.doubts),
        "r_hat": float(known.max()) if known.size else None,
        "own_distance": {name: [one.value, one.standard_error] for name, one in own.items()},
    }
