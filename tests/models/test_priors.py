"""Priors: log densities by hand, patterns, fan-in scaling, sampling."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from posterity import HMC, MAP, Laplace, Model, Normal, fit, prior_predictive
from posterity.models.likelihoods import Gaussian, GaussianLearnedNoise, StudentT
from posterity.models.priors import Fixed, Flat, prior, scale_mixture
from posterity.networks import linear, mlp

PARAMS = {
    "network": {
        "layer_0": {"weight": jnp.array([[0.5], [-1.0]]), "bias": jnp.array([2.0])},
        "layer_1": {"weight": jnp.array([[3.0]]), "bias": jnp.array([0.1])},
    }
}


def test_one_distribution_for_all():
    values = np.array([0.5, -1, 2, 3, 0.1])
    np.testing.assert_allclose(
        prior(dist.Normal(0.0, 2.0)).log_prob(PARAMS), stats.norm.logpdf(values, 0, 2).sum(), rtol=1e-6
    )


def test_the_sum_is_that_of_the_single_weights_and_so_is_its_gradient():
    weights = {"network": {"weight": 3 + jax.random.normal(jax.random.key(0), (40, 50)), "bias": jnp.arange(50.0)}}
    mixed = prior({"weight": dist.Normal(3.0, 0.7), "bias": dist.StudentT(4.0, 0.0, 2.0)}, fan_in=True)
    single = lambda params: sum(leaf.sum() for leaf in jax.tree.leaves(mixed.log_probs(params)))  # noqa: E731
    np.testing.assert_allclose(mixed.log_prob(weights), single(weights), rtol=1e-5)
    both = (jax.grad(mixed.log_prob)(weights), jax.grad(single)(weights))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4), *both)


def test_the_first_matching_pattern_counts():
    by_path = prior({"*bias": Flat(), "layer_0/*": dist.Normal(0.0, 0.1), "*": dist.Laplace(0.0, 1.0)})
    expected = stats.norm.logpdf([0.5, -1], 0, 0.1).sum() + stats.laplace.logpdf(3.0)
    np.testing.assert_allclose(by_path.log_prob(PARAMS), expected, rtol=1e-6)


def test_a_weight_without_a_pattern_is_named():
    with pytest.raises(ValueError, match=r"layer_1/bias.*Add '\*'"):
        prior({"layer_0/*": dist.Normal(0.0, 1.0)}).log_prob(PARAMS)


def test_fan_in_divides_the_scale_of_matrices():
    scaled = prior(dist.Normal(0.0, 2.0), fan_in=True)
    expected = (
        stats.norm.logpdf([0.5, -1], 0, 2 / np.sqrt(2)).sum() + stats.norm.logpdf([2, 0.1], 0, 2).sum()
    ) + stats.norm.logpdf(3.0, 0, 2)
    np.testing.assert_allclose(scaled.log_prob(PARAMS), expected, rtol=1e-6)
    _, std = scaled.moments(PARAMS)
    np.testing.assert_allclose(std["network"]["layer_0"]["weight"], 2 / np.sqrt(2), rtol=1e-6)
    draws = jax.vmap(lambda key: scaled.sample(key, PARAMS))(jax.random.split(jax.random.key(0), 4000))
    spread = np.asarray(draws["network"]["layer_0"]["weight"]).std()
    assert abs(spread - 2 / np.sqrt(2)) < 4 * np.sqrt(2) / np.sqrt(2 * 8000)


def test_fan_in_keeps_the_precision_of_the_weights():
    """Where float64 is on for a part of a program: a number of numpy would make float32 weights float64."""
    with jax.enable_x64(True):
        weights = jax.tree.map(lambda leaf: leaf.astype("float32"), PARAMS)
        values = prior(dist.Normal(0.0, 2.0), fan_in=True).log_probs(weights)
    assert {leaf.dtype for leaf in jax.tree.leaves(values)} == {jnp.dtype("float32")}


def test_an_embedding_has_no_fan_in():
    """Its rows are looked up: a vocabulary of 500 does not make them small."""
    scaled = prior(dist.Normal(0.0, 2.0), fan_in=True)
    for name in ("network/embedding/weight", "network/token_Embed_0/embedding"):
        assert scaled.factor(name, (500, 3), -2) == 1.0
    assert scaled.factor("network/layer_0/weight", (500, 3), -2) == pytest.approx(500**-0.5)


def test_fan_in_counts_the_window_of_a_convolution():
    scaled = prior(dist.Normal(0.0, 2.0), fan_in=True)
    for shape, axis in (((3, 3, 5, 64), -2), ((64, 5, 3, 3), -1)):  # Flax and ours; Equinox
        assert scaled.factor("network/weight", shape, axis) == pytest.approx(1 / np.sqrt(45))
    assert scaled.factor("network/bias", (64, 1, 1), -1) == 1.0  # of an Equinox convolution


def test_a_pattern_without_a_weight_is_named(line):
    believed = {"layers_0/*": Fixed(), "*": dist.Normal(0.0, 1.0)}
    with pytest.raises(ValueError, match=r"'layers_0/\*' matches no weight; they are .*layer_0/weight"):
        fit(Model(linear(), Gaussian(0.3), believed), MAP(), line)


def test_a_pattern_of_the_users_comes_before_the_likelihoods_own_prior():
    for pattern in ("likelihood/*", "*log_scale", "*/log_scale", "likelihood/log_scale"):
        model = Model(linear(), GaussianLearnedNoise(0.5), {pattern: Fixed(), "*": dist.Normal(0.0, 1.0)})
        assert model.full_prior.is_fixed("likelihood/log_scale")
    assert not Model(linear(), GaussianLearnedNoise(0.5), Fixed()).full_prior.is_fixed("likelihood/log_scale")


def test_scale_mixture_is_blundells():
    w = np.array([0.0, 0.01, 1.5])
    expected = np.log(0.25 * stats.norm.pdf(w, 0, 1) + 0.75 * stats.norm.pdf(w, 0, np.exp(-6)))
    mixture = scale_mixture(0.25, 1.0, np.exp(-6))
    np.testing.assert_allclose(mixture.log_prob(w), expected, rtol=1e-5)
    np.testing.assert_allclose(prior(mixture).log_probs({"w": jnp.asarray(w)})["w"], expected, rtol=1e-5)
    stretched = dataclasses.replace(prior(mixture), scale=2.0).log_probs({"w": jnp.asarray(2 * w)})["w"]
    np.testing.assert_allclose(stretched, expected - np.log(2), rtol=1e-5)


def test_a_mixture_of_any_family_is_a_prior():
    w = np.array([-2.0, 0.0, 40.0])  # far out in both tails, where a density itself is 0 in float32
    parts = dist.Laplace(jnp.array([-1.0, 0.0, 1.0]), jnp.array([0.1, 1.0, 0.2]))
    mixture = dist.MixtureSameFamily(dist.Categorical(probs=jnp.array([0.2, 0.3, 0.5])), parts)
    terms = [
        np.log(share) + stats.laplace.logpdf(w, mean, scale)
        for share, mean, scale in ((0.2, -1, 0.1), (0.3, 0, 1), (0.5, 1, 0.2))
    ]
    expected = np.logaddexp.reduce(terms)
    np.testing.assert_allclose(prior(mixture).log_probs({"w": jnp.asarray(w)})["w"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (3.0, TypeError, "expected a numpyro distribution"),
        (Laplace(), TypeError, r"did you mean numpyro\.distributions\.Laplace\?"),
        (StudentT(), TypeError, r"did you mean numpyro\.distributions\.StudentT\?"),
        (dist.Normal(jnp.zeros(2), 1.0), ValueError, "ONE weight"),
        (dist.ImproperUniform(dist.constraints.real, (), ()), ValueError, r"Flat\(\)"),
        (dist.Delta(0.0), ValueError, r"Fixed\(\)"),
        ({}, ValueError, "empty mapping"),
        (dist.HalfNormal(1.0), ValueError, r"whole line, e\.g\. .* numpyro\.distributions\.Laplace"),
        (dist.Uniform(-1.0, 1.0), ValueError, "whole line"),
    ],
)
def test_bad_priors_name_the_remedy(bad, error, message):
    with pytest.raises(error, match=message):
        prior(bad)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (dist.Normal, (0.0, 0.0), r"prior of 'b' has zero width; say Fixed\(\)"),
        (dist.Laplace, (0.0, 0.0), "has zero width"),
        (dist.Cauchy, (0.0, 0.0), r"prior of 'b', Cauchy, has scale=0.0; .* a width above 0: e.g. Normal\(0, 1\)"),
        (dist.Normal, (0.0, -1.0), "Normal, has scale=-1.0"),
        (dist.StudentT, (3.0, 0.0, -1.0), "StudentT, has scale=-1.0"),
        (dist.Normal, (0.0, np.nan), "has scale=nan"),
        (dist.Normal, (np.nan, 1.0), "has loc=nan"),
        (dist.Normal, (0.0, np.inf), r"has scale=inf.*Flat\(\)"),
        (lambda widths, validate_args: mixture_of(widths), ([1.0, -1.0],), r"Normal, has scale=\[ 1. -1.\]"),
    ],
)
def test_a_width_that_is_none_is_refused_whether_numpyro_looks_or_not(make, arguments, message):
    """numpyro looks when the distribution is built, so that its own words come first; without, ours do."""
    if np.inf not in arguments and not isinstance(arguments[0], list):
        with pytest.raises(ValueError, match=r"distribution got invalid (scale|loc) parameter"):
            make(*arguments, validate_args=True)
    built = make(*arguments, validate_args=False)
    with pytest.raises(ValueError, match=message):
        prior({"a": dist.Normal(0.0, 1.0), "b": built})
    with pytest.raises(ValueError, match=message):
        Model(linear(), Gaussian(0.1), {"a": dist.Normal(0.0, 1.0), "b": built})


def test_a_transformed_distribution_serves_as_a_prior():
    """numpyro knows its density but not its variance."""
    doubled = dist.TransformedDistribution(dist.Normal(0.0, 1.0), dist.transforms.AffineTransform(0.0, 2.0))
    weights = {"w": jnp.array([-1.0, 0.5, 3.0])}
    expected = prior(dist.Normal(0.0, 2.0)).log_prob(weights)
    np.testing.assert_allclose(prior(doubled).log_prob(weights), expected, rtol=1e-6)
    data = np.zeros((4, 1)), np.zeros(4)
    with pytest.raises(ValueError, match=r"none that is known.*HMC\(trajectory_length=\.\.\.\)"):
        fit(Model(linear(), Gaussian(0.1), doubled), HMC(), data)


def mixture_of(widths):
    parts = dist.Normal(jnp.zeros(2), jnp.array(widths), validate_args=False)
    return dist.MixtureSameFamily(dist.Categorical(logits=jnp.zeros(2)), parts)


def test_what_a_user_sees_of_a_prior_without_width():
    with pytest.raises(ValueError, match="Normal distribution got invalid scale parameter"):
        Normal(0.0, 0.0)


def test_the_prior_predictive_draws_functions():
    x = np.array([[0.0], [1.0], [3.0]])
    model = Model(linear(), Gaussian(0.1), dist.Normal(0.0, 2.0))
    prediction = prior_predictive(model, x, num_draws=4000)
    variance = 4 + 4 * x[:, 0] ** 2  # bias and slope
    np.testing.assert_allclose(prediction.epistemic, variance, rtol=4 * np.sqrt(2 / 4000))
    assert np.all(np.abs(prediction.mean) < 4 * np.sqrt(variance / 4000))


def test_a_flat_prior_has_no_predictive():
    with pytest.raises(ValueError, match="cannot be sampled"):
        prior_predictive(Model(linear(), Gaussian(0.1), Flat()), np.zeros((2, 1)))


def test_fixed_weights_leave_the_free_tree():
    model = Model(mlp((2,)), GaussianLearnedNoise(), {"layer_0/*": Fixed(), "*": dist.Normal(0.0, 1.0)})
    free, fixed = model.split(model.init(jax.random.key(0), jnp.zeros((1, 2))))
    assert len(jax.tree.leaves(free)) == 3  # two of the last layer, and the noise
    assert len(jax.tree.leaves(fixed)) == 2
