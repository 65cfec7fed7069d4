"""information.py against closed forms, identities and plain loops."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import digamma, entr

from posterity.metrics import information as plain

# Compiled once per shape: eager JAX compiles every operation of every new shape by itself.
information = SimpleNamespace(**{name: jax.jit(getattr(plain, name)) for name in plain.__all__})
DRAW_FUNCTIONS = (
    plain.mutual_information,
    plain.mutual_information_jackknife,
    plain.variation_ratio,
)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def dirichlet(*shape: int, classes: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(classes), shape)


def test_known_values():
    assert float(information.entropy([0.5, 0.5])) == pytest.approx(np.log(2))
    assert float(information.entropy(np.full(10, 0.1))) == pytest.approx(np.log(10))
    assert float(information.entropy([1.0, 0.0, 0.0])) == 0
    assert float(information.self_information(0.25)) == pytest.approx(2 * np.log(2))
    assert float(information.self_information(0.0)) == np.inf
    p, q = [0.5, 0.5], [0.25, 0.75]
    surprise = 1.5 * np.log(2) - np.log(1.5) / 2
    assert float(information.cross_entropy(p, q)) == pytest.approx(surprise)
    assert float(information.kl_divergence(p, q)) == pytest.approx(np.log(4 / 3) / 2)


def test_zeros_cost_nothing_or_everything():
    assert float(information.cross_entropy([1.0, 0.0], [1.0, 0.0])) == 0
    assert float(information.kl_divergence([1.0, 0.0], [0.5, 0.5])) == pytest.approx(np.log(2))
    for divergence in (information.cross_entropy, information.kl_divergence):
        assert float(divergence([0.5, 0.5], [1.0, 0.0])) == np.inf


def test_divergence_identities():
    p, q = dirichlet(50), dirichlet(50, seed=1)
    divergence = information.kl_divergence(p, q)
    difference = np.asarray(information.cross_entropy(p, q)) - np.asarray(information.entropy(p))
    np.testing.assert_allclose(divergence, difference, atol=1e-12)
    assert np.min(divergence) > 0
    np.testing.assert_array_equal(information.kl_divergence(p, p), 0)
    # Independent factors add.
    joint_p, joint_q = (np.einsum("na,nb->nab", a, a).reshape(50, 16) for a in (p, q))
    joint_divergence = np.asarray(information.kl_divergence(joint_p, joint_q))
    np.testing.assert_allclose(joint_divergence, 2 * np.asarray(divergence))


def test_gradients_at_zero_are_finite():
    p, q = jnp.array([0.25, 0.75, 0.0]), jnp.array([0.5, 0.25, 0.25])
    slope = jax.jit(jax.grad(plain.entropy))(p)
    np.testing.assert_allclose(slope, [-np.log(0.25) - 1, -np.log(0.75) - 1, 0])
    # Linear in p, so exact there too; and q_c = 0 = p_c is a class that plays no part.
    slopes = jax.jit(jax.grad(plain.cross_entropy, (0, 1)))
    np.testing.assert_allclose(slopes(p, q)[0], -np.log(q))
    np.testing.assert_allclose(slopes(p, p)[1], [-1, -1, 0])
    through_softmax = jax.jit(jax.grad(lambda logits: plain.entropy(jax.nn.softmax(logits))))
    assert np.isfinite(through_softmax(jnp.array([0.0, 1.0, -1e4]))).all()
    draws = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    for function in DRAW_FUNCTIONS[:2]:
        assert np.isfinite(jax.jit(jax.grad(function))(draws)).all()


def test_gradients_inside_match_differences():
    draws = dirichlet(5, seed=3)
    step = 1e-6 * np.random.default_rng(0).normal(size=draws.shape)
    for function in DRAW_FUNCTIONS[:2]:
        value, gradient = jax.jit(function), jax.jit(jax.grad(function))(draws)
        numeric = (float(value(draws + step)) - float(value(draws - step))) / 2
        assert numeric == pytest.approx((np.asarray(gradient) * step).sum(), rel=1e-5)


def test_two_certain_draws_that_disagree():
    draws = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert float(information.mutual_information(draws)) == pytest.approx(np.log(2))
    assert float(information.variation_ratio(draws)) == 0.5


def test_mutual_information_is_mean_divergence_from_the_mean():
    draws = dirichlet(7, 30)
    expected = information.kl_divergence(draws, np.broadcast_to(draws.mean(0), draws.shape))
    information_gain = information.mutual_information(draws)
    np.testing.assert_allclose(information_gain, np.mean(expected, axis=0), atol=1e-12)
    assert information_gain.shape == (30,)


def test_mutual_information_of_equal_draws_is_never_negative():
    with jax.enable_x64(False):  # float32 rounding is what makes it negative
        draws = np.broadcast_to(dirichlet(500).astype(np.float32), (7, 500, 4))
        unclipped = jax.jit(lambda d: plain.entropy(d.mean(0)) - plain.entropy(d).mean(0))(draws)
        assert np.min(unclipped) < 0
        assert np.min(information.mutual_information(draws)) == 0


def leave_one_out_loop(draws: np.ndarray) -> np.ndarray:
    def plain_estimate(some: np.ndarray) -> np.ndarray:
        return entr(some.mean(0)).sum(-1) - entr(some).sum(-1).mean(0)

    num_draws = len(draws)
    without = [plain_estimate(np.delete(draws, s, axis=0)) for s in range(num_draws)]
    return num_draws * plain_estimate(draws) - (num_draws - 1) * np.mean(without, axis=0)


@pytest.mark.parametrize("num_draws", [2, 3, 8])
def test_jackknife_equals_the_loop(num_draws: int):
    draws = dirichlet(num_draws, 20)
    draws[0, :5] = np.eye(4)[0]  # certain draws, with zeros
    draws[:, 5] = np.eye(4)[1]  # a class that no draw allows
    draws[:, 6] = np.eye(4)[np.arange(num_draws) % 4]  # mass from one draw alone
    jackknife = information.mutual_information_jackknife(draws)
    np.testing.assert_allclose(jackknife, leave_one_out_loop(draws), atol=1e-12)


def test_jackknife_keeps_float32_with_many_draws():
    draws = dirichlet(500, 6, classes=10)
    exact = np.asarray(information.mutual_information_jackknife(draws))
    with jax.enable_x64(False):
        single = np.asarray(information.mutual_information_jackknife(draws))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, exact, atol=2e-6)


def test_jackknife_is_less_biased_on_dirichlet_draws():
    # Dirichlet(a, ..., a), A = C a: E H[p] = psi(A + 1) - psi(a + 1), and H[E p] = log C.
    concentration, classes, num_draws, repeats = 1.5, 4, 5, 20_000
    total = classes * concentration
    exact = np.log(classes) - (digamma(total + 1) - digamma(concentration + 1))
    generator = np.random.default_rng(0)
    draws = generator.dirichlet(np.full(classes, concentration), (num_draws, repeats))
    bias, error = {}, {}
    for function in DRAW_FUNCTIONS[:2]:
        values = np.asarray(jax.jit(function)(draws))
        bias[function] = values.mean() - exact
        error[function] = values.std() / np.sqrt(repeats)
    plain_bias, jackknife_bias = bias.values()
    plain_error, jackknife_error = error.values()
    assert plain_bias < -20 * plain_error
    # Theory: plain bias -(1/2S) sum_c Var p_c / E p_c to first order.
    first_order = -(classes - 1) / (total + 1) / (2 * num_draws)
    assert plain_bias == pytest.approx(first_order, rel=0.15)
    assert abs(jackknife_bias) + 4 * jackknife_error < abs(plain_bias) / 5


def test_one_draw_cannot_tell():
    draws = dirichlet(1, 3)
    np.testing.assert_array_equal(information.mutual_information(draws), 0)
    assert np.isnan(information.mutual_information_jackknife(draws)).all()
    assert information.mutual_information_jackknife(draws).shape == (3,)


def test_variation_ratio_counts_votes():
    votes = np.array([[0, 2], [0, 1], [1, 0], [0, 1], [2, 3]])
    draws = np.eye(4)[votes] * 0.6 + 0.1
    np.testing.assert_allclose(information.variation_ratio(draws), [0.4, 0.6])


def test_nan_is_not_hidden():
    draws = dirichlet(4, 2)
    draws[2, 1, 0] = np.nan
    for function in DRAW_FUNCTIONS:
        np.testing.assert_array_equal(np.isnan(jax.jit(function)(draws)), [False, True])
    assert np.isnan(information.entropy([np.nan, 1.0]))
    assert np.isnan(information.cross_entropy([np.nan, 1.0], [0.0, 1.0]))


def test_traces_under_strict_flags():
    draws = jnp.asarray(dirichlet(6, 3, 5), jnp.float32)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for function in DRAW_FUNCTIONS:
            whole = jax.jit(function)(draws)
            mapped = jax.jit(jax.vmap(function, in_axes=1))(draws)
            assert whole.shape == (3, 5)
            assert whole.dtype == jnp.float32
            np.testing.assert_allclose(mapped, whole, atol=1e-6)
