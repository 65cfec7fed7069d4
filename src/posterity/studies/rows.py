"""A number of ours beside a published one, and tables of such rows in Markdown.

A row's name is "subject: quantity". Neighbouring subjects that share several quantities stand in one wide table, a line
a subject; the other rows stand in a long one, a line a row. Remarks are numbered and told once, below their table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

FEWEST_SUBJECTS = 3  # for which a wide table is the easier one to read
FEWEST_QUANTITIES = 2  # which they must share
OF = "\0"  # between a heading and the quantity it belongs to, which stands to its left and is not shown again

Block = dict[str, "Row"]  # the rows of one subject, by quantity
Columns = dict[str, list[str]]  # cells by heading


class Row(NamedTuple):
    """One number of ours beside the published one, or beside a target."""

    name: str  # "subject: quantity"
    ours: float
    standard_error: float | None = None
    published: float | None = None
    published_error: float | None = None
    difference: tuple[float, float] | None = None  # ours - published and its standard error, where rows were paired
    target: str = ""  # in words, with its number: "at most 1.5 %"
    holds: bool | None = None  # the target; None where there is none
    remark: str = ""  # why a number stands where it stands
    comparable: bool = True  # False: published for another network or other data, and shown for orientation

    @property
    def subject(self) -> str:
        return self.name.partition(": ")[0]

    @property
    def quantity(self) -> str:
        return self.name.partition(": ")[2]

    def apart(self) -> float | None:
        """How far ours lies from the published value, in standard errors of the difference."""
        if self.difference is not None:
            return self.difference[0] / self.difference[1] if self.difference[1] > 0 else None
        if self.published is None or not self.comparable:
            return None
        error = math.hypot(self.standard_error or 0.0, self.published_error or 0.0)
        return (self.ours - self.published) / error if error > 0 else None


def read_rows(found: dict[str, Any]) -> list[Row]:
    """Those of a results file."""
    return [Row(**{**row, "difference": row["difference"] and tuple(row["difference"])}) for row in found["rows"]]


def with_error(value: float, error: float | None) -> str:
    if error is None:
        return f"{value:.4g}"
    decimals = int(np.clip(1 - math.floor(math.log10(error)), 0, 6)) if error > 0 else 3
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def tables(rows: Sequence[Row]) -> str:
    """All rows in as many tables as they need, in their order."""
    blocks = [list(same) for _, same in itertools.groupby(rows, key=lambda row: row.subject)]
    found: list[list[list[Row]]] = []
    for block in blocks:
        if found and _alike(found[-1][-1], block):
            found[-1].append(block)
        else:
            found.append([block])
    parts = []
    for is_wide, groups in itertools.groupby(found, key=lambda group: len(group) >= FEWEST_SUBJECTS):
        if is_wide:
            parts += [_wide([{row.quantity: row for row in block} for block in group]) for group in groups]
        else:
            parts.append(_long([row for group in groups for block in group for row in block]))
    return "\n".join(parts)


def _alike(one: list[Row], other: list[Row]) -> bool:
    shared = {row.quantity for row in one} & {row.quantity for row in other}
    return len(shared) >= FEWEST_QUANTITIES


def _long(rows: list[Row]) -> str:
    """Ours, theirs, how far apart, and whether a target is met; columns without an entry are left out."""
    notes = _Notes()
    columns = {
        "": [row.name for row in rows],
        "ours": [with_error(row.ours, row.standard_error) for row in rows],
        **_theirs(rows),
        "target": [row.target for row in rows],
        "met": ["" if row.holds is None else "yes" if row.holds else "**no**" for row in rows],
        "notes": [notes.number(row.remark) for row in rows],
    }
    return _markdown(columns) + notes.text()


def _wide(blocks: list[Block]) -> str:
    """A line per subject. A number that misses its target is bold."""
    notes = _Notes()
    shared = [_shared_remark(block) for block in blocks]
    columns = {"": [next(iter(block.values())).subject for block in blocks]}
    targets = []
    for quantity in dict.fromkeys(quantity for block in blocks for quantity in block):
        rows = [block.get(quantity) for block in blocks]
        columns[quantity] = [_cell(row, notes, told) for row, told in zip(rows, shared, strict=True)]
        columns |= {f"{heading}{OF}{quantity}": cells for heading, cells in _theirs(rows).items()}
        targets += _asked(quantity, [row for row in rows if row is not None])
    columns["notes"] = [notes.number(remark) for remark in shared]
    told = f"\nTargets: {'; '.join(targets)}. A number in bold misses its own.\n" if targets else ""
    return _markdown(columns) + told + notes.text()


def _asked(quantity: str, rows: list[Row]) -> list[str]:
    """The targets of a column, each with the subjects it is for where it is not for all."""
    subjects: dict[str, list[str]] = {}
    for row in rows:
        if row.target:
            subjects.setdefault(row.target, []).append(row.subject)
    names = {target: "" if len(of) == len(rows) else f" ({'; '.join(of)})" for target, of in subjects.items()}
    return [f"{quantity}{of}: {target}" for target, of in names.items()]


def _shared_remark(block: Block) -> str:
    """What is said of every row of a subject, and need not be said in each."""
    remarks = {row.remark for row in block.values()}
    return remarks.pop() if len(remarks) == 1 else ""


def _cell(row: Row | None, notes: _Notes, told: str) -> str:
    if row is None:
        return ""
    shown = with_error(row.ours, row.standard_error)
    shown = f"**{shown}**" if row.holds is False else shown
    return f"{shown} {'' if row.remark == told else notes.number(row.remark)}".rstrip()


def _theirs(rows: Sequence[Row | None]) -> Columns:
    apart = [None if row is None else row.apart() for row in rows]
    return {
        "published": [
            "" if row is None or row.published is None else with_error(row.published, row.published_error)
            for row in rows
        ],
        "apart": ["" if value is None else f"{value:+.1f}" for value in apart],
    }


class _Notes:
    """Remarks in the order in which they are first made."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def number(self, remark: str) -> str:
        if not remark:
            return ""
        if remark not in self.remarks:
            self.remarks.append(remark)
        return f"({self.remarks.index(remark) + 1})"

    def text(self) -> str:
        lines = [f"{number}. {remark}\n" for number, remark in enumerate(self.remarks, 1)]
        return "".join(["\n", *lines]) if lines else ""


def _markdown(columns: Columns) -> str:
    """Columns without an entry are left out."""
    filled = {heading: cells for heading, cells in columns.items() if any(cells)}
    headings = [heading.partition(OF)[0] for heading in filled]
    lines = [headings, ["---"] * len(filled), *zip(*filled.values(), strict=True)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
