"""Several methods on one table: what each predicts at the test rows, how well, and how far it is from HMC."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from posterity import metrics
from posterity.core.types import Task
from posterity.data.arrays import evenly_spaced
from posterity.inference import fit, resume
from posterity.inference.methods.method import Method
from posterity.metrics import Estimate
from posterity.posterior.audit import Referee, own_distance
from posterity.posterior.diagnosis import Diagnosis, Verdict
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.storage.folder import MANIFEST
from posterity.tables.defaults import table_method
from posterity.tables.pipeline import Prepared, prepare
from posterity.tables.verdict import recommended, verdict

REFERENCE = "hmc"
LABELS = {
    "mle": "MLE",
    "map": "MAP",
    "mc_dropout": "MC dropout",
    "bayes_by_backprop": "Bayes by Backprop",
    "deep_ensemble": "Deep ensemble",
    "laplace": "Laplace",
    "swag": "SWAG",
    "exact": "Exact",
    "sgld": "SGLD",
    "sghmc": "SGHMC",
    "cyclical": "Cyclical SGHMC",
    "mile": "MILE",
    "nuts": "NUTS",
    "hmc": "HMC",
}
COMPARED = ("mle", "map", "mc_dropout", "bayes_by_backprop", "deep_ensemble", "laplace", "sghmc", "mile", "hmc")
# Of a budget, in parts, 3 for the others: what a method leaves over goes to those after it.
PARTS = {"sgld": 4, "sghmc": 4, "cyclical": 4, "mile": 4, "nuts": 8, "hmc": 8}
DIAGNOSED_ROWS = 200
MAX_JUDGED_ROWS = 2000  # more would not change a mean distance by what its standard error already allows
MOMENT = 1e-3  # seconds
FAILURES = (ValueError, TypeError, ArithmeticError, RuntimeError, MemoryError)  # of one method: the others go on


@dataclass(frozen=True)
class Entry:
    """One method: its posterior, and what it says of the test rows."""

    name: str  # its key in METHODS
    label: str  # as people write it: "Bayes by Backprop"
    posterior: Posterior
    prediction: Prediction  # at the test rows
    scores: dict[str, Estimate]  # of metrics.evaluate
    referee: dict[str, Estimate]  # distances from HMC; empty for HMC itself, or without it
    seconds: float
    remarks: tuple[str, ...] = ()  # what the budget cut, stuck chains
    diagnosis: Diagnosis | None = None  # of its chains, at some test rows

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
    settings: dict[str, Any] = field(default_factory=dict)  # seed, budget, split, ...; `reference`: can HMC be trusted

    def verdict(self) -> list[str]:
        """What the numbers say, in sentences."""
        return verdict(self)

    def recommended(self) -> Entry | None:
        """The method that the verdict says to use; None where it says of none."""
        return recommended(self)


class TableRun(NamedTuple):
    """How methods are fitted to one prepared table."""

    prepared: Prepared
    target: str
    title: str
    seed: int = 0
    effort: float = 1.0
    store: Path | None = None  # a folder for one method's run
    progress: bool = True

    @property
    def is_begun(self) -> bool:
        return self.store is not None and (self.store / MANIFEST).exists()

    def method(self, name: str) -> Method:
        return table_method(name, len(self.prepared.train[1]), effort=self.effort)

    def compile(self, name: str) -> None:
        """Run a method for a moment, so that the time it is given later is not spent on compiling its programs."""
        method, model, rows = self.method(name), self.prepared.model(name), self.prepared.train
        if not method.anytime:  # it would run to its end
            return
        # A moment is too short for chains to come off their start: that is for the true run to judge.
        with suppress(RuntimeError, ArithmeticError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit(model, method, rows, seed=self.seed, budget=MOMENT, progress=False)

    def fit(self, name: str, budget: float | None = None) -> Posterior:
        """Fit a method, or go on with it where the store holds a run."""
        if self.is_begun:
            assert self.store is not None
            return resume(self.store, budget=budget, progress=self.progress)
        return fit(
            self.prepared.model(name),
            self.method(name),
            self.prepared.train,
            seed=self.seed,
            holdout=self.prepared.aside,
            store=self.store,
            metadata=self.prepared.metadata(self.target, name, self.title),
            budget=budget,
            progress=self.progress,
        )


def compare(
    frame: pd.DataFrame,
    target: str,
    *,
    title: str = "table",
    methods: Sequence[str] = COMPARED,
    task: Task | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    budget: float | None = None,
    effort: float = 1.0,
    folder: Path | None = None,
    remarks: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    progress: bool = True,
) -> Comparison:
    """Fit every method to one split of a table and judge them at the same test rows.

    Args:
        frame: Raw columns, the target among them.
        target: The column to predict.
        title: What the table is called in reports.
        methods: Keys of METHODS; with "hmc" among them the others are compared with it.
        task: "regression" or "classification"; by default as the target looks.
        test_share: Of the rows, to test on.
        seed: Of the split and of every method.
        budget: Seconds for all methods together; each gets its part, and what it leaves goes to those after it. The
            time that compiling takes is not counted, or little would be left for the last, which is the referee.
        effort: Scales the number of steps of every method.
        folder: Keeps each method's run in a folder of its name; what is there already is resumed or read.
        remarks: Sentences on how the table was read, to go along.
        say: Called with a sentence when something begins or ends.
        progress: Show bars on standard error when it is a terminal.
    """
    prepared = prepare(frame, target, task=task, test_share=test_share, seed=seed)
    say = say or (lambda _: None)
    for remark in prepared.remarks:
        say(remark)
    run = TableRun(prepared, target, title, seed, effort, folder, progress)
    posteriors, failures = _fit_all(run, methods, budget, say)
    say("Judging them at the test rows ...")
    entries, reference, unjudged = _judge(prepared, posteriors)
    for label, message in unjudged.items():
        say(f"  {label} failed: {message}")
    return Comparison(
        title=title,
        task=prepared.task,
        target=target,
        features=tuple(map(str, prepared.encoder.features)),
        labels=prepared.labels,
        train=prepared.train,
        test=prepared.test,
        frame=prepared.frame,
        entries=entries,
        failures=failures | unjudged,
        remarks=(*remarks, *prepared.remarks),
        settings={
            "seed": seed,
            "budget": budget,
            "test_share": test_share,
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
    for number, name in enumerate(methods):
        one, share = run._replace(store=run.store and run.store / name), None
        say(f"{LABELS[name]} ...")
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
            failures[LABELS[name]] = (str(error) or type(error).__name__) + told
            say(f"  failed: {failures[LABELS[name]]}")
            continue
        receipt = posteriors[name].receipt
        told = "" if share is None else f" of {share:.1f} s"
        say(f"  {receipt.seconds:.1f} s{told}" + "".join(f"; {note}" for note in receipt.notes))
    if compiling > 1:
        say(f"Compiling took {compiling:.0f} s on top of the budget.")
    return posteriors, failures


def _share(methods: Sequence[str], seconds: float) -> float:
    """Of the seconds left, the part of the first of the methods that are left; a moment where none is left."""
    parts = [PARTS.get(name, 3) for name in methods]
    return max(0.1, seconds * parts[0] / sum(parts))


def _judge(
    prepared: Prepared, posteriors: dict[str, Posterior]
) -> tuple[tuple[Entry, ...], dict[str, Any] | None, dict[str, str]]:
    """Scores of each method, its distances from HMC, whether HMC may be believed, and which could not be judged."""
    x = prepared.test[0]
    some, diagnosed = (x[evenly_spaced(len(x), most)] for most in (MAX_JUDGED_ROWS, DIAGNOSED_ROWS))
    entries, failures = {}, {}
    judge = reference = None
    # HMC first: where it cannot be judged itself, nothing is held against it.
    for name in sorted(posteriors, key=lambda name: name != REFERENCE):
        posterior = posteriors[name]
        try:
            diagnosis = posterior.diagnose(diagnosed)
            entries[name] = _entry(name, posterior, prepared.test, some, diagnosis, judge)
            if name == REFERENCE:
                judge, reference = Referee(posterior.predict(some)), _trust(posterior, diagnosis, some)
        except FAILURES as error:
            entries.pop(name, None)
            failures[LABELS[name]] = f"It was fitted, and cannot be judged: {str(error) or type(error).__name__}"
    return tuple(entries[name] for name in posteriors if name in entries), reference, failures


def _entry(
    name: str,
    posterior: Posterior,
    test: tuple[np.ndarray, np.ndarray],
    some: np.ndarray,
    diagnosis: Diagnosis,
    judge: Referee | None,
) -> Entry:
    """One method at the test rows, and at some of them how far it is from HMC."""
    x, y = test
    prediction = posterior.predict(x)
    apart = {}
    if judge is not None:
        apart = judge.distances(prediction if len(some) == len(x) else posterior.predict(some))
    found, receipt = metrics.evaluate(prediction, y), posterior.receipt
    about = (receipt.seconds, receipt.notes, diagnosis)
    return Entry(name, LABELS[name], posterior, prediction, found, apart, *about)


def _trust(hmc: Posterior, found: Diagnosis, x: np.ndarray) -> dict[str, Any]:
    """What HMC's own chains say about it, in plain numbers."""
    known = found.r_hat_of_inputs[~np.isnan(found.r_hat_of_inputs)]
    own = own_distance(hmc, x)
    return {
        "verdict": found.verdict,
        "doubts": list(found.doubts),
        "r_hat": float(known.max()) if known.size else None,
        "own_distance": {name: [one.value, one.standard_error] for name, one in own.items()},
    }
