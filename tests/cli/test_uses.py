"""What the command makes of a fit besides predictions: calibrated intervals, coverage by groups, reasons."""

import io
import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from posterity import MAP, BayesianClassifier, BayesianRegressor
from posterity.cli import app

QUICK = MAP(num_steps=100, learning_rate=0.05, batch_size="full")
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"size": RNG.normal(size=120).round(3), "town": RNG.choice(["north", "south"], 120)})
PRICE = pd.Series(1000 + 50 * TABLE["size"] + 10 * RNG.standard_t(3, 120), name="price")


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    """A fit, and a file of rows with their targets."""
    folder = tmp_path_factory.mktemp("uses")
    BayesianRegressor(QUICK, hidden=(), holdout=0.2).fit(TABLE[:80], PRICE[:80]).save(folder / "fit")
    TABLE[80:].assign(price=PRICE[80:]).to_csv(folder / "new.csv", index=False)
    return folder


def test_calibrated_intervals_stand_beside_the_posteriors(prices):
    done = run("predict", prices / "fit", prices / "new.csv", "--level", 0.8, "--calibrated")
    assert done.exit_code == 0, done.output
    found = pd.read_csv(io.StringIO(done.stdout))
    expected = BayesianRegressor.load(prices / "fit").predict_interval(TABLE[80:], 0.8, calibrated=True)
    np.testing.assert_allclose(found[["calibrated_lower_80", "calibrated_upper_80"]], expected, rtol=1e-6)
    assert "lower_80" in found


def test_a_level_that_the_rows_do_not_reach_is_refused(prices, tmp_path):
    done = run("predict", prices / "fit", prices / "new.csv", "--level", 0.99, "--calibrated")
    assert done.exit_code == 2
    assert "set 16 rows aside, and --level 0.99 takes at least 99" in done.stderr
    BayesianRegressor(QUICK, hidden=(), holdout=None).fit(TABLE[:80], PRICE[:80]).save(tmp_path / "fit")
    done = run("predict", tmp_path / "fit", prices / "new.csv", "--calibrated")
    assert done.exit_code == 2
    assert "set no rows with targets aside" in done.stderr


def test_sets_of_classes_are_calibrated(prices, tmp_path):
    dear = pd.Series(np.where(PRICE > 1000, "dear", "cheap"), name="price")
    BayesianClassifier(QUICK, hidden=(), holdout=0.2).fit(TABLE[:80], dear[:80]).save(tmp_path / "fit")
    done = run("predict", tmp_path / "fit", prices / "new.csv", "--calibrated", "--json")
    assert done.exit_code == 0, done.output
    assert {row["calibrated_set_90"] for row in json.loads(done.stdout)} <= {"cheap", "dear", "cheap|dear"}


def test_coverage_is_shown_by_groups(prices):
    done = run("evaluate", prices / "fit", prices / "new.csv", "--by", "town", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)["coverage"]
    expected = BayesianRegressor.load(prices / "fit").coverage(TABLE[80:], PRICE[80:], by="town")
    assert [row["town"] for row in shown] == list(expected.index)
    assert [row["calibrated"] for row in shown] == expected["calibrated"].tolist()
    table = run("evaluate", prices / "fit", prices / "new.csv", "--by", "town")
    assert all(
        word in table.stdout for word in ("Targets that 90 % intervals hold", "north", "south", "calibrated size")
    )
    wrong = run("evaluate", prices / "fit", prices / "new.csv", "--by", "colour")
    assert wrong.exit_code == 2
    assert "There is no column 'colour'" in wrong.stderr


def test_what_columns_add_is_shown_and_written(prices, tmp_path):
    done = run("explain", prices / "fit", prices / "new.csv", "--rows", 3, "--out", tmp_path / "why.csv")
    assert done.exit_code == 0, done.output
    written = pd.read_csv(tmp_path / "why.csv")
    means = written[written["part"] == "mean"].groupby("row")["value"].sum()
    np.testing.assert_allclose(means, BayesianRegressor.load(prices / "fit").predict(TABLE[80:83]), rtol=1e-4)
    assert all(word in done.stdout for word in ("size", "town", "noise (squared units)", "at 3 rows"))
    shown = json.loads(run("explain", prices / "fit", prices / "new.csv", "--rows", 1, "--json").stdout)
    assert {row["part"] for row in shown} == {"mean", "aleatoric", "epistemic"}
    again = run("explain", prices / "fit", prices / "new.csv", "--out", tmp_path / "why.csv")
    assert again.exit_code == 2
    assert "is there already" in again.stderr
