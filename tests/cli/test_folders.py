"""Folders that the command is given: what cannot be written or gone on with is said before any work is done."""

import importlib
import json

import pandas as pd
import pytest
from typer.testing import CliRunner

from posterity.cli import app, fitting, folders
from posterity.storage.folder import Writer

compare = importlib.import_module("posterity.cli.compare")  # by its name the package has the command itself


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_where_nothing_can_be_written_no_work_is_done(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "x"
    monkeypatch.setattr(fitting, "load_fit", lambda _: pytest.fail("it has begun"))
    for arguments in (
        ("compare", "curve", "--out", out),
        ("fit", "curve", "--out", out),
        ("demo", out),
        ("demo", tmp_path / "file"),
        ("predict", "fit", "new.csv", "--out", out.with_suffix(".csv")),
    ):
        failed = run(*arguments)
        assert failed.exit_code == 2, failed.output
        assert "can be written to: Not a directory; name another." in failed.stderr


@pytest.mark.parametrize("asked", ["{", "[]", "{}", None])
def test_a_damaged_comparison_is_not_gone_on_with(asked, tmp_path):
    whole = dict.fromkeys(("methods", "budget", "seed", "task", "test_share", "effort", "title", "target", "remarks"))
    (tmp_path / "comparison.json").write_text(json.dumps(whole) if asked is None else asked)  # None: no data.parquet
    failed = run("resume", tmp_path)
    assert failed.exit_code == 2, failed.output
    assert "comparison.json" in failed.stderr if asked else "data.parquet" in failed.stderr
    assert "posterity compare" in failed.stderr


def test_a_comparison_of_another_version_is_gone_on_with(tmp_path, capsys):
    """An option that it does not have gets its default, one that this version does not have is named."""
    pd.DataFrame({"a": [1.0]}).to_parquet(tmp_path / "data.parquet")
    (tmp_path / "comparison.json").write_text(json.dumps({"target": "a", "seed": 3, "colour": "red"}))
    asked, frame = compare._stored(tmp_path)
    usual = compare.Options().checked()
    assert asked == {**usual, "seed": 3, "target": "a", "title": tmp_path.name, "remarks": []}
    assert len(frame) == 1
    assert "ignores: colour" in capsys.readouterr().err


def test_only_what_was_stored_is_said_to_be_kept(tmp_path):
    assert "give the same command again" in folders.after_stop(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.safetensors").write_bytes(b"")  # killed before its first manifest
    assert "give the same command again" in folders.after_stop(tmp_path / "run")
    assert folders.new_folder(tmp_path / "run", "") == tmp_path / "run"  # and that command is not refused
    begun = Writer(tmp_path / "begun")
    begun.manifest({"progress": None})
    assert f"`posterity resume {begun.folder}` begins anew" in folders.after_stop(begun.folder)
    first = Writer(tmp_path / "begun" / "start")  # of a method that starts from another
    first.manifest({"progress": {"num_steps": 5}})
    assert "goes on" in folders.after_stop(tmp_path / "begun")
