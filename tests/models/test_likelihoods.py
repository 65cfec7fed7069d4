"""Likelihoods: log probabilities against scipy, shapes on [S, N, K], one-line likelihoods of the user's own."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import special, stats

from posterity.models.counts import NegativeBinomial, Poisson
from posterity.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    NoisyCategorical,
    StudentT,
    class_probs,
    likelihood,
)

RNG = np.random.default_rng(0)
OUTPUTS = jnp.asarray(RNG.normal(size=(3, 5, 4)), jnp.float32)  # [S, N, K]
F = np.asarray(OUTPUTS, float)


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


CASES = [
    (Gaussian(0.3), 1, 0.2, lambda f, y: stats.norm.logpdf(y, f[..., 0], 0.3)),
    (
        GaussianLearnedNoise(),
        2,
        0.2,
        lambda f, y: stats.norm.logpdf(y, f[..., 0], 1e-3 + np.exp(f[..., 1])),
    ),
    (
        HeteroscedasticGaussian(),
        2,
        0.2,
        lambda f, y: stats.norm.logpdf(y, f[..., 0], np.sqrt(1e-6 + np.exp(f[..., 1]))),
    ),
    (StudentT(df=5.0, scale=0.7), 1, 0.2, lambda f, y: stats.t.logpdf(y, 5, f[..., 0], 0.7)),
    (Bernoulli(), 1, 1, lambda f, y: -np.log1p(np.exp(-f[..., 0]))),
    (Categorical(3), 3, 2, lambda f, y: np.log(softmax(f)[..., 2])),
    (Poisson(), 1, 3, lambda f, y: stats.poisson.logpmf(y, np.exp(f[..., 0]))),
    (
        NegativeBinomial(),
        2,
        3,
        lambda f, y: stats.nbinom.logpmf(y, np.exp(f[..., 1]), 1 / (1 + np.exp(f[..., 0] - f[..., 1]))),
    ),
]


@pytest.mark.parametrize(("made", "width", "y", "expected"), CASES, ids=lambda v: type(v).__name__)
def test_log_probabilities(made, width, y, expected):
    distribution = made(OUTPUTS[..., :width])
    assert distribution.batch_shape == (3, 5)
    np.testing.assert_allclose(distribution.log_prob(y), expected(F[..., :width], y), rtol=2e-4, atol=1e-5)


def log_prob_and_gradient(made, outputs, y):
    """log p(y_n) and its gradient in the outputs [N, K], as a fit sees them in float32."""

    def total(o):
        log_prob = made(o).log_prob(jnp.asarray(y))
        return log_prob.sum(), log_prob

    gradient, found = jax.jit(jax.grad(total, has_aux=True))(jnp.asarray(outputs, jnp.float32))
    return np.asarray(found, float), np.asarray(gradient, float)


COUNTS = [0, 1, 2, 9, 10, 40, 8000, 200_000]


def grid(*axes):
    """All combinations, a column each; outputs as float32 has them."""
    *outputs, y = (part.ravel() for part in np.meshgrid(*axes, COUNTS))
    return *(np.float32(part).astype(float) for part in outputs), y


def test_poisson_densities_and_gradients_at_any_rate():
    """A logarithm of size f is off by 1e-7 f, which the gradient multiplies: no form in f does better."""
    f, y = grid([-100.0, -90.0, -20.0, 0.0, 3.0, 9.0, 14.0, 80.0])
    found, gradient = log_prob_and_gradient(Poisson(), f[:, None], y)
    slope = y - np.exp(f)
    slack = 2e-6 + 1e-7 * np.abs(slope) * (np.abs(f) + np.log1p(y))
    np.testing.assert_array_less(
        np.abs(found - (y * f - np.exp(f) - special.gammaln(y + 1))), slack + 1e-6 * abs(found)
    )
    np.testing.assert_array_less(np.abs(gradient[:, 0] - slope), 1e-6 * (y + 1) + 1e-5 * np.abs(slope))


def test_a_rate_beyond_float32_makes_counts_impossible():
    found, _ = log_prob_and_gradient(Poisson(), [[90.0], [90.0]], np.array([0, 2]))
    np.testing.assert_array_equal(found, -np.inf)


def test_negative_binomial_densities_and_gradients_at_any_mean_and_concentration():
    f, g, y = grid([-90.0, -20.0, 0.0, 1.6, 9.0, 14.0, 90.0], [-30.0, -5.0, 0.0, 2.3, 8.0, 12.0, 15.0, 17.0, 39.0])
    found, gradient = log_prob_and_gradient(NegativeBinomial(), np.stack([f, g], 1), y)
    a, share = np.exp(g), np.logaddexp(0, f - g)
    # Products, not gamma functions: float64 too would lose the difference of these at large concentrations.
    rising, slope_of_it = np.transpose(
        [
            (np.log1p(np.arange(n) / c).sum() + n * np.log(c), (c / (c + np.arange(n))).sum())
            for n, c in zip(y, a, strict=True)
        ]
    )
    exact = rising - special.gammaln(y + 1) - a * share - y * np.logaddexp(0, g - f)
    slope = y * np.exp(-share) - a * np.exp(f - g - share)
    slack = 1e-5 + 1e-7 * np.abs(slope) * (np.abs(f) + np.abs(g) + np.log1p(y))
    np.testing.assert_array_less(np.abs(found - exact), slack + 1e-6 * np.abs(exact))
    np.testing.assert_array_less(np.abs(gradient[:, 0] - slope), 1e-6 * (y + 1) + 1e-5 * np.abs(slope))
    np.testing.assert_array_less(np.abs(gradient[:, 1] - (slope_of_it - a * share - slope)), 1e-6 * (y + 1) + slack)


def test_several_targets_a_row():
    distribution = Gaussian(0.5, num_outputs=4)(OUTPUTS)
    assert (distribution.batch_shape, distribution.event_shape) == ((3, 5), (4,))
    y = np.ones(4)
    np.testing.assert_allclose(distribution.log_prob(y), stats.norm.logpdf(y, F, 0.5).sum(-1), rtol=1e-5)


def test_noisy_categorical_without_noise_is_categorical():
    quiet = jnp.concatenate([OUTPUTS[..., :2], jnp.full((3, 5, 2), -30.0)], -1)
    np.testing.assert_allclose(
        NoisyCategorical(2)(quiet).log_prob(1), Categorical(2)(OUTPUTS[..., :2]).log_prob(1), atol=1e-4
    )


def test_logit_noise_softens_to_the_integral():
    """E softmax of noisy logits, two classes: the difference of logits is N(d, 2 s^2), integrated by quadrature."""
    scale, difference = 1.5, 2.0
    outputs = jnp.array([[difference, 0.0, 2 * np.log(scale), 2 * np.log(scale)]])
    points, weights = np.polynomial.hermite_e.hermegauss(60)
    logits = difference + np.sqrt(2) * scale * points
    expected = (weights / (1 + np.exp(-logits))).sum() / weights.sum()
    found = float(class_probs(NoisyCategorical(2, num_noise_draws=4000)(outputs))[0, 0])
    assert abs(found - expected) < 4 * 0.25 / np.sqrt(4000)


def test_a_likelihood_of_ones_own_takes_one_line():
    gamma = likelihood(lambda o: dist.Gamma(jnp.exp(o[..., 0]), jnp.exp(o[..., 1])), num_outputs=2)
    assert gamma.kind == "continuous"
    np.testing.assert_allclose(
        gamma(OUTPUTS[..., :2]).log_prob(0.4),
        stats.gamma.logpdf(0.4, np.exp(F[..., 0]), scale=np.exp(-F[..., 1])),
        rtol=1e-4,
    )
    assert likelihood(lambda o: dist.Geometric(logits=o[..., 0])).kind == "counts"
    assert likelihood(lambda o: dist.Bernoulli(logits=o[..., 0])).kind == "classes"


def test_bad_settings_name_the_remedy():
    with pytest.raises(ValueError, match="above 0"):
        Gaussian(0.0)
    with pytest.raises(ValueError, match="df above 2"):
        StudentT(df=2.0)
    with pytest.raises(ValueError, match=r"StudentT\(df='4'\) must be a number above 0"):
        StudentT(df="4")
    with pytest.raises(ValueError, match="LAST axis"):
        likelihood(lambda o: dist.Normal(o, 1.0))
    with pytest.raises(ValueError, match="is num_outputs=1 right"):
        likelihood(lambda o: dist.Normal(o[..., 0], o[3.5]))


def test_an_index_beyond_the_outputs_is_refused():
    """JAX itself would read the first output twice, and tie both parameters."""
    with pytest.raises(ValueError, match=r"index 1 .* is num_outputs=1 right"):
        likelihood(lambda o: dist.Gamma(jnp.exp(o[..., 0]), jnp.exp(o[..., 1])))
    assert jnp.zeros((3, 1))[..., 1].shape == (3,)  # and what JAX does elsewhere stays as it was


def test_what_is_not_a_distribution_is_refused():
    with pytest.raises(TypeError, match=r"returned .*Array.*; expected a numpyro distribution"):
        likelihood(lambda o: o[..., 0])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda o: dist.Categorical(logits=o.reshape(*o.shape[:-1], 2, 3)).to_event(1), "Independent"),
        (lambda o: dist.MultivariateStudentT(4.0, o, jnp.eye(6)), "MultivariateStudentT"),
        (lambda o: dist.Dirichlet(jnp.exp(o)), "Dirichlet"),
        (lambda o: dist.MultivariateNormal(o.reshape(*o.shape[:-1], 2, 3), jnp.eye(3)).to_event(1), "Independent"),
        (
            lambda o: dist.TransformedDistribution(dist.Normal(o[..., 0], 1.0), dist.transforms.SoftplusTransform()),
            "TransformedDistribution",
        ),
    ],
)
def test_what_no_prediction_can_use_is_refused_before_the_fit(function, name):
    with pytest.raises(ValueError, match=rf"No prediction can be made of .*{name}.* ONE class a row, or numbers"):
        likelihood(function, num_outputs=6)


def test_several_numbers_a_row_are_accepted():
    for function in (
        lambda o: dist.Gamma(jnp.exp(o), 2.0).to_event(1),
        lambda o: dist.MultivariateNormal(o, jnp.eye(3)),
    ):
        assert likelihood(function, num_outputs=3).kind == "continuous"
    assert likelihood(lambda o: dist.Poisson(jnp.exp(o)).to_event(1), num_outputs=3).kind == "counts"
    assert likelihood(lambda o: dist.Cauchy(o[..., 0], 1.0)).kind == "continuous"  # its moments are NaN, and said to be


@pytest.mark.parametrize("fixed", [Bernoulli, Poisson, NegativeBinomial])
def test_outputs_that_a_likelihood_would_not_use_cannot_be_asked_for(fixed):
    with pytest.raises(TypeError):
        fixed(3)
    with pytest.raises(TypeError):
        fixed(num_outputs=3)


def test_counts_of_outputs_and_classes():
    with pytest.raises(ValueError, match="always takes two outputs"):
        HeteroscedasticGaussian(2)
    with pytest.raises(TypeError):
        HeteroscedasticGaussian(num_outputs=3)
    assert Categorical(num_classes=3).num_outputs == 3
    assert repr(Categorical(3)) == "Categorical(num_classes=3)"
    assert NoisyCategorical(num_classes=3).num_outputs == 6
    for made in (Categorical, NoisyCategorical):
        with pytest.raises(ValueError, match=r"num_classes=1\): expected a whole number, at least 2"):
            made(1)
    with pytest.raises(ValueError, match=r"Gaussian\(num_outputs=0\)"):
        Gaussian(0.1, num_outputs=0)
