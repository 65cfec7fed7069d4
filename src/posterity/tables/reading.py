"""Options on the columns of a table, and rows read by them: columns to leave out, numbers, categories, gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from posterity.core.names import nearest_name
from posterity.tables.columns import holds_text
from posterity.tables.written import amount, is_gap


@dataclass(frozen=True)
class Reading:
    """How to read a table, beyond what its cells show."""

    drop: tuple[str, ...] = ()
    """Columns to leave out."""
    numeric: tuple[str, ...] = ()
    """Columns of numbers: cells that are none are missing."""
    category: tuple[str, ...] = ()
    """Columns of categories, also where they look like numbers or dates."""
    missing: tuple[str, ...] = ()
    """Cells that stand for a missing value, in any column, such as 999."""

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Reading:
        return cls(**{name: tuple(map(str, value)) for name, value in stored.items()})

    def check(self, names: Sequence[str], target: str) -> None:
        """Refuse columns that a table does not have, or that are to be two things at once."""
        asked = [(option, name) for option in ("drop", "numeric", "category") for name in getattr(self, option)]
        for option, name in asked:
            if name not in names:
                raise ValueError(
                    f"--{option}: there is no column {name!r}; did you mean {nearest_name(name, names)!r}?"
                )
            if others := [other for other, same in asked if same == name and other != option]:
                raise ValueError(f"Column {name!r} is given to --{option} and to --{others[0]}; choose one.")
        if target in self.drop:
            raise ValueError(f"--drop {target!r} is the column to predict; drop others.")

    def apply(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """The table read so, and what was done in sentences; columns that it lacks are passed over."""
        frame = frame.drop(columns=[name for name in self.drop if name in frame.columns])
        remarks = [f"Left out as asked: {', '.join(self.drop)}."] if self.drop else []
        for name in frame.columns if self.missing else ():
            column = pd.Series(frame[name])
            marked = _equals_any(column, self.missing)
            if marked.any():
                frame[name] = column.mask(marked)
                remarks.append(f"Column {name!r}: {marked.sum()} cell(s) are missing, by --missing.")
        for name in self.numeric:
            if name in frame.columns and holds_text(column := pd.Series(frame[name])):
                frame[name], lost = _numbers(column)
                if lost:
                    shown = f"such as {lost[0]!r}" if len(lost) > 1 else repr(lost[0])
                    remarks.append(f"Column {name!r}: {len(lost)} cell(s) are no numbers, {shown}, and so missing.")
        for name in self.category:
            if name in frame.columns:
                frame[name] = frame[name].astype("category")
        return frame, remarks


def _equals_any(column: pd.Series, marks: Sequence[str]) -> np.ndarray:
    """Which cells are one of the marks, as a text or as the number it stands for."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        numbers = [read.value for mark in marks if (read := amount(mark)) is not None]
        return column.isin(numbers).to_numpy()
    return column.astype(str).str.strip().isin([mark.strip() for mark in marks]).to_numpy()


def _numbers(column: pd.Series) -> tuple[pd.Series, list[str]]:
    """Texts as numbers, and those that are neither numbers nor a mark of a missing value."""
    read = {value: amount(value) if isinstance(value, str) else None for value in column.dropna().unique()}
    lost = [str(value) for value in column.dropna() if read[value] is None and not is_gap(value, among_numbers=True)]
    numbers = column.map({value: np.nan if one is None else one.value for value, one in read.items()})
    return numbers.astype(float), lost
