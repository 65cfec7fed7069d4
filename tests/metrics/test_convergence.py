"""R-hat, effective draws and Monte Carlo errors of chains, against ArviZ and chains whose answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats
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


# Errors that hold with few effective draws


def test_the_t_factor_is_that_of_students_quantile():
    degrees = np.array([0.5, 1.0, 2.0, 3.0, 7.0, 15.5, 99.0, 1e6])
    exact = stats.t.ppf(stats.norm.cdf(2.0), degrees) / 2
    np.testing.assert_allclose(convergence.t_factor(degrees), exact, rtol=1e-3)
    np.testing.assert_allclose(jax.jit(lambda d: convergence.t_factor(d, jnp))(degrees), exact, rtol=1e-3)
    assert convergence.t_factor(0.1) == convergence.t_factor(0.5)


@pytest.mark.parametrize(
    ("shape", "rho"), [((8, 1), 0.0), ((4, 10), 0.9), ((8, 100), 0.3), ((8, 200), 0.95), ((4, 100), 0.98)]
)
def test_two_honest_errors_hold_the_exact_mean(shape, rho):
    """Members of an ensemble, short chains, chains as of HMC, chains as of SGHMC: at most 8 % are farther away."""
    values = autoregressive(rho, (*shape, 3000))
    missed = np.mean(np.abs(values.mean((0, 1))) > 2 * convergence.honest_error(values))
    assert missed < 0.06 + 4 * np.sqrt(0.06 * 0.94 / 3000)
    assert missed > 0.005


def test_nothing_that_varies_has_an_error_of_zero_and_what_is_not_finite_none():
    values = np.ones((4, 50, 2))
    values[1, 3, 1] = np.inf
    np.testing.assert_array_equal(convergence.honest_error(values), [0.0, np.nan])


# Nested R-hat


def test_nested_r_hat_is_that_of_the_formula():
    values = np.random.default_rng(0).normal(size=(6, 5, 3))
    groups = [values[[k, k + 3]] for k in range(3)]  # chains c and c + 3 began at the same weights
    means = np.stack([group.mean((0, 1)) for group in groups])
    within = np.mean([g.mean(1).var(0, ddof=1) + g.var(1, ddof=1).mean(0) for g in groups], 0)
    np.testing.assert_allclose(convergence.nested_r_hat(values, 3), np.sqrt(1 + means.var(0, ddof=1) / within))
    single = values[:, :1]
    within = np.mean([g[:, 0].var(0, ddof=1) for g in [single[[k, k + 3]] for k in range(3)]], 0)
    means = np.stack([single[[k, k + 3]].mean((0, 1)) for k in range(3)])
    np.testing.assert_allclose(convergence.nested_r_hat(single, 3), np.sqrt(1 + means.var(0, ddof=1) / within))


def test_nested_r_hat_of_many_chains_of_one_draw_shows_whether_they_have_forgotten_their_start():
    """In the stationary law 1 + 1 / M under the root; where starts are remembered, far above."""
    rng = np.random.default_rng(1)
    arrived = rng.normal(size=(4 * 500, 1, 50))
    found = convergence.nested_r_hat(arrived, 4)
    np.testing.assert_allclose(np.square(found).mean(), 1 + 1 / 500, atol=4 * np.sqrt(2 / 3 / 50) / 500)
    remembered = arrived + np.tile(rng.normal(size=(4, 1, 50)), (500, 1, 1))
    assert np.median(convergence.nested_r_hat(remembered, 4)) > 1.3
    assert convergence.nested_r_hat(remembered, 4).min() > found.max()
    with pytest.raises(ValueError, match="6 chains of 5 draws are no 4 groups"):
        convergence.nested_r_hat(np.zeros((6, 5, 1)), 4)
