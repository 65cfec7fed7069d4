"""The variational metric of HMC: the optimum on Gaussian targets in closed form, and draws that stay exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import targets

from posterity import HMC, fit
from posterity.core.types import Batch
from posterity.data.batches import clock
from posterity.inference.methods import variational

WHITENED = HMC(num_draws=8000, num_burn_in=100, metric="variational", num_variational=600)


@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "posterior"), (4.0, "posterior"), (4.0, "likelihood")])
def test_the_metric_is_the_conditional_width(temperature, tempering):
    """For a Gaussian of precision K the nearest independent one has the mean of it and widths K_ii^-1/2."""
    data, model = targets.linear_gaussian(), targets.model(temperature, tempering)
    mean, covariance = targets.gaussian_moments(data, temperature, tempering)
    precision = np.linalg.inv(covariance)
    widths = np.sqrt(1 / np.diag(precision))
    params = model.init(jax.random.key(0), data[0])
    q, prior = inferred(model, params, data, num_steps=3000)
    np.testing.assert_allclose(variational.metric(q, prior), widths, rtol=0.05)
    np.testing.assert_allclose(variational.centre(q, prior), mean, atol=0.1 * widths.min())


def inferred(model, params, data, num_steps):
    """q after so many steps of HMC's first phase, and the prior's widths in the target."""
    batch = Batch(*(jnp.asarray(values, jnp.float32) for values in data), jnp.ones(len(data[1]), jnp.float32))
    kernel, key = HMC(metric="variational").kernel(model), jax.random.key(1)

    def now(step):
        return clock(jnp.asarray(step), jnp.asarray(num_steps), jnp.asarray(0), 1, len(data[1]))

    def step(index, state):
        return kernel.step(jax.random.fold_in(key, index), state, batch, now(index))[0]

    state = jax.jit(lambda params: jax.lax.fori_loop(0, num_steps, step, kernel.init(key, params, batch, now(0))))(
        params
    )
    stretch = np.sqrt(model.temperature if model.tempering == "posterior" else 1.0)
    return state.q, np.array([targets.WIDTHS["a"], targets.WIDTHS["b"]], np.float32) * stretch


@pytest.mark.parametrize("target", targets.DATA)
@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "posterior"), (0.25, "likelihood")])
def test_draws_are_exact(temperature, tempering, target):
    data = targets.DATA[target]()
    posterior = fit(targets.model(temperature, tempering), WHITENED, data, progress=False)
    targets.check_posterior(posterior, targets.reference(data, temperature, tempering))
    draws = posterior.trace.of_draws()
    assert (np.ptp(draws["step_size"], axis=1) == 0).all()
    assert 0.6 < draws["acceptance"].mean() < 0.99


def test_a_wrong_metric_is_refused():
    with pytest.raises(ValueError, match="choose 'prior' or 'variational'"):
        HMC(metric="posterior")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_variational"):
        HMC(metric="variational", num_variational=0)
