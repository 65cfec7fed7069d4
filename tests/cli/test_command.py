"""The command: what it says of bad input, that it keeps nothing but numbers, and that Ctrl-C loses nothing."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import posterity
from posterity import MAP, BayesianClassifier, BayesianRegressor, Gaussian, Model, fit, linear
from posterity.cli import app, cache, catalogue, output, pace, tables
from posterity.cli.compare import next_step
from posterity.cli.errors import InputError
from posterity.inference import METHODS, load
from posterity.storage.folder import Reader
from posterity.tables.split import prepare


@pytest.fixture(scope="module", autouse=True)
def cache_of_its_own(tmp_path_factory):
    """Compiled programs go to a folder of the test's, and other test files do without."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    yield folder
    jax.config.update("jax_compilation_cache_dir", None)
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def messy(tmp_path_factory):
    """Missing values, a text, a constant and a date beside two numbers."""
    rng = np.random.default_rng(0)
    num_rows = 60
    size, town = rng.normal(size=num_rows), rng.choice(["Bern", "Genf", "Thun"], num_rows)
    frame = pd.DataFrame(
        {
            "size": np.where(np.arange(num_rows) % 9 == 4, np.nan, size.round(3)),
            "town": town,
            "country": "CH",
            "sold": pd.date_range("2020-01-01", periods=num_rows, freq="9D").strftime("%Y-%m-%d"),
            "price": (500 + 100 * size + 80 * (town == "Genf") + 10 * rng.normal(size=num_rows)).round(1),
        }
    )
    path = tmp_path_factory.mktemp("messy") / "houses.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def fitted(messy, tmp_path_factory):
    """A quick fit of the messy table, and what was said meanwhile."""
    folder = tmp_path_factory.mktemp("fitted") / "ensemble"
    done = run("fit", messy, "--target", "price", "--method", "Deep ensemble", "--effort", 0.2, "--out", folder)
    assert done.exit_code == 0, done.output
    return folder, done


def test_help_names_every_command():
    shown = run("--help")
    assert shown.exit_code == 0
    for name in ("compare", "fit", "predict", "evaluate", "audit", "resume", "methods", "demo"):
        assert name in shown.stdout


def test_the_version_is_told():
    shown = run("--version")
    assert (shown.exit_code, shown.stdout) == (0, f"posterity {posterity.__version__}\n")


def test_the_module_is_the_command():
    shown = subprocess.run([sys.executable, "-m", "posterity", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == run("--version").stdout
    failed = subprocess.run([sys.executable, "-m", "posterity", "compair"], capture_output=True, text=True, check=False)
    assert (failed.returncode, "Usage: posterity" in failed.stderr) == (2, True)


def test_methods_are_all_told(capsys):
    listed = json.loads(run("methods", "--json").stdout)
    assert [row["name"] for row in listed] == list(METHODS)
    assert "when to use it" in run("methods").stdout


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["compair"], "compare"),
        (["compare", "iriss"], "iris"),
        (["compare", "iris", "--methods", "map,laplase"], "Did you mean laplace?"),
        (["compare", "iris", "--target", "tarket"], "Did you mean --target target?"),
        (["compare", "iris", "--task", "regresion"], "Did you mean regression?"),
        (["compare", "iris", "--budget", "soon"], "2m"),
        (["compare", "iris", "--budgt", "2m"], "--budget"),
        (["compare", "iris", "--effort", "0"], "above 0"),
        (["compare", "iris", "--test-share", "2"], "0.2"),
        (["fit", "iris", "--method", "hcm"], "Did you mean hmc?"),
        (["fit", "curve", "--method", "exact"], "linear in their weights only; not for the tables here."),
        (["compare", "curve", "--methods", "map,exact"], "not for the tables here."),
        (["predict", "nowhere", "new.csv"], "no folder nowhere"),
        (["resume", "nowhere"], "no folder nowhere"),
    ],
)
def test_a_mistyped_name_gets_the_nearest_one(arguments, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed = run(*arguments)
    assert failed.exit_code == 2
    assert hint in " ".join(failed.stderr.split())
    assert failed.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_name_like_no_other_gets_no_guess(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "posterity-semi").mkdir()
    assert "There is no folder nothing. `posterity fit` makes one." in run("predict", "nothing", "new.csv").stderr
    assert "Did you mean posterity-semi?" in run("predict", "posterity-semj", "new.csv").stderr
    assert "Did you mean" not in run("fit", "curve", "--target", "zzz").stderr


# As R writes a table.
ROW_NAMES = b'"a","y"\n' + b"".join(b'"%d",1,2\n' % number for number in range(1, 31))


@pytest.mark.parametrize(
    ("name", "content", "target", "message"),
    [
        ("absent.csv", None, "y", "There is no file"),
        ("empty.csv", b"", "y", "is empty"),
        ("blank.csv", b"\n\n", "y", "no line of text"),
        ("names.csv", b"a,y\n", "y", "no rows"),
        ("binary.csv", b"\x00\x01\x02\x03", "y", "not a text file"),
        ("bad.parquet", b"nothing", "y", "cannot be read as Parquet"),
        ("single.csv", b"a,y\n" + b"1,5\n" * 30, "y", "one value only"),
        ("row.csv", b"a,y\n1,5.0\n", "y", "Rows with a target: 1; give at least 10"),
        ("alone.csv", b"y\n" + b"1\n2\n" * 30, "y", "the one column"),
        ("few.csv", b"a,y\n1,0.5\n2,0.7\n3,0.1\n", "y", "at least 10"),
        ("constant.csv", b"a,y\n" + b"".join(b"1,%d.5\n" % i for i in range(30)), "y", "No column"),
        ("untold.csv", b"a,y\n1,2\n", None, "--target"),
        ("ragged.csv", b"a,y\n1,2\n1,2,3,4\n", "y", "cannot be read as a table"),
        ("r.csv", ROW_NAMES, "y", "names 2 column(s), and the lines below it hold 3 cells"),
        ("r.tsv", b"a\ty\n" + b"r7\t1\t2\n" * 30, "y", "in R, row.names=FALSE"),
        ("ended.csv", b"a;y\n" + b"1,5;2;\n" * 30, "y", "no line may end in a separator"),
    ],
)
def test_bad_tables_are_refused_in_a_sentence(name, content, target, message, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    failed = run("compare", path, *([] if target is None else ["--target", target]), "--out", tmp_path / "out")
    assert failed.exit_code == 2, failed.output
    assert message in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("content", "remark", "columns", "first"),
    [
        (b"a,b\n1.5,2\n3,4\n", None, ["a", "b"], [1.5, 2]),
        (b"a;b\n1,5;2\n3,25;4\n", "semicolons", ["a", "b"], [1.5, 2]),
        (b"a\tb\n1.5\t2\n3\t4\n", "tabs", ["a", "b"], [1.5, 2]),
        (b"1.5,2\n3,4\n", "column_1", ["column_1", "column_2"], [1.5, 2]),
        (b",a,b\n0,1.5,2\n1,3,4\n", "counts the rows", ["a", "b"], [1.5, 2]),
        ("größe,b\n1.5,2\n3,4\n".encode("latin-1"), "Latin-1", ["größe", "b"], [1.5, 2]),
        (b'\xef\xbb\xbfa,b\n"x, y",2\n"z\nw",4\n', None, ["a", "b"], ["x, y", 2]),
    ],
)
def test_text_tables_are_understood_aloud(content, remark, columns, first, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    table = tables.read_table(str(path))
    assert list(table.frame.columns) == columns
    assert list(table.frame.iloc[0]) == first
    assert len(table.frame) == 2
    assert (remark or "") in " ".join(table.remarks)
    assert bool(table.remarks) == (remark is not None)


@pytest.mark.parametrize("name", tables.BUNDLED)
def test_bundled_tables_have_their_target(name):
    table = tables.read_table(name)
    assert tables.check_target(table, None) in table.frame.columns
    assert len(table.frame) > 100


@pytest.mark.parametrize(("given", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("1h30m", 5400), ("0.5 min", 30)])
def test_budgets(given, seconds):
    assert catalogue.check_budget(given) == seconds


@pytest.mark.parametrize("given", ["0s", "-5", "2 days", "m", ""])
def test_budgets_that_are_none(given):
    with pytest.raises(InputError, match="not a time"):
        catalogue.check_budget(given)


def test_a_folder_in_use_is_not_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    failed = run("fit", "curve", "--out", tmp_path)
    assert failed.exit_code == 2
    assert "it holds mine.txt, and no fit" in failed.stderr
    assert "resume" not in failed.stderr  # it could not
    (tmp_path / "comparison.json").write_text("{}")
    assert f"posterity resume {tmp_path}" in run("fit", "curve", "--out", tmp_path).stderr


def test_every_column_gets_a_treatment_that_is_said_aloud(fitted):
    said = fitted[1].stderr
    for words in ("'size' lacks", "'country' has one value only", "'sold' holds dates"):
        assert words in said
    assert "Taken as regression; say --task classification if it is not." in said
    assert "Deep ensemble of price" in fitted[1].stdout


def test_a_fit_is_numbers_and_json_alone(fitted):
    kinds = {path.suffix for path in fitted[0].rglob("*") if path.is_file()}
    assert kinds == {".json", ".safetensors"}
    stored = load(fitted[0]).metadata
    assert stored["table_code"]["target_name"] == "price"
    assert {column["name"] for column in stored["table_code"]["inputs"]["columns"]} == {"size", "town", "sold"}


def test_predictions_are_columns_beside_the_new_rows(fitted, messy, tmp_path):
    folder, _ = fitted
    new = pd.read_csv(messy).drop(columns="price")[:9]
    new.loc[0, "size"] = 400.0  # nothing like it was ever seen
    new.loc[1, "town"] = "Chur"
    new["colour"] = "red"
    path = tmp_path / "new.csv"
    new.to_csv(path, index=False)
    done = run("predict", folder, path)
    assert done.exit_code == 0, done.output
    found = pd.read_csv(io.StringIO(done.stdout))
    added = ["mean", "std", "lower_90", "upper_90", "aleatoric", "epistemic", "ood"]
    assert list(found.columns) == [*new.columns, *added]
    assert "colour" in done.stderr
    assert np.allclose(found["aleatoric"] + found["epistemic"], found["std"] ** 2, rtol=1e-3)
    assert (found["lower_90"] < found["mean"]).all()
    assert (found["mean"] < found["upper_90"]).all()
    assert found["epistemic"][0] > found["epistemic"][2:].max()
    assert found["ood"][0] < 0.2
    assert abs(found["mean"][2:].mean() - 500) < 150  # in the target's own units

    as_json = json.loads(run("predict", folder, path, "--json", "--level", 0.5).stdout)
    assert as_json[2]["mean"] == pytest.approx(found["mean"][2], rel=1e-5)
    assert "lower_50" in as_json[0]
    out = tmp_path / "made" / "predicted.parquet"
    assert run("predict", folder, path, "--out", out).stdout == ""
    assert np.allclose(pd.read_parquet(out)["mean"], found["mean"], rtol=1e-5)
    before = out.read_bytes()
    again = run("predict", folder, path, "--out", out, "--level", 0.5)
    assert again.exit_code == 2
    assert "is there already, and is not overwritten: name a new file" in again.stderr
    assert out.read_bytes() == before


def test_dates_of_a_parquet_file_are_text_in_json(capsys):
    dates = pd.to_datetime(pd.Series(["2024-02-29", None]))
    output.print_json({"sold": dates.astype(object).where(dates.notna(), None).tolist()})
    assert json.loads(capsys.readouterr().out) == {"sold": ["2024-02-29 00:00:00", None]}


def test_rows_of_a_file_are_counted_from_nought(tmp_path):
    """Of any other index, predictions would be put beside other rows than those they are of."""
    path = tmp_path / "sorted.parquet"
    pd.DataFrame({"a": [1.5, 2.5]}, index=[7, 3]).to_parquet(path)
    assert list(tables.read_table(str(path)).frame.index) == [0, 1]


def test_new_rows_must_have_the_columns(fitted, messy, tmp_path):
    path = tmp_path / "new.csv"
    pd.read_csv(messy).rename(columns={"town": "towns"}).to_csv(path, index=False)
    failed = run("predict", fitted[0], path)
    assert failed.exit_code == 2
    assert "Is 'towns' meant to be 'town'?" in failed.stderr


def test_a_fit_is_scored_on_other_rows(fitted, messy):
    scores = json.loads(run("evaluate", fitted[0], messy, "--json").stdout)["scores"]
    assert scores["rmse"]["value"] < 60
    assert scores["rmse"]["standard_error"] > 0
    assert {"nll", "crps", "calibration_error", "coverage_90"} <= set(scores)
    assert "90 % coverage" in run("evaluate", fitted[0], messy).stdout


def test_rows_without_their_targets_cannot_be_scored(fitted, messy, tmp_path):
    path = tmp_path / "new.csv"
    pd.read_csv(messy).drop(columns="price").to_csv(path, index=False)
    failed = run("evaluate", fitted[0], path)
    assert failed.exit_code == 2
    assert "lacks the column 'price', which the fit predicts: add its known values." in failed.stderr
    assert f"posterity predict {fitted[0]} {path}" in failed.stderr
    assert "--target" not in failed.stderr


def test_a_fit_of_the_command_is_an_estimator(fitted, messy):
    rows = pd.read_csv(messy)
    model = BayesianRegressor.load(fitted[0])
    predicted = pd.read_csv(io.StringIO(run("predict", fitted[0], messy).stdout))
    np.testing.assert_allclose(model.predict(rows.drop(columns="price")), predicted["mean"], rtol=1e-6)
    assert list(model.feature_names_in_) == ["size", "town", "country", "sold"]
    assert (model.random_state, model.holdout, model.prior) == (0, 0.1, None)
    assert model.method == load(fitted[0]).method  # not its name, which at full effort has other settings
    with pytest.raises(ValueError, match="holds a BayesianRegressor, not a BayesianClassifier"):
        BayesianClassifier.load(fitted[0])


@pytest.mark.parametrize("named", [True, False])
def test_an_estimator_is_a_fit_of_the_command(named, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2)).round(3)
    frame = pd.DataFrame({"height": x[:, 0], "width": x[:, 1]})
    target = pd.Series(np.where(x[:, 0] > 0, "tall", "low"), name="kind" if named else None)
    model = BayesianClassifier(MAP(num_steps=30, learning_rate=0.05), hidden=(3,)).fit(frame if named else x, target)
    model.save(tmp_path / "fit")
    rows = frame.assign(**{"kind" if named else "y": target})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    done = run("predict", tmp_path / "fit", tmp_path / "rows.csv")
    assert done.exit_code == 0, done.output
    assert ("taken to be height, width" in done.stderr) != named
    predicted = pd.read_csv(io.StringIO(done.stdout))
    np.testing.assert_allclose(predicted["p_tall"], model.predict_proba(frame if named else x)[:, 1], atol=1e-5)
    scored = json.loads(run("evaluate", tmp_path / "fit", tmp_path / "rows.csv", "--json").stdout)
    assert scored["scores"]["accuracy"]["value"] == pytest.approx(model.score(frame if named else x, target))


def test_a_folder_that_knows_no_columns_is_refused(tmp_path):
    x = np.linspace(0, 1, 12)[:, None]
    fit(Model(linear(), Gaussian(0.1)), MAP(num_steps=2), (x, x[:, 0]), progress=False).save(tmp_path / "fit")
    failed = run("predict", tmp_path / "fit", "new.csv")
    assert (failed.exit_code, "it knows no columns. In Python: posterity.load." in failed.stderr) == (2, True)
    with pytest.raises(ValueError, match=r"not fitted to a table: use posterity\.load"):
        BayesianRegressor.load(tmp_path / "fit")


def test_a_finished_fit_is_resumed_at_once(fitted):
    summary = json.loads(run("resume", fitted[0], "--json").stdout)
    assert (summary["method"], summary["target"], summary["out"]) == ("deep_ensemble", "price", str(fitted[0]))


@pytest.mark.long
def test_classes_are_compared_reported_and_predicted(tmp_path):
    folder = tmp_path / "iris"
    arguments = ("--methods", "map,hmc", "--effort", 0.03, "--budget", "10m", "--json", "--out", folder)
    done = run("compare", "iris", *arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    by_name = {row["name"]: row for row in found["methods"]}
    assert list(by_name) == ["map", "hmc"]
    assert found["labels"] == ["setosa", "versicolor", "virginica"]
    assert set(by_name["map"]["referee"]) == {"agreement", "total_variation"}
    assert by_name["map"]["scores"]["accuracy"]["value"] > 0.6
    assert {"brier", "calibration_error", "coverage_90", "nll"} <= set(by_name["hmc"]["scores"])
    assert found["verdict"]
    assert found["recommended"] in ("map", "hmc", None)
    assert json.loads((folder / "results.json").read_text())["methods"] == found["methods"]
    assert Path(found["report"]).read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")

    table = tmp_path / "new.csv"
    tables.bundled("iris").frame[:3].to_csv(table, index=False)
    predicted = pd.read_csv(io.StringIO(run("predict", folder / "map", table).stdout))
    chances = predicted[["p_setosa", "p_versicolor", "p_virginica"]]
    assert np.allclose(chances.sum(axis=1), 1, atol=1e-4)
    assert (predicted["label"] == chances.idxmax(axis=1).str.removeprefix("p_")).all()
    assert predicted["set_90"].str.contains("setosa").all()
    wrong = run("predict", folder, table)
    assert wrong.exit_code == 2
    assert "hmc, map" in wrong.stderr

    again = run("resume", folder)
    assert again.exit_code == 0, again.output
    for words in ("accuracy", "total variation vs HMC", "MAP", "report.html"):
        assert words in again.stdout
    assert json.loads((folder / "results.json").read_text())["methods"] == found["methods"]


def test_the_last_line_names_the_method_that_the_verdict_recommends():
    entries = [SimpleNamespace(name="laplace"), SimpleNamespace(name="mile")]
    found = SimpleNamespace(entries=entries, recommended=lambda: entries[1])
    assert next_step(found, Path("cls")) == "Predict new rows: posterity predict cls/mile NEW.csv"
    unsure = SimpleNamespace(entries=entries, recommended=lambda: None)
    assert next_step(unsure, Path("cls")).endswith("cls/METHOD NEW.csv, where METHOD is one of laplace, mile")


def test_an_unwritable_cache_is_said_and_ignored(tmp_path, monkeypatch, capsys):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache.keep_compiled_programs() is None
    assert "Set XDG_CACHE_HOME" in capsys.readouterr().err
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert cache.keep_compiled_programs() == tmp_path / "new" / "posterity"
    jax.config.update("jax_compilation_cache_dir", before)


def test_compiled_programs_are_kept(cache_of_its_own, fitted):
    assert list((cache_of_its_own / "posterity").glob("jit_*"))


def test_many_rows_are_told_how_long_they_take(monkeypatch, capsys):
    prepared = prepare(tables.bundled("curve").frame, "y", test_share=0.0)
    assert pace.plan_time(prepared, ["map", "hmc"], 1.0, None) == ["map", "hmc"]
    assert capsys.readouterr().err == ""  # few rows: soon known
    monkeypatch.setattr(pace, "MANY_ROWS", 100)
    monkeypatch.setattr(pace, "measure_pace", lambda _: pace.Pace(1e-4, 1e-4))  # a slow machine
    assert pace.plan_time(prepared, ["map", "hmc"], 1.0, None) == ["map", "hmc"]
    said = capsys.readouterr().err
    assert "162 rows: about" in said
    assert "HMC takes" in said
    assert "--budget 10m" in said
    assert pace.plan_time(prepared, ["map", "hmc"], 1.0, 10.0) == ["map"]
    assert "HMC is left out" in capsys.readouterr().err


def test_the_pace_is_measured_and_predicts_a_gradient_over_all_rows():
    measured = pace.measure_pace(prepare(tables.bundled("curve").frame, "y", test_share=0.0))
    assert 0 < measured(162) < 1
    assert measured(1000) > measured(100)


@pytest.mark.long
def test_ctrl_c_stops_at_once_and_resume_goes_on(tmp_path):
    folder = tmp_path / "run"
    # A shell that starts the tests in the background has its children ignore Ctrl-C.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", heeding + "from posterity.cli import app; app()"]
    fit = ["fit", "curve", "--method", "sghmc", "--effort", "1000", "--out", str(folder)]
    process = subprocess.Popen([*command, *fit], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not list(folder.glob("state-*")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert f"posterity resume {folder}" in stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    before = Reader(folder).body["progress"]["fields"]["num_steps"]
    done = run("resume", folder, "--budget", "2s", "--json")
    assert done.exit_code == 0, done.output
    after = json.loads(done.stdout)
    assert after["num_steps"] > before > 0
    assert any("budget" in note for note in after["notes"])
