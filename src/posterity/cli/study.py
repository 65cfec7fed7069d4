"""`posterity study`: a question about posteriors, answered on bundled data or on a table of the user's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from posterity.cli.cache import cache_folder, keep_compiled_programs
from posterity.cli.errors import FailedError, InputError
from posterity.cli.folders import check_writable
from posterity.cli.output import print_json, print_table, results, say
from posterity.cli.tables import check_target, read_table
from posterity.core.names import nearest_name
from posterity.studies.questions.question import OUTCOMES, QUESTIONS, answer
from posterity.studies.questions.subject import Subject
from posterity.studies.study import QUESTION, Size, find

REFERENCES = "references"  # the folder of the cache that keeps HMC's draws


class Request(NamedTuple):
    """What was asked for."""

    data: str | None  # None: the study's own
    target: str | None
    size: Size
    folder: Path | None  # None: posterity-study-NAME


def run_study(name: str | None, asked: Request, as_json: bool) -> None:
    if name is None:
        _list_studies(as_json)
        return
    if name not in QUESTIONS:
        raise InputError(
            f"There is no study {name!r}; did you mean {nearest_name(name, QUESTIONS)!r}? `posterity study` lists them "
            "all."
        )
    subject = _subject(name, asked)
    folder = asked.folder or Path(f"posterity-{QUESTION}{name}")
    check_writable(folder)
    keep_compiled_programs()
    try:
        path = answer(name, asked.size, folder, subject, cache_folder() / REFERENCES, usual=asked.data is None)
    except ValueError as error:  # a damaged results file, or a table that cannot be used
        raise InputError(f"{name} was not run to its end. {error}") from error
    except ArithmeticError as error:
        raise FailedError(str(error)) from error
    rows = json.loads(path.with_suffix(".json").read_text())["rows"]
    if as_json:
        print_json(rows)
        return
    shown = [{"": OUTCOMES[row["holds"]], "what was found": row["remark"]} for row in rows]
    print_table(shown, find(QUESTION + name).TITLE, left=tuple(shown[0]))
    results().print(f"The report is {path.resolve()}", soft_wrap=True)


def _subject(name: str, asked: Request) -> Subject | None:
    usual = find(QUESTION + name).DATA
    if usual is None and asked.data is not None:
        raise InputError(f"{name} makes data of its own, for which the answer is known; leave out --data.")
    if usual is None:
        return None
    table = read_table(asked.data or usual)
    for remark in table.remarks:
        say(remark)
    return Subject(table.title, table.frame, check_target(table, asked.target))


def _list_studies(as_json: bool) -> None:
    rows = [{"name": name, "what": find(QUESTION + name).TITLE} for name in QUESTIONS]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, left=tuple(rows[0]))
