"""`posterity fit`, `predict`, `evaluate`, and `resume` of a fit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from posterity import metrics
from posterity.cli import catalogue
from posterity.cli.cache import keep_compiled_programs
from posterity.cli.compare import plain_scores
from posterity.cli.errors import FailedError, InputError
from posterity.cli.folders import check_writable, is_comparison, new_folder
from posterity.cli.interrupt import interruptible
from posterity.cli.output import duration, print_json, print_table, results, say
from posterity.cli.pace import plan_time
from posterity.cli.tables import NamedTable, check_target, read_so, read_table, shortened, similar_name, write_csv
from posterity.inference import load, resume
from posterity.posterior.posterior import Posterior
from posterity.prediction.conformal import Conformal, rows_needed
from posterity.prediction.prediction import Prediction
from posterity.storage.codec import StoreError
from posterity.storage.folder import MANIFEST
from posterity.tables.calibrated import coverage_table, group_labels, held_targets
from posterity.tables.comparison import TableRun
from posterity.tables.pipeline import TableCode
from posterity.tables.reading import Reading
from posterity.tables.split import prepare


def run_fit(
    source: str,
    target: str | None,
    method: str,
    budget: str | None,
    seed: int,
    task: str | None,
    effort: float,
    out: Path | None,
    as_json: bool,
    reading: Reading,
) -> None:
    name, seconds, task = catalogue.check_method(method), catalogue.check_budget(budget), catalogue.check_task(task)
    effort = catalogue.check_effort(effort)
    table = read_table(source, reading.category)
    target = check_target(table, target)
    table = read_so(table, reading, target)
    folder = new_folder(out, f"posterity-{table.title}-{name}")
    try:
        asked: Any = {"title": table.title, "task": task, "test_share": 0.0, "seed": seed, "reading": reading}
        prepared = prepare(table.frame, target, **asked)
    except ValueError as error:
        raise InputError(f"{table.title}: {error}") from error
    for remark in (*table.remarks, *prepared.remarks):
        say(remark)
    keep_compiled_programs()
    if not plan_time(prepared, [name], effort, seconds):
        raise InputError("The method does not fit into the budget; give more time or fewer rows.")
    run = TableRun(prepared, effort, folder)

    def work() -> Posterior:
        if seconds is not None:
            run.compile(name)
        return run.fit(name, seconds)

    _show_fit(_guarded(work, folder), folder, as_json)


def resume_fit(folder: Path, budget: str | None, as_json: bool) -> None:
    seconds = catalogue.check_budget(budget)
    _check_folder(folder)
    keep_compiled_programs()
    _show_fit(_guarded(lambda: resume(folder, budget=seconds), folder), folder, as_json)


def _guarded(work: Any, folder: Path) -> Posterior:
    try:
        return interruptible(work, folder)
    except StoreError as error:
        raise InputError(str(error)) from error
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise FailedError(str(error)) from error


def _show_fit(posterior: Posterior, folder: Path, as_json: bool) -> None:
    receipt, code, card = posterior.receipt, TableCode.of(posterior), posterior.method.card
    summary = {
        "out": str(folder),
        "table": code and code.title,
        "target": code and code.target_name,
        "method": card.name or None,
        "num_rows": receipt.num_data,
        "num_weights": receipt.num_weights,
        "num_chains": receipt.num_chains,
        "num_steps": receipt.num_steps,
        "seconds": receipt.seconds,
        "notes": list(receipt.notes),
        "warnings": list(receipt.warnings),
    }
    if as_json:
        print_json(summary)
        return
    console = results()
    console.print(
        f"{card.label or receipt.method} of {summary['target']}: {receipt.num_data:,} rows, {receipt.num_weights:,} "
        f"weights, {duration(receipt.seconds)}.",
        *(f"{note[:1].upper()}{note[1:]}." for note in receipt.notes),
        *(f"Warning: {warning}" for warning in receipt.warnings),
        f"Kept in {folder}. Predict new rows: posterity predict {folder} NEW.csv",
        sep="\n",
        markup=False,
    )


def run_predict(
    folder: Path,
    source: str,
    out: Path | None,
    level: float,
    as_json: bool,
    safe_csv: bool = False,
    calibrated: bool = False,
) -> None:
    _check_level(level)
    check_file(out)
    posterior, code = load_fit(folder)
    frame = read_rows(code, source).frame
    prediction = posterior.predict(inputs(code, frame))
    added = predicted_columns(code, prediction, level)
    if calibrated:
        added = added.join(calibrated_columns(code, prediction, level, _conformal(posterior, level)))
    if posterior.calibration is None:
        say("No column ood: the fit set no rows aside.")
    else:
        added["ood"] = prediction.ood
    found = pd.concat([frame, added.rename(columns=lambda name: _free_name(name, frame))], axis=1)
    if out is not None:
        write_rows(found, out, safe_csv)
        say(f"{len(found):,} rows are in {out}.")
    if as_json:
        print_json(found.astype(object).where(found.notna(), None).to_dict("records"))
    elif out is None:
        write_csv(found, sys.stdout, safe_csv)


def check_file(out: Path | None) -> None:
    """Whether a table can be written there, before it is made."""
    if out is None:
        return
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out} must end in .csv or .parquet.")
    if out.exists():
        raise InputError(f"--out {out} is there already, and is not overwritten: name a new file, or remove it first.")
    check_writable(out, "a file")


def predicted_columns(code: TableCode, prediction: Prediction, level: float) -> pd.DataFrame:
    """What is said of each row: the answer, how wide it is, and why."""
    percent = f"{100 * level:g}"
    if prediction.kind == "classes":
        labels = np.asarray(code.labels, object)
        chosen = prediction.prediction_set(level)
        columns: dict[str, Any] = {"label": labels[prediction.label]}
        columns |= {f"p_{label}": prediction.probs[:, i] for i, label in enumerate(labels)}
        columns |= {f"set_{percent}": ["|".join(labels[row]) for row in chosen]}
    else:
        lower, upper = prediction.interval(level)
        columns = {"mean": prediction.mean, "std": prediction.std}
        columns |= {f"lower_{percent}": lower, f"upper_{percent}": upper}
    return pd.DataFrame({**columns, "aleatoric": prediction.aleatoric, "epistemic": prediction.epistemic})


def calibrated_columns(code: TableCode, prediction: Prediction, level: float, conformal: Conformal) -> pd.DataFrame:
    """Intervals or sets of classes that hold their share of targets by the rows that were held out."""
    percent = f"{100 * level:g}"
    if prediction.kind == "classes":
        labels = np.asarray(code.labels, object)
        chosen = conformal.prediction_set(prediction, level)
        return pd.DataFrame({f"calibrated_set_{percent}": ["|".join(labels[row]) for row in chosen]})
    lower, upper = conformal.interval(prediction, level)
    return pd.DataFrame({f"calibrated_lower_{percent}": lower, f"calibrated_upper_{percent}": upper})


def _conformal(posterior: Posterior, level: float) -> Conformal:
    """That of a fit, if the rows it set aside are enough."""
    if posterior.held_out is None:
        raise InputError("The fit set no rows with targets aside, so nothing can be calibrated; fit at least 40 rows.")
    if (num_rows := posterior.held_out.num_rows) < rows_needed(level):
        raise InputError(
            f"The fit set {num_rows} rows aside, and --level {level:g} takes at least {rows_needed(level)} to be "
            "calibrated: fit more rows, of which a tenth is set aside, or give a lower level."
        )
    return posterior.conformal()


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"--level {level} must lie between 0 and 1, for instance 0.9.")


def run_evaluate(folder: Path, source: str, as_json: bool, by: str | None = None, level: float = 0.9) -> None:
    _check_level(level)
    posterior, code = load_fit(folder)
    table, target = read_rows(code, source), code.target_name
    if by is not None and by not in table.frame.columns:
        raise InputError(f"There is no column {by!r} in {source}; its columns: {shortened(list(table.frame.columns))}.")
    if target not in table.frame.columns:
        raise InputError(
            f"{source} lacks the column {target!r}, which the fit predicts: add its known values. Without them: "
            f"posterity predict {folder} {source}"
        )
    missing = code.target.is_missing(table.frame[target])
    if missing.any():
        say(f"{missing.sum()} of {len(missing)} rows have no {target!r} and are left out.")
    frame = table.frame.loc[~missing].reset_index(drop=True)
    if frame.empty:
        raise InputError(f"No row of {source} has a value of {target!r}; give rows whose targets are known.")
    try:
        y = code.target.transform(frame[target])
    except ValueError as error:
        raise InputError(str(error)) from error
    prediction = posterior.predict(inputs(code, frame))
    scores = metrics.evaluate(prediction, y)
    held = None
    if by is not None:
        enough = posterior.held_out is not None and posterior.held_out.num_rows >= rows_needed(level)
        ways = {"posterior": None, **({"calibrated": posterior.conformal()} if enough else {})}
        found = {name: held_targets(prediction, y, level, way) for name, way in ways.items()}
        held = coverage_table(found, group_labels(frame[by], len(frame)))
    if as_json:
        shown = {} if held is None else {"coverage": held.rename_axis(by).reset_index().to_dict("records")}
        print_json({"folder": str(folder), "num_rows": len(y), "scores": plain_scores(scores), **shown})
        return
    labels = {name: metrics.SCORES[name].label for name in scores}
    rows = [{"score": labels[name], "value ± standard error": str(one)} for name, one in scores.items()]
    label = posterior.method.card.label or posterior.receipt.method
    print_table(rows, f"{label} on {len(y):,} rows of {table.title}", left=("score",))
    if held is not None:
        what = "sets of classes" if prediction.kind == "classes" else "intervals"
        print_table(_coverage_rows(held, str(by)), f"Targets that {100 * level:g} % {what} hold", left=(str(by),))


def _coverage_rows(held: pd.DataFrame, by: str) -> list[dict[str, str]]:
    """A line for each group: shares with their errors, and how wide intervals are or how many classes sets have."""
    ways = [way for way in ("posterior", "calibrated") if way in held]
    return [
        {
            by: str(name),
            "rows": f"{row['rows']:,.0f}",
            **{way: str(metrics.Estimate(row[way], row[f"{way}_error"])) for way in ways},
            **{f"{way} size": f"{row[f'{way}_size']:.4g}" for way in ways},
        }
        for name, row in held.to_dict("index").items()
    ]


def load_fit(folder: Path) -> tuple[Posterior, TableCode]:
    _check_folder(folder)
    keep_compiled_programs()
    try:
        posterior = load(folder)
    except StoreError as error:
        raise InputError(str(error)) from error
    code = TableCode.of(posterior)
    if code is None:
        raise InputError(
            f"{folder} was made neither by `posterity fit` nor by an estimator: it knows no columns. In Python: "
            "posterity.load."
        )
    for note in posterior.receipt.notes:
        say(f"Note: {note}.")
    for warning in posterior.receipt.warnings:
        say(f"Warning: {warning}")
    return posterior, code


def _check_folder(folder: Path) -> None:
    if is_comparison(folder):
        fits = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST}"))
        raise InputError(f"{folder} holds a comparison; choose one of its fits: {folder}/ and {', '.join(fits)}.")
    if not folder.exists():
        beside = [path.name for path in folder.parent.iterdir() if path.is_dir()] if folder.parent.is_dir() else []
        guess = similar_name(folder.name, beside)
        hint = f" Did you mean {folder.parent / guess}?" if guess else ""
        raise InputError(f"There is no folder {folder}.{hint} `posterity fit` makes one.")
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} holds no fit; make one: posterity fit DATA --target NAME --out NEW_FOLDER")


def read_rows(code: TableCode, source: str) -> NamedTable:
    """New rows, their categories as texts: a file that happens to hold no other than 01 and 02 holds no numbers."""
    table = read_table(source, [*code.inputs.texts, *[code.target_name] * code.target.is_text])
    frame, remarks = replace(code.reading, drop=()).apply(table.frame)
    for remark in (*table.remarks, *remarks):
        say(remark)
    return table._replace(frame=frame)


def inputs(code: TableCode, frame: pd.DataFrame) -> np.ndarray:
    """Features of raw rows; columns the fit does not know are left out with a remark, the target without."""
    encoder, frame = code.inputs, _named_as_fitted(code, frame)
    lacking = [name for name in encoder.names if name not in frame.columns]
    if lacking:
        spare = [str(name) for name in frame.columns if name not in encoder.names]
        guess = similar_name(lacking[0], spare)
        hint = f" Is {guess!r} meant to be {lacking[0]!r}?" if guess else ""
        raise InputError(f"The new rows lack the column(s) {shortened(lacking)}.{hint} Add them, empty if not known.")
    unknown = [str(name) for name in frame.columns if name not in (*encoder.names, code.target_name)]
    if unknown:
        say(f"Columns that were not fitted are ignored: {shortened(unknown)}.")
    try:
        for remark in encoder.unseen(frame[encoder.names]):
            say(remark)
        return encoder.transform(frame[encoder.names])
    except ValueError as error:
        raise InputError(str(error)) from error


def _named_as_fitted(code: TableCode, frame: pd.DataFrame) -> pd.DataFrame:
    """Columns under the names that the fit gave them, by their place, where it was given an array without names."""
    inputs = [name for name in frame.columns if name != code.target_name]
    if code.named or set(code.inputs.names) <= set(inputs) or len(inputs) != len(code.inputs.names):
        return frame
    say(f"The fit knows its columns by their place; they are taken to be {shortened(inputs)}.")
    return frame.rename(columns=dict(zip(inputs, code.inputs.names, strict=True)))


def _free_name(name: str, frame: pd.DataFrame) -> str:
    """For a prediction beside the columns of a table, which may hold predictions itself."""
    while name in frame.columns:
        name = f"predicted_{name}"
    return name


def write_rows(frame: pd.DataFrame, out: Path, safe_csv: bool) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(out) if out.suffix == ".parquet" else write_csv(frame, out, safe_csv)
