"""How a question is answered: figures are measured, conclusions computed from them, and both put into a report.

A study is a module of this package with

    TITLE, REFERENCE, DATA              what is asked, by whom, and the bundled table (None: data of its own)
    settings(size)                      of a full, a quick or a tiny run
    measure(study) -> figures           plain numbers, in parts that are computed once: study.log.once(key, function)
    conclude(figures) -> rows           a sentence for each claim: a function of the figures alone
    write(report, figures)              sections, tables and pictures

`answer` writes NAME.json with all figures, NAME.md with the claims, NAME.html with the report, and the pictures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posterity import plots
from posterity.report.page import Page
from posterity.studies.questions.reference import Reference, References, describe
from posterity.studies.questions.subject import Split, Subject
from posterity.studies.rows import Row, with_error
from posterity.studies.study import QUESTION, Size, StudyLog, find

QUESTIONS = ("bma", "tempering", "methods", "mixing", "priors", "contraction", "variational", "shift", "width")
FILE_DPI = 150
OUTCOMES = {True: "Confirmed", False: "Contradicted", None: "Open"}


@dataclass(frozen=True)
class Study:
    """A run of a study: its log, the table it is about, and the references it may ask."""

    log: StudyLog
    """Settings, and the parts that are already known."""
    subject: Subject | None
    """None: the study has data of its own."""
    references: References
    """HMC, from disk where it has been run before."""

    @property
    def settings(self) -> dict[str, Any]:
        return self.log.settings

    @property
    def splits(self) -> list[Split]:
        """As many random splits of the table as the settings ask for."""
        assert self.subject is not None
        chosen = self.settings
        return [self.subject.split(seed, chosen["rows"], tuple(chosen["hidden"])) for seed in range(chosen["splits"])]

    def reference(self, split: Split, **changes: Any) -> Reference:
        """HMC on a split; `changes` replace fields of its model."""
        return self.references.get(split.model(**changes), split.data, split.at, self.settings["budget"])


class Report(Page):
    """The page of a study, whose pictures are kept beside it as files too."""

    def __init__(self, log: StudyLog, title: str, subtitle: str) -> None:
        super().__init__(title, subtitle, f"Made by Posterity {version('posterity')}.")
        self.log = log

    def pictures(self, drawn: Mapping[str, Axes], caption: str, look_for: str = "") -> Report:
        """Axes by label: side by side in the page, and each in a file of its own, which has no key but a legend."""
        for label, axes in drawn.items():
            path = self.log.folder / f"{self.log.stem}-{label}.png"
            legend = axes.legend(fontsize=7) if axes.get_legend_handles_labels()[1] else None
            figure = axes.figure
            assert isinstance(figure, Figure)
            figure.savefig(path, dpi=FILE_DPI)
            if legend is not None:
                legend.remove()
            self.log.keep_picture(path.name)
        self.figure(list(drawn.values()), caption, look_for)
        return self


def answer(name: str, size: Size, folder: Path, subject: Subject | None, kept: Path | None, usual: bool = True) -> Path:
    """Run a study, or what is left of it, and write its report; returns the report's path.

    Args:
        name: One of QUESTIONS.
        size: Of the run.
        folder: Where figures, pictures and the report go.
        subject: The table; None for a study with data of its own.
        kept: The folder of references; None keeps none.
        usual: Whether it is the study's own table; another's name becomes part of the names of files.
    """
    question = find(QUESTION + name)
    settings = question.settings(size) | ({} if subject is None else {"data": subject.identity})
    part = None if usual or subject is None else subject.title
    log = StudyLog(QUESTION + name, size, folder, settings, part)
    figures = question.measure(Study(log, subject, References(kept)))
    log.rows = question.conclude(figures)
    log.pictures = []
    report = Report(log, question.TITLE, _subtitle(subject, settings, size))
    with plots.style():
        _conclusion(report, log.rows)
        question.write(report, figures)
        _references(report, figures)
        report.section("Settings", question.REFERENCE)
        report.details("Settings of this run", "\n".join(f"{key}: {value}" for key, value in settings.items()))
    log.finish()
    return report.write(log.path.with_suffix(".html"))


def _subtitle(subject: Subject | None, settings: dict[str, Any], size: Size) -> str:
    form = "" if size == "full" else f" A {size} run: errors are wider than those of the full one."
    if subject is None:
        return f"On data made for the purpose.{form}"
    rows = min(settings["rows"], len(subject.frame))
    return f"On {subject.title}: at most {rows} of {len(subject.frame)} rows to train on, the others to test on.{form}"


def _conclusion(report: Report, rows: Iterable[Row]) -> None:
    report.section("Conclusion")
    report.points([f"{OUTCOMES[row.holds]}: {row.remark}" for row in rows], prominent=True)
    beside = [row for row in rows if row.published is not None]
    if beside:
        report.table(
            ("claim", "here", "published"),
            [(row.name, with_error(row.ours, row.standard_error), _published(row)) for row in beside],
            "The published numbers are for other networks and data, and are shown for orientation.",
        )


def _published(row: Row) -> str:
    return "" if row.published is None else with_error(row.published, row.published_error)


def _references(report: Report, figures: dict[str, Any]) -> None:
    """Each reference's own diagnosis, from `figures["references"]`, by name."""
    found = figures.get("references", {})
    if not found:
        return
    report.section(
        "The references",
        "Hamiltonian Monte Carlo, until its own diagnosis is good or its time ends. One that is not converged may not "
        "judge, and what rests on it is withheld.",
    )
    report.points(f"{name}: {describe(facts)}" for name, facts in found.items())


def dots_with_errors(axes: Axes, x: Any, estimates: Any, **look: Any) -> Axes:
    """A line of estimates with two standard errors each."""
    values = [each.value for each in estimates]
    (line,) = axes.plot(x, values, **{"marker": "o", "ms": 3.5, "lw": 1.2, **look})
    errors = [2 * each.standard_error for each in estimates]
    axes.errorbar(x, values, errors, fmt="none", ecolor=line.get_color(), elinewidth=1.0)
    return axes
