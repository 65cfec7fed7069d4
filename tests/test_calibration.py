"""Simulation-based calibration of HMC (Talts et al. 2018), and of samplers broken on purpose: they fail."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import targets
from broken import Unrefreshed
from scipy import stats

from posterity.core import records
from posterity.core.types import Batch
from posterity.inference.methods.hmc import HMC
from posterity.models.likelihoods import Gaussian, GaussianLearnedNoise
from posterity.models.model import Model
from posterity.networks import linear, mlp

NUM_RANKED, THIN = 19, 15
NETWORK = Model(mlp([4], activation="tanh"), Gaussian(0.4), dist.Normal(0.0, 1.0))
# How far a step can go depends on the noise, so that its posterior has places where more proposals are rejected.
LINE = Model(linear(), GaussianLearnedNoise(0.4, 0.7), dist.Normal(0.0, 1.0))


class Simulated(NamedTuple):
    """R data sets from the prior, and a chain on each."""

    model: Model
    truth: Any  # weights [R, ...] that made the data
    batches: Batch  # [R, N, ...]
    draws: Any  # [R, NUM_RANKED * THIN, ...]: every step
    accepted: np.ndarray  # [R, NUM_RANKED * THIN]
    acceptance: float


def simulate(model, method, num_simulations, sampled_temperature=1.0):
    """Weights are drawn from the prior, data from the weights; the chain starts at another draw from the prior."""
    x = jnp.linspace(-2, 2, 6)[:, None]
    keys = [jax.random.split(key, num_simulations) for key in jax.random.split(jax.random.key(3), 4)]
    template = model.init(jax.random.key(4), x)
    truth, start = (jax.vmap(lambda key: model.sample_prior(key, template))(several) for several in keys[:2])
    y = jax.vmap(lambda params, key: model.likelihood(model.outputs(params, x)).sample(key))(truth, keys[2])
    repeat = lambda leaf: jnp.repeat(jnp.asarray(leaf, float)[None], num_simulations, 0)  # noqa: E731
    batches = Batch(repeat(x), y, jnp.ones_like(y))
    models = jax.tree.map(repeat, records.replace(model, temperature=sampled_temperature))
    counts = {"num_burn_in": 200, "num_draws": NUM_RANKED * THIN}
    draws, info = targets.run(method, models, batches, start, keys[3], **counts)
    accepted = np.asarray(info.accepted) > 0
    return Simulated(model, truth, batches, draws, accepted, float(np.mean(info.acceptance)))


def p_values(simulated, accepted_only=False):
    """That the ranks of the truth among draws are uniform: outputs at two inputs, log likelihood, log prior, noise."""
    model, at = simulated.model, jnp.array([[-0.5], [2.5]])
    chosen = np.stack([choose(accepted, accepted_only) for accepted in simulated.accepted])
    kept = jax.tree.map(lambda leaf: leaf[np.arange(len(chosen))[:, None], chosen], simulated.draws)

    @jax.jit
    def compared(params, batch):
        densities = (model.log_likelihood(params, batch).sum(), model.log_prior(params))
        noise = jax.tree.leaves(params.get("likelihood", {}))
        return jnp.stack([*model.outputs(params, at)[:, 0], *densities, *noise])

    of_truth = jax.vmap(compared)(simulated.truth, simulated.batches)
    of_draws = jax.vmap(jax.vmap(compared, (0, None)))(kept, simulated.batches)
    ranks = np.asarray((of_draws < of_truth[:, None]).sum(1))
    counts = [np.bincount(column, minlength=NUM_RANKED + 1).reshape(10, -1).sum(1) for column in ranks.T]
    return np.array([stats.chisquare(count).pvalue for count in counts])


def choose(accepted, accepted_only):
    """Which steps of a chain are its draws, far enough apart; where only accepted ones are, evenly among these."""
    steps = np.flatnonzero(accepted) if accepted_only and accepted.any() else np.arange(len(accepted))
    return steps[np.linspace(min(THIN, len(steps)) - 1, len(steps) - 1, NUM_RANKED).round().astype(int)]


@pytest.mark.long
def test_simulation_based_calibration():
    calibrated = p_values(simulate(NETWORK, HMC(step_size=0.08, num_burn_in=1), 400))
    print("p-values", calibrated)
    assert calibrated.min() > 1e-3


@pytest.mark.long
@pytest.mark.parametrize("temperature", [1.3, 0.8])
def test_slightly_wrong_temperature_is_not_calibrated(temperature):
    wrong = p_values(simulate(NETWORK, HMC(step_size=0.08, num_burn_in=1), 400, sampled_temperature=temperature))
    print(f"p-values at temperature {temperature}", wrong)
    assert wrong.min() < 1e-6


@pytest.mark.long
def test_momentum_that_is_not_refreshed_is_not_calibrated():
    """A chain keeps the energy it began with; its steps are so short that this is not for want of acceptance."""
    simulated = simulate(NETWORK, Unrefreshed(step_size=0.02, num_burn_in=1), 400)
    wrong = p_values(simulated)
    print("p-values without a fresh momentum", wrong, "acceptance", simulated.acceptance)
    assert simulated.acceptance > 0.75
    assert wrong.min() < 1e-6


@pytest.mark.long
def test_accepted_states_only_are_not_calibrated():
    """At an acceptance near 0.6, of chains that are calibrated as they are.

    On the network with its known noise as many proposals are rejected everywhere, so that to leave out the repeated
    states changes the ranks too little to be seen: 1000 simulations at this acceptance moved no mean rank by more than
    1.5 standard errors, so a p-value of 1e-6 would take more than ten times as many. With unknown noise it is the
    narrow places that lose draws.
    """
    simulated = simulate(LINE, HMC(target_acceptance=0.6), 2000)
    whole, wrong = p_values(simulated), p_values(simulated, accepted_only=True)
    print("p-values", whole, "of accepted states only", wrong, "acceptance", simulated.acceptance)
    assert 0.55 < simulated.acceptance < 0.65
    assert whole.min() > 1e-3
    assert wrong.min() < 1e-6
