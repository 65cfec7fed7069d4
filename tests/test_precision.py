"""Samplers in double precision, and NUTS's energies in single precision with many rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import targets
from jax.flatten_util import ravel_pytree
from recursions import check_law, cyclical_moments, law, rate_at

from posterity.core.types import Batch, Clock
from posterity.inference.engine.driver import fit
from posterity.inference.methods import nuts
from posterity.inference.methods.density import plain
from posterity.inference.methods.hmc import HMC
from posterity.inference.methods.mile import MILE
from posterity.inference.methods.nuts import NUTS
from posterity.inference.methods.sgmcmc import SGHMC, SGLD, Cyclical
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.networks import mlp

CASE = (4.0, "likelihood")
RATE = {SGLD: rate_at(0.2, CASE), SGHMC: rate_at(0.2, CASE, 0.9)}
ADJUSTED = {
    "hmc": HMC(step_size=0.3, num_burn_in=0),
    "nuts": NUTS(step_size=0.7, num_burn_in=0),
    "mile": MILE(step_size=0.8, length=1.6, adjusted=True),
}
UNADJUSTED = {
    "sgld": SGLD(learning_rate=RATE[SGLD]),
    "sghmc": SGHMC(learning_rate=RATE[SGHMC]),
    "sgld, decreasing": SGLD(learning_rate=RATE[SGLD], schedule="decreasing"),
    "sgld, preconditioned": SGLD(learning_rate=RATE[SGLD], preconditioner="rmsprop"),
    "cyclical": Cyclical(SGLD(learning_rate=0.5), cycle_length=20, exploration=0.25, draws_per_cycle=1, thin=1),
    "mile, unadjusted": MILE(step_size=0.1, length=1.0),
}
TUNED = {"hmc, tuned": HMC(), "nuts, tuned": NUTS(), "mile, tuned": MILE(adjusted=True)}
EVERY = {**ADJUSTED, **UNADJUSTED, **TUNED}


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", EVERY)
def test_every_number_of_a_step_is_double(double, name):
    """State, weights and report of a step that no number of single precision has entered."""
    kernel = EVERY[name].kernel(targets.model(*CASE))
    x, y = (jnp.asarray(values) for values in targets.linear_gaussian())
    batch, params = Batch(x, y, jnp.ones(len(y))), {"network": targets.NETWORK.init(None, x)}
    now = Clock(*(jnp.asarray(value) for value in (5, 100, 0, 0, 1.0, 4.0)))

    def both(key):
        state = kernel.init(key, params, batch, now)
        return state, *kernel.step(key, state, batch, now)

    for leaf in jax.tree.leaves(jax.eval_shape(both, jax.random.key(0))):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            assert leaf.dtype == jnp.float64


def run_double(method, **counts):
    """Draws of the linear-Gaussian target."""
    ((draws, _),) = targets.run_cases(method, [(targets.model(*CASE), targets.linear_gaussian())], 16, **counts)
    assert {values.dtype for values in draws.values()} == {np.dtype(np.float64)}
    return draws


@pytest.mark.parametrize("name", ADJUSTED)
def test_exact_target_in_double_precision(double, name):
    draws = run_double(ADJUSTED[name], num_burn_in=50, num_draws=1000)
    targets.check_draws(draws, targets.reference(targets.linear_gaussian(), *CASE))


@pytest.mark.long
def test_unadjusted_samplers_in_double_precision(double):
    """Each against its own law; MILE's is the truth, up to an error of a thousandth."""
    counts = {"num_burn_in": 100, "num_draws": 1000, "thin": 4}
    check_law(run_double(UNADJUSTED["sgld"], **counts), *law(CASE, RATE[SGLD]))
    check_law(run_double(UNADJUSTED["sghmc"], **counts), *law(CASE, RATE[SGHMC], 0.9))
    truth = targets.reference(targets.linear_gaussian(), *CASE)
    targets.check_draws(run_double(UNADJUSTED["mile, unadjusted"], num_burn_in=100, num_draws=1000, thin=10), truth)
    cyclical = UNADJUSTED["cyclical"]
    draws = run_double(cyclical, num_burn_in=0, num_draws=253, thin=20)
    check_law({name: values[:, 3:] for name, values in draws.items()}, *cyclical_moments(cyclical, 0.0, CASE, 3))


@pytest.mark.long
def test_fit_and_predict_in_double_precision(double):
    data, method = targets.linear_gaussian(), HMC(num_draws=2000, num_burn_in=50)
    posterior = fit(targets.model(*CASE), method, data, progress=False)
    assert {leaf.dtype for leaf in jax.tree.leaves(posterior.family.draws)} == {np.dtype(np.float64)}
    assert {values.dtype for values in posterior.trace.values()} == {np.dtype(np.float64)}
    predicted = posterior.predict(targets.PREDICT_AT)
    for values in (predicted.mean, predicted.total, predicted.log_prob(np.zeros(2)), predicted.outputs):
        assert values.dtype == np.float64
    targets.check_posterior(posterior, targets.reference(data, *CASE))


def test_energies_of_nuts_in_float32_with_many_rows():
    """With 10^5 rows the difference of two sums is lost in float32, the sum of differences is not."""
    rng = np.random.default_rng(0)
    model = Model(mlp([5], activation="tanh"), Gaussian(0.02))
    x = jnp.asarray(rng.normal(size=(100_000, 2)), jnp.float32)
    params = model.init(jax.random.key(1), x[:1])
    y = model.outputs(params, x)[:, 0] + jnp.asarray(0.02 * rng.normal(size=len(x)), jnp.float32)
    batch = Batch(x, y, jnp.ones(len(x), jnp.float32))

    @jax.jit
    def rises(params, moved, batch):
        """log p(moved) - log p(params): as NUTS forms it, and from two sums."""
        rows, (flat, unravel) = model.log_likelihood(params, batch), ravel_pytree(params)
        density = nuts._relative(plain(model, batch), params, rows)[1]
        end = unravel(flat + moved)
        return density(flat + moved), model.log_joint(end, batch) - model.log_joint(params, batch)

    size = ravel_pytree(params)[0].size
    termwise, naive = [], []
    for seed in range(6):
        # As far as a trajectory goes that may be accepted: the posterior is about this wide.
        moved = 3e-5 * jax.random.normal(jax.random.key(seed), (size,), jnp.float32)
        # The place reached is rounded to single precision in both, so that they speak of the same one.
        moved = (ravel_pytree(params)[0] + moved) - ravel_pytree(params)[0]
        in_single = rises(params, moved, batch)
        with jax.enable_x64(True):
            double = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), (params, moved, batch))
            exact = [float(rise) for rise in rises(*double)]
        assert abs(exact[0] - exact[1]) < 1e-6
        assert 0.01 < abs(exact[0]) < 30
        termwise.append(abs(float(in_single[0]) - exact[0]))
        naive.append(abs(float(in_single[1]) - exact[0]))
    print(f"errors of the energy: term by term {np.round(termwise, 5)}, naive {np.round(naive, 5)}")
    assert max(termwise) < 1e-2
    assert max(naive) > 1e-2
