"""Estimators by their held-out rows: calibrated intervals, sets and probabilities, and coverage by groups."""

import numpy as np
import pandas as pd
import pytest

from posterity import MAP, BayesianClassifier, BayesianRegressor
from posterity.metrics import mean_over_rows
from posterity.tables.calibrated import coverage_table, group_labels

QUICK = MAP(num_steps=100, learning_rate=0.05, batch_size="full")
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame({"size": RNG.normal(size=400), "town": RNG.choice(["north", "south"], 400)})
PRICE = 1000 + 50 * TABLE["size"] + np.where(TABLE["town"] == "south", 30.0, 3.0) * RNG.standard_t(3, 400)


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor(QUICK, hidden=(), holdout=0.25).fit(TABLE[:300], PRICE[:300])


@pytest.fixture(scope="module")
def classifier():
    return BayesianClassifier(QUICK, hidden=(), holdout=0.25).fit(TABLE[:300], np.digitize(PRICE[:300], [970, 1030]))


def test_calibrated_intervals_are_the_posteriors_at_another_level(regressor):
    new = TABLE[300:]
    found = regressor.predict_interval(new, 0.9, calibrated=True)
    level = regressor.conformal().level(0.9)
    np.testing.assert_allclose(found, regressor.predict_interval(new, level), rtol=1e-6)
    assert found.shape == (100, 2)
    assert regressor.conformal() is regressor.conformal()


def test_calibrated_sets_and_probabilities(classifier):
    new = TABLE[300:]
    probs = classifier.predict_proba(new, calibrated=True)
    np.testing.assert_allclose(probs.sum(1), 1.0)
    np.testing.assert_array_equal(probs.argmax(1), classifier.predict_proba(new).argmax(1))
    sets = classifier.predict_set(new, 0.9, calibrated=True)
    assert sets.any(1).all()
    known = np.digitize(PRICE[300:], [970, 1030])
    shown = classifier.coverage(new, known, 0.9)
    assert shown.loc["all", "calibrated"] == sets[np.arange(100), known].mean()
    assert shown.loc["all", "calibrated_size"] == sets.sum(1).mean()


def test_coverage_by_groups_is_shown(regressor):
    shown = regressor.coverage(TABLE[300:], PRICE[300:], 0.9, by="town")
    assert list(shown.index) == ["all", *pd.unique(TABLE["town"][300:])]
    assert list(shown) == [
        "rows",
        *(f"{way}{part}" for way in ("posterior", "calibrated") for part in ("", "_error", "_size")),
    ]
    lower, upper = regressor.predict_interval(TABLE[300:], 0.9, calibrated=True).T
    inside = ((lower <= PRICE[300:]) & (PRICE[300:] <= upper)).to_numpy()
    south = (TABLE["town"][300:] == "south").to_numpy()
    assert tuple(shown.loc["south", ["calibrated", "calibrated_error"]]) == mean_over_rows(inside[south])
    assert shown["rows"].tolist()[0] == 100
    quarters = regressor.coverage(TABLE[300:], PRICE[300:], by="size")
    assert len(quarters) == 5
    np.testing.assert_array_equal(quarters["rows"], [100, 25, 25, 25, 25])
    with pytest.raises(ValueError, match="by='colour' is not a column of X; its columns: 'size', 'town'"):
        regressor.coverage(TABLE[300:], PRICE[300:], by="colour")
    with pytest.raises(ValueError, match="3 labels for 100 rows"):
        regressor.coverage(TABLE[300:], PRICE[300:], by=["a", "b", "c"])


def test_a_group_without_a_label_is_called_missing():
    assert list(group_labels(pd.Series(["a", None]), 2)) == ["a", "missing"]
    ways = {"one": (np.array([True, False]), np.ones(2))}
    assert coverage_table(ways, np.array(["a", "b"]))["one"].tolist() == [0.5, 1.0, 0.0]


def test_rows_may_be_given_later_and_are_kept(tmp_path):
    model = BayesianRegressor(QUICK, hidden=(), holdout=None).fit(TABLE[:300], PRICE[:300])
    with pytest.raises(ValueError, match=r"BayesianRegressor\(holdout=0.2\).*calibrate\(X, y\)"):
        model.predict_interval(TABLE[300:], calibrated=True)
    assert "calibrated" not in model.coverage(TABLE[300:], PRICE[300:])
    found = model.calibrate(TABLE[300:], PRICE[300:]).predict_interval(TABLE[:5], 0.8, calibrated=True)
    assert np.isfinite(model.uncertainty(TABLE[:5])["ood"]).all()
    model.save(tmp_path / "store")
    again = BayesianRegressor.load(tmp_path / "store")
    np.testing.assert_array_equal(again.predict_interval(TABLE[:5], 0.8, calibrated=True), found)
    refitted = model.set_params(holdout=0.5).fit(TABLE[:300], PRICE[:300])
    assert refitted.conformal().num_rows == 150
    with pytest.raises(ValueError, match="X has 5 rows and y has 4"):
        model.calibrate(TABLE[:5], PRICE[:4])
