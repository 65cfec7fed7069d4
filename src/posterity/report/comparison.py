"""The report on a comparison: the verdict first, then the numbers, the pictures, and how it was all made."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from posterity import plots
from posterity.metrics import SCORES, Estimate
from posterity.report import sections
from posterity.report.page import Cell, Page
from posterity.report.subject import Subject
from posterity.tables.comparison import REFERENCE, Comparison, Entry


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
            sections.reasons(page, subject)
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
    names = [name for name in SCORES if any(name in entry.scores for entry in entries)]
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
    for score in (SCORES[name] for name in names if SCORES[name].headline):
        axes = plots.score_dots(
            {entry.label: entry.scores[score.name] for entry in entries if score.name in entry.scores},
            plots.new_axes(size=(3.6, 0.9 + 0.22 * len(entries))),
            styles,
        )
        if isinstance(score.best, float):
            axes.axvline(score.best, color=plots.PALETTE["ink"].light, lw=0.8, ls=":")
        axes.set_title(score.label + score.hint)
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
    best = {name: SCORES[name].winners([row.get(name) for row in values]) for name in names}
    nothing = Estimate(float("nan"), float("nan"))
    rows = []
    for number, (entry, row) in enumerate(zip(entries, values, strict=True)):
        cells = [Cell(row.get(name, nothing), number in best[name]) for name in names]
        rows.append((entry.label, *cells, *[f"{entry.seconds:.1f}\N{NO-BREAK SPACE}s"] * seconds))
    header = ("method", *(SCORES[name].label for name in names), *["time"] * seconds)
    page.table(header, rows, caption)


def _meanings(page: Page, names: Sequence[str]) -> None:
    lines = []
    for score in (SCORES[name] for name in names):
        unit = f" ({score.unit.format(REFERENCE.label)})" if score.unit else ""
        lines.append(f"{score.label}{unit}: {score.meaning}.")
    page.details("What the columns mean", "\n".join(lines), plain=False)


def _referee(page: Page, subject: Subject) -> None:
    comparison = subject.comparison
    entries = [entry for entry in comparison.entries if entry.referee]
    if not entries:
        return
    page.section(
        f"Against {REFERENCE.label}",
        f"{REFERENCE.label} samples the posterior itself, up to Monte Carlo error. The others approximate it; this is "
        "how near they come, whatever their scores are.",
    )
    names = list(dict.fromkeys(name for entry in entries for name in entry.referee))
    trust = (comparison.settings.get("reference") or {}).get("own_distance") or {}
    floor = ", ".join(f"{SCORES[name].label} {value[0]:.2g}" for name, value in trust.items())
    halves = f" {REFERENCE.label}'s own halves against each other: {floor}; nearer than that cannot be told."
    caption = f"Distance from {REFERENCE.label} at the test rows.{halves if floor else ''}"
    _score_table(page, entries, [entry.referee for entry in entries], names, caption)
    _meanings(page, names)
    sections.against_reference(page, subject)


def _receipts(page: Page, comparison: Comparison) -> None:
    page.section("Receipts", "What was done, to the digit: enough to judge every number above and to make it again.")
    page.points([*comparison.remarks, *(f"{e.label}: {remark}." for e in comparison.entries for remark in e.remarks)])
    settings = [f"{name.replace('_', ' ')}: {value}" for name, value in comparison.settings.items()]
    page.details("Settings of the comparison", "\n".join(settings))
    for entry in comparison.entries:
        page.details(entry.label, str(entry.posterior.receipt))
