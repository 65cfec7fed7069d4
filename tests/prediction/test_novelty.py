"""Out-of-distribution p-values: false alarms at the stated rate, strange rows flagged, for every score."""

import numpy as np
import numpyro.distributions as dist
import pytest

from posterity import HMC, MAP, DeepEnsemble, Laplace, Model, fit
from posterity.models.likelihoods import Bernoulli, Categorical, Gaussian
from posterity.networks import mlp
from posterity.prediction.novelty import Calibration
from posterity.tables.defaults import table_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 3))
SETTINGS = {"num_steps": 400, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def regression():
    model = Model(mlp((8,)), Gaussian(0.2), dist.Normal(0.0, 1.0))
    return fit(model, DeepEnsemble(num_members=4, **SETTINGS), (X[:300], np.sin(X[:300, 0])), holdout=0.2)


def test_p_values_by_counting():
    calibration = Calibration("total", np.array([1.0, 2.0, 2.0, 5.0]), None)
    np.testing.assert_allclose(calibration.p_value(np.array([0.0, 2.0, 3.0, 9.0])), [1.0, 0.8, 0.4, 0.2])


@pytest.mark.parametrize("score", ["epistemic", "features", "total"])
def test_false_alarms_come_at_the_level(regression, score):
    posterior = regression.calibrate(X[300:500], score=score)
    flagged = (posterior.predict(RNG.normal(size=(4000, 3))).ood <= 0.1).mean()
    # the held-out rows are 200 draws: their own luck moves the rate by sqrt(0.1 * 0.9 / 200)
    assert abs(flagged - 0.1) < 4 * np.sqrt(0.09 / 200)


def test_strange_rows_get_small_p_values(regression):
    far = regression.predict(X[:50] + 12.0).ood
    assert np.median(far) < 0.03
    assert np.median(regression.predict(X[500:]).ood) > 0.2


def test_p_values_do_not_depend_on_the_draws_asked_for(regression):
    posterior, strange = regression, np.array([[0.0, 0.0, 0.0], [9.0, -9.0, 9.0]])
    usual = posterior.predict(strange).ood
    for settings in ({"num_draws": 1}, {"num_draws": 3}, {"seed": 4}, {"closed_form": False}):
        np.testing.assert_array_equal(posterior.predict(strange, **settings).ood, usual)


def test_one_draw_uses_feature_distance():
    model = Model(mlp((8,)), Categorical(2), dist.Normal(0.0, 1.0))
    labels = (X[:300, 0] > 0).astype(int)
    posterior = fit(model, MAP(**SETTINGS), (X[:300], labels), holdout=X[300:400])
    assert posterior.calibration.name == "features"
    assert np.median(posterior.predict(X[:50] + 20.0).ood) < 0.02


def classes(seed=0):
    """Three overlapping clusters in five dimensions."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(3, size=900)
    return 2 * np.eye(3, 5)[labels] + rng.normal(size=(900, 5)), labels


def test_classes_are_scored_by_what_does_not_saturate():
    x, labels = classes()
    model = Model(mlp((8,), activation="tanh"), Categorical(3), dist.Normal(0.0, 1.0))
    rows = x[:300], labels[:300]
    afresh = fit(model, Laplace(start=MAP(**SETTINGS)), rows, holdout=x[300:500])
    assert afresh.calibration.name == "logits"
    members = fit(model, DeepEnsemble(num_members=4, num_steps=50), rows, holdout=x[300:500])
    assert members.calibration.name == "features"
    assert len(members.calibration.distance.mean) == 4
    assert (afresh.predict(x[:50] + 12.0).ood < 0.05).all()


@pytest.mark.parametrize("chosen", [Categorical(3), Bernoulli()])
def test_logit_variance_is_that_of_centred_outputs(chosen):
    x, labels = classes()
    model = Model(mlp((8,)), chosen, dist.Normal(0.0, 1.0))
    y = labels[:60] if isinstance(chosen, Categorical) else labels[:60] > 0
    prediction = fit(model, DeepEnsemble(num_members=4, num_steps=50), (x[:60], y)).predict(x[60:80])
    outputs = np.asarray(prediction.outputs, float)
    logits = outputs if outputs.shape[-1] > 1 else np.concatenate([-outputs / 2, outputs / 2], -1)
    expected = (logits - logits.mean(-1, keepdims=True)).var(0).mean(-1)
    np.testing.assert_allclose(prediction.logit_variance, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_hmc_flags_rows_four_standard_deviations_away():
    """Mutual information flags 0.76 of them: far from the data every draw is sure, if not of the same class."""
    x, labels = classes()
    x = (x - x.mean(0)) / x.std(0)
    method = HMC(num_draws=40, num_burn_in=40, max_leapfrog=200)
    model = table_model("classification", 3)
    posterior = fit(model, method, (x[:360], labels[:360]), chains=4, holdout=x[360:630], progress=False)
    far = x[630:] + 4 * np.random.default_rng(1).choice([-1, 1], size=(270, 5))
    assert (posterior.predict(far).ood <= 0.05).mean() >= 0.95
    error = np.sqrt(0.05 * 0.95 * (1 / 270 + 1 / 270))  # of the rows here and of those held out
    assert (posterior.predict(x[630:]).ood <= 0.05).mean() < 0.05 + 3 * error


def test_an_unknown_score_is_named(regression):
    with pytest.raises(ValueError, match="epistemic, total, features"):
        regression.calibrate(X[:10], score="entropy")
