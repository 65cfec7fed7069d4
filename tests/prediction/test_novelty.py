"""Out-of-distribution p-values: false alarms at the stated rate, strange rows flagged, for every score."""

import numpy as np
import numpyro.distributions as dist
import pytest

from posterity import MAP, DeepEnsemble, Model, fit
from posterity.models.likelihoods import Categorical, Gaussian
from posterity.networks import mlp
from posterity.prediction.novelty import Calibration

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


def test_an_unknown_score_is_named(regression):
    with pytest.raises(ValueError, match="epistemic, total, features"):
        regression.calibrate(X[:10], score="entropy")
