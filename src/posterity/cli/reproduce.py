"""`posterity reproduce`: a published experiment, run again, and our numbers beside the paper's."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posterity.cli.cache import keep_compiled_programs
from posterity.cli.errors import FailedError, InputError
from posterity.cli.output import print_json, print_table, results, say
from posterity.names import nearest_name
from posterity.studies.rows import Row, with_error
from posterity.studies.study import STUDIES, Size, find, reproduce


def run_reproduce(name: str | None, size: Size, folder: Path, as_json: bool) -> None:
    if name is None:
        print_table([{"name": key, "what": find(key).TITLE} for key in STUDIES], left=("name", "what"))
        return
    if name not in STUDIES:
        raise InputError(
            f"There is no study {name!r}; did you mean {nearest_name(name, STUDIES)!r}? "
            "`posterity reproduce` lists them all."
        )
    _check_folder(folder)
    keep_compiled_programs()
    try:
        rows = reproduce(name, size, folder)
    except (ValueError, OSError) as error:  # a damaged file or store, another edition of a data set, a full disk
        raise InputError(f"{name} was not run to its end. {error}") from error
    except ArithmeticError as error:
        raise FailedError(str(error)) from error
    stem = folder / (name if size == "full" else f"{name}-{size}")
    if as_json:
        print_json([row._asdict() for row in rows])
    else:
        print_table([_shown(row) for row in rows], find(name).TITLE, left=("", "target"))
        results().print(f"Every number is in {stem}.json, the table in {stem}.md.", soft_wrap=True)
    missed = [row.name for row in rows if row.holds is False]
    if missed:
        say(f"Not met: {'; '.join(missed)}.")


def _check_folder(folder: Path) -> None:
    """Before hours of work: whether what they find can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"--out {folder} is no folder that can be written to: {error.strerror}.") from error


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
