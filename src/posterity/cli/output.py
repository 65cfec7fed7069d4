"""Where things are printed: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posterity.core.names import CONTROL, printable

WIDE = 200  # columns of a table that goes to a file or a pipe: no cell is cut off there


class Screen(Console):
    """A console that shows control characters of names and values, which a terminal would obey, as escapes."""

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(printable(text), **settings)


def results() -> Console:
    """Standard output as it is now: a test or a pipe may have replaced it."""
    console = Screen(file=sys.stdout, highlight=False)
    return console if console.is_terminal else Screen(file=sys.stdout, highlight=False, width=WIDE)


def say(text: str, style: str = "") -> None:
    """A line of progress or a remark."""
    Screen(file=sys.stderr, highlight=False).print(text, style=style or None, markup=False, soft_wrap=True)


def say_error(text: str) -> None:
    say(f"Error: {text}", style="bold red")


def print_json(value: Any) -> None:
    """One JSON document; numbers that JSON does not have (NaN, infinity) become null, other values (dates) text."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_table(rows: list[dict[str, str]], title: str | None = None, left: tuple[str, ...] = ()) -> None:
    """Rows as a table with their keys as headings; columns in `left` are text, the others are numbers."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    for row in rows:
        table.add_row(*row.values())
    results().print(table, markup=False)


def finite(value: Any) -> Any:
    """The value with None in place of every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def duration(seconds: float) -> str:
    """5 s, 3 min, 2.5 h: as precise as a reader needs."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
