"""`posterity compare`, and `posterity resume` of a comparison.

A comparison's folder: comparison.json (what was asked), data.parquet (the table), a folder for each method's run,
results.json and report.html.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from posterity.cli import catalogue
from posterity.cli.cache import keep_compiled_programs
from posterity.cli.errors import FailedError, InputError
from posterity.cli.folders import ASKED, new_folder
from posterity.cli.interrupt import interruptible
from posterity.cli.output import duration, finite, print_json, print_table, results, say
from posterity.cli.pace import plan_time
from posterity.cli.tables import check_target, read_table
from posterity.metrics import Estimate
from posterity.report import write_report
from posterity.tables import comparison as comparing
from posterity.tables.comparison import Comparison, Entry
from posterity.tables.pipeline import prepare

TABLE, RESULTS, REPORT = "data.parquet", "results.json", "report.html"
HEADINGS = {
    "rmse": "RMSE",
    "accuracy": "accuracy",
    "nll": "NLL",
    "crps": "CRPS",
    "brier": "Brier",
    "calibration_error": "calibration error",
    "coverage_90": "coverage of 90 %",
    "agreement": "agreement with HMC",
    "total_variation": "distance from HMC",
    "wasserstein": "distance from HMC",
}


class Options(NamedTuple):
    """What was asked for, as it was written."""

    methods: str | None
    budget: str | None
    seed: int
    task: str | None
    test_share: float
    effort: float

    def checked(self) -> dict[str, Any]:
        if not 0 < self.test_share < 1:
            raise InputError(f"--test-share {self.test_share} must lie between 0 and 1, for instance 0.2.")
        return {
            "methods": catalogue.check_methods(self.methods),
            "budget": catalogue.check_budget(self.budget),
            "seed": self.seed,
            "task": catalogue.check_task(self.task),
            "test_share": self.test_share,
            "effort": catalogue.check_effort(self.effort),
        }


KEYS = (*Options._fields, "title", "target", "remarks")  # of what was asked, as it is stored


def run_compare(source: str | None, target: str | None, options: Options, out: Path | None, as_json: bool) -> None:
    asked = options.checked()
    table = read_table(source)
    asked |= {"title": table.title, "target": check_target(table, target), "remarks": list(table.remarks)}
    folder = new_folder(out, f"posterity-{table.title}")
    try:  # before anything is written: most tables that cannot be used fail here
        prepared = prepare(table.frame, asked["target"], **{k: asked[k] for k in ("task", "test_share", "seed")})
    except ValueError as error:
        raise InputError(f"{table.title}: {error}") from error
    for remark in table.remarks:
        say(remark)
    keep_compiled_programs()
    kept = plan_time(prepared, asked["methods"], asked["effort"], asked["budget"])
    left_out = [comparing.LABELS[name] for name in asked["methods"] if name not in kept]
    if not kept:
        raise InputError("No method fits into the budget; give more time or fewer rows.")
    if left_out:
        asked["remarks"].append(f"Left out, as the budget is too small for their first steps: {', '.join(left_out)}.")
    asked["methods"] = kept
    folder.mkdir(parents=True, exist_ok=True)
    table.frame.to_parquet(folder / TABLE)
    (folder / ASKED).write_text(json.dumps(asked, indent=2))
    _compare(folder, table.frame, asked, as_json)


def resume_compare(folder: Path, budget: str | None, as_json: bool) -> None:
    """The comparison again: methods that are done are read, the one that was cut off goes on, the others follow."""
    asked, frame = _stored(folder)
    asked["budget"] = asked["budget"] if budget is None else catalogue.check_budget(budget)
    keep_compiled_programs()
    _compare(folder, frame, asked, as_json)


def _stored(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """What a comparison was asked, and of which table."""
    anew = "begin anew: posterity compare DATA --target NAME --out NEW_FOLDER"
    try:
        asked = json.loads((folder / ASKED).read_text())
        lacking = [key for key in KEYS if key not in asked]
        if lacking:
            raise ValueError(f"it lacks {', '.join(lacking)}")
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder / ASKED} is damaged ({error}); {anew}") from error
    try:
        return asked, pd.read_parquet(folder / TABLE)
    except (OSError, ValueError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error
        raise InputError(f"{folder / TABLE}, the table that was compared, cannot be read ({why}); {anew}") from error


def _compare(folder: Path, frame: pd.DataFrame, asked: dict[str, Any], as_json: bool) -> None:
    def work() -> Comparison:
        return comparing.compare(frame, folder=folder, say=say, **asked)

    found = interruptible(work, folder)
    if not found.entries:
        raise FailedError(f"No method came to an end. {' '.join(f'{k}: {v}' for k, v in found.failures.items())}")
    summary = {**as_plain(found), "out": str(folder), "report": str(folder / REPORT)}
    (folder / RESULTS).write_text(json.dumps(finite(summary), indent=2, ensure_ascii=False))
    if not as_json:
        show(found)  # before the report: if that fails, the numbers are there
    say("Writing the report ...")
    report = write_report(found, folder / REPORT)
    if as_json:
        print_json(summary)
    else:
        results().print(f"Report: {report}\n{next_step(found, folder)}", markup=False, soft_wrap=True)


def show(found: Comparison) -> None:
    """One table, what failed, and the verdict."""
    names = [name for name in HEADINGS if any(name in {**e.scores, **e.referee} for e in found.entries)]
    rows = [_row(entry, names) for entry in found.entries]
    num_train, num_test = len(found.train[1]), len(found.test[1])
    title = f"{found.title}: {found.task} of {found.target}, {num_train:,} rows, tested on {num_test:,}"
    print_table(rows, title, left=("method",))
    lines = [f"{label} failed: {message}" for label, message in found.failures.items()]
    lines += [f"{entry.label}: {remark}." for entry in found.entries for remark in entry.remarks]
    for line in [*lines, *found.verdict()]:
        results().print(line, markup=False)


def _row(entry: Entry, names: list[str]) -> dict[str, str]:
    numbers = {**entry.scores, **entry.referee}
    cells = {HEADINGS[name]: str(numbers[name]) if name in numbers else "-" for name in names}
    return {"method": entry.label, **cells, "time": duration(entry.seconds)}


def next_step(found: Comparison, folder: Path) -> str:
    """How to predict with what the verdict recommends; where it recommends nothing the choice is left open."""
    chosen = found.recommended()
    text = f"Predict new rows: posterity predict {folder}/{'METHOD' if chosen is None else chosen.name} NEW.csv"
    return text if chosen else f"{text}, where METHOD is one of {', '.join(entry.name for entry in found.entries)}"


def as_plain(found: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values."""
    return {
        "title": found.title,
        "task": found.task,
        "target": found.target,
        "labels": list(found.labels),
        "features": list(found.features),
        "num_train": len(found.train[1]),
        "num_test": len(found.test[1]),
        "methods": [
            {
                "name": entry.name,
                "label": entry.label,
                "seconds": entry.seconds,
                "scores": plain_scores(entry.scores),
                "referee": plain_scores(entry.referee),
                "remarks": list(entry.remarks),
            }
            for entry in found.entries
        ],
        "failures": found.failures,
        "remarks": list(found.remarks),
        "settings": found.settings,
        "verdict": found.verdict(),
        "recommended": None if (chosen := found.recommended()) is None else chosen.name,
    }


def plain_scores(scores: dict[str, Estimate]) -> dict[str, dict[str, float]]:
    return {name: {"value": one.value, "standard_error": one.standard_error} for name, one in scores.items()}
