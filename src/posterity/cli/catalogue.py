"""The list of methods; and how names and times on the command line are understood."""

from __future__ import annotations

import re
from typing import Any

from posterity.cli.errors import InputError
from posterity.cli.output import print_json, print_table
from posterity.cli.tables import similar_name
from posterity.core.types import TASKS
from posterity.inference import METHODS
from posterity.tables.comparison import compared

UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def run_methods(as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "name": card.name,
            "method": card.label,
            "what it is": card.what,
            "when to use it": card.when,
            "compared": card.compared,
        }
        for card in (method.card for method in METHODS.values())
    ]
    if as_json:
        print_json(rows)
    else:
        print_table([{**row, "compared": "yes" if row["compared"] else ""} for row in rows], left=tuple(rows[0]))


def check_methods(given: str | None) -> list[str]:
    """Names with commas between them; also as people write them, "MC dropout"."""
    if given is None:
        return compared()
    names = [check_method(name) for name in given.split(",") if name.strip()]
    if not names:
        raise InputError(f"--methods is empty; name some of {', '.join(METHODS)}.")
    return list(dict.fromkeys(names))


def check_method(given: str, for_tables: bool = True) -> str:
    """The name of a method; `for_tables`: of one that can fit a table."""
    name = re.sub(r"[\s-]+", "_", given.strip().lower())
    if name in METHODS:
        card = METHODS[name].card
        if card.for_tables or not for_tables:
            return name
        raise InputError(f"{name} cannot be used here. {card.what} {card.when} Others: `posterity methods`.")
    guess = similar_name(name, METHODS)
    hint = f" Did you mean {guess}?" if guess else ""
    raise InputError(f"There is no method {given.strip()!r}.{hint} Methods: {', '.join(METHODS)}.")


def check_task(given: str | None) -> str | None:
    if given is None or given in TASKS:
        return given
    guess = similar_name(given, TASKS)
    hint = f" Did you mean {guess}?" if guess else ""
    raise InputError(f"--task {given} is not known.{hint} Tasks: {', '.join(TASKS)}.")


def check_budget(given: str | None) -> float | None:
    """90, 90s, 2m, 1h, 1h30m, in seconds."""
    if given is None:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(h|min|m|s)?", given.strip().lower())
    written = re.fullmatch(r"(\d+(\.\d+)?\s*(h|min|m|s)?\s*)+", given.strip().lower())
    seconds = sum(float(number) * UNITS[unit or "s"] for number, unit in parts)
    if written is None or seconds <= 0:
        raise InputError(f"--budget {given} is not a time; write for instance 90s, 2m or 1h30m.")
    return seconds


def check_effort(given: float) -> float:
    if not given > 0:
        raise InputError(f"--effort {given} must be above 0: 1 is the usual number of steps, 0.1 a tenth of them.")
    return given
