"""The variational metric of HMC: the optimum on Gaussian targets in closed form, and draws that stay exact."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import targets

from posterity import HMC, Gaussian, Model, fit, mlp
from posterity.core.devices import double_precision
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


def test_burn_in_begins_with_the_measure_of_the_whole_density():
    """Also where inference was cut while its prior was tempered: a stale one would never be left, or never be found."""
    data = targets.linear_gaussian()
    rows = np.concatenate([data[0][:, :1], np.ones((len(data[1]), 1))], 1), data[1]
    model = Model(mlp((3,), activation="tanh"), Gaussian(0.5), dist.Normal(0.0, 1.0))
    batch = Batch(*(jnp.asarray(values, jnp.float32) for values in rows), jnp.ones(len(rows[1]), jnp.float32))
    method, key = HMC(metric="variational"), jax.random.key(1)
    kernel = method.kernel(model)

    def now(step, phase):
        return clock(jnp.asarray(step), jnp.asarray(100), jnp.asarray(phase), 1, len(rows[1]))

    with double_precision(True):
        cut = kernel.init(key, model.init(key, batch.x), batch, now(0, 0))
        cut = kernel.step(key, cut, batch, now(0, 0))[0]  # the prior counts a twentieth
        density = method.density(model, cut.params, batch)
        true = density.measure(density.position(cut.params))
        assert abs(cut.measure - true) > 0.1
        begun, info = kernel.step(key, cut, batch, now(0, 1))
        np.testing.assert_allclose(begun.measure, true, rtol=1e-6)
        np.testing.assert_allclose(
            density.position(begun.params)["network"]["layer_0"]["weight"],
            density.position(cut.params)["network"]["layer_0"]["weight"],
        )
        assert info.num_gradients == 1
        assert begun.step_size.num_updates == 0


def test_a_step_size_that_is_given_stays():
    method = HMC(num_draws=50, num_burn_in=5, metric="variational", num_variational=50, step_size=0.3)
    posterior = fit(targets.model(), method, targets.linear_gaussian(), progress=False)
    np.testing.assert_allclose(posterior.trace.of_draws()["step_size"], 0.3, rtol=1e-6)


def test_a_wrong_metric_is_refused():
    with pytest.raises(ValueError, match="choose 'prior' or 'variational'"):
        HMC(metric="posterior")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_variational"):
        HMC(metric="variational", num_variational=0)
