"""The joint density: both temperings and the minibatch scale, against sums written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from posterity import Model
from posterity.core.types import Batch
from posterity.models.likelihoods import Gaussian, GaussianLearnedNoise
from posterity.networks import from_function, linear, mlp

X = jnp.array([[1.0], [2.0], [3.0], [4.0]])
Y = jnp.array([1.0, 0.0, 2.0, 1.0])
PARAMS = {"network": {"layer_0": {"weight": jnp.array([[0.5]]), "bias": jnp.array([0.1])}}}
LOG_LIKELIHOOD = stats.norm.logpdf(np.array([1, 0, 2, 1]), 0.5 * np.array([1, 2, 3, 4]) + 0.1, 0.4)
LOG_PRIOR = stats.norm.logpdf([0.5, 0.1], 0, 2).sum()


def model(**settings):
    return Model(linear(), Gaussian(0.4), dist.Normal(0.0, 2.0), **settings)


def test_parts_by_hand():
    batch = Batch(X, Y, jnp.ones(4))
    np.testing.assert_allclose(model().log_likelihood(PARAMS, batch), LOG_LIKELIHOOD, rtol=1e-5)
    np.testing.assert_allclose(model().log_prior(PARAMS), LOG_PRIOR, rtol=1e-6)
    np.testing.assert_allclose(model().log_joint(PARAMS, batch), LOG_LIKELIHOOD.sum() + LOG_PRIOR, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_both_temperings(temperature):
    batch = Batch(X, Y, jnp.ones(4))
    posterior = model(temperature=temperature).log_joint(PARAMS, batch)
    likelihood = model(temperature=temperature, tempering="likelihood").log_joint(PARAMS, batch)
    np.testing.assert_allclose(posterior, (LOG_LIKELIHOOD.sum() + LOG_PRIOR) / temperature, rtol=1e-5)
    np.testing.assert_allclose(likelihood, LOG_LIKELIHOOD.sum() / temperature + LOG_PRIOR, rtol=1e-5)


def test_a_batch_is_scaled_up_and_padding_does_not_count():
    half = Batch(X[:3], Y[:3], jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(
        model().log_joint(PARAMS, half, num_batches=2.0), 2 * LOG_LIKELIHOOD[:2].sum() + LOG_PRIOR, rtol=1e-5
    )


def test_learned_noise_is_a_constant_column_with_its_own_prior():
    made = Model(linear(), GaussianLearnedNoise(0.7, spread=3.0), dist.Normal(0.0, 2.0))
    params = {**PARAMS, "likelihood": {"log_scale": jnp.log(0.4 - 0.7e-3)}}
    outputs = made.outputs(params, X)
    assert outputs.shape == (4, 2)
    np.testing.assert_allclose(outputs[:, 1], np.log(0.3993), rtol=1e-5)
    np.testing.assert_allclose(made.log_likelihood(params, Batch(X, Y, jnp.ones(4))), LOG_LIKELIHOOD, rtol=1e-4)
    expected = LOG_PRIOR + stats.norm.logpdf(np.log(0.3993), np.log(0.7), 3)
    np.testing.assert_allclose(made.log_prior(params), expected, rtol=1e-5)


def test_axes_between_rows_and_outputs_are_summed():
    def apply(params, x):
        return x[..., None] * params["w"]

    dense = Model(from_function(lambda key, x: {"w": jnp.ones(())}, apply), Gaussian(0.4), dist.Normal(0.0, 1.0))
    x, y = jnp.arange(24.0).reshape(2, 3, 4) / 10, jnp.zeros((2, 3, 4))
    found = dense.log_likelihood({"network": {"w": jnp.ones(())}}, Batch(x, y, jnp.ones(2)))
    np.testing.assert_allclose(found, stats.norm.logpdf(np.asarray(x), 0, 0.4).sum((1, 2)), rtol=1e-4)


def test_numbers_of_the_model_are_leaves_and_structure_is_not():
    cold, warm = model(temperature=0.5), model(temperature=2.0)
    assert jax.tree.structure(cold) == jax.tree.structure(warm)
    assert jax.tree.structure(cold) != jax.tree.structure(model(tempering="likelihood"))


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        ((linear(), Gaussian(1.0)), {"temperature": 0.0}, ValueError, "above 0"),
        ((linear(), Gaussian(1.0)), {"temperature": -1.0}, ValueError, "above 0"),
        ((linear(), Gaussian(1.0)), {"tempering": "prior"}, ValueError, "'posterior' or 'likelihood'"),
        ((linear(), dist.Normal(0.0, 1.0)), {}, TypeError, r"Gaussian\(0.1\)"),
        ((lambda x: x, Gaussian(1.0)), {}, TypeError, "from_nnx"),
        ((mlp((3,)), Gaussian(1.0), 1.0), {}, TypeError, "numpyro distribution"),
    ],
)
def test_bad_models_name_the_remedy(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        Model(*arguments, **settings)
