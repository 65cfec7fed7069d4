"""Tables as numbers: columns of numbers, categories and dates to features of about unit size, and the target.

What was learned from a table is plain numbers and texts (`to_json`), never code. What was done with a column that is
not simply numbers is said in `remarks`.

    number     (value - mean) / standard deviation; where values were missing: the median, and a column that says so
    category   one column of 0 and 1 a category; rare and unseen ones share the column 'other'
    date       days since the first; month, weekday and hour, where they vary, as sine and cosine
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from posterity.types import TASKS, Task

MAX_CATEGORIES = 100  # of one column that get a feature of their own
ROUNDING = 4 * float(np.finfo(float).eps)  # of a column's mean: values that differ by less are one value, rounded
RARE_ROWS = 3  # a category with fewer rows is 'other'
FEW_VALUES = 10  # whole numbers with at most so many values are taken for classes
PERIODS = {"month": 12, "day_of_week": 7, "hour": 24}  # as pandas calls them
MISSING, OTHER = "missing", "other"
DATE_TEXT = re.compile(r"^\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(\D|$)")
PLAIN = "write plain numbers such as 1234.5, without signs, units or thousands separators"
NUMBER_TEXT = re.compile(r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$")


@dataclass(frozen=True)
class Number:
    """A column of numbers. `kept` is False where it never varied: then only the indicator is left, if there is one."""

    name: str
    fill: float  # the median, for missing values
    mean: float
    std: float
    indicator: bool  # a column that is 1 where a value was missing
    kept: bool = True

    @property
    def features(self) -> list[str]:
        return [self.name] * self.kept + [f"{self.name} {MISSING}"] * self.indicator

    def encode(self, column: pd.Series) -> np.ndarray:
        values = to_numbers(column)
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
        codes, texts = _factorized(column)
        place = {text: i for i, text in enumerate(self.categories)}
        unseen = len(self.categories)  # the column 'other', or, where there is none, no column at all
        made = np.zeros((len(column), unseen + 1))
        places = np.array([place.get(text, unseen) for text in texts], int)
        made[np.arange(len(column)), places[codes]] = 1.0
        return made if self.other else made[:, :-1]


@dataclass(frozen=True)
class Date:
    """A column of dates: days since the first, and the parts of the calendar in which they vary."""

    name: str
    first: str
    days: Number
    parts: list[str]

    @property
    def features(self) -> list[str]:
        return self.days.features + [f"{self.name} {part} {wave}" for part in self.parts for wave in ("sin", "cos")]

    def encode(self, column: pd.Series) -> np.ndarray:
        dates = to_dates(column)
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

    def fit(self, table: Any, weight: np.ndarray | None = None) -> TableEncoder:
        """Learn from the rows of a frame or array; a row of weight 2 counts as two rows."""
        frame = as_frame(table)
        weight = np.ones(len(frame)) if weight is None else np.asarray(weight, float)
        if not len(frame):
            raise ValueError("The table has no rows (0 samples); give at least two.")
        self.names, self.remarks, self.columns = list(frame.columns), [], []
        for name in frame.columns:
            made = self._learn(name, pd.Series(frame[name]), weight)
            self.columns += [made] if made is not None and made.features else []
        if not self.columns:
            raise ValueError(f"No column of the table can be learned from. {' '.join(self.remarks)}")
        return self

    def transform(self, table: Any) -> np.ndarray:
        """Features [N, F]."""
        frame = as_frame(table, self.names)
        self._check_names(list(frame.columns))
        return np.concatenate([column.encode(pd.Series(frame[column.name])) for column in self.columns], 1)

    @property
    def features(self) -> list[str]:
        return [feature for column in self.columns for feature in column.features]

    def to_json(self) -> dict[str, Any]:
        columns = [{"kind": type(column).__name__, **dataclasses.asdict(column)} for column in self.columns]
        return {"columns": columns, "names": self.names, "remarks": self.remarks}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TableEncoder:
        return cls([_column(dict(column)) for column in stored["columns"]], stored["names"], stored["remarks"])

    def _learn(self, name: str, column: pd.Series, weight: np.ndarray) -> Number | Category | Date | None:
        if column.isna().all():
            self.remarks.append(f"Column {name!r} is empty: left out.")
            return None
        kind = _kind(column)
        if kind == "category":
            return self._learn_category(name, column, weight)
        if kind == "date":
            return self._learn_date(name, column, weight)
        if column.dtype == object or pd.api.types.is_string_dtype(column):
            self.remarks.append(f"Column {name!r} holds numbers as text: read as numbers.")
        return self._learn_number(name, to_numbers(column), weight)

    def _learn_number(self, name: str, values: np.ndarray, weight: np.ndarray) -> Number:
        missing = np.isnan(values)
        known, counts = values[~missing], weight[~missing]
        fill = _median(known, counts)
        mean, std = _moments(np.where(missing, fill, values), weight)
        constant = not std > ROUNDING * abs(mean) or known.min() == known.max()
        if constant:
            self.remarks.append(f"Column {name!r} has one value only ({known[0]:g}): left out.")
        if missing.any():
            self.remarks.append(f"Column {name!r} lacks {missing.sum()} value(s): filled with the median {fill:g}.")
        return Number(name, fill, mean, 1.0 if constant else std, bool(missing.any()), not constant)

    def _learn_category(self, name: str, column: pd.Series, weight: np.ndarray) -> Category | None:
        codes, texts = _factorized(column)
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
        return Category(name, kept, num_rare > 0)

    def _learn_date(self, name: str, column: pd.Series, weight: np.ndarray) -> Date:
        dates = to_dates(column)
        first = str(dates.min())
        days = self._learn_number(name, to_numbers(dates - pd.Timestamp(first)), weight)
        parts = [part for part in PERIODS if getattr(dates.dt, part).nunique() > 1]
        self.remarks.append(f"Column {name!r} holds dates: days since {first[:10]}" + "".join(f", {p}" for p in parts))
        return Date(name, first, days, parts)

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
            return self
        values = to_numbers(known)
        if values.min() == values.max():
            raise ValueError(f"The target holds one value only ({values[0]:g}): there is nothing to learn.")
        self.shift, self.scale = _moments(values, counts)
        return self

    def transform(self, target: Any) -> np.ndarray:
        """Class numbers 0, 1, ..., or numbers in their own units; [N]."""
        values = as_target(target)
        if self.task == "regression":
            return to_numbers(values)
        codes, found = pd.factorize(values)
        place = {label: i for i, label in enumerate(self.labels)}
        found = [_plain_label(label) for label in found]
        if unknown := [label for label in found if label not in place]:
            raise ValueError(f"The target has classes {unknown[:5]}, unknown to a model of {self.labels}.")
        return np.array([place[label] for label in found], int)[codes]

    @staticmethod
    def is_missing(target: Any) -> np.ndarray:
        return as_target(target).isna().to_numpy()

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> TargetEncoder:
        return cls(**stored)


def as_frame(table: Any, names: list[str] | None = None) -> pd.DataFrame:
    """A frame with texts as column names; columns of an array are called `names`, or x0, x1, ..."""
    if isinstance(table, pd.DataFrame):
        frame = table.copy(deep=False)
        frame.columns = [str(name) for name in table.columns]
    else:
        values = np.asarray(table)
        values = values[:, None] if values.ndim == 1 else values
        if values.ndim != 2:
            raise ValueError(f"A table has two axes, rows and columns; this one has shape {values.shape}.")
        if names is not None and len(names) != values.shape[1]:
            raise ValueError(f"The table has {values.shape[1]} columns; the one learned from had {len(names)}.")
        frame = pd.DataFrame(values, columns=names or [f"x{i}" for i in range(values.shape[1])])  # type: ignore[arg-type]
        frame = frame.infer_objects() if values.dtype == object else frame
    if frame.columns.has_duplicates:
        twice = sorted(set(frame.columns[frame.columns.duplicated()]))
        raise ValueError(f"The table has several columns called {', '.join(map(repr, twice))}; rename them.")
    return frame


def as_target(target: Any) -> pd.Series:
    """One column of targets."""
    values = target.iloc[:, 0] if isinstance(target, pd.DataFrame) and target.shape[1] == 1 else target
    if isinstance(values, pd.Series):
        return values.reset_index(drop=True)
    values = np.asarray(values)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise ValueError(f"y has shape {values.shape}; expected one target per row: fit one model for each target.")
    return pd.Series(values).infer_objects()


def decide_task(target: pd.Series) -> Task:
    """Texts, truth values and a few whole numbers are classes; all else is a number, a single value too."""
    if (kind := _kind(target)) != "number":
        return "classification" if kind == "category" else "regression"
    most = FEW_VALUES if pd.api.types.is_integer_dtype(target) else 2  # 0.0 and 1.0 are truth values with gaps
    whole = not (to_numbers(target) % 1).any()
    return "classification" if whole and 1 < target.nunique() <= most else "regression"


def to_numbers(column: pd.Series) -> np.ndarray:
    """float64 with NaN for missing values; spans of time in days."""
    if pd.api.types.is_timedelta64_dtype(column):
        values = column.dt.total_seconds().to_numpy(float) / 86400
    else:
        try:
            values = pd.Series(pd.to_numeric(column)).to_numpy(float, na_value=np.nan)
        except (ValueError, TypeError) as error:
            raise ValueError(f"Column {column.name!r} must hold numbers: {error}; {PLAIN}.") from error
    if np.isinf(values).any():
        raise ValueError(f"Column {column.name!r} contains infinity; replace such values or leave them empty.")
    return values


def to_dates(column: pd.Series) -> pd.Series:
    """Dates without a time zone (in UTC), NaT for missing ones."""
    try:
        dates = pd.to_datetime(column)
    except (ValueError, TypeError) as error:
        raise ValueError(f"Column {column.name!r} must hold dates: {error}.") from error
    return dates if dates.dt.tz is None else dates.dt.tz_convert("UTC").dt.tz_localize(None)


def _kind(column: pd.Series) -> Literal["number", "category", "date"]:
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    if pd.api.types.is_bool_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return "number"
    values = pd.unique(_hashable(column.dropna()))
    if all(isinstance(value, str) and NUMBER_TEXT.match(value) for value in values):
        return "number"
    return "date" if _are_dates(values) else "category"


def _are_dates(values: Any) -> bool:
    if not all(isinstance(value, str) and DATE_TEXT.match(value) for value in values):
        return False
    with warnings.catch_warnings(), suppress(ValueError, UserWarning):
        warnings.simplefilter("error")  # pandas warns where one format does not suit all
        pd.to_datetime(pd.Series(values))
        return True
    return False


def _factorized(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N] into texts; missing values are the text 'missing'."""
    codes, values = pd.factorize(_hashable(column))
    texts = np.array([*map(str, values), *[MISSING] * int((codes < 0).any())], object)
    return np.where(codes < 0, len(texts) - 1, codes), texts


def _hashable(column: pd.Series) -> pd.Series:
    """Lists and dicts as texts: a category must be comparable."""
    odd = column.dtype == object and not all(isinstance(value, Hashable) for value in column)
    return column.map(str, na_action="ignore") if odd else column


def _column(stored: dict[str, Any]) -> Number | Category | Date:
    kind = stored.pop("kind")
    if kind == "Date":
        return Date(**{**stored, "days": Number(**stored["days"])})
    return {"Number": Number, "Category": Category}[kind](**stored)


def _moments(values: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation. Against the first value: sums of large numbers would lose their differences."""
    shifted = values - values[0]
    mean = np.average(shifted, weights=weight)
    return float(values[0] + mean), float(np.sqrt(np.average(np.square(shifted - mean), weights=weight)))


def _median(values: np.ndarray, weight: np.ndarray) -> float:
    """The middle value of a column in which each value stands `weight` times."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    places = [np.searchsorted(reached, reached[-1] / 2, side) for side in ("left", "right")]
    return float(np.mean(values[order[np.minimum(places, len(order) - 1)]]))


def _sorted_labels(target: pd.Series) -> list[Any]:
    try:
        return sorted(map(_plain_label, pd.unique(target)))
    except TypeError as error:
        raise ValueError("The target mixes texts and numbers; make its classes all texts or all numbers.") from error


def _plain_label(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, bool | int | float | str) else str(plain)
