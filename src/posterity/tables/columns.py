"""What one column of a table holds, numbers, categories or dates, and its values as such.

Numbers and dates come as texts from a CSV file, and as objects (decimals, dates, periods) from Parquet and Python: they
are the same numbers and dates, and the same category is `1`, `1.0` or `"1"`. How texts write numbers and gaps is known
to written.py.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable
from contextlib import suppress
from typing import Any, Literal

import numpy as np
import pandas as pd

from posterity.tables.written import PLAIN_NUMBER, amount, common_unit, is_gap

MISSING = "missing"
DATE_TEXT = re.compile(r"^\s*\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(\D|$)")
YEAR_LAST = re.compile(r"^\s*(\d{1,2})([-/.])(\d{1,2})\2(\d{4}|\d{2})(?!\d)")
MONTHS = 12
CENTURY = 69  # years of two digits from here on are of 1900, as strptime has it
PLAIN = "write plain numbers such as 1234.5, without signs, units or thousands separators"
PLAIN_DATE = "write 2020-12-31"
WHOLE_TEXT = re.compile(r"^(-?\d+)\.0+$")
TRUTH = {"true": "1", "false": "0"}

Kind = Literal["number", "category", "date"]
Order = Literal["day", "month"]  # which of them comes first in dates that end in a year


def settled(column: pd.Series) -> pd.Series:
    """The column in the type of what it holds, where that is numbers, dates or spans of time held as objects."""
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if pd.api.types.is_complex_dtype(column):
        raise ValueError(_complex(column))
    if column.dtype != object:
        return column
    held = pd.api.types.infer_dtype(column, skipna=True)
    if held == "complex":
        raise ValueError(_complex(column))
    if held == "period":
        return to_dates(column.map(lambda period: period.to_timestamp(), na_action="ignore"))
    if held in ("date", "datetime", "datetime64"):
        return to_dates(column)
    if held in ("timedelta", "timedelta64"):
        return pd.to_timedelta(column)
    if held == "integer":
        with suppress(OverflowError):
            return column.astype("Int64")  # float would hide that a target with gaps holds whole numbers
    if held in ("integer", "floating", "mixed-integer-float", "decimal"):
        try:
            values = column.to_numpy(float, na_value=np.nan)
        except OverflowError as error:
            raise ValueError(f"Column {column.name!r} holds numbers beyond 1.8e308; rescale it.") from error
        return pd.Series(values, column.index, name=column.name)
    return column


def _complex(column: pd.Series) -> str:
    return (
        f"Column {column.name!r} holds complex numbers; give real ones: their absolute values, or real and imaginary "
        "parts as two columns."
    )


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
    for name in frame.columns:
        column = settled(pd.Series(frame[name]))
        if column.dtype != frame[name].dtype:
            frame[name] = column
    return frame


def as_target(target: Any) -> pd.Series:
    """One column of targets."""
    values = target.iloc[:, 0] if isinstance(target, pd.DataFrame) and target.shape[1] == 1 else target
    if isinstance(values, pd.Series):
        return _read_target(settled(values.reset_index(drop=True)))
    values = np.asarray(values)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.ndim != 1:
        raise ValueError(f"y has shape {values.shape}; expected one target per row: fit one model for each target.")
    return _read_target(settled(pd.Series(values).infer_objects()))


def _read_target(column: pd.Series) -> pd.Series:
    """Marks of missing values as such, and numbers with units or thousands as numbers; plain texts stay."""
    if not holds_text(column):
        return column
    column = column.mask(gaps(column))
    written = [value for value in column.dropna().unique() if isinstance(value, str)]
    if kind(column) != "number" or all(PLAIN_NUMBER.match(value) for value in written):
        return column
    numbers = pd.Series(to_numbers(column), column.index, name=column.name)
    return numbers if (numbers % 1).any() else numbers.astype("Int64")


def kind(column: pd.Series) -> Kind:
    """What a settled column holds."""
    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    if pd.api.types.is_bool_dtype(column) or isinstance(column.dtype, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_timedelta64_dtype(column):
        return "number"
    values = [value for value in pd.unique(_hashable(column.dropna())) if not is_gap(value, among_numbers=True)]
    if all(isinstance(value, str) and PLAIN_NUMBER.match(value) for value in values):
        return "number"
    if _are_dates(values):
        return "date"
    return "category" if common_unit(values) is None else "number"


def gaps(column: pd.Series) -> np.ndarray:
    """Which cells are missing, or marked so: `?` in any column, also `-` in one of numbers or dates."""
    missing = column.isna().to_numpy()
    if not holds_text(column):
        return missing
    values, among = _hashable(column), kind(column) != "category"
    marked = [value for value in values.dropna().unique() if is_gap(value, among)]
    return missing | values.isin(marked).to_numpy()


def unit(column: pd.Series) -> str:
    """What numbers written as text have in common, such as $ or %; "" where they are plain."""
    if not holds_text(column):
        return ""
    return common_unit(value for value in pd.unique(column.mask(gaps(column)).dropna()) if isinstance(value, str)) or ""


def holds_text(column: pd.Series) -> bool:
    return column.dtype == object or pd.api.types.is_string_dtype(column)


def to_numbers(column: pd.Series, learned: str | None = None) -> np.ndarray:
    """float64 with NaN for missing values; spans of time in days.

    `learned`: the unit that the column had in training, None while it is learned.
    """
    if pd.api.types.is_timedelta64_dtype(column):
        values = column.dt.total_seconds().to_numpy(float) / 86400
    elif holds_text(column):
        values = _read_numbers(_hashable(column), learned)
    else:
        values = pd.Series(pd.to_numeric(column)).to_numpy(float, na_value=np.nan)
    if learned == "%" and not holds_text(column) and not np.isnan(values).all():
        raise ValueError(f"Column {column.name!r} was learned in %; write '12 %', not 12 or 0.12.")
    if np.isinf(values).any():
        raise ValueError(
            f"Column {column.name!r} contains infinity, or a number beyond 1.8e308; replace such values or leave them "
            "empty."
        )
    return values


def _read_numbers(column: pd.Series, learned: str | None) -> np.ndarray:
    """Each different text is read once."""
    different = {value: str(value) for value in column.dropna().unique()}
    numbers = {value: text for value, text in different.items() if not is_gap(text, among_numbers=True)}
    wanted = common_unit(numbers.values()) if learned is None else learned
    read = dict.fromkeys(different, np.nan)
    for value, text in numbers.items():
        found = amount(text)
        if found is None:
            raise ValueError(f"Column {column.name!r} must hold numbers: got {text!r}; {PLAIN}.")
        if wanted is None or (found.unit != wanted and (found.unit or wanted == "%")):
            how = "in one unit" if wanted is None else f"in {wanted}, as learned" if wanted else "without a unit"
            raise ValueError(f"Column {column.name!r} must hold numbers {how}: got {text!r}; {PLAIN}.")
        read[value] = found.value
    return column.map(read).to_numpy(float)


def to_dates(column: pd.Series, order: Order | None = None) -> pd.Series:
    """Dates without a time zone (in UTC), NaT for missing ones; `order` None: as the column itself shows."""
    written = column
    if not pd.api.types.is_datetime64_any_dtype(column):
        values = _hashable(column).astype(object)
        values = values.mask(values.map(lambda value: is_gap(value, among_numbers=True)))
        different = pd.unique(values.dropna())  # each is looked at once
        first = order or date_order(different)[0]
        written = values.map({value: _year_first(value, first) for value in different})
    dates = _read_dates(written)
    unread = (dates.isna() & written.notna()).to_numpy()
    if unread.any():
        how = ", all written alike" + (f", {order} first as in training" if order else "")
        got = str(column.iloc[int(unread.argmax())])
        raise ValueError(f"Column {column.name!r} must hold dates{how}; got {got!r}: {PLAIN_DATE}.")
    return dates.dt.tz_localize(None)


def date_order(values: Iterable[Any]) -> tuple[Order | None, bool]:
    """What comes first in dates that end in a year, None where there are none; and whether some date shows it.

    13/01/2020 shows that it is the day, 01/13/2020 the month; 01/02/2020 shows nothing, and is taken for 2 January.
    """
    found = [match for value in values if isinstance(value, str) and (match := YEAR_LAST.match(value))]
    if any(int(match[1]) > MONTHS for match in found):
        return "day", True
    return "month" if found else None, any(int(match[3]) > MONTHS for match in found)


def to_texts(column: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N] into different texts; a gap is the text 'missing', as where someone has written it out."""
    codes, values = pd.factorize(_hashable(column))
    texts = [MISSING if is_gap(value, among_numbers=False) else _text(value) for value in values]
    texts = np.array([*texts, MISSING], object)  # the last: of code -1, a gap
    codes, different = pd.factorize(texts[codes])
    return codes, np.asarray(different)


def positions(known: Iterable[Any], values: Iterable[Any]) -> np.ndarray:
    """Where each value stands among those known, by its text; -1 where it does not.

    A text not known as it is may be so as a number or truth value: 1.0 is 1, TRUE is True, and True is 1.
    """
    texts = [_text(value) for value in known]
    position = {_plainest(text): i for i, text in enumerate(texts)} | {text: i for i, text in enumerate(texts)}
    return np.array([position.get(text, position.get(_plainest(text), -1)) for text in map(_text, values)], int)


def _are_dates(values: Any) -> bool:
    if not all(isinstance(value, str) and DATE_TEXT.match(value) for value in values):
        return False
    with warnings.catch_warnings(), suppress(ValueError, UserWarning):
        warnings.simplefilter("error")  # pandas warns where one format does not suit all
        to_dates(pd.Series(values))
        return True
    return False


def _read_dates(written: pd.Series) -> pd.Series:
    """In UTC, NaT where unread: in the format of the first date, or in any of ISO 8601, with seconds or without."""
    alike, iso = (pd.to_datetime(written, utc=True, errors="coerce", format=name) for name in (None, "ISO8601"))
    return pd.Series(alike).fillna(pd.Series(iso))


def _year_first(value: Any, order: Order | None) -> Any:
    """13/01/2020 as 2020-01-13, which can be read in one way only."""
    found = YEAR_LAST.match(value) if isinstance(value, str) else None
    if found is None:
        return value
    day, month = (found[1], found[3]) if order == "day" else (found[3], found[1])
    year = int(found[4]) + (0 if len(found[4]) == 4 else 1900 if int(found[4]) >= CENTURY else 2000)
    return f"{year:04}-{month:0>2}-{day:0>2}{value[found.end() :]}"


def _text(value: Any) -> str:
    """Whole numbers without .0, which a gap elsewhere in their column adds to them."""
    return str(int(value)) if isinstance(value, float | np.floating) and value.is_integer() else str(value)


def _plainest(text: str) -> str:
    return TRUTH.get(text.lower(), WHOLE_TEXT.sub(r"\1", text))


def _hashable(column: pd.Series) -> pd.Series:
    """Lists and dicts as texts: a category must be comparable."""
    odd = column.dtype == object and not all(isinstance(value, Hashable) for value in column)
    return column.map(str, na_action="ignore") if odd else column
