"""The estimators: scikit-learn's own checks, its tools around them, units, frames, weights, stores."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from posterity import HMC, MAP, BayesianClassifier, BayesianRegressor, DeepEnsemble, Laplace, MCDropout, Normal, metrics

QUICK = MAP(num_steps=100, learning_rate=0.05, batch_size="full")
TINY = {
    "map": QUICK,
    "laplace": Laplace(start=QUICK),
    "mc_dropout": MCDropout(num_steps=150, learning_rate=0.05, batch_size="full"),
    "hmc": HMC(num_draws=8, num_burn_in=20, max_leapfrog=8),
}


def tiny(name):
    return [estimator(TINY[name], hidden=(8,)) for estimator in (BayesianRegressor, BayesianClassifier)]


@pytest.mark.long
@parametrize_with_checks(tiny("map"))
def test_scikit_learn_checks_map(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks(tiny("laplace"))
def test_scikit_learn_checks_laplace(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks(tiny("mc_dropout"))
def test_scikit_learn_checks_mc_dropout(estimator, check):
    check(estimator)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:chain .* accepted no step")  # so short a warm-up may not find a step size
@parametrize_with_checks(tiny("hmc"))
def test_scikit_learn_checks_hmc(estimator, check):
    check(estimator)


@pytest.mark.long
@parametrize_with_checks([BayesianRegressor(), BayesianClassifier()])
def test_scikit_learn_checks_at_the_defaults(estimator, check):
    check(estimator)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = X[:, 0] - 0.5 * X[:, 1] + 0.1 * RNG.normal(size=60)
LABELS = np.where(Y > 0, "high", "low")
SETTINGS = {"method": Laplace(start=QUICK), "hidden": (8,)}


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor(**SETTINGS).fit(X, 5_000 + 200 * Y)


@pytest.fixture(scope="module")
def classifier():
    return BayesianClassifier(**SETTINGS).fit(X, LABELS)


def test_predictions_are_in_the_users_units(regressor):
    plain = BayesianRegressor(**SETTINGS).fit(X, Y)
    mean, std = regressor.predict(X, return_std=True)
    plain_mean, plain_std = plain.predict(X, return_std=True)
    np.testing.assert_allclose(mean, 5_000 + 200 * plain_mean, rtol=1e-4)
    np.testing.assert_allclose(std, 200 * plain_std, rtol=1e-2)
    log_prob = regressor.predict_distribution(X).log_prob(5_000 + 200 * Y)
    np.testing.assert_allclose(log_prob, plain.predict_distribution(X).log_prob(Y) - np.log(200), atol=0.05)
    lower, upper = regressor.predict_interval(X, 0.9).T
    assert 0.75 < np.mean((lower < 5_000 + 200 * Y) & (upper > 5_000 + 200 * Y)) <= 1
    assert regressor.score(X, 5_000 + 200 * Y) > 0.9
    draws = regressor.sample_y(X, 500)
    assert draws.shape == (60, 500)
    assert (np.abs(draws.mean(1) - mean) < 5 * std / np.sqrt(500)).all()


def test_uncertainty_is_a_frame_in_squared_units(regressor):
    made = regressor.uncertainty(X)
    assert list(made) == ["total", "aleatoric", "epistemic", "ood"]
    np.testing.assert_allclose(made["total"], made["aleatoric"] + made["epistemic"], rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(made["total"]), regressor.predict(X, return_std=True)[1], rtol=1e-5)
    assert made["ood"].isna().all()  # 60 rows are too few to set some aside


@pytest.mark.parametrize("method", [QUICK, Laplace(start=QUICK)], ids=["features", "epistemic"])
def test_strange_rows_are_told_from_familiar_ones(method):
    x = RNG.normal(size=(300, 2))
    model = BayesianRegressor(method, hidden=(8,)).fit(x, 1_000 * x[:, 0] + RNG.normal(size=300))
    assert model.posterior_.receipt.num_data == 270
    assert (model.uncertainty(np.full((3, 2), 30.0))["ood"] < 0.05).all()
    assert 0.3 < model.uncertainty(RNG.normal(size=(300, 2)))["ood"].mean() < 0.7


@pytest.mark.parametrize(("holdout", "trained_on"), [("auto", 60), (None, 60), (0.2, 48)])
def test_rows_held_out_are_a_setting(holdout, trained_on):
    model = BayesianRegressor(QUICK, hidden=(8,), holdout=holdout).fit(X, Y)
    assert model.posterior_.receipt.num_data == trained_on
    assert model.uncertainty(X)["ood"].isna().all() == (trained_on == 60)
    assert "NOT trained on" in BayesianRegressor.__doc__


@pytest.mark.parametrize("holdout", ["some", 0, 1.5, X, True])
def test_a_hold_out_that_is_no_share_is_refused(holdout):
    with pytest.raises(ValueError, match="give 'auto', a share of the rows"):
        BayesianRegressor(QUICK, holdout=holdout).fit(X, Y)


def test_classes_keep_their_labels(classifier):
    assert list(classifier.classes_) == ["high", "low"]
    assert classifier.score(X, LABELS) > 0.85
    probs = classifier.predict_proba(X)
    np.testing.assert_allclose(probs.sum(1), 1.0)
    np.testing.assert_array_equal(classifier.predict(X), classifier.classes_[probs.argmax(1)])
    chosen = classifier.predict_set(X, 0.8)
    assert ((probs * chosen).sum(1) >= 0.8 - 1e-6).all()
    draws = classifier.sample_y(X, 400)
    assert np.abs((draws == "high").mean(1) - probs[:, 0]).max() < 5 * 0.5 / np.sqrt(400)
    split = classifier.uncertainty(X)
    np.testing.assert_allclose(split["total"], split["aleatoric"] + split["epistemic"], rtol=1e-4, atol=1e-6)


def test_scores_know_the_labels(classifier, regressor):
    position = (LABELS == "low").astype(int)
    prediction = classifier.predict_distribution(X)
    np.testing.assert_array_equal(classifier.log_prob(X, LABELS), prediction.log_prob(position))
    np.testing.assert_equal(classifier.evaluate(X, LABELS), metrics.evaluate(prediction, position))
    with pytest.raises(ValueError, match="unknown to a model of"):
        classifier.log_prob(X[:1], ["middling"])
    y = 5_000 + 200 * Y
    np.testing.assert_array_equal(regressor.log_prob(X, y), regressor.predict_distribution(X).log_prob(y))


def test_columns_without_names_are_known_by_their_place(regressor):
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        named = regressor.predict(pd.DataFrame(X, columns=["a", "b", "c"]))
    np.testing.assert_array_equal(named, regressor.predict(X))
    np.testing.assert_array_equal(regressor.predict(pd.DataFrame(X)), regressor.predict(X))


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (1e308 * (1 + X % 0.5), Y, r"X\['x0'\] has values beyond"),
        (X, 1e308 * (1 + Y % 0.5), "y has values beyond"),
        (np.ma.masked_less(X, 0), Y, "X has .* masked"),
        (X, np.ma.masked_less(Y, 0), "y has .* masked"),
    ],
)
def test_what_would_be_lost_is_refused_in_words(x, y, told):
    with pytest.raises(ValueError, match=told):
        BayesianRegressor(QUICK).fit(x, y)


def test_frames_with_categories_and_gaps():
    frame = pd.DataFrame({"size": X[:, 0], "colour": np.where(X[:, 1] > 0, "red", "blue"), "more": X[:, 2]})
    frame = frame.astype({"colour": "category"}).set_index(np.arange(100, 160))
    frame.loc[frame.index[::7], "size"] = np.nan
    target = 3 * (frame["colour"] == "red") + 0.1 * X[:, 2]
    model = BayesianRegressor(QUICK, hidden=(8,)).fit(frame, target)
    assert model.score(frame, target) > 0.9
    assert list(model.feature_names_in_) == ["size", "colour", "more"]
    assert any("'size' lacks 9 value" in remark for remark in model.table_.remarks)
    new = pd.DataFrame({"size": [np.nan, 0.0], "colour": ["green", None], "more": [0.0, 0.1]}, index=["u", "v"])
    assert np.isfinite(model.predict(new)).all()
    assert list(model.uncertainty(new).index) == ["u", "v"]
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        np.testing.assert_array_equal(model.predict(frame.to_numpy()), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(new.rename(columns={"size": "length"}))


def test_texts_in_an_array_are_categories():
    table = np.stack([np.where(X[:, 1] > 0, "red", "blue"), X[:, 0].round(3)], 1).astype(object)
    table[:, 1] = table[:, 1].astype(float)
    model = BayesianClassifier(QUICK, hidden=(8,)).fit(table, np.where(X[:, 1] > 0, 7, 3))
    assert list(model.table_.features) == ["x0=blue", "x0=red", "x1"]
    assert model.score(table, np.where(X[:, 1] > 0, 7, 3)) == 1.0


@pytest.mark.long
def test_weights_count_rows_and_their_order_does_not_matter(regressor):
    weight = RNG.integers(0, 4, 60)
    order = RNG.permutation(weight.sum())
    repeated = np.repeat(np.arange(60), weight)[order]
    weighted = BayesianRegressor(**SETTINGS).fit(X, Y, sample_weight=weight)
    counted = BayesianRegressor(**SETTINGS).fit(X[repeated], Y[repeated])
    np.testing.assert_array_equal(weighted.predict(X), counted.predict(X))
    other = BayesianRegressor(**SETTINGS).fit(X, Y)
    assert np.abs(weighted.predict(X) - other.predict(X)).max() > 1e-3


def test_clone_pickle_save_and_load(regressor, classifier, tmp_path):
    copied = pickle.loads(pickle.dumps(regressor))
    np.testing.assert_array_equal(copied.predict(X), regressor.predict(X))
    assert clone(regressor).get_params()["hidden"] == (8,)
    for model in (regressor, classifier):
        folder = tmp_path / type(model).__name__
        model.save(folder)
        loaded = type(model).load(folder)
        np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
        assert loaded.n_features_in_ == 3
        assert clone(loaded).hidden == (8,)
        assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    with pytest.raises(ValueError, match="holds a BayesianClassifier"):
        BayesianRegressor.load(tmp_path / "BayesianClassifier")


def test_out_of_distribution_p_values_do_not_depend_on_units():
    """Scores are variances: float32 does not hold the square of 1e25."""
    x = np.random.default_rng(1).normal(size=(200, 1))
    method = DeepEnsemble(num_members=3, num_steps=1)
    found = [
        BayesianRegressor(method, hidden=()).fit(x, scale * np.sin(x[:, 0])).uncertainty(3 * x[:20])["ood"]
        for scale in (1.0, 1e25)
    ]
    np.testing.assert_array_equal(found[1], found[0])
    assert len(set(found[0])) > 5


@pytest.mark.parametrize("hidden", [np.int64(4), (np.int64(4),), np.array([4])], ids=["one", "tuple", "array"])
def test_numbers_of_numpy_are_settings_too(hidden, tmp_path):
    """As np.arange and a search over settings give them."""
    settings = {"hidden": hidden, "temperature": np.float32(0.5), "random_state": np.int64(3)}
    model = BayesianRegressor(MAP(num_steps=1), **settings).fit(X, Y)
    model.save(tmp_path / "store")
    loaded = BayesianRegressor.load(tmp_path / "store")
    assert (loaded.hidden, loaded.temperature, loaded.random_state) == (4 if np.ndim(hidden) == 0 else (4,), 0.5, 3)
    assert loaded.posterior_.model.network.hidden == (4,)


@pytest.mark.long
def test_inside_the_tools_of_scikit_learn():
    pipeline = make_pipeline(StandardScaler(), BayesianRegressor(QUICK, hidden=(8,)))
    assert cross_val_score(pipeline, X, Y, cv=3, n_jobs=2).min() > 0.5
    search = GridSearchCV(BayesianClassifier(QUICK), {"hidden": [(), (8,)], "prior": [1.0, Normal(0.0, 3.0)]}, cv=2)
    assert search.fit(X, LABELS).best_score_ > 0.7


def test_a_mistyped_method_gets_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'deep_ensemble'"):
        BayesianRegressor("deepensemble").fit(X, Y)


def test_a_name_gets_settings_and_a_budget_ends_it():
    model = BayesianRegressor("map", hidden=4, budget=0.01, random_state=np.random.RandomState(0)).fit(X, Y)
    assert any("budget" in note for note in model.posterior_.receipt.notes)
    assert np.isfinite(model.predict(X)).all()


def test_dates_are_no_target():
    """They would be fitted in ticks, in whatever unit the column has them."""
    dates = pd.date_range("2020-01-01", periods=20)
    with pytest.raises(ValueError, match=r"y holds dates .*days since a date"):
        BayesianRegressor("map").fit(np.arange(20.0)[:, None], dates)


def test_further_rows_are_learned_with_what_was_learned_before_as_the_prior():
    """Of a linear model, whose answer after two halves is near that of all rows at once, and surer than after one."""
    start = MAP(num_steps=1500, learning_rate=0.02, batch_size="full")
    model = BayesianRegressor(Laplace(start=start), hidden=(), holdout=None)
    model.partial_fit(X[:30], Y[:30])
    once = model.uncertainty(X).epistemic.to_numpy()
    model.partial_fit(X[30:], Y[30:])
    twice = model.uncertainty(X).epistemic.to_numpy()
    # All rows in the units of the first half: the prior means the same.
    whole = BayesianRegressor(Laplace(start=start), hidden=(), holdout=None).fit(X[:30], Y[:30])
    frame = pd.DataFrame(X, columns=whole.table_.names)
    whole.posterior_ = whole._infer("y", (whole.table_.transform(frame), whole._encoded_target(Y), np.ones(60)))
    exact = whole.uncertainty(X).epistemic.to_numpy()
    assert np.median(twice / once) < 0.8
    assert 0.5 < np.median(twice / exact) < 2
    spread = np.sqrt(whole.uncertainty(X).epistemic)
    assert np.median(abs(model.predict(X) - whole.predict(X)) / spread) < 1


def test_a_class_that_the_first_rows_lack_is_refused():
    model = BayesianClassifier(QUICK, hidden=())
    with pytest.raises(ValueError, match="The first rows lack the classes"):
        model.partial_fit(X, LABELS, classes=["high", "low", "middle"])
