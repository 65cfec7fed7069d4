"""Folders that the command is given: what cannot be written or gone on with is said before any work is done."""

import json

import pytest
from typer.testing import CliRunner

from posterity.cli import app, fitting


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_where_nothing_can_be_written_no_work_is_done(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    out = tmp_path / "file" / "x"
    monkeypatch.setattr(fitting, "_load", lambda _: pytest.fail("it has begun"))
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
