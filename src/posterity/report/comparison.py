"""The report on a comparison: the verdict first, then the numbers, the pictures, and how it was all made."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity import plots
from posterity.metrics import Estimate
from posterity.report import sections
from posterity.report.page import Cell, Page
from posterity.report.subject import Subject
from posterity.tables.comparison import Comparison, Entry


class Column(NamedTuple):
    """A score as readers know it; `best` is what to look for in its column."""

    name: str
    best: str  # "low", "high", "near 0.9", or "" where alone it says nothing
    meaning: str


COLUMNS = {
    "accuracy": Column("accuracy", "high", "share of rows whose most probable class is the right one"),
    "rmse": Column("RMSE", "low", "root of the mean squared error, in units of the target"),
    "mae": Column("MAE", "low", "mean absolute error, in units of the target"),
    "nll": Column("NLL", "low", "negative log likelihood of a row, in nats: rewards being right and knowing how sure"),
    "nll_gaussian": Column("NLL, Gaussian", "low", "the same, of a Gaussian with the prediction's two moments"),
    "crps": Column("CRPS", "low", "distance of the predicted distribution from what was observed, in its units"),
    "brier": Column("Brier", "low", "squared distance of the probabilities from the right answer"),
    "calibration_error": Column("calibration error", "low", "how far confidence is from what then happens, on average"),
    "coverage_90": Column("90 % coverage", "near 0.9", "share of rows inside their 90 % interval or set of classes"),
    "width_90": Column("90 % width", "", "mean width of that interval: narrower is better only at equal coverage"),
    "error_auroc": Column(
        "error AUROC", "high", "whether mistakes are more uncertain than right answers; 0.5 is chance"
    ),
    "agreement": Column("agreement", "high", "share of rows with the same most probable class as HMC"),
    "total_variation": Column("total variation", "low", "half the sum of differences of probabilities from HMC's"),
    "wasserstein": Column("Wasserstein", "low", "distance from HMC's prediction, in HMC's standard deviations"),
}
SHOWN = ("nll", "rmse", "accuracy", "crps", "brier", "calibration_error", "coverage_90")


def write_report(comparison: Comparison, path: str | Path) -> Path:
    """Write the report on a comparison into one HTML file; returns its path."""
    return report_page(comparison).write(path)


def report_page(comparison: Comparison) -> Page:
    """The report as a page, to which more may be added before it is written."""
    page = Page(comparison.title, _subtitle(comparison), f"Made by Posterity {version('posterity')}.")
    subject = Subject(comparison)
    with plots.style():
        _verdict(page, comparison)
        if comparison.entries:
            _scores(page, comparison)
            sections.predictions(page, subject)
            sections.split(page, subject)
            sections.calibration(page, subject)
            sections.selection(page, subject)
            sections.novelty(page, subject)
            sections.samplers(page, subject)
            _referee(page, subject)
        _receipts(page, comparison)
    return page


def _subtitle(comparison: Comparison) -> str:
    inputs = len(comparison.features)
    task = "A regression" if comparison.task == "regression" else "A classification"
    return (
        f"{task} of {comparison.target} from {inputs} input{'s' * (inputs != 1)}: {len(comparison.train[1])} rows to "
        f"train on, {len(comparison.test[1])} to test on, {len(comparison.entries)} methods."
    )


def _verdict(page: Page, comparison: Comparison) -> None:
    page.section("Verdict").points(comparison.verdict(), prominent=True)
    if comparison.failures:
        page.words("Some methods did not come to an end:")
        page.points(f"{label}: {message}" for label, message in comparison.failures.items())


def _scores(page: Page, comparison: Comparison) -> None:
    entries = comparison.entries
    page.section("Scores on the test rows")
    names = [name for name in COLUMNS if any(name in entry.scores for entry in entries)]
    names += [name for name in entries[0].scores if name not in COLUMNS]
    _score_table(
        page,
        entries,
        [entry.scores for entry in entries],
        names,
        "Each score with its standard error from the choice of test rows. ◆ marks the best of a column; a difference "
        "smaller than the errors may be chance.",
        seconds=True,
    )
    _meanings(page, names)
    styles = {entry.label: _dot(entry) for entry in entries}
    panels = []
    for name in SHOWN:
        if any(name in entry.scores for entry in entries):
            size = (3.6, 0.9 + 0.22 * len(entries))
            axes = plots.score_dots(
                {entry.label: entry.scores[name] for entry in entries if name in entry.scores},
                plots.new_axes(size=size),
                styles,
            )
            if name == "coverage_90":
                axes.axvline(0.9, color=plots.PALETTE["ink"].light, lw=0.8, ls=":")
            hint = {"low": " (lower is better)", "high": " (higher is better)"}.get(COLUMNS[name].best, "")
            axes.set_title(COLUMNS[name].name + hint)
            panels.append(axes)
    page.figure(
        panels,
        "The same scores as dots, with two standard errors to each side.",
        look_for="bars that do not overlap: such differences are hardly chance.",
    )


def _dot(entry: Entry) -> dict[str, Any]:
    return {"color": plots.method_style(entry.name)["color"], "marker": plots.method_marker(entry.name)}


def _score_table(
    page: Page,
    entries: Sequence[Entry],
    values: Sequence[dict[str, Estimate]],
    names: Sequence[str],
    caption: str,
    seconds: bool = False,
) -> None:
    best = {name: _best([row.get(name) for row in values], name) for name in names}
    nothing = Estimate(float("nan"), float("nan"))
    rows = []
    for number, (entry, row) in enumerate(zip(entries, values, strict=True)):
        cells = [Cell(row.get(name, nothing), number in best[name]) for name in names]
        rows.append((entry.label, *cells, *[f"{entry.seconds:.1f}\N{NO-BREAK SPACE}s"] * seconds))
    header = ("method", *(_column(name).name for name in names), *["time"] * seconds)
    page.table(header, rows, caption)


def _column(name: str) -> Column:
    return COLUMNS.get(name, Column(name.replace("_", " "), "", ""))


def _best(values: Sequence[Estimate | None], name: str) -> set[int]:
    """Which values of a column are the best; none where one cannot say, or where all are alike."""
    rank = {"low": lambda v: v, "high": lambda v: -v, "near 0.9": lambda v: abs(v - 0.9)}.get(_column(name).best)
    known = {i: value.value for i, value in enumerate(values) if value is not None and np.isfinite(value.value)}
    if rank is None or len(set(known.values())) < 2:
        return set()
    top = min(rank(value) for value in known.values())
    return {i for i, value in known.items() if rank(value) == top}


def _meanings(page: Page, names: Sequence[str]) -> None:
    lines = [f"{_column(name).name}: {_column(name).meaning}." for name in names if _column(name).meaning]
    page.details("What the columns mean", "\n".join(lines), plain=False)


def _referee(page: Page, subject: Subject) -> None:
    comparison = subject.comparison
    entries = [entry for entry in comparison.entries if entry.referee]
    if not entries:
        return
    page.section(
        "Against HMC",
        "HMC samples the posterior itself, up to Monte Carlo error. The others approximate it; this is how near they "
        "come, whatever their scores are.",
    )
    names = list(dict.fromkeys(name for entry in entries for name in entry.referee))
    trust = (comparison.settings.get("reference") or {}).get("own_distance") or {}
    floor = ", ".join(f"{_column(name).name} {value[0]:.2g}" for name, value in trust.items())
    floor = f" HMC's own halves against each other: {floor}; nearer than that cannot be told." if floor else ""
    _score_table(
        page, entries, [entry.referee for entry in entries], names, f"Distance from HMC at the test rows.{floor}"
    )
    _meanings(page, names)
    sections.against_hmc(page, subject)


def _receipts(page: Page, comparison: Comparison) -> None:
    page.section("Receipts", "What was done, to the digit: enough to judge every number above and to make it again.")
    page.points([*comparison.remarks, *(f"{e.label}: {remark}." for e in comparison.entries for remark in e.remarks)])
    settings = [f"{name.replace('_', ' ')}: {value}" for name, value in comparison.settings.items()]
    page.details("Settings of the comparison", "\n".join(settings))
    for entry in comparison.entries:
        page.details(entry.label, str(entry.posterior.receipt))
