"""The page of findings, from results: `python -m posterity.studies.questions.findings results docs`.

Each finding of Izmailov et al. 2021 is confirmed, contradicted or left open by the claims of one study, on its bundled
table and on every other table whose results are there. No number is typed by hand.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

from posterity.studies.questions.question import OUTCOMES, QUESTIONS
from posterity.studies.questions.reference import describe
from posterity.studies.rows import Row, read_rows, with_error
from posterity.studies.study import QUESTION, find


class Finding(NamedTuple):
    """A finding of the paper, and the claims of our study that decide it; the others stand beside it."""

    text: str
    deciding: tuple[str, ...]  # what the names of these claims begin with


FINDINGS = {
    "bma": Finding("The average over the posterior beats one network and an ensemble", ("against",)),
    "tempering": Finding("There is no cold posterior effect without augmentation", ("tempered",)),
    "mixing": Finding("Chains mix in function space", ("function space",)),
    "priors": Finding("The scale of the prior hardly matters", ("scale: accuracy", "scale: squared", "scale: log")),
    "shift": Finding("The average loses under shift", ("strong corruption",)),
    "methods": Finding(
        "Ensembles and samplers are nearer to the posterior than mean-field variational inference",
        ("Deep ensemble", "SGHMC"),
    ),
}
MOST_PICTURES = 3  # of a study; all are in its report
INTRODUCTION = """# What posteriors are really like

Izmailov et al. 2021 (*What Are Bayesian Neural Network Posteriors Really Like?*) sampled the posteriors of large
networks with 512 TPUs, and made claims that are still cited. On small networks two cores are enough to ask the same
questions of a reference that has converged. This page is written from `results/study-*.json`, which `posterity study
NAME --out results` makes: every conclusion is computed from its figures, and decided by two standard errors; one whose
reference did not converge is withheld. Published numbers are for other networks and data, and stand here for
orientation. Ask the same of your own table: `posterity study NAME --data FILE --target COLUMN`.
"""


def documents(folder: Path, name: str) -> list[dict[str, Any]]:
    """Results of a study, one of each table, its bundled one first: of the full run, or else of a quick one."""
    paths = [folder / f"{QUESTION}{name}.json", *sorted(folder.glob(f"{QUESTION}{name}-*.json"))]
    found = [json.loads(path.read_text()) for path in paths if path.exists()]
    by_table: dict[str, dict[str, Any]] = {}
    for each in sorted(found, key=lambda each: each["size"] != "full"):
        if each["finished"] and each["size"] != "tiny":
            by_table.setdefault(_data(each), each)
    usual = find(QUESTION + name).DATA
    return sorted(by_table.values(), key=lambda each: _data(each) != usual)


def page(folder: Path) -> str:
    """The six findings, then the other studies."""
    parts = [INTRODUCTION, _summary(folder)]
    for number, (name, finding) in enumerate(FINDINGS.items(), 1):
        parts.append(f"## {number}. {finding.text}\n\n{_section(folder, name)}")
    others = [name for name in QUESTIONS if name not in FINDINGS]
    parts += [f"## {find(QUESTION + name).TITLE}\n\n{_section(folder, name)}" for name in others]
    return "\n".join(parts)


def _summary(folder: Path) -> str:
    lines = ["| the paper's finding | on | here | by the claims |", "|---|---|---|---|"]
    for name, finding in FINDINGS.items():
        found = documents(folder, name)
        if not found:
            lines.append(f"| {finding.text} | | not run | |")
        for document in found:
            rows = [row for row in read_rows(document) if row.name.startswith(finding.deciding)]
            counts = {word.lower(): sum(row.holds is outcome for row in rows) for outcome, word in OUTCOMES.items()}
            told = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
            lines.append(f"| {finding.text} | {_data(document)} | **{verdict(rows)}** | {told} |")
    return "\n".join(lines) + "\n"


def verdict(rows: list[Row]) -> str:
    """On a finding, by the claims that decide it: all that are decided must agree."""
    decided = {row.holds for row in rows} - {None}
    if not decided:
        return "open"
    return "in part" if len(decided) > 1 else "confirmed" if decided == {True} else "contradicted"


def _data(document: dict[str, Any]) -> str:
    return document["settings"]["data"]["title"] if "data" in document["settings"] else "data of its own"


def _section(folder: Path, name: str) -> str:
    found = documents(folder, name)
    if not found:
        return f"Not run: `posterity study {name} --out results`.\n"
    return "\n".join(_document(document) for document in found)


def _document(document: dict[str, Any]) -> str:
    minutes = document["seconds"] / 60
    form = " --quick" if document["size"] == "quick" else ""
    command = f"posterity study {document['study'].removeprefix(QUESTION)}{form}"
    lines = [f"On {_data(document)} (`{command}`, {minutes:.0f} minutes):", ""]
    rows = read_rows(document)
    lines += [f"- **{OUTCOMES[row.holds]}**: {row.remark}" for row in rows]
    lines += ["", *_table(rows), "", _trust(document)]
    lines += [f"\n![{document['title']}](pictures/{name})" for name in document["pictures"][:MOST_PICTURES]]
    return "\n".join(lines) + "\n"


def _table(rows: list[Row]) -> list[str]:
    lines = ["| claim | here | published |", "|---|---|---|"]
    for row in rows:
        published = "" if row.published is None else with_error(row.published, row.published_error)
        lines.append(f"| {row.name} | {with_error(row.ours, row.standard_error)} | {published} |")
    return lines


def _trust(document: dict[str, Any]) -> str:
    """The references' own diagnosis, in a sentence."""
    facts = [each for part in document["parts"].values() for each in _facts(part)]
    if not facts:
        return "No reference is needed: the answers are known in closed form, or measured directly."
    verdicts = [each["verdict"] for each in facts]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
    worst = max(facts, key=lambda each: float("inf") if each["r_hat"] is None else each["r_hat"])
    return f"References: {counts}. The worst: {describe(worst)}"


def _facts(part: dict[str, Any]) -> list[dict[str, Any]]:
    return [*([part["reference"]] if "reference" in part else []), *part.get("references", {}).values()]


def main() -> None:
    folder, docs = Path(sys.argv[1]), Path(sys.argv[2])
    (docs / "findings.md").write_text(page(folder))
    pictures = docs / "pictures"
    pictures.mkdir(exist_ok=True)
    for name in QUESTIONS:
        for document in documents(folder, name):
            for picture in document["pictures"][:MOST_PICTURES]:
                shutil.copy(folder / picture, pictures / picture)


if __name__ == "__main__":
    main()
