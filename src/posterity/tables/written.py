"""Numbers as people write them, $2.00, 12 % or 1,234.50, and what they write where there is none: ?, -, n/a."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

PLAIN_NUMBER = re.compile(r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")
UNIT = r"[$€£¥₹%]"
DIGITS = (
    r"(?P<plain>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<english>[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?)"
    r"|(?P<continental>[1-9]\d{0,2}(?:\.\d{3})+,\d+)"  # without decimals 1.234 would be a plain number
    r"|(?P<spaced>[1-9]\d{0,2}(?:[ \u00a0\u202f']\d{3})+(?:\.\d+)?)"
)
WRITTEN = re.compile(
    rf"^(?P<sign>[-+\u2212]?)(?P<before>{UNIT})?\s*(?P<inner>[-+\u2212]?)(?:{DIGITS})\s*(?P<after>{UNIT})?$"
)
GAPS = frozenset({"", "?", "n/a", "n.a.", "#n/a", "nan", "null"})  # in any column
NO_NUMBER = GAPS | {
    "-",
    "--",
    "---",
    "\u2013",
    "\u2014",
    ".",
    "*",
    "na",
    "nil",
    "none",
    "missing",
    "unknown",
}  # among numbers


class Amount(NamedTuple):
    """A number as it was written."""

    value: float
    unit: str  # "$", "%", ...; "" where there is none


def amount(text: str) -> Amount | None:
    """The number that a text stands for; None where it stands for none."""
    stripped = text.strip()
    negative = stripped.startswith("(") and stripped.endswith(")")  # as accountants write it
    found = WRITTEN.match(stripped[1:-1].strip() if negative else stripped)
    if found is None or (found["before"] and found["after"]) or (found["sign"] and found["inner"]):
        return None
    if found["plain"]:
        digits = found["plain"]
    elif found["continental"]:
        digits = found["continental"].replace(".", "").replace(",", ".")
    else:
        digits = re.sub(r"[, \u00a0\u202f']", "", found["english"] or found["spaced"])
    minus = negative != ((found["sign"] or found["inner"]) in ("-", "\u2212"))
    return Amount(-float(digits) if minus else float(digits), found["before"] or found["after"] or "")


def is_gap(value: Any, among_numbers: bool) -> bool:
    """Whether a text marks a missing value; `among_numbers`: in a column of numbers or dates, where a dash does."""
    return isinstance(value, str) and value.strip().lower() in (NO_NUMBER if among_numbers else GAPS)


def common_unit(values: Iterable[Any]) -> str | None:
    """The unit that texts have in common where they are all numbers; None where they are not, or mix units.

    A currency may be left out here and there. A per cent sign may not: 12 % and 0.12 would be taken for 12 and 0.12.
    """
    units = set()
    for value in values:
        read = amount(value) if isinstance(value, str) else None
        if read is None:
            return None
        units.add(read.unit)
    named = units - {""}
    if len(named) > 1 or (named == {"%"} and "" in units):
        return None
    return next(iter(named), "")
