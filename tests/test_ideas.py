"""The ideas the library stands for: ignorance shrinks with data and grows away from them; noise is found again."""

import numpy as np
import numpyro.distributions as dist
import pytest

from posterity import MAP, BayesByBackprop, Exact, Gaussian, HeteroscedasticGaussian, Laplace, Model, fit, linear, mlp

STEPS = {"num_steps": 3000, "learning_rate": 1e-2, "batch_size": "full"}
METHODS = {
    "exact": (linear(), Exact(), lambda x: 0.7 * x),
    "laplace": (mlp((8,), activation="tanh"), Laplace(start=MAP(**STEPS)), np.sin),
    "bayes_by_backprop": (linear(), BayesByBackprop(**STEPS), lambda x: 0.7 * x),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "exact" else pytest.mark.long) for name in METHODS]
)
def test_ignorance_shrinks_with_data_and_grows_away_from_them(name):
    network, method, truth = METHODS[name]
    model = Model(network, Gaussian(0.2), dist.Normal(0.0, 1.0))

    def ignorance(num_rows):
        rng = np.random.default_rng(0)
        x = rng.uniform(-1, 1, (num_rows, 1))
        y = truth(x[:, 0]) + 0.2 * rng.normal(size=num_rows)
        posterior = fit(model, method, (x, y))
        return [float(posterior.predict(np.array([[at]]), num_draws=None).epistemic[0]) for at in (0.5, 4.0)]

    (near_few, far_few), (near_many, far_many) = ignorance(20), ignorance(320)
    assert near_many < near_few / 4  # sixteen times the data
    assert far_many < far_few
    assert far_few > 3 * near_few
    assert far_many > 3 * near_many


@pytest.mark.long
def test_noise_that_was_put_in_is_found_again():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (4000, 1))
    scale = 0.1 + 0.4 * (x[:, 0] > 0) * x[:, 0]
    y = np.sin(x[:, 0]) + scale * rng.normal(size=4000)
    model = Model(mlp((32, 32), activation="tanh"), HeteroscedasticGaussian(), dist.Normal(0.0, 3.0))
    posterior = fit(model, MAP(num_steps=4000, learning_rate=3e-3), (x, y))
    at = np.array([-1.5, -0.5, 0.75, 1.25, 1.75])
    found = np.sqrt(posterior.predict(at[:, None]).aleatoric)
    # a window of 0.5 holds 500 rows, which fix a standard deviation to 1 / sqrt(2 * 500) = 3 %; four of these, and bias
    np.testing.assert_allclose(found, 0.1 + 0.4 * (at > 0) * at, rtol=0.18)


def test_a_cold_posterior_predicts_with_the_noise_as_it_is():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (20, 1))
    data = (x, 0.7 * x[:, 0] + 0.2 * rng.normal(size=20))
    cold, warm = (
        fit(Model(linear(), Gaussian(0.2), dist.Normal(0.0, 1.0), temperature=t), Exact(), data).predict(x)
        for t in (0.01, 1.0)
    )
    np.testing.assert_allclose(cold.aleatoric, 0.04, rtol=1e-5)  # the likelihood is never tempered in prediction
    np.testing.assert_allclose(cold.epistemic, 0.01 * warm.epistemic, rtol=1e-3)  # the posterior is
