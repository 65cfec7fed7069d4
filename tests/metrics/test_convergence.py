"""R-hat, effective draws and Monte Carlo errors of chains, against ArviZ and chains whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from targets import autoregressive

from posterity.metrics import convergence


def arrays():
    rng = np.random.default_rng(0)
    for shape in [(4, 500, 7), (2, 50, 7), (3, 33, 7), (4, 8, 7), (2, 9, 7)]:
        yield pytest.param(rng.normal(size=shape), id=f"white {shape}")
        yield pytest.param(autoregressive(0.9, shape), id=f"slow {shape}")
        yield pytest.param(autoregressive(-0.6, shape), id=f"alternating {shape}")
        yield pytest.param(rng.normal(size=shape).round(), id=f"ties {shape}")
        yield pytest.param(rng.normal(size=shape) + np.arange(shape[0])[:, None, None], id=f"apart {shape}")


@pytest.mark.parametrize("values", list(arrays()))
def test_numbers_are_those_of_arviz(values):
    found = convergence.convergence(values)
    np.testing.assert_allclose(found.r_hat, array_stats.rhat(values, 0, 1), rtol=1e-12)
    np.testing.assert_allclose(convergence.r_hat(values), found.r_hat)
    np.testing.assert_allclose(found.ess_bulk, array_stats.ess(values, 0, 1, "bulk"), rtol=1e-10)
    np.testing.assert_allclose(found.ess_tail, array_stats.ess(values, 0, 1, "tail", prob=(0.05, 0.95)), rtol=1e-10)
    if values.shape[1] >= convergence.SHORT:
        np.testing.assert_allclose(found.standard_error, array_stats.mcse(values, 0, 1), rtol=1e-10)


def test_blocks_do_not_change_the_numbers(monkeypatch):
    values = autoregressive(0.5, (2, 40, 3, 4))
    whole = convergence.convergence(values)
    monkeypatch.setattr(convergence, "BLOCK_VALUES", 2 * 40 * 5)
    np.testing.assert_array_equal(convergence.convergence(values), whole)
    assert whole.r_hat.shape == (3, 4)


def test_one_chain_is_split_into_two():
    values = autoregressive(0.5, (1, 101, 6))
    halves = convergence.split(values)
    assert halves.shape == (2, 50, 6)
    folded = np.abs(halves - np.median(halves, (0, 1)))
    exact = [array_stats.rhat(convergence.normal_scores(each), 0, 1, "identity") for each in (halves, folded)]
    np.testing.assert_allclose(convergence.r_hat(values), np.maximum(*exact), rtol=1e-12)


@pytest.mark.parametrize("rho", [-0.3, 0.0, 0.5, 0.9])
def test_effective_draws_of_autoregressive_chains(rho):
    """ESS = S (1 - rho) / (1 + rho), and the error of the mean follows from it."""
    values = autoregressive(rho, (4, 4000, 40))
    exact = 16000 * (1 - rho) / (1 + rho)
    found = convergence.effective_draws(values)
    assert abs(found.mean() / exact - 1) < 0.05
    assert np.abs(found / exact - 1).max() < 0.35
    assert abs(convergence.standard_error(values).mean() * np.sqrt(exact) - 1) < 0.05


def test_the_error_in_a_compiled_program_is_the_same():
    for rho, num_draws in [(0.8, 100), (0.0, 17), (0.5, 9)]:
        values = autoregressive(rho, (3, num_draws, 5)).astype(np.float32)
        compiled = jax.jit(lambda draws: convergence.standard_error(draws, jnp))(values)
        np.testing.assert_allclose(compiled, convergence.standard_error(values.astype(float)), rtol=1e-4)


def test_short_chains_use_the_spread_of_their_means_and_one_short_chain_cannot_tell():
    values = autoregressive(0.9, (4, 10, 4000))
    stated = np.sqrt((convergence.standard_error(values) ** 2).mean())
    assert abs(stated / values.mean((0, 1)).std() - 1) < 0.05
    assert np.isnan(convergence.standard_error(values[:1])).all()


def test_values_that_do_not_vary_or_are_not_finite():
    values = np.random.default_rng(0).normal(size=(3, 20, 4))
    values[:, :, 1] = 2.0  # the same in all chains
    values[:, :, 2] = np.arange(3)[:, None]  # a constant of its own in each
    values[1, 7, 3] = np.inf
    found = convergence.convergence(values)
    assert np.isfinite(found.r_hat[0])
    assert np.isnan(found.r_hat[1])
    assert found.standard_error[1] == 0
    assert np.isposinf(found.r_hat[2])
    assert np.isnan([column[3] for column in found]).all()


def test_too_few_draws_have_no_r_hat():
    with pytest.raises(ValueError, match=r"7 draws per chain are too few.*at least 8"):
        convergence.r_hat(np.zeros((4, 7, 2)))
