"""The page of results, written from the results files: `python -m posterity.studies.page results docs/results.md`.

The table beside each results file is written anew too, so that it is what the code of today makes of these numbers.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from posterity.studies.rows import Row, read_rows, tables
from posterity.studies.study import STUDIES, UNFINISHED, find, table_file

INTRODUCTION = """# Published results, reproduced

Each table is written by `posterity reproduce NAME` and this page from its results file, `results/NAME.json`; no number
is typed by hand. "Apart" is our number minus the published one, in standard errors of the difference (paired by split
where the paper's splits are known). Standard errors are over splits or repeated runs where a study has them; a method
that was run with a single seed has those over test rows only, which know nothing of what another seed would have given.
Targets are ours and none was loosened after a run, but some runs were repeated with other settings after a target had
been missed: the remark says so, and names every setting that was chosen after test scores had been seen.
"""
OTHER_SETTINGS = "\nThese numbers were found with other settings than the command has now; it would run them again.\n"


def page(folder: Path) -> str:
    """All studies in the order of STUDIES; one that was not run is named."""
    parts = [INTRODUCTION]
    for name in STUDIES:
        path = folder / f"{name}.json"
        found = json.loads(path.read_text()) if path.exists() else {"rows": []}
        if found["rows"]:  # one that has only begun has parts, but no rows yet
            parts.append(section(found))
        else:
            parts.append(f"## {find(name).TITLE}\n\nNot run in full: `posterity reproduce {name}`.\n")
    return "\n".join(parts)


def section(found: dict[str, Any]) -> str:
    rows, study, minutes = read_rows(found), find(found["study"]), found["seconds"] / 60
    same = found["settings"] == json.loads(json.dumps(study.settings(found["size"])))
    lines = [
        f"## {found['title']}",
        "",
        f"{found['reference']} `posterity reproduce {found['study']}`; its parts, most of which have one core, took "
        f"{minutes:.0f} minutes in all. Left out: {study.LEFT_OUT}.",
        "",
        tables(rows),
        *([] if found["finished"] else [UNFINISHED]),
        *([] if same else [OTHER_SETTINGS]),
        *(sentence(row) for row in rows if needs_a_word(row)),
    ]
    lines += [f"\n![{found['title']}](pictures/{name})" for name in found["pictures"]]
    return "\n".join(lines) + "\n"


def needs_a_word(row: Row) -> bool:
    """Outside two standard errors of the published number, or a target that was not met."""
    apart = row.apart()
    return row.holds is False or (apart is not None and abs(apart) > 2)


def sentence(row: Row) -> str:
    apart = row.apart()
    where = ""
    if apart is not None:
        where = f" lies {abs(apart):.1f} standard errors {'above' if apart > 0 else 'below'} the published value"
    told = "misses its target" if row.holds is False else "meets its target" if row.holds else "has no target"
    reason = f": {row.remark}" if row.remark else ""
    return f"- **{row.name}**{where}{' and' if where else ''} {told}{reason}."


def main() -> None:
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.write_text(page(folder))
    pictures = target.parent / "pictures"
    pictures.mkdir(exist_ok=True)
    for path in (folder / f"{name}.json" for name in STUDIES):  # of whole studies, not of a part or a quick run
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        if text := table_file(found):
            path.with_suffix(".md").write_text(text)
        for name in found["pictures"]:
            shutil.copy(folder / name, pictures / name)


if __name__ == "__main__":
    main()
