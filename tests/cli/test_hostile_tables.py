"""Tables that are wide, packed, damaged or not tables: read right, or refused in one true sentence."""

import csv
import gzip
import io
import json
import os

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest

from posterity.cli import output, tables
from posterity.cli.errors import InputError
from posterity.cli.tables import read_table, write_csv


def test_a_wide_table_is_read(tmp_path):
    """Cut by the wrong separator, each of its lines is one cell beyond the limit of csv."""
    names = [f"measurement_{number}" for number in range(12_000)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join(names)] + [",".join(["0.5"] * len(names))] * 3))
    assert path.stat().st_size > 3 * csv.field_size_limit() / 2
    limit = csv.field_size_limit()
    assert read_table(str(path)).frame.shape == (3, 12_000)
    assert csv.field_size_limit() == limit


def test_a_long_cell_is_read(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("a,b\n" + "x" * 200_000 + ",1\ny,2\n")
    assert list(read_table(str(path)).frame["b"]) == [1, 2]


def test_a_gz_file_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "UNPACKED_BYTES", 10**6)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10**6))
    assert path.stat().st_size < 10**5
    with pytest.raises(InputError, match=r"unpacks to more than 1 MB; if that is meant, unpack it"):
        read_table(str(path))


def nested(path):
    pd.DataFrame({"a": [[1, 2], [3]], "b": [{"x": 1}, {"x": 2}], "c": [1, 2]}).to_parquet(path)


def unknown_metadata(path):
    """Columns described to pandas without their types, as one damaged byte leaves them."""
    frame = pd.DataFrame({"a": [1, 2]})
    table = pyarrow.Table.from_pandas(frame)
    table = table.replace_schema_metadata({b"pandas": table.schema.metadata[b"pandas"].replace(b"pandas_type", b"?")})
    pyarrow.parquet.write_table(table, path)


REFUSED = {
    "nul": ("t.csv", b"a,b\n" + b"1,2\n" * 2000 + b"1,\0\n", r"Line 2002 of .*t.csv holds a NUL byte"),
    "wide nul": ("t.csv", "a,b\n1,\0\n".encode("utf-16"), r"Line 2 of .*t.csv holds a NUL byte"),
    "half of utf-16": ("t.csv", "a,b\n1,2\n".encode("utf-16")[:-1], "begins as UTF-16 and is damaged"),
    "mixed": ("t.csv", "a,b\né,1\n".encode() + "è,2\n".encode("latin-1"), "mixes encodings: line 3 is not UTF-8"),
    "json": ("t.csv", json.dumps([{"a": 1, "b": 2}], indent=1).encode(), "holds JSON, not a table of cells"),
    "json lines": ("t.csv", b'{"a": 1, "b": 2}\n{"a": 2, "b": 3}\n', "holds JSON, not a table of cells"),
    "nested": ("t.parquet", nested, r"has lists or structures in the column\(s\) a, b: a cell must hold one value"),
    "metadata": ("t.parquet", unknown_metadata, "cannot be read as Parquet"),
    "pipe": ("t.csv", os.mkfifo, "is a pipe or a device, not a file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_table_is_refused_in_a_true_sentence(name, tmp_path):
    file, content, message = REFUSED[name]
    path = tmp_path / file
    content(path) if callable(content) else path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_table(str(path))


def test_latin_1_throughout_is_still_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe,b\nä,1\nö,2\n".encode("latin-1"))
    table = read_table(str(path))
    assert list(table.frame["größe"]) == ["ä", "ö"]
    assert table.remarks == ("t.csv is not UTF-8: it was read as Latin-1.",)


HOSTILE = pd.DataFrame({"=cmd()": ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "plain", None], "n": [-1.5] * 7})


def test_formulas_are_quoted_on_request_alone(tmp_path):
    write_csv(HOSTILE, tmp_path / "as_it_is.csv")
    write_csv(HOSTILE, tmp_path / "safe.csv", safe=True)
    plain = pd.read_csv(tmp_path / "as_it_is.csv", dtype=str)
    safe = pd.read_csv(tmp_path / "safe.csv", dtype=str)
    assert plain.columns[0] == "=cmd()"
    assert safe.columns[0] == "'=cmd()"
    assert list(safe["'=cmd()"][:6]) == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\tx", "plain"]
    assert set(safe["n"]) == {"-1.5"}
    assert HOSTILE.columns[0] == "=cmd()"  # the table itself stays


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_control_characters_of_a_table_never_reach_a_terminal(monkeypatch):
    frame = pd.DataFrame({"\x1b[31ma": ["\x9b2J", "b"], "n": [1, 2]})
    shown, piped = Terminal(), io.StringIO()
    write_csv(frame, shown)
    write_csv(frame, piped)
    assert shown.getvalue() == "\\x1b[31ma,n\n\\x9b2J,1\nb,2\n"
    assert piped.getvalue() == "\x1b[31ma,n\n\x9b2J,1\nb,2\n"
    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    output.print_table([{"\x1b]0;x\x07": "\x1b[2J"}])
    output.print_json({"a": "\x1b\x9b\x7f", "b": np.pi})
    output.results().print("\x1b[2J", markup=False)
    output.say_error("There is no column '\x1b[2J'")
    import sys

    for stream in (sys.stdout, sys.stderr):
        assert not set(stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")) & set("\x1b\x9b\x7f\x07")
    text = sys.stdout.getvalue()
    assert json.loads(text[text.index("{\n") : text.index("}") + 1])["a"] == "\x1b\x9b\x7f"
