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
from posterity.cli.tables import check_target, read_so, read_table
from posterity.inference import METHODS
from posterity.metrics import SCORES, Estimate
from posterity.report import write_report
from posterity.tables.comparison import REFERENCE, Comparison, Entry, compare
from posterity.tables.reading import Reading
from posterity.tables.split import Prepared, prepare

TABLE, RESULTS, REPORT = "data.parquet", "results.json", "report.html"


class Options(NamedTuple):
    """What was asked for, as it was written. An option that a stored comparison lacks has the default."""

    methods: str | None = None
    budget: str | None = None
    seed: int = 0
    task: str | None = None
    test_share: float = 0.2
    effort: float = 1.0
    reading: Reading = Reading()

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
            "reading": self.reading.to_json(),
        }


def run_compare(source: str | None, target: str | None, options: Options, out: Path | None, as_json: bool) -> None:
    asked = options.checked()
    table = read_table(source, options.reading.category)
    chosen = check_target(table, target)
    table = read_so(table, options.reading, chosen)
    asked |= {"title": table.title, "target": chosen, "remarks": list(table.remarks)}
    folder = new_folder(out, f"posterity-{table.title}")
    prepared = _prepare(table.frame, asked)  # before anything is written: most tables that cannot be used fail here
    for remark in table.remarks:
        say(remark)
    keep_compiled_programs()
    kept = plan_time(prepared, asked["methods"], asked["effort"], asked["budget"])
    left_out = [METHODS[name].card.label for name in asked["methods"] if name not in kept]
    if not kept:
        raise InputError("No method fits into the budget; give more time or fewer rows.")
    if left_out:
        asked["remarks"].append(f"Left out, as the budget is too small for their first steps: {', '.join(left_out)}.")
    asked["methods"] = kept
    folder.mkdir(parents=True, exist_ok=True)
    table.frame.to_parquet(folder / TABLE)
    (folder / ASKED).write_text(json.dumps(asked, indent=2))
    _compare(folder, prepared, asked, as_json)


def resume_compare(folder: Path, budget: str | None, as_json: bool) -> None:
    """The comparison again: methods that are done are read, the one that was cut off goes on, the others follow."""
    asked, frame = _stored(folder)
    asked["budget"] = asked["budget"] if budget is None else catalogue.check_budget(budget)
    keep_compiled_programs()
    _compare(folder, _prepare(frame, asked), asked, as_json)


def _prepare(frame: pd.DataFrame, asked: dict[str, Any]) -> Prepared:
    try:
        options = {name: asked[name] for name in ("target", "title", "task", "test_share", "seed")}
        return prepare(frame, **options, reading=Reading.from_json(asked["reading"]))
    except ValueError as error:
        raise InputError(f"{asked['title']}: {error}") from error


def _stored(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """What a comparison was asked, and of which table."""
    anew = "begin anew: posterity compare DATA --target NAME --out NEW_FOLDER"
    try:
        stored = json.loads((folder / ASKED).read_text())
        if not isinstance(stored, dict) or "target" not in stored:
            raise ValueError("it lacks the target")
    except ValueError as error:
        raise InputError(f"{folder / ASKED} is damaged ({error}); {anew}") from error
    asked = {**Options().checked(), "title": folder.name, "remarks": []}
    if unknown := [name for name in stored if name not in (*asked, "target")]:
        say(f"Of {folder / ASKED}, this version does not know and ignores: {', '.join(unknown)}.")
    asked |= {name: stored[name] for name in (*asked, "target") if name in stored}
    try:
        return asked, pd.read_parquet(folder / TABLE)
    except (OSError, ValueError) as error:
        why = "no such file" if isinstance(error, FileNotFoundError) else error
        raise InputError(f"{folder / TABLE}, the table that was compared, cannot be read ({why}); {anew}") from error


def _compare(folder: Path, prepared: Prepared, asked: dict[str, Any], as_json: bool) -> None:
    def work() -> Comparison:
        options = {name: asked[name] for name in ("methods", "budget", "effort", "remarks")}
        return compare(prepared, folder=folder, say=say, **options)

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
    present = {name for entry in found.entries for name in entry.scores}
    headings = {name: score.label for name, score in SCORES.items() if score.headline and name in present}
    apart = dict.fromkeys(name for entry in found.entries for name in entry.referee)
    headings |= {name: f"{SCORES[name].label} vs {REFERENCE.label}" for name in apart}
    rows = [_row(entry, headings) for entry in found.entries]
    num_train, num_test = len(found.train[1]), len(found.test[1])
    title = f"{found.title}: {found.task} of {found.target}, {num_train:,} rows, tested on {num_test:,}"
    print_table(rows, title, left=("method",))
    lines = [f"{label} failed: {message}" for label, message in found.failures.items()]
    lines += [f"{entry.label}: {remark}." for entry in found.entries for remark in entry.remarks]
    for line in [*lines, *found.verdict()]:
        results().print(line, markup=False)


def _row(entry: Entry, headings: dict[str, str]) -> dict[str, str]:
    numbers = {**entry.scores, **entry.referee}
    cells = {heading: str(numbers[name]) if name in numbers else "-" for name, heading in headings.items()}
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
