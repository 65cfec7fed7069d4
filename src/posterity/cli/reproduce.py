"""`posterity reproduce`: a published experiment, run again, and our numbers beside the paper's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from posterity.cli.cache import keep_compiled_programs
from posterity.cli.errors import FailedError, InputError
from posterity.cli.folders import check_writable
from posterity.cli.output import print_json, print_table, results, say
from posterity.core.names import nearest_name
from posterity.studies.rows import Row, with_error
from posterity.studies.study import STUDIES, Size, find, parts_of, reproduce, settings_of, stem


class Request(NamedTuple):
    """What was asked for."""

    size: Size
    part: str | None  # None: the whole study
    folder: Path
    data: Path | None  # None: the folder that POSTERITY_DATA names, or the default
    unchecked: bool


def run_reproduce(name: str | None, asked: Request, as_json: bool) -> None:
    if name is None:
        _list_studies(as_json)
        return
    if name not in STUDIES:
        raise InputError(
            f"There is no study {name!r}; did you mean {nearest_name(name, STUDIES)!r}? "
            "`posterity reproduce` lists them all."
        )
    size, part, folder = asked.size, asked.part, asked.folder
    try:
        settings_of(name, size, part)
    except ValueError as error:
        raise InputError(str(error)) from error
    check_writable(folder)
    _name_data(asked)
    keep_compiled_programs()
    try:
        rows = reproduce(name, size, folder, part)
    except (ValueError, OSError) as error:  # a damaged file or store, another edition of a data set, a full disk
        raise InputError(f"{name} was not run to its end. {error}") from error
    except ArithmeticError as error:
        raise FailedError(str(error)) from error
    files = folder / stem(name, size, part)
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table([_shown(row) for row in rows], find(name).TITLE, left=("", "target"))
        results().print(f"Every number is in {files}.json, the table in {files}.md.", soft_wrap=True)
    missed = [row.name for row in rows if row.holds is False]
    if missed:
        say(f"Not met: {'; '.join(missed)}.")


def _list_studies(as_json: bool) -> None:
    if as_json:
        print_json([{"name": name, "what": find(name).TITLE, "parts": parts_of(name)} for name in STUDIES])
        return
    rows = [{"name": name, "what": find(name).TITLE, "parts": ", ".join(parts_of(name))} for name in STUDIES]
    print_table(rows, left=tuple(rows[0]))


def _name_data(asked: Request) -> None:
    """By variables, which the processes of a study inherit."""
    if asked.data is not None:
        if not asked.data.is_dir():
            raise InputError(f"--data {asked.data} is not a folder; name the one that holds mnist/, uci/ and so on.")
        os.environ["POSTERITY_DATA"] = str(asked.data.absolute())
    if asked.unchecked:
        os.environ["POSTERITY_UNCHECKED"] = "1"


def _shown(row: Row) -> dict[str, str]:
    apart = row.apart()
    return {
        "": row.name,
        "ours": with_error(row.ours, row.standard_error),
        "published": "" if row.published is None else with_error(row.published, row.published_error),
        "apart": "" if apart is None else f"{apart:+.1f} s.e.",
        "target": row.target,
        "met": "" if row.holds is None else "yes" if row.holds else "no",
    }
