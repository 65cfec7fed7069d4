"""Tables of the command: new rows are read as those of the fit were, and what cannot be read is said."""

import gzip
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from posterity import MAP
from posterity.cli import app, fitting, tables
from posterity.cli.errors import InputError
from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.pipeline import TableCode

ROWS = 24
TRAINED = pd.DataFrame({"code": ["01", "02", "3", "4A"] * 6, "on": [True, False] * 12})
TRAINED["when"] = [f"{day}/01/2020" for day in range(1, ROWS + 1)]
FITTED = TableEncoder().fit(TRAINED)
LABELS = pd.Series(["1", "2", "x"] * 8)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def loaded(monkeypatch):
    """The encoders of a fit in place of the fit; its predictions are its features."""
    stored = json.loads(json.dumps(TableCode(FITTED, TargetEncoder().fit(LABELS)).metadata()))
    posterior = SimpleNamespace(metadata=stored, predict=lambda features: features, calibration=None, method=MAP())
    monkeypatch.setattr(fitting, "load_fit", lambda _: (posterior, TableCode.of(posterior)))
    monkeypatch.setattr(fitting, "predicted_columns", lambda *given: pd.DataFrame(given[1], columns=FITTED.features))
    return posterior


def test_new_rows_are_read_as_those_of_the_fit_were(loaded, tmp_path):
    path = tmp_path / "new.csv"
    path.write_text("code;on;when;y\n01;TRUE;02/01/2020;1\n02;0;03/01/2020;2\n;1;04/01/2020;\n9;0;05/01/2020;2\n")
    done = run("predict", "fit", path, "--json")
    assert done.exit_code == 0, done.output
    found = pd.DataFrame(json.loads(done.stdout))
    np.testing.assert_array_equal(found["code=01"], [1, 0, 0, 0])
    np.testing.assert_array_equal(found["code=02"], [0, 1, 0, 0])
    np.testing.assert_array_equal(found["on=True"], [1, 0, 1, 0])
    dates = FITTED.transform(TRAINED)[1:5, FITTED.features.index("when")]
    np.testing.assert_allclose(found["predicted_when"], dates)  # the 2nd to the 5th of January
    assert "'code': 2 of 4 rows hold categories unseen in training" in done.stderr
    assert "separated by semicolons" in done.stderr


def test_labels_that_only_look_different_are_scored(loaded, tmp_path, monkeypatch):
    path = tmp_path / "later.csv"
    path.write_text("code,on,when,y\n01,TRUE,02/01/2020,1\n02,0,03/01/2020,2\n")
    scored = []
    monkeypatch.setattr(fitting.metrics, "evaluate", lambda _, y: scored.extend(y) or {})
    done = run("evaluate", "fit", path, "--json")
    assert done.exit_code == 0, done.output
    assert scored == [0, 1]


def test_predictions_beside_predictions_get_names_of_their_own(loaded, tmp_path):
    TRAINED.to_csv(tmp_path / "0.csv", index=False)
    for number in range(3):
        done = run("predict", "fit", tmp_path / f"{number}.csv", "--out", tmp_path / f"{number + 1}.csv", "--json")
        assert done.exit_code == 0, done.output
    names = (tmp_path / "3.csv").read_text().splitlines()[0].split(",")
    assert len(set(names)) == len(names)
    assert len(json.loads(done.stdout)) == ROWS  # --json prints what --out keeps


@pytest.mark.parametrize("name", tables.BUNDLED)
def test_the_task_of_bundled_tables(name):
    table = tables.bundled(name)
    task = "regression" if name in ("diabetes", "curve") else "classification"
    assert TargetEncoder().fit(table.frame[table.target]).task == task


WHOLE = gzip.compress(b"a,y\n" + b"1,2\n" * 900, mtime=0)  # in the names of cases, which all workers must share


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("plain.csv.gz", b"a,y\n1,2\n", "if it is not compressed, name it plain.csv"),
        ("cut.csv.gz", WHOLE[:-12], "copy it again"),
        ("damaged.csv.gz", WHOLE[:20] + b"\xff" * 9 + WHOLE[29:], "copy it again"),
        ("twice.csv", b"a, b,a,y\n1,2,3,4\n", "several columns called a; give each a name of its own"),
        ("names.csv", b"a,y\n", "has column names and no rows; give a row for each case"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_a_sentence(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        tables.read_table(str(tmp_path / name))
