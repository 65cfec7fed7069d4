"""Tables from Excel files: the first sheet, read by openpyxl, which is an extra."""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Collection
from pathlib import Path

import pandas as pd

from posterity.cli.errors import InputError

ENGINE = "openpyxl"


def read_excel(path: Path, texts: Collection[str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The table of the first sheet; columns in `texts` are read as they are written."""
    if path.suffix == ".xls":
        raise InputError(f"{path} is in Excel's format of before 2007; save it as .xlsx or .csv.")
    if importlib.util.find_spec(ENGINE) is None:
        raise InputError(
            f"{path} is an Excel file, which takes an extra to read: pip install 'posterity[excel]'; or save it as CSV."
        )
    try:
        with pd.ExcelFile(path, engine=ENGINE) as book:
            first, *others = [str(name) for name in book.sheet_names]
            frame = pd.DataFrame(book.parse(first, dtype=dict.fromkeys(texts, str)))
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as Excel ({error}); save it again, or as .csv.") from error
    return frame, (f"Of {path.name}, the first sheet {first!r} is read; it has {len(others)} more.",) if others else ()
