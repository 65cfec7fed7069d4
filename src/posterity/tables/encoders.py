"""Tables as numbers: columns of numbers, categories and dates to features of about unit size, and the target.

What was learned from a table is plain numbers and texts (`to_json`), never code. What was done with a column that is
not simply numbers is said in `remarks`.

    number     (value - mean) / standard deviation; where values were missing: the median, and a column that says so
    category   one column of 0 and 1 a category; rare and unseen ones share the column 'other'
    date       days since the first; month, weekday and hour, where they vary, as sine and cosine
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from posterity.core.types import TASKS, Task
from posterity.tables.columns import (
    MISSING,
    PLAIN_DATE,
    Order,
    as_frame,
    as_target,
    date_order,
    gaps,
    holds_text,
    kind,
    positions,
    to_dates,
    to_numbers,
    to_texts,
    unit,
)

MAX_CATEGORIES = 100  # of one column that get a feature of their own
ROUNDING = 4 * float(np.finfo(float).eps)  # of a column's mean: values that differ by less are one value, rounded
RARE_ROWS = 3  # a category with fewer rows is 'other'
FEW_VALUES = 10  # whole numbers with at most so many values are taken for classes
PERIODS = {"month": 12, "day_of_week": 7, "hour": 24}  # as pandas calls them
OTHER = "other"
SQUARABLE = 1e150  # float64 holds the square of numbers up to here


@dataclass(frozen=True)
class Number:
    """A column of numbers. `kept` is False where it never varied: then only the indicator is left, if there is one."""

    name: str
    fill: float  # the median, for missing values
    mean: float
    std: float
    indicator: bool  # a column that is 1 where a value was missing
    kept: bool = True
    unit: str = ""  # that numbers were written with, and will be

    @property
    def features(self) -> list[str]:
        return [self.name] * self.kept + [f"{self.name} {MISSING}"] * self.indicator

    def encode(self, column: pd.Series) -> np.ndarray:
        values = to_numbers(column, self.unit)
        missing = np.isnan(values)
        parts = [(np.where(missing, self.fill, values) - self.mean) / self.std] * self.kept
        return np.stack([*parts, *[missing.astype(float)] * self.indicator], 1)


@dataclass(frozen=True)
class Category:
    """A column of categories, as texts."""

    name: str
    categories: list[str]
    other: bool  # some were rare

    @property
    def features(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories + [OTHER] * self.other]

    def encode(self, column: pd.Series) -> np.ndarray:
        codes, texts = to_texts(column)
        # The last column is 'other', or, where there is none, left out: -1, not known, is there.
        made = np.eye(len(self.categories) + 1)[positions(self.categories, texts)[codes]]
        return made if self.other else made[:, :-1]

    def unseen(self, column: pd.Series) -> list[str]:
        """What rows hold that no kept category is, in a sentence."""
        codes, texts = to_texts(column)
        unknown = positions(self.categories, texts) < 0
        if not unknown.any():
            return []
        what, then = ("rare or unseen", f": they count as {OTHER!r}") if self.other else ("unseen", "")
        return [
            f"Column {self.name!r}: {unknown[codes].sum()} of {len(column)} rows hold categories {what} in training, "
            f"such as {texts[unknown][0]!r}{then}."
        ]


@dataclass(frozen=True)
class Date:
    """A column of dates: days since the first, and the parts of the calendar in which they vary."""

    name: str
    first: str
    days: Number
    parts: list[str]
    order: Order | None = None  # in which days and months were written, and will be; None: not known

    @property
    def features(self) -> list[str]:
        return self.days.features + [f"{self.name} {part} {wave}" for part in self.parts for wave in ("sin", "cos")]

    def encode(self, column: pd.Series) -> np.ndarray:
        dates = to_dates(column, self.order)
        made = [self.days.encode(dates - pd.Timestamp(self.first))]
        for part in self.parts:
            angle = 2 * np.pi * getattr(dates.dt, part).to_numpy(float) / PERIODS[part]
            waves = np.stack([np.sin(angle), np.cos(angle)], 1)
            made.append(np.where(np.isnan(waves), 0.0, waves))  # the centre of the circle: no direction
        return np.concatenate(made, 1)


@dataclass
class TableEncoder:
    """Learns how to turn the rows of a table into features [N, F], and does it again with other rows."""

    columns: list[Number | Category | Date] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of all columns of the table, dropped ones too
    remarks: list[str] = field(default_factory=list)

    def fit(self, table: Any, weight: np.ndarray | None = None, whole: Any = None) -> TableEncoder:
        """Learn from the rows of a frame or array; a row of weight 2 counts as two rows.

        Of the whole table that they are part of, where it is given, only the order of days and months is learned.
        """
        frame = as_frame(table)
        whole = frame if whole is None else as_frame(whole)
        weight = np.ones(len(frame)) if weight is None else np.asarray(weight, float)
        if not len(frame):
            raise ValueError("The table has no rows (0 samples); give at least two.")
        self.names, self.remarks, self.columns = list(frame.columns), [], []
        for place, name in enumerate(frame.columns, 1):
            if not name.strip():
                self.remarks.append(f"Column {place} of the inputs has no name: give it one.")
            made = self._learn(name, pd.Series(frame[name]), weight, pd.Series(whole[name]))
            self.columns += [made] if made is not None and made.features else []
        if not self.columns:
            raise ValueError(f"No column of the table can be learned from. {' '.join(self.remarks)}")
        return self

    def transform(self, table: Any) -> np.ndarray:
        """Features [N, F]."""
        frame = as_frame(table, self.names)
        self._check_names(list(frame.columns))
        return np.concatenate([column.encode(pd.Series(frame[column.name])) for column in self.columns], 1)

    def unseen(self, table: Any) -> list[str]:
        """How many rows hold categories that were not learned, of each column that has such rows."""
        frame = as_frame(table, self.names)
        known = [column for column in self.columns if isinstance(column, Category)]
        return [remark for column in known for remark in column.unseen(pd.Series(frame[column.name]))]

    @property
    def texts(self) -> list[str]:
        """Columns to read as texts, where a file leaves the choice: the category 01 is not the number 1."""
        return [column.name for column in self.columns if isinstance(column, Category)]

    @property
    def features(self) -> list[str]:
        return [feature for column in self.columns for feature in column.features]

    def to_json(self) -> dict[str, Any]:
        columns = [{"kind": type(column).__name__, **dataclasses.asdict(column)} for column in self.columns]
        return {"columns": columns, "names": self.names, "remarks": self.remarks}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TableEncoder:
        return cls([_column(dict(column)) for column in stored["columns"]], stored["names"], stored["remarks"])

    def _learn(
        self, name: str, column: pd.Series, weight: np.ndarray, whole: pd.Series
    ) -> Number | Category | Date | None:
        missing = gaps(column)
        if marked := sorted({str(value) for value in column.where(missing).dropna()}):
            count = int((missing & column.notna().to_numpy()).sum())
            self.remarks.append(f"Column {name!r}: {count} cell(s) hold {', '.join(map(repr, marked))}: missing.")
        if missing.all():
            self.remarks.append(f"Column {name!r} is empty: left out.")
            return None
        found = kind(column)
        if found == "category":
            return self._learn_category(name, column, weight)
        if found == "date":
            return self._learn_date(name, column, weight, whole)
        made = self._learn_number(name, values := to_numbers(column), weight)
        if holds_text(column):
            place = int(np.argmax(~np.isnan(values)))
            shown = f", {column.iloc[place]!r} as {values[place]:g}"
            self.remarks.append(f"Column {name!r} holds numbers as text: read as numbers{shown}.")
        elif pd.api.types.is_timedelta64_dtype(column):
            self.remarks.append(f"Column {name!r} holds spans of time: read as days.")
        return dataclasses.replace(made, unit=unit(column))

    def _learn_number(self, name: str, values: np.ndarray, weight: np.ndarray, first: str = "") -> Number:
        missing = np.isnan(values)
        known, counts = values[~missing], weight[~missing]
        fill = _median(known, counts)
        mean, std = _moments(np.where(missing, fill, values), weight)
        constant = not std > ROUNDING * abs(mean) or known.min() == known.max()
        if constant:
            then = "used is whether it is missing" if missing.any() else "left out"
            self.remarks.append(f"Column {name!r} has one value only ({first or f'{known[0]:g}'}): {then}.")
        elif missing.any():
            self.remarks.append(f"Column {name!r} lacks {missing.sum()} value(s): filled with the median {fill:g}.")
        return Number(name, fill, mean, 1.0 if constant else std, bool(missing.any()), not constant)

    def _learn_category(self, name: str, column: pd.Series, weight: np.ndarray) -> Category | None:
        if any(isinstance(value, list | dict | set | tuple | np.ndarray) for value in column):
            self.remarks.append(
                f"Column {name!r} holds lists: each is taken as one text; give their parts columns of their own."
            )
        codes, texts = to_texts(column)
        rows = np.bincount(codes, weight, len(texts))
        order = np.lexsort((texts, -rows))  # by size, then by name: the order of rows plays no part
        kept = sorted(str(texts[i]) for i in order[:MAX_CATEGORIES] if rows[i] >= RARE_ROWS)
        share = rows[np.isin(texts, kept)].sum() / rows.sum()
        if len(texts) == 1:
            self.remarks.append(f"Column {name!r} has one value only ({texts[0]!r}): left out.")
            return None
        if not kept or (len(texts) > MAX_CATEGORIES and share < 0.5):
            self.remarks.append(
                f"Column {name!r} has {len(texts)} different texts in {len(column)} rows, like an identifier: left out."
            )
            return None
        num_rare = len(texts) - len(kept)
        if num_rare:
            self.remarks.append(f"Column {name!r}: {num_rare} rare categories of {len(texts)} count as {OTHER!r}.")
            kept = [text for text in kept if text != OTHER]  # one that is called so counts as what it says
        else:
            self.remarks.append(f"Column {name!r} holds {len(texts)} categories: a feature for each.")
        return Category(name, kept, num_rare > 0)

    def _learn_date(self, name: str, column: pd.Series, weight: np.ndarray, whole: pd.Series) -> Date:
        order, shown = date_order(whole.unique()) if holds_text(column) else (None, False)
        dates = to_dates(column, order)
        first = str(dates.min())
        days = self._learn_number(name, to_numbers(dates - pd.Timestamp(first)), weight, first[:10])
        parts = [part for part in PERIODS if getattr(dates.dt, part).nunique() > 1]
        if days.kept:
            how = f", {order} first" if order else ""
            how += f", as no day above 12 tells; if that is wrong, {PLAIN_DATE}" if order and not shown else ""
            self.remarks.append(f"Column {name!r} holds dates{how}: {', '.join([f'days since {first[:10]}', *parts])}.")
        return Date(name, first, days, parts, order)

    def _check_names(self, got: list[str]) -> None:
        lacking = [name for name in self.names if name not in got]
        further = [name for name in got if name not in self.names]
        if lacking or further:
            what = "lacks" if lacking else "has in addition"
            raise ValueError(
                f"The table {what} the column(s) {', '.join(map(repr, lacking or further))}; it must have those of the "
                f"table that was learned from: {', '.join(map(repr, self.names))}."
            )


@dataclass
class TargetEncoder:
    """What is to be predicted: numbers with their mean and scale, or classes with their labels."""

    task: Task | None = None  # None: decided from the values
    shift: float = 0.0
    scale: float = 1.0
    resolution: float = 0.0  # the least difference of two numbers
    labels: list[Any] = field(default_factory=list)  # sorted: whole numbers, truth values or texts
    remarks: list[str] = field(default_factory=list)

    def fit(self, target: Any, weight: np.ndarray | None = None) -> TargetEncoder:
        """Learn from targets; missing ones are left out, and `is_missing` says which rows they are."""
        if self.task not in (None, *TASKS):
            raise ValueError(f"task={self.task!r} is not known; choose 'regression' or 'classification'.")
        missing = self.is_missing(target)
        known = as_target(target).dropna()
        if not len(known):
            raise ValueError("Every target is missing; give rows that have one.")
        self.remarks = [f"{missing.sum()} of {len(missing)} rows have no target: left out."] if missing.any() else []
        if self.task is None:
            self.task = decide_task(known)
            other = TASKS[1 - TASKS.index(self.task)]
            self.remarks.append(f"Taken as {self.task}; say --task {other} if it is not.")  # the command asks
        counts = np.ones(len(known)) if weight is None else np.asarray(weight, float)[~missing]
        if self.task == "classification":
            self.labels = _sorted_labels(known)
            if len(self.labels) < 2:
                raise ValueError(f"The target holds one class only ({self.labels[0]!r}); give at least two classes.")
            rows = np.bincount(positions(self.labels, known), counts, len(self.labels))
            if single := [label for label, count in zip(self.labels, rows, strict=True) if count == 1]:
                what = (
                    f"Class {single[0]!r} has"
                    if len(single) == 1
                    else f"{len(single)} classes, such as {single[0]!r}, have"
                )
                remark = f"{what} one row only: nothing can be tested of it; merge it with another, or add rows."
                self.remarks.insert(0, remark)
            return self
        if kind(known) == "date":
            raise ValueError(
                f"The target holds dates, such as {known.iloc[0]}; give numbers, for instance days since a date."
            )
        values = to_numbers(known)
        if values.min() == values.max():
            raise ValueError(f"The target holds one value only ({values[0]:g}): there is nothing to learn.")
        self.shift, self.scale = _moments(values, counts)
        self.resolution = float(np.diff(np.unique(values)).min())
        return self

    def transform(self, target: Any) -> np.ndarray:
        """Class numbers 0, 1, ..., or numbers in their own units; [N]."""
        values = as_target(target)
        if self.task == "regression":
            return to_numbers(values)
        codes, found = pd.factorize(values)
        position = positions(self.labels, found)
        if unknown := [_plain_label(label) for label in found[position < 0]]:
            raise ValueError(f"The target has classes {unknown[:5]}, unknown to a model of {self.labels}.")
        return position[codes]

    @property
    def is_text(self) -> bool:
        """Whether classes are texts, and to be read as such where a file leaves the choice."""
        return any(isinstance(label, str) for label in self.labels)

    @staticmethod
    def is_missing(target: Any) -> np.ndarray:
        return as_target(target).isna().to_numpy()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TargetEncoder:
        return cls(**stored)


def decide_task(target: pd.Series) -> Task:
    """Texts, truth values and a few whole numbers are classes; all else is a number, a single value too."""
    if (found := kind(target)) != "number":
        return "classification" if found == "category" else "regression"
    written = pd.to_numeric(target) if holds_text(target) else target
    most = FEW_VALUES if pd.api.types.is_integer_dtype(written) else 2  # 0.0 and 1.0 are truth values with gaps
    whole = not (to_numbers(target) % 1).any()
    return "classification" if whole and 1 < target.nunique() <= most else "regression"


def _column(stored: dict[str, Any]) -> Number | Category | Date:
    kind = stored.pop("kind")
    if kind == "Date":
        return Date(**{**stored, "days": Number(**stored["days"])})
    return {"Number": Number, "Category": Category}[kind](**stored)


def _moments(values: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation. Against the first value: sums of large numbers would lose their differences."""
    largest = np.abs(values).max()
    if largest > SQUARABLE:
        mean, std = _moments(values / largest, weight)
        return mean * largest, std * largest
    shifted = values - values[0]
    mean = np.average(shifted, weights=weight)
    return float(values[0] + mean), float(np.sqrt(np.average(np.square(shifted - mean), weights=weight)))


def _median(values: np.ndarray, weight: np.ndarray) -> float:
    """The middle value of a column in which each value stands `weight` times."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    positions = [np.searchsorted(reached, reached[-1] / 2, side) for side in ("left", "right")]
    return float(np.mean(values[order[np.minimum(positions, len(order) - 1)]]))


def _sorted_labels(target: pd.Series) -> list[Any]:
    try:
        return sorted(map(_plain_label, pd.unique(target)))
    except TypeError as error:
        raise ValueError("The target mixes texts and numbers; make its classes all texts or all numbers.") from error


def _plain_label(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, bool | int | float | str) else str(plain)
