"""inference/exact.py against formulas written out in numpy and densities of scipy."""

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

from posterity import Model, fit
from posterity.data.arrays import dataset
from posterity.inference.methods.exact import Exact
from posterity.models.likelihoods import Gaussian, GaussianLearnedNoise
from posterity.models.priors import Fixed, Flat, prior
from posterity.networks import from_function, linear, mlp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.4 + 0.3 * RNG.normal(size=12)
DESIGN = np.concatenate([np.ones((12, 1)), X], 1)  # the bias is the first leaf
NOISE, MEAN, SCALE = 0.3, 0.2, 2.0
EXACT = Exact()


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def model(temperature=1.0, tempering="posterior", believed=None, network=None):
    believed = dist.Normal(MEAN, SCALE) if believed is None else believed
    return Model(network or linear(), Gaussian(NOISE), believed, temperature, tempering)


def mean_of(posterior):
    return np.concatenate([np.ravel(leaf[0]) for leaf in jax.tree.leaves(posterior.family.mean)])


def covariance_of(posterior):
    factor = np.asarray(posterior.family.covariance.factor[0])
    return factor @ factor.T


@pytest.mark.parametrize("tempering", ["posterior", "likelihood"])
def test_against_numpy_and_scipy(tempering):
    for temperature in (1.0, 0.5, 2.0):
        posterior = fit(model(temperature, tempering), EXACT, (X, Y))
        # A power 1/T of a normal density is one of T times the variance, up to its normaliser.
        noise = NOISE**2 * temperature
        spread = SCALE**2 * (temperature if tempering == "posterior" else 1)
        precision = DESIGN.T @ DESIGN / noise + np.eye(4) / spread
        covariance = np.linalg.inv(precision)
        mean = covariance @ (DESIGN.T @ Y / noise + MEAN / spread)
        np.testing.assert_allclose(mean_of(posterior), mean, rtol=1e-10)
        np.testing.assert_allclose(covariance_of(posterior), covariance, rtol=1e-9, atol=1e-14)
        marginal = noise * np.eye(12) + spread * DESIGN @ DESIGN.T
        evidence = multivariate_normal.logpdf(Y, DESIGN @ np.full(4, MEAN), marginal)
        evidence += _normaliser(12, NOISE**2, temperature)
        evidence += _normaliser(4, SCALE**2, temperature) if tempering == "posterior" else 0
        assert posterior.facts["log_evidence"] == pytest.approx(evidence, abs=1e-9)
        outputs, variance = posterior.family.moments(posterior.model, X[:2])
        np.testing.assert_allclose(outputs[0, :, 0], (DESIGN @ mean)[:2], rtol=1e-10)
        np.testing.assert_allclose(variance[0, :, 0, 0], np.diag(DESIGN @ covariance @ DESIGN.T)[:2], rtol=1e-9)
        if temperature == 1:
            predictive = posterior.predict(X[:2])
            total = np.diag(DESIGN @ covariance @ DESIGN.T)[:2] + NOISE**2
            np.testing.assert_allclose(predictive.std, np.sqrt(total), rtol=1e-9)


def _normaliser(size, variance, temperature):
    """log of N(z; variance)^(1/T) / N(z; T variance)."""
    return size / 2 * (np.log(2 * np.pi * temperature * variance) - np.log(2 * np.pi * variance) / temperature)


def test_a_row_of_weight_two_is_two_rows_and_of_weight_zero_none():
    weight = np.ones(12)
    weight[0], weight[1] = 2, 0
    weighted = fit(model(), EXACT, (X, Y, weight))
    rows = [0, 0, *range(2, 12)]
    repeated = fit(model(), EXACT, (X[rows], Y[rows]))
    np.testing.assert_allclose(mean_of(weighted), mean_of(repeated), rtol=1e-10)
    np.testing.assert_allclose(covariance_of(weighted), covariance_of(repeated), rtol=1e-9, atol=1e-14)
    assert weighted.facts["log_evidence"] == pytest.approx(repeated.facts["log_evidence"])


def test_without_data_the_posterior_is_the_prior():
    posterior = fit(model(), EXACT, (X, Y, np.full(12, 1e-14)))
    np.testing.assert_allclose(mean_of(posterior), MEAN, rtol=1e-9)
    np.testing.assert_allclose(covariance_of(posterior), SCALE**2 * np.eye(4), rtol=1e-9, atol=1e-9)
    assert posterior.facts["log_evidence"] == pytest.approx(0, abs=1e-9)


def test_flat_prior_is_least_squares_and_fixed_weights_stay():
    flat = fit(model(believed=Flat()), EXACT, (X, Y))
    np.testing.assert_allclose(mean_of(flat), np.linalg.lstsq(DESIGN, Y, rcond=None)[0], rtol=1e-9)
    held = {"*bias": Fixed(), "*": dist.Normal(0.0, 1.0)}
    fixed = fit(model(believed=prior(held, fan_in=True)), EXACT, (X, Y))
    precision = X.T @ X / NOISE**2 + 3 * np.eye(3)
    np.testing.assert_allclose(mean_of(fixed), np.linalg.solve(precision, X.T @ Y / NOISE**2), rtol=1e-9)


def test_features_that_are_not_linear_and_several_targets():
    network = from_function(
        lambda *_: {"w": jax.numpy.zeros((3, 2))},
        lambda p, x: jax.numpy.sin(x) @ p["w"] + x[:, :2],  # affine in the weights, not in x
    )
    targets = np.stack([Y, -Y], 1)
    posterior = fit(Model(network, Gaussian(NOISE, 2), dist.Normal(0.0, 1.0)), EXACT, (X, targets), chains=2)
    features = np.sin(X)
    precision = features.T @ features / NOISE**2 + np.eye(3)
    mean = np.linalg.solve(precision, features.T @ (targets - X[:, :2]) / NOISE**2)
    np.testing.assert_allclose(posterior.family.mean["network"]["w"], np.stack([mean, mean]), rtol=1e-9)


def test_float32_data_are_solved_in_float64():
    with jax.enable_x64(False):
        line = np.linspace(0, 1, 12, dtype=np.float32)
        powers = line[:, None] ** np.arange(1, 9, dtype=np.float32)  # condition number of the normal equations 1e14
        posterior = fit(model(believed=dist.Normal(0.0, 64.0)), EXACT, (powers, Y.astype(np.float32)))
    wide = np.concatenate([np.ones((12, 1)), powers.astype(np.float64)], 1)
    rows = np.concatenate([wide / NOISE, np.eye(9) / 64])
    mean = np.linalg.lstsq(rows, np.concatenate([Y.astype(np.float32) / NOISE, np.zeros(9)]), rcond=None)[0]
    np.testing.assert_allclose(mean_of(posterior), mean, rtol=1e-5)


def test_errors_say_which_assumption_fails():
    def check(chosen):
        shapes = jax.eval_shape(chosen.init, jax.random.key(0), X)
        params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        EXACT.check(chosen, chosen.split(params)[0], dataset((X, Y)))

    with pytest.raises(ValueError, match="affine in its free weights"):
        check(model(network=mlp((3,))))
    with pytest.raises(ValueError, match=r"Normal \(or Flat\) prior; that of 'network/layer_0/bias' is Laplace"):
        check(model(believed=dist.Laplace(0.0, 1.0)))
    with pytest.raises(ValueError, match="it is GaussianLearnedNoise"):
        check(Model(linear(), GaussianLearnedNoise()))
    with pytest.raises(ValueError, match="do not determine them"):
        fit(model(believed=Flat()), EXACT, (X, Y, np.arange(12) < 3))
