"""Tables from files and by name: what is read, and what had to be guessed, in sentences."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pandas as pd

from posterity.cli.errors import InputError
from posterity.cli.spreadsheets import read_excel
from posterity.core.names import nearest_name, printable
from posterity.tables.reading import Reading

BUNDLED = ("diabetes", "iris", "wine", "breast_cancer", "digits", "curve")
DEFAULT = "diabetes"
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
SNIFFED_LINES = 50
UNPACKED_BYTES = 10**9  # of a .gz file: a thousandth of it may unpack to as much
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes cells that begin so
ALIKE = 0.5  # from here on a name may have been meant by another; 1 is the same


class NamedTable(NamedTuple):
    """A table with the name it is reported under."""

    title: str
    frame: pd.DataFrame
    target: str | None  # of a bundled table
    remarks: tuple[str, ...]


def read_table(source: str | None, texts: Collection[str] = ()) -> NamedTable:
    """A CSV, Parquet or Excel file, or a bundled table by its name; the bundled diabetes where nothing is named.

    Columns in `texts` are read as they are written, whatever they look like.
    """
    if source is None:
        remark = f"No table was named: this is the bundled one, {DEFAULT}. Others: {', '.join(BUNDLED[1:])}."
        return bundled(DEFAULT)._replace(remarks=(remark,))
    path = Path(source)
    if source in BUNDLED and not path.is_file():
        return bundled(source)
    if not path.exists():
        raise InputError(_not_found(source))
    if path.is_dir():
        raise InputError(f"{source} is a folder; give a CSV, Parquet or Excel file, or one of {', '.join(BUNDLED)}.")
    if not path.is_file():
        raise InputError(f"{source} is a pipe or a device, not a file: write the table to a file, and give that.")
    if path.stat().st_size == 0:
        raise InputError(f"{source} is empty; give a CSV file with a line of column names and a row for each case.")
    if path.suffix in (".parquet", ".pq"):
        frame, remarks = _read_parquet(path)
    elif path.suffix in (".xlsx", ".xlsm", ".xls"):
        frame, remarks = read_excel(path, texts)
    else:
        frame, remarks = _read_csv(path, texts)
    frame, more = _tidy(frame, source)
    return NamedTable(path.name.split(".")[0], frame, None, (*remarks, *more))


def write_csv(frame: pd.DataFrame, out: Path | IO[str], safe: bool = False) -> None:
    """A table as CSV. `safe`: no spreadsheet takes a text for a formula. A terminal gets no control characters."""
    if safe:
        frame = _with_texts(frame, lambda text: f"'{text}" if text.startswith(FORMULA) else text)
    if not isinstance(out, Path) and out.isatty():
        frame = _with_texts(frame, printable)
    frame.to_csv(out, index=False)


def _with_texts(frame: pd.DataFrame, change: Callable[[str], str]) -> pd.DataFrame:
    """Every text of a table changed, those of its column names too."""
    texts = frame.select_dtypes(exclude="number").map(lambda cell: change(cell) if isinstance(cell, str) else cell)
    return frame.assign(**texts).rename(columns=change)


def check_target(table: NamedTable, target: str | None) -> str:
    """The column to predict; a mistyped name is answered with the nearest one."""
    columns = [str(name) for name in table.frame.columns]
    chosen = target or table.target
    if chosen is None:
        raise InputError(f"Say which column to predict: --target NAME. The columns are {shortened(columns)}.")
    if chosen not in columns:
        guess = similar_name(chosen, columns)
        hint = f" Did you mean --target {_quoted(guess)}?" if guess else ""
        raise InputError(f"There is no column {chosen!r} in {table.title}.{hint} The columns are {shortened(columns)}.")
    if len(columns) == 1:
        raise InputError(f"{table.title} has the one column {chosen!r}; at least one more is needed.")
    return chosen


def read_so(table: NamedTable, reading: Reading, target: str) -> NamedTable:
    """The table read as the options on its columns ask for."""
    try:
        reading.check(list(table.frame.columns), target)
    except ValueError as error:
        raise InputError(f"{error} The columns are {shortened(list(table.frame.columns))}.") from error
    frame, remarks = reading.apply(table.frame)
    return table._replace(frame=frame, remarks=(*table.remarks, *remarks))


def bundled(name: str) -> NamedTable:
    """scikit-learn's own small tables, and a curve with a gap."""
    if name == "curve":
        rng = np.random.default_rng(0)
        x = np.concatenate([rng.uniform(-3, -0.8, 90), rng.uniform(0.8, 3, 90)])
        y = np.sin(1.5 * x) + 0.3 * x + 0.1 * rng.normal(size=len(x))
        return NamedTable(name, pd.DataFrame({"x": x, "y": y}), "y", ())
    import sklearn.datasets

    read = getattr(sklearn.datasets, f"load_{name}")
    found = read(as_frame=True, scaled=False) if name == "diabetes" else read(as_frame=True)
    frame: pd.DataFrame = found.frame
    if name in ("iris", "wine", "breast_cancer"):
        frame["target"] = found.target_names[frame["target"].to_numpy()]
    return NamedTable(name, frame, "target", ())


def similar_name(name: str, names: Iterable[str]) -> str:
    """The nearest of the names; "" where none is like it, as a guess that shares nothing misleads."""
    choices = list(names)
    guess = nearest_name(name, choices) if choices else ""
    return guess if SequenceMatcher(None, name.lower(), guess.lower()).ratio() >= ALIKE else ""


def shortened(names: list[str], most: int = 12) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _not_found(source: str) -> str:
    path = Path(source)
    folder = path.parent
    beside = [entry.name for entry in folder.iterdir() if entry.is_file()] if folder.is_dir() else []
    candidates = [*beside, *(BUNDLED if folder == Path() else ())]
    guess = similar_name(path.name, candidates)
    hint = f" Did you mean {folder / guess if guess in beside else guess}?" if guess else ""
    return f"There is no file {source}.{hint} Bundled tables: {', '.join(BUNDLED)}."


def _read_parquet(path: Path) -> tuple[pd.DataFrame, tuple[str, ...]]:
    import pyarrow
    import pyarrow.parquet

    try:
        schema = pyarrow.parquet.read_schema(path)
        nested = [field.name for field in schema if pyarrow.types.is_nested(field.type)]
        if nested:
            raise InputError(
                f"{path} has lists or structures in the column(s) {shortened(nested)}: a cell must hold one value. "
                "Give each part a column of its own, or leave them out."
            )
        return pd.read_parquet(path), ()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet ({error}); if it is text, name it .csv.") from error


def _read_csv(path: Path, texts: Collection[str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """A text table: its separator, its decimal mark and whether it has names are found out, and said if unusual."""
    text, remarks = _text(path)
    lines = [line for line in itertools.islice(io.StringIO(text), SNIFFED_LINES) if line.strip()]
    if not lines:
        raise InputError(f"{path} holds no line of text; give a line of column names and a row for each case.")
    if _is_json(text):
        raise InputError(f"{path} holds JSON, not a table of cells; in Python: pandas.read_json(...).to_csv(...).")
    try:
        with _cells_of_any_length():
            separator = _separator(lines)
            cells = list(csv.reader(lines, delimiter=separator, skipinitialspace=True))
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as a table: {error}; close its quotation marks.") from error
    if separator != ",":
        remarks.append(f"Columns of {path.name} are separated by {SEPARATORS[separator]}.")
    comma = separator != "," and _has_decimal_commas(cells[1:])
    if comma:
        remarks.append("Numbers are written with a decimal comma.")
    named = not all(_is_number(cell) for cell in cells[0])
    if named and len(cells) > 1 and len(cells[1]) > len(cells[0]):  # pandas would take cells for names of rows
        raise InputError(_too_many_cells(path, len(cells[0]), len(cells[1])))
    if named:
        _check_names([cell.strip() for cell in cells[0] if cell.strip()], str(path))  # pandas would number the second
    written = {cell: cell.strip() for cell in cells[0]} if named else dict(enumerate(_numbered(len(cells[0]))))
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            decimal="," if comma else ".",
            header=0 if named else None,
            skipinitialspace=True,
            dtype={key: str for key, name in written.items() if name in texts},
            low_memory=False,  # a column is read as a whole: in parts, 01 would be 1 in some of them
        )
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} cannot be read as a table: {str(error).strip()}. Mend that line.") from error
    if not named:
        frame.columns = _numbered(frame.shape[1])
        remarks.append(f"The first line of {path.name} holds numbers, not names: columns are called column_1, ...")
    return frame, tuple(remarks)


def _numbered(count: int) -> list[str]:
    return [f"column_{number}" for number in range(1, count + 1)]


def _check_names(names: list[str], source: str) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"{source} has several columns called {shortened(twice)}; give each a name of its own.")


def _too_many_cells(path: Path, num_names: int, num_cells: int) -> str:
    return (
        f"The first line of {path} names {num_names} column(s), and the lines below it hold {num_cells} cells: give "
        "every column a name, the first one too, or write the table without row names (in R, row.names=FALSE); no line "
        "may end in a separator."
    )


def _text(path: Path) -> tuple[str, list[str]]:
    payload = _unpacked(path) if path.suffix == ".gz" else path.read_bytes()
    wide = payload.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in payload[:4096] and not wide:
        raise InputError(f"{path} is not a text file; save the table as CSV (.csv) or Parquet (.parquet).")
    text, remarks = _decoded(path, payload, "utf-16" if wide else "utf-8-sig")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise InputError(
            f"Line {line} of {path} holds a NUL byte, which no text does: the file is damaged; copy it anew."
        )
    return text, remarks


def _decoded(path: Path, payload: bytes, encoding: str) -> tuple[str, list[str]]:
    try:
        return payload.decode(encoding), [f"{path.name} is written in UTF-16."] if encoding == "utf-16" else []
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            raise InputError(f"{path} begins as UTF-16 and is damaged ({error.reason}); save it as UTF-8.") from error
    lines = [(number, line) for number, line in enumerate(payload.split(b"\n"), 1) if not line.isascii()]
    others = [number for number, line in lines if not _is_utf8(line)]
    if len(others) < len(lines):  # read as one encoding, the lines of the other would come out garbled
        raise InputError(
            f"{path} mixes encodings: line {others[0]} is not UTF-8, and other lines are. Save it as UTF-8 throughout."
        )
    return payload.decode("latin-1"), [f"{path.name} is not UTF-8: it was read as Latin-1."]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unpacked(path: Path) -> bytes:
    """The content of a .gz file, as far as memory for it is a fair thing to ask."""
    try:
        with gzip.open(path) as file:
            payload = file.read(UNPACKED_BYTES + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"{path} cannot be unpacked ({error}); copy it again, or, if it is not compressed, name it {path.stem}."
        ) from error
    if len(payload) > UNPACKED_BYTES:
        raise InputError(
            f"{path} unpacks to more than {UNPACKED_BYTES / 1e6:,.0f} MB; if that is meant, unpack it, and give the "
            "file that comes out."
        )
    return payload


def _is_json(text: str) -> bool:
    """Whether a text is one JSON document, or one in each line."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    for part in (text.lstrip().split("\n", 1)[0], text):
        try:
            json.loads(part)
        except (ValueError, RecursionError):
            continue
        return True
    return False


@contextmanager
def _cells_of_any_length() -> Iterator[None]:
    """csv refuses cells of more than 131,072 characters; a whole line is one where the separator is another."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _separator(lines: list[str]) -> str:
    """The one that cuts every line into the same number of cells, the more the better; a comma where none does.

    Where none does, the line of names may be one cell short, as it is above names of rows.
    """
    best, most = ",", (False, 1)
    for separator in SEPARATORS:
        first, *others = (len(cells) for cells in csv.reader(lines, delimiter=separator))
        count = others[0] if others else first
        alike = {count, *others} == {count} and count - first in (0, 1) and count > 1
        if alike and (count == first, count) > most:
            best, most = separator, (count == first, count)
    return best


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell.strip() for row in rows for cell in row]
    return any("," in cell and _is_number(cell.replace(",", ".", 1)) for cell in cells) and not any(
        "." in cell and _is_number(cell) for cell in cells
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _tidy(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    if frame.empty:
        raise InputError(f"{source} has column names and no rows; give a row for each case.")
    remarks = []
    frame = frame.reset_index(drop=True)  # predictions are put beside the rows by their place
    frame.columns = [str(name).strip() for name in frame.columns]
    _check_names(list(frame.columns), source)
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_object_dtype(column) and pd.api.types.infer_dtype(column).startswith("mixed"):
            frame[name] = column.map(str, na_action="ignore")  # a column has one kind of value
    first = frame.columns[0]
    if first.startswith("Unnamed:") and frame[first].equals(pd.Series(range(len(frame)), name=first)):
        frame = frame.drop(columns=first)
        remarks.append("The first column has no name and counts the rows: it is left out.")
    return _named(frame, remarks), tuple(remarks)


def _named(frame: pd.DataFrame, remarks: list[str]) -> pd.DataFrame:
    """Columns without a name get one by their place."""
    names = list(frame.columns)
    for place, name in enumerate(names):
        if name.startswith("Unnamed:") or not name:
            names[place] = next(new for new in _names_for(place + 1) if new not in names)
            remarks.append(f"Column {place + 1} has no name: it is called {names[place]}.")
    return frame.set_axis(names, axis=1)


def _names_for(place: int) -> Iterator[str]:
    return (f"column_{place}{'_' * further}" for further in itertools.count())


def _quoted(name: str) -> str:
    return f"'{name}'" if " " in name else name
