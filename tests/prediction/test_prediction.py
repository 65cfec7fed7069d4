"""Prediction: the mixture's moments, quantiles, scores and sets against direct formulas, streaming, and bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from lookup import predict
from scipy import optimize, stats

from posterity import metrics
from posterity.models.counts import NegativeBinomial, Poisson
from posterity.models.likelihoods import Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian, StudentT, likelihood
from posterity.models.units import Rescaled
from posterity.posterior.posterior import DEFAULT_MEMORY
from posterity.prediction import streaming
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import OutputStream

RNG = np.random.default_rng(0)
F = RNG.normal(size=(20, 7, 2)) * 2
Y = RNG.normal(size=7)
MEANS, SCALES = F[..., 0], np.sqrt(np.exp(F[..., 1]) + 1e-6)


@pytest.fixture(scope="module")
def gaussian():
    return predict(HeteroscedasticGaussian(), F)


def test_outputs_are_the_draws(gaussian):
    np.testing.assert_allclose(gaussian.outputs, F, rtol=1e-6)


def test_moments_of_the_mixture(gaussian):
    np.testing.assert_allclose(gaussian.mean, MEANS.mean(0), rtol=1e-4, atol=1e-5)
    variance = (SCALES**2 + MEANS**2).mean(0) - MEANS.mean(0) ** 2
    np.testing.assert_allclose(gaussian.std, np.sqrt(variance), rtol=1e-4)
    np.testing.assert_allclose(gaussian.aleatoric, (SCALES**2).mean(0), rtol=1e-4)
    np.testing.assert_allclose(gaussian.epistemic, MEANS.var(0), rtol=1e-4)


def test_log_prob_mixes_densities_and_the_other_one_matches_moments(gaussian):
    mixed = np.log(stats.norm.pdf(Y, MEANS, SCALES).mean(0))
    np.testing.assert_allclose(gaussian.log_prob(Y), mixed, rtol=1e-3, atol=1e-4)
    matched = stats.norm.logpdf(Y, gaussian.mean, gaussian.std)
    np.testing.assert_allclose(gaussian.log_prob_gaussian(Y), matched, rtol=1e-4)
    assert np.abs(mixed - matched).max() > 0.1


def test_quantiles_are_those_of_the_mixture(gaussian):
    for level in (0.05, 0.5, 0.9):
        exact = [
            optimize.brentq(lambda v, n=n: stats.norm.cdf(v, MEANS[:, n], SCALES[:, n]).mean() - level, -500, 500)  # noqa: B023
            for n in range(7)
        ]
        np.testing.assert_allclose(gaussian.quantile(level), exact, rtol=2e-3, atol=2e-3)
    lower, upper = gaussian.interval(0.8)
    inside = stats.norm.cdf(upper, MEANS, SCALES).mean(0) - stats.norm.cdf(lower, MEANS, SCALES).mean(0)
    np.testing.assert_allclose(inside, 0.8, atol=1e-3)


def test_samples_follow_the_mixture(gaussian):
    drawn = gaussian.sample(20000)
    assert drawn.shape == (20000, 7)
    assert np.all(np.abs(drawn.mean(0) - gaussian.mean) < 4 * gaussian.std / np.sqrt(20000))
    below = (drawn < gaussian.quantile(0.3)).mean(0)
    assert np.all(np.abs(below - 0.3) < 4 * np.sqrt(0.21 / 20000))


def test_a_few_samples_come_from_components_that_the_seed_chooses():
    made = predict(
        Gaussian(1e-3), np.repeat(np.arange(40.0)[:, None], 500, 1)[..., None]
    )  # draw s predicts s everywhere
    one = np.stack([made.sample(1, seed)[0] for seed in range(30)]).round()
    assert len(np.unique(one[:, 0])) > 15
    np.testing.assert_array_equal(one, np.repeat(one[:, :1], 500, 1))  # in all blocks: a draw of the function
    every = made.sample(40)[:, 0].round()
    np.testing.assert_array_equal(np.sort(every), np.arange(40))


def test_crps_is_exact_for_gaussians_and_sampled_otherwise(gaussian):
    np.testing.assert_allclose(gaussian.crps(Y), _crps(lambda y: stats.norm.cdf(y, MEANS, SCALES).mean(1)), rtol=3e-3)
    drawn = predict(StudentT(df=8.0, scale=0.5), F[..., :1])
    exact = _crps(lambda y: stats.t.cdf(y, 8.0, MEANS, 0.5).mean(1))
    # A thousand draws: the error of a mean of |draw - y|, whose spread is that of the draws.
    np.testing.assert_allclose(drawn.crps(Y), exact, atol=4 * drawn.std.max() / np.sqrt(1000))
    assert np.abs(drawn.crps(Y) / exact - 1).mean() < 0.05


def _crps(cdf):
    """int (F(z) - [y <= z])^2 dz by the trapezoidal rule, [N]."""
    grid = np.linspace(-60, 60, 48_001)[:, None]
    return np.trapezoid(np.square(cdf(grid[:, None]) - (grid >= Y)), grid, axis=0)


HALF_LINES = [
    (lambda o: dist.Gamma(jnp.exp(o[..., 0]), jnp.exp(o[..., 1])), lambda a, b: stats.gamma(np.exp(a), 0, np.exp(-b))),
    (lambda o: dist.LogNormal(o[..., 0], jnp.exp(o[..., 1])), lambda a, b: stats.lognorm(np.exp(b), 0, np.exp(a))),
    (
        lambda o: dist.Weibull(jnp.exp(o[..., 0]), 2.0 * jnp.exp(0 * o[..., 1])),
        lambda a, b: stats.weibull_min(2.0, 0, np.exp(a)),
    ),
    (lambda o: dist.Beta(jnp.exp(o[..., 0]), jnp.exp(o[..., 1])), lambda a, b: stats.beta(np.exp(a), np.exp(b))),
    (
        lambda o: dist.Pareto(jnp.exp(o[..., 0]), 3.0 + o[..., 1] ** 2),
        lambda a, b: stats.pareto(3 + b**2, 0, np.exp(a)),
    ),
    (lambda o: dist.Cauchy(o[..., 0], jnp.exp(o[..., 1])), lambda a, b: stats.cauchy(a, np.exp(b))),
]


@pytest.mark.parametrize(
    ("function", "exact"), HALF_LINES, ids=["gamma", "lognormal", "weibull", "beta", "pareto", "cauchy"]
)
def test_quantiles_of_likelihoods_on_part_of_the_line(function, exact):
    """numpyro's cdf is NaN, or a number, outside the support; Cauchy's distribution has no variance to begin at."""
    outputs = 0.6 * np.random.default_rng(4).normal(size=(20, 7, 2))
    levels = [0.001, 0.05, 0.5, 0.95]
    points = predict(likelihood(function, num_outputs=2), outputs).quantile(levels)
    for row in range(7):
        parts = exact(*outputs[:, row].T.astype(np.float32).astype(float))
        for level, point in zip(levels, points[row], strict=True):
            # By level: where the density is small, float32 leaves a quantile few digits.
            assert parts.cdf(point).mean() == pytest.approx(level, rel=1e-3)


def test_quantiles_are_rescaled_with_the_target():
    made, outputs = likelihood(HALF_LINES[0][0], num_outputs=2), np.zeros((3, 2, 2))
    plain, rescaled = (predict(one, outputs).quantile([0.01, 0.5]) for one in (made, Rescaled(made, 5.0, 2.0)))
    np.testing.assert_allclose(rescaled, 5 + 2 * plain, rtol=1e-6)


LARGE_SHIFTS = [
    (HeteroscedasticGaussian(), lambda made: Rescaled(made, 1.7e9, 100.0), 1.7e9, 100.0),
    (Gaussian(0.5, 2), lambda made: Rescaled(Rescaled(made, 4e7, 5.0), -8e8, 20.0), 0.0, 100.0),
    (likelihood(lambda o: dist.Laplace(o[..., 0], 0.5), 2), lambda made: Rescaled(made, -1e9, 3e-2), -1e9, 3e-2),
]


@pytest.mark.parametrize(("made", "in_units", "shift", "scale"), LARGE_SHIFTS, ids=["seconds", "twice", "one's own"])
def test_a_large_shift_of_the_target_costs_no_digits(made, in_units, shift, scale):
    """In float32 the seconds since 1970 move in steps of 128; in float64, which `rounding` is of, in 2e-7."""
    plain, rescaled = predict(made, F), predict(in_units(made), F)
    y = np.stack([Y, -Y], 1) if plain.mean.ndim == 2 else Y
    rounding = 1e-6 / scale
    for ask in (lambda p: p.mean, lambda p: p.quantile([0.05, 0.9]), lambda p: p.sample(50)):
        np.testing.assert_allclose((ask(rescaled) - shift) / scale, ask(plain), rtol=1e-6, atol=rounding)
    for part in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(rescaled, part), scale**2 * getattr(plain, part), rtol=1e-6)
        errors = (getattr(p.standard_error, part) for p in (rescaled, plain))
        np.testing.assert_allclose(next(errors), scale**2 * next(errors), rtol=1e-6)
    np.testing.assert_allclose(rescaled.std, scale * plain.std, rtol=1e-6)
    targets, lost = shift + scale * y, np.log(scale) * y[0].size
    # A density is as steep as the narrowest noise, about 0.01 here.
    np.testing.assert_allclose(rescaled.log_prob(targets), plain.log_prob(y) - lost, rtol=1e-5, atol=1e3 * rounding)
    matched = plain.log_prob_gaussian(y) - lost
    np.testing.assert_allclose(rescaled.log_prob_gaussian(targets), matched, rtol=1e-5, atol=1e2 * rounding)
    np.testing.assert_allclose(rescaled.crps(targets), scale * plain.crps(y), rtol=1e-5, atol=1e-5 * scale)


def test_a_prediction_that_is_no_number_has_no_quantile():
    outputs = np.ones((4, 2, 2))
    outputs[1, 1, 0] = np.nan
    found = predict(likelihood(HALF_LINES[0][0], num_outputs=2), outputs).quantile([0.1, 0.9])
    np.testing.assert_array_equal(np.isnan(found), [[False, False], [True, True]])


def test_quantiles_of_heavy_tails_far_from_zero():
    """No variance to go by, and 1 is nothing beside the centre in float32."""
    heavy = likelihood(lambda o: dist.StudentT(1.5, o[..., 0], 1e7), num_outputs=1)
    found = predict(heavy, np.full((3, 2, 1), 1e10)).quantile([0.05, 0.95])
    exact = stats.t.ppf([0.05, 0.95], 1.5, 1e10, 1e7)
    np.testing.assert_allclose(found - 1e10, np.tile(exact - 1e10, (2, 1)), rtol=1e-3)


def test_quantiles_of_rare_counts_are_counts():
    rare = predict(NegativeBinomial(), np.full((3, 4, 2), [-20.0, 0.5]))
    np.testing.assert_array_equal(rare.quantile([0.05, 0.5, 0.95]), np.zeros((4, 3)))


@pytest.mark.parametrize(
    ("made", "width", "exact"),
    [
        (Poisson(), 1, lambda f, k: stats.poisson.cdf(k, np.exp(f[:, 0]))),
        pytest.param(
            NegativeBinomial(),
            2,
            lambda f, k: stats.nbinom.cdf(k, np.exp(f[:, 1]), 1 / (1 + np.exp(f[:, 0] - f[:, 1]))),
            marks=pytest.mark.long,
        ),
    ],
    ids=["poisson", "negative binomial"],
)
def test_count_quantiles_are_the_smallest_count_that_reaches_the_level(made, width, exact):
    f = F[:, :4, :width] / 2
    prediction = predict(made, f)
    for level in (0.1, 0.5, 0.9):
        found = prediction.quantile(level)
        for n in range(4):
            reached = next(k for k in range(10000) if exact(f[:, n], k).mean() >= level)
            assert found[n] == reached
    assert prediction.kind == "counts"


@pytest.mark.long
@pytest.mark.parametrize(
    ("concentrations", "exact"),
    [
        ([np.inf], lambda mean, a: stats.poisson(mean)),
        ([0.1, 3.0, 9.9, 10.1, 200.0, 1e4, 1e8], lambda mean, a: stats.nbinom(a, a / (a + mean))),
    ],
    ids=["poisson", "negative binomial"],
)
def test_quantiles_of_counts_of_any_size(concentrations, exact):
    """To 3e-4 of the level, and the rounding of exp(f): 2e-7 of the mean."""
    pairs = [(np.log(m), np.log(a)) for m in (5.0, 20.0, 250.0, 350.0, 1e4, 1e6, 1e7) for a in concentrations]
    f = np.float32([pairs, pairs])
    f[1, :, 0] += 0.01  # two draws
    made, levels = (Poisson(), NegativeBinomial())[len(concentrations) > 1], np.array([0.001, 0.05, 0.5, 0.95])
    found = predict(made, f[..., : made.num_outputs]).quantile(levels)
    parts = exact(*np.moveaxis(np.exp(f.astype(float)), -1, 0)[..., None])
    rounding = 2e-7 * parts.mean() * parts.pmf(np.floor(parts.median()))
    slack = 3e-4 + rounding.max(0)
    assert (parts.cdf(found).mean(0) > levels - slack).all()
    assert (parts.cdf(found - 1).mean(0) < levels + slack).all()


def test_likelihoods_without_a_cdf_get_sampled_quantiles():
    mixture = likelihood(
        lambda o: dist.MixtureSameFamily(
            dist.Categorical(probs=jnp.ones(2) / 2), dist.Normal(jnp.stack([o[..., 0], o[..., 0] + 1], -1), 1.0)
        )
    )
    found = predict(mixture, np.zeros((5, 2, 1))).quantile(0.5)
    np.testing.assert_allclose(found, 0.5, atol=4 * 1.5 / np.sqrt(4096))


def test_classes():
    logits = RNG.normal(size=(30, 5, 4)) * 2
    prediction = predict(Categorical(4), logits)
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(prediction.probs, probs.mean(0), rtol=1e-4)
    np.testing.assert_allclose(prediction.log_prob(np.full(5, 2)), np.log(probs.mean(0)[:, 2]), rtol=1e-3)
    sets = prediction.prediction_set(0.8)
    for chosen, p in zip(sets, prediction.probs, strict=True):
        assert p[chosen].sum() >= 0.8
        assert p[chosen].sum() - p[chosen].min() < 0.8  # one class fewer is not enough
    assert np.array_equal(prediction.label, prediction.probs.argmax(1))


def test_labels_may_be_floats_and_are_checked():
    made = predict(Categorical(3), RNG.normal(size=(4, 6, 3)))
    labels = np.array([0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(made.log_prob(labels.astype(float)), made.log_prob(labels))
    for bad in (labels + 0.5, labels - 1, labels + 1):
        with pytest.raises(ValueError, match=r"labels 0 \.\. 2"):
            made.log_prob(bad)
    with pytest.raises(TypeError, match=r"y holds text .* turn labels into 0, 1, 2"):
        made.log_prob(list("abcabc"))


def test_the_moment_matched_density_takes_several_targets_a_row():
    made = predict(Gaussian(0.5, 2), RNG.normal(size=(8, 5, 2)))
    y = RNG.normal(size=(5, 2))
    expected = stats.norm.logpdf(y, made.mean, made.std).sum(1)
    np.testing.assert_allclose(made.log_prob_gaussian(y), expected, rtol=1e-5)


def test_a_confident_mistake_costs_its_log_likelihood_and_not_infinity():
    made = predict(Bernoulli(), np.full((3, 4, 1), 30.0))
    assert metrics.evaluate(made, np.array([1, 1, 1, 0]))["nll"].value == pytest.approx(30 / 4, rel=1e-5)


def test_several_targets_a_row_have_a_variance_each():
    prediction = predict(Gaussian(0.5, num_outputs=2), F)
    assert prediction.mean.shape == prediction.total.shape == (7, 2)
    np.testing.assert_allclose(prediction.epistemic, F.var(0), rtol=1e-4)
    joint = np.log(np.exp(stats.norm.logpdf(Y[:, None], F, 0.5).sum(-1)).mean(0))
    np.testing.assert_allclose(prediction.log_prob(np.stack([Y, Y], 1)), joint, rtol=1e-3, atol=1e-3)
    assert prediction.interval(0.9)[0].shape == (7, 2)


def test_blocks_and_memory_do_not_change_the_answer():
    f = RNG.normal(size=(50, 3000, 2))
    generous, tight = predict(HeteroscedasticGaussian(), f), predict(HeteroscedasticGaussian(), f, memory=200_000)
    assert len(list(tight._stream._blocks())) > 10 > len(list(generous._stream._blocks()))
    assert not tight._stream._cache
    np.testing.assert_allclose(tight.mean, generous.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tight.epistemic, generous.epistemic, rtol=1e-5)


def test_one_seven_and_twenty_rows_share_programs():
    prediction = predict(HeteroscedasticGaussian(), F)
    model, family = prediction._stream.model, prediction._stream.family

    def mean(rows):
        stream = OutputStream(model, family, jax.random.key(0), rows, np.arange(20), False, DEFAULT_MEMORY)
        return Prediction(stream).mean

    whole = mean(np.arange(7))
    compiled = streaming._draw_outputs._cache_size(), streaming._evaluate._cache_size()
    np.testing.assert_allclose(mean(np.arange(1)), whole[:1], rtol=1e-6)
    np.testing.assert_allclose(mean(np.arange(20) % 7), whole[np.arange(20) % 7], rtol=1e-6)
    assert compiled == (streaming._draw_outputs._cache_size(), streaming._evaluate._cache_size())


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda p: p.interval(1.5), "between 0 and 1"),
        (lambda p: p.interval("0.9"), "level='0.9' must be a number between 0 and 1"),
        (lambda p: p.quantile(0.0), "between 0 and 1"),
        (lambda p: p.quantile([0.5, np.nan]), "between 0 and 1"),
        (lambda p: p.quantile([]), "level is empty; give one level or several"),
        (lambda p: p.log_prob(Y[:3]), "7 rows"),
        (lambda p: p.log_prob(np.where(Y > 0, Y, np.nan)), "y has .* NaN or infinite"),
        (lambda p: p.log_prob(np.zeros((7, 2))), "targets of shape"),
        (lambda p: p.probs, "use mean"),
        (lambda p: p.variation_ratio, "use epistemic"),
        (lambda p: p.ood, r"holdout=0.1.*calibrate"),
    ],
)
def test_bad_questions_name_the_remedy(gaussian, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(gaussian)


def test_only_axes_of_length_one_may_differ_between_targets_and_prediction(gaussian):
    np.testing.assert_array_equal(gaussian.log_prob(Y[:, None]), gaussian.log_prob(Y))
    maps = predict(Gaussian(0.5), RNG.normal(size=(4, 5, 2, 3, 1)))  # images of 2 x 3 pixels
    y = RNG.normal(size=(5, 2, 3))
    np.testing.assert_array_equal(maps.log_prob(y[..., None]), maps.log_prob(y))
    for turned in (y.transpose(0, 2, 1), y.reshape(5, 6)):
        with pytest.raises(ValueError, match=r"targets of shape \(5, 2, 3\)\. Only axes of length 1 may differ"):
            maps.log_prob(turned)


def test_classes_have_no_interval():
    with pytest.raises(ValueError, match="prediction_set"):
        predict(Categorical(2), F).interval(0.9)
