"""What estimators are expected to have: quantiles, weights of classes, several targets, pictures, a model card."""

import numpy as np
import pandas as pd
import pytest
from sklearn import clone
from typer.testing import CliRunner

from posterity import MAP, BayesianClassifier, BayesianMultiRegressor, BayesianRegressor, DeepEnsemble, Laplace
from posterity.cli import app

QUICK = MAP(num_steps=100, learning_rate=0.05, batch_size="full")
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {"size": RNG.normal(size=120), "town": RNG.choice(["north", "south"], 120), "age": RNG.normal(size=120)}
)
PRICE = pd.Series(1000 + 50 * TABLE["size"] + 20 * (TABLE["town"] == "south") + 10 * RNG.normal(size=120), name="price")


@pytest.fixture(scope="module")
def regressor():
    method = DeepEnsemble(num_members=2, num_steps=100, learning_rate=0.05, batch_size="full")
    return BayesianRegressor(method, hidden=(4,), holdout=0.2).fit(TABLE, PRICE)


@pytest.fixture(scope="module")
def classifier():
    return BayesianClassifier(QUICK, hidden=(), holdout=0.2).fit(TABLE, np.where(PRICE > 1030, "dear", "cheap"))


def test_quantiles_are_those_of_the_distribution(regressor):
    found = regressor.predict_quantile(TABLE[:5], [0.05, 0.5, 0.95])
    np.testing.assert_array_equal(found[:, [0, 2]], regressor.predict_interval(TABLE[:5], 0.9))
    np.testing.assert_array_equal(regressor.predict_quantile(TABLE[:5], 0.5), found[:, 1])
    assert regressor.predict_quantile(TABLE[:5]).shape == (5, 3)


def test_a_class_weight_is_a_weight_of_rows():
    rare = np.where(RNG.random(120) < 0.1, "yes", "no")
    weight = np.where(rare == "yes", 3.0, 1.0)
    by_class = BayesianClassifier(QUICK, hidden=(), class_weight={"yes": 3.0, "no": 1.0}).fit(TABLE, rare)
    by_row = BayesianClassifier(QUICK, hidden=()).fit(TABLE, rare, sample_weight=weight)
    np.testing.assert_array_equal(by_class.predict_proba(TABLE), by_row.predict_proba(TABLE))
    balanced = BayesianClassifier(QUICK, hidden=(), class_weight="balanced").fit(TABLE, rare)
    # The score equation of the intercept: under the weights, the mean probability is the share of the class.
    shares = np.where(rare == "yes", 0.5 / np.mean(rare == "yes"), 0.5 / np.mean(rare == "no"))
    assert np.average(balanced.predict_proba(TABLE)[:, 1], weights=shares) == pytest.approx(0.5, abs=0.05)
    assert clone(balanced).class_weight == "balanced"


def test_held_out_rows_do_not_count_by_their_class():
    model = BayesianClassifier(QUICK, hidden=(), holdout=0.25, class_weight={"dear": 5.0, "cheap": 0.5})
    model.fit(TABLE, np.where(PRICE > 1000, "dear", "cheap"))
    np.testing.assert_allclose(model.posterior_.held_out.weight, 1.0)
    assert model.conformal().num_rows == pytest.approx(30)


def test_several_targets_are_predicted_at_once(tmp_path):
    targets = pd.DataFrame({"price": PRICE, "rent": 3 * TABLE["age"] + 0.1 * RNG.normal(size=120)})
    model = BayesianMultiRegressor(BayesianRegressor(Laplace(start=QUICK), hidden=(), holdout=0.2)).fit(TABLE, targets)
    alone = BayesianRegressor(Laplace(start=QUICK), hidden=(), holdout=0.2).fit(TABLE, targets["rent"])
    mean, std = model.predict(TABLE[:4], return_std=True)
    np.testing.assert_array_equal(np.stack([mean[:, 1], std[:, 1]]), alone.predict(TABLE[:4], return_std=True))
    assert model.score(TABLE, targets) > 0.9
    assert model.predict_interval(TABLE[:4], 0.8, calibrated=True).shape == (4, 2, 2)
    assert model.predict_quantile(TABLE[:4], [0.1, 0.9]).shape == (4, 2, 2)
    assert list(model.uncertainty(TABLE[:4])["rent"]) == ["total", "aleatoric", "epistemic", "ood"]
    expected = sum(
        each.log_prob(TABLE[:4], targets[name][:4]) for name, each in zip(targets, model.estimators_, strict=True)
    )
    np.testing.assert_allclose(model.log_prob(TABLE[:4], targets[:4]), expected)
    model.save(tmp_path / "both")
    again = BayesianMultiRegressor.load(tmp_path / "both")
    np.testing.assert_array_equal(again.predict(TABLE[:4]), mean)
    assert len(again.target_names_) == 2
    assert clone(model).estimator.hidden == ()
    with pytest.raises(ValueError, match="BayesianMultiRegressor"):
        BayesianRegressor(QUICK).fit(TABLE, targets)


def test_estimators_draw_themselves(regressor, classifier):
    axes = regressor.plot_bands(TABLE, PRICE, column="size")
    assert axes.get_xlabel() == "size"
    grid = axes.lines[0].get_xdata()
    assert grid[0] < TABLE["size"].min()
    assert grid[-1] > TABLE["size"].max()
    typical = pd.DataFrame({"size": grid[:1], "town": TABLE["town"].mode()[0], "age": TABLE["age"].median()})
    np.testing.assert_allclose(axes.lines[0].get_ydata()[0], regressor.predict(typical)[0], rtol=1e-5)
    assert regressor.plot_calibration(TABLE, PRICE).get_ylabel() == "share found inside"
    assert regressor.plot_split(TABLE, "size").get_xlabel() == "size"
    assert classifier.plot_split(TABLE, "age").get_ylabel() == "entropy, nats"
    assert classifier.plot_calibration(TABLE, np.where(PRICE > 1030, "dear", "cheap")).lines
    with pytest.raises(ValueError, match="for classes use plot_split"):
        classifier.plot_bands(TABLE, column="size")
    with pytest.raises(ValueError, match=r"column='town' is not a column of numbers of X; choose one of size, age"):
        regressor.plot_split(TABLE, "town")


def test_a_card_has_one_page(regressor, classifier, tmp_path):
    card = regressor.model_card()
    assert card.startswith("# Deep ensemble of price\n")
    for words in (
        "## Data",
        "96 rows were trained on, 24 were held out",
        "size, town, age",
        "'town' holds 2 categories",
    ):
        assert words in card
    for words in ("## Method", regressor.posterior_.receipt.method, "## How far to trust it", "Convergence:", "RMSE"):
        assert words in card
    assert "## Limits" in card
    assert len(card.splitlines()) < 60
    assert "Classes: cheap, dear." in classifier.model_card()
    assert "one set of weights" in classifier.model_card()
    regressor.save(tmp_path / "fit")
    run = CliRunner().invoke(app, ["card", str(tmp_path / "fit"), "--out", str(tmp_path / "card.md")])
    assert run.exit_code == 0, run.output
    assert (tmp_path / "card.md").read_text() == card
    shown = CliRunner().invoke(app, ["card", str(tmp_path / "fit")])
    assert "## Limits" in shown.stdout
    again = CliRunner().invoke(app, ["card", str(tmp_path / "fit"), "--out", str(tmp_path / "card.md")])
    assert again.exit_code == 2
