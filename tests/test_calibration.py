"""Simulation-based calibration of HMC on a small network (Talts et al. 2018), and of a wrong temperature: it fails."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import targets
from scipy import stats

from posterity import tree
from posterity.inference.hmc import HMC
from posterity.likelihoods import Gaussian
from posterity.model import Model
from posterity.networks import mlp
from posterity.types import Batch

NUM_SIMULATIONS, NUM_RANKED = 400, 19


def calibration_ranks(sampled_temperature: float):
    """Ranks [R, Q] of the truth among draws from R posteriors: outputs at two inputs, log likelihood, log prior.

    Weights are drawn from the prior, data from the weights; the chain starts at another draw from the prior.
    """
    model = Model(mlp([4], activation="tanh"), Gaussian(0.4), dist.Normal(0.0, 1.0))
    x, at = jnp.linspace(-2, 2, 6)[:, None], jnp.array([[-0.5], [2.5]])
    key_truth, key_start, key_noise, key_run = jax.random.split(jax.random.key(3), 4)
    template = model.init(key_truth, x)
    draw = jax.vmap(lambda key: model.sample_prior(key, template))
    truth, start = (draw(jax.random.split(key, NUM_SIMULATIONS)) for key in (key_truth, key_start))
    outputs = jax.vmap(lambda params: model.outputs(params, x))(truth)[..., 0]
    y = outputs + 0.4 * jax.random.normal(key_noise, outputs.shape)
    repeat = lambda leaf: jnp.repeat(jnp.asarray(leaf, float)[None], NUM_SIMULATIONS, 0)  # noqa: E731
    batches = Batch(repeat(x), y, jnp.ones_like(y))
    models = jax.tree.map(repeat, tree.replace(model, temperature=sampled_temperature))
    draws, _ = targets.run(
        HMC(step_size=0.08, num_burn_in=1),
        models,
        batches,
        start,
        jax.random.split(key_run, NUM_SIMULATIONS),
        num_burn_in=200,
        num_draws=NUM_RANKED,
        thin=15,
    )

    @jax.jit
    def compared(params, batch):
        likelihood = model.log_likelihood(params, batch).sum()
        return jnp.stack([*model.outputs(params, at)[:, 0], likelihood, model.log_prior(params)])

    of_truth = jax.vmap(compared)(truth, batches)
    of_draws = jax.vmap(jax.vmap(compared, (0, None)))(draws, batches)
    return np.asarray((of_draws < of_truth[:, None]).sum(1))


def p_values(ranks):
    counts = [np.bincount(column, minlength=NUM_RANKED + 1).reshape(10, -1).sum(1) for column in ranks.T]
    return np.array([stats.chisquare(count).pvalue for count in counts])


@pytest.mark.long
def test_simulation_based_calibration():
    calibrated = p_values(calibration_ranks(1.0))
    wrong = p_values(calibration_ranks(2.0))
    print("p-values", calibrated, "at a wrong temperature", wrong)
    assert calibrated.min() > 1e-3
    assert wrong.min() < 1e-6
