"""Adjusted MILE through `fit` against exact targets, and the order of the error of the unadjusted variant."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import targets

from posterity.core.types import Batch
from posterity.inference.engine.driver import fit
from posterity.inference.methods.mile import MILE
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.networks import from_function

CASES = [(t, tempering, target) for t, tempering in targets.TEMPERED for target in targets.DATA]
GIVEN = [  # of one tempering: one program; steps so long that without rejections both would be wrong
    (4.0, "likelihood", "banana", 1.0),
    (0.25, "likelihood", "linear-Gaussian", 0.4),
]


def check_fit(method, temperature, tempering, target):
    """Draws, and what is predicted; returns the trace."""
    data = targets.DATA[target]()
    posterior = fit(targets.model(temperature, tempering), method, data, chains=4, progress=False)
    targets.check_posterior(posterior, targets.reference(data, temperature, tempering))
    return posterior.trace


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "tempering", "target", "step_size"), GIVEN)
def test_adjusted_is_exact_with_given_settings(temperature, tempering, target, step_size):
    settings = {"step_size": step_size, "length": 2 * step_size, "num_burn_in": 100, "thin": 3}
    method = MILE(num_draws=4000, **settings, adjusted=True, start=None)
    trace = check_fit(method, temperature, tempering, target)
    assert trace["acceptance"].mean() < 0.95  # or exactness shows nothing


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "tempering", "target"), CASES)
def test_adjusted_is_exact_as_it_tunes_itself(temperature, tempering, target):
    method = MILE(num_draws=4000, num_burn_in=1500, adjusted=True, start=None)
    trace = check_fit(method, temperature, tempering, target)
    assert 0.6 < trace["acceptance"][:, 1650:].mean() < 0.98


# -------------------------------------------------------------------------------------------- the unadjusted variant


NUM_WEIGHTS, NUM_CHAINS = 200, 128


def variance_errors(temperature, tempering, step_size):
    """Relative error of the variance of many independent weights, one a row, and its Monte Carlo error."""
    network = from_function(lambda key, x: {"w": jnp.zeros(NUM_WEIGHTS)}, lambda params, x: params["w"][:, None])
    model = Model(network, Gaussian(0.5), dist.Normal(0.0, 1.0), temperature, tempering)
    y, power = np.linspace(-1, 1, NUM_WEIGHTS), 1 / temperature
    variance = 1 / (power / 0.5**2 + (power if tempering == "posterior" else 1.0))
    mean = variance * power * y / 0.5**2
    repeat = lambda leaf: jnp.repeat(jnp.asarray(leaf, float)[None], NUM_CHAINS, 0)  # noqa: E731
    models, rows = jax.tree.map(repeat, (model, Batch(np.zeros((NUM_WEIGHTS, 1)), y, np.ones(NUM_WEIGHTS))))
    key_start, key_run = jax.random.split(jax.random.key(int(step_size) + len(tempering)))
    spread = jax.random.normal(key_start, (NUM_CHAINS, NUM_WEIGHTS))
    start = {"network": {"w": jnp.asarray(mean, float) + np.sqrt(variance) * spread}}
    width = float(np.sqrt(variance))  # steps are given in widths of the posterior
    method, counts = MILE(step_size=step_size * width, length=13.0 * width), {"num_burn_in": 20, "num_draws": 600}
    draws, _ = targets.run(method, models, rows, start, jax.random.split(key_run, NUM_CHAINS), thin=2, **counts)
    squares = np.square(np.asarray(draws["network"]["w"]) - mean.astype(np.float32)).mean(-1, dtype=float)
    chains = squares.mean(1) / variance - 1
    return chains.mean(), chains.std(ddof=1) / np.sqrt(NUM_CHAINS)


@pytest.mark.long
@pytest.mark.parametrize("tempering", ["posterior", "likelihood"])
def test_unadjusted_error_of_a_hot_target_is_of_second_order(tempering):
    estimates = [variance_errors(4.0, tempering, step_size) for step_size in (20.0, 10.0, 5.0)]
    print(tempering, "relative errors of the variance", np.round(estimates, 5).tolist())
    targets.check_order(estimates, 2)


@pytest.mark.long
def test_unadjusted_error_on_the_banana_is_of_second_order():
    """The variance of the weight along the bend, where errors are largest."""
    data, estimates = targets.banana(), []
    expected = targets.reference(data, 1.0, "posterior")
    for seed, step_size in enumerate((0.4, 0.2, 0.1)):
        counts = {"num_burn_in": 200, "num_draws": 6000, "thin": 4, "num_chains": 512, "seed": seed}
        ((draws, _),) = targets.run_cases(MILE(step_size=step_size, length=0.5), [(targets.model(), data)], **counts)
        estimates.append(targets.relative_error(draws, expected, "variance of a"))
    print("relative errors of the variance", np.round(estimates, 4).tolist())
    targets.check_order(estimates, 2)
