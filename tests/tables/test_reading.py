"""Options on columns: left out, numbers, categories, gaps; from a file, kept for new rows."""

import io

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from posterity.cli import app, spreadsheets, tables
from posterity.cli.errors import InputError
from posterity.tables.reading import Reading


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_what_is_asked_is_done_and_said():
    frame = pd.DataFrame(
        {"id": [1, 2, 3, 4], "size": ["1", "2", "large", "-"], "code": [1, 2, 999, 4], "name": ["a", "unk", "b", "b"]}
    )
    reading = Reading(drop=("id",), numeric=("size",), category=("code",), missing=("999", "unk"))
    found, remarks = reading.apply(frame)
    assert list(found) == ["size", "code", "name"]
    np.testing.assert_array_equal(found["size"], [1, 2, np.nan, np.nan])
    assert isinstance(found["code"].dtype, pd.CategoricalDtype)
    assert found["code"].isna().tolist() == [False, False, True, False]
    assert found["name"].isna().tolist() == [False, True, False, False]
    assert remarks == [
        "Left out as asked: id.",
        "Column 'code': 1 cell(s) are missing, by --missing.",
        "Column 'name': 1 cell(s) are missing, by --missing.",
        "Column 'size': 1 cell(s) are no numbers, 'large', and so missing.",
    ]
    assert Reading.from_json(reading.to_json()) == reading
    assert Reading.from_json({}) == Reading()


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading(drop=("sise",)), "--drop: there is no column 'sise'; did you mean 'size'?"),
        (Reading(drop=("price",)), "'price' is the column to predict"),
        (Reading(numeric=("size",), category=("size",)), "given to --numeric and to --category"),
    ],
)
def test_what_cannot_be_done_is_refused(reading, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        reading.check(["size", "price"], "price")


def test_the_command_reads_columns_as_asked_and_new_rows_alike(tmp_path):
    rng = np.random.default_rng(0)
    code, size = rng.choice(["01", "02", "03"], 60), rng.normal(size=60).round(3)
    price = np.where(code == "02", 50, 10) + size
    table = pd.DataFrame({"id": range(60), "code": code, "size": np.where(np.arange(60) % 9, size, 999), "": "x"})
    path, folder = tmp_path / "table.csv", tmp_path / "fit"
    table.assign(price=[f"$1,0{value:05.2f}" for value in price]).to_csv(path, index=False)
    options = ("--drop", "id", "--category", "code", "--missing", "999")
    done = run("fit", path, "--target", "price", "--method", "map", "--effort", 0.01, "--out", folder, *options)
    assert done.exit_code == 0, done.output
    printed = " ".join(done.stderr.split())
    for words in ("Left out as asked: id.", "'size': 7 cell(s) are missing, by --missing", "'code' holds 3 categories"):
        assert words in printed
    assert "Column 4 has no name: it is called column_4." in printed
    predicted = run("predict", folder, path)
    assert predicted.exit_code == 0, predicted.output
    assert pd.read_csv(io.StringIO(predicted.stdout))["mean"].between(900, 1200).all()
    assert "'size': 7 cell(s) are missing, by --missing" in " ".join(predicted.stderr.split())
    wrong = run("fit", path, "--target", "price", "--drop", "colour")
    assert wrong.exit_code == 2
    assert "there is no column 'colour'" in wrong.stderr


def test_excel_without_its_extra_is_answered_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(spreadsheets, "ENGINE", "no_such_engine")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"pip install 'posterity\[excel\]'; or save it as CSV"):
        tables.read_table(str(tmp_path / "t.xlsx"))
    (tmp_path / "t.xls").write_bytes(b"x")
    with pytest.raises(InputError, match=r"save it as .xlsx or .csv"):
        tables.read_table(str(tmp_path / "t.xls"))


def test_excel_is_read_beside_csv(tmp_path):
    pytest.importorskip("openpyxl", reason="an extra: pip install 'posterity[excel]'")
    frame = pd.DataFrame({"code": ["01", "02"], "size": [1.5, None]})
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        frame.to_excel(book, sheet_name="first", index=False)
        frame.to_excel(book, sheet_name="second", index=False)
    table = tables.read_table(str(tmp_path / "t.xlsx"), ["code"])
    pd.testing.assert_frame_equal(table.frame, frame)
    assert table.remarks == ("Of t.xlsx, the first sheet 'first' is read; it has 1 more.",)
    (tmp_path / "broken.xlsx").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match="cannot be read as Excel"):
        tables.read_table(str(tmp_path / "broken.xlsx"))
