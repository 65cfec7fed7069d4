"""`posterity explain` and `posterity card`: what columns add to predictions, and a page on a fit."""

from __future__ import annotations

import sys
from pathlib import Path

from posterity.cli import fitting
from posterity.cli.errors import InputError
from posterity.cli.folders import check_writable
from posterity.cli.output import print_json, print_table, say
from posterity.core.names import printable
from posterity.tables.explained import explain, importance
from posterity.tables.model_card import model_card


def run_explain(folder: Path, source: str, num_rows: int, out: Path | None, as_json: bool) -> None:
    fitting.check_file(out)
    posterior, code = fitting.load_fit(folder)
    frame = fitting.read_rows(code, source).frame.head(num_rows)
    found = explain(posterior, code.inputs, fitting.inputs(code, frame), labels=code.labels)
    if out is not None:
        fitting.write_rows(found, out, safe_csv=False)
        say(f"What every column adds to {len(frame):,} rows is in {out}.")
    if as_json:
        print_json(found.to_dict("records"))
        return
    shown = importance(found)
    mean, unit = ("probability", "nats") if code.labels else ("mean", "squared units")
    rows = [
        {
            "column": str(name),
            f"{mean}": f"{row['mean']:.3g}",
            f"noise ({unit})": f"{row['aleatoric']:.3g}",
            f"ignorance ({unit})": f"{row['epistemic']:.3g}",
        }
        for name, row in shown.to_dict("index").items()
    ]
    print_table(rows, f"Mean size of what columns add, at {len(frame):,} rows", left=("column",))


def run_card(folder: Path, out: Path | None) -> None:
    if out is not None and out.exists():
        raise InputError(f"--out {out} is there already, and is not overwritten: name a new file, or remove it first.")
    if out is not None:
        check_writable(out, "a file")
    text = model_card(*fitting.load_fit(folder))
    if out is None:
        sys.stdout.write("\n".join(map(printable, text.split("\n"))))
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
    say(f"The card is in {out}.")
