"""The split of uncertainty: identities, known cases, and Monte Carlo errors that mean what they say."""

import jax.numpy as jnp
import numpy as np
import pytest
from lookup import predict
from targets import autoregressive

from posterity import Model, linear
from posterity.models.counts import NegativeBinomial, Poisson
from posterity.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    NoisyCategorical,
    StudentT,
)
from posterity.models.units import Rescaled
from posterity.prediction import uncertainty
from posterity.prediction.streaming import Components

RNG = np.random.default_rng(0)
LIKELIHOODS = [
    (Gaussian(0.3), 1),
    (Gaussian(0.3, num_outputs=2), 2),
    (HeteroscedasticGaussian(), 2),
    (StudentT(5.0, 0.4), 1),
    (Bernoulli(), 1),
    (Categorical(3), 3),
    (NoisyCategorical(2), 4),
    (Poisson(), 1),
    (NegativeBinomial(), 2),
]


def test_little_ignorance_beside_much_noise_is_not_rounded_away():
    """A closed form after a million rows: ignorance 1e-9 of the noise, below what float32 sees of their sum."""
    model = Model(linear(), Rescaled(Gaussian(1.0), 0.0, 3.0))
    block = Components(jnp.zeros((1, 4, 1)), 1e-9 * jnp.arange(1.0, 5.0).reshape(1, 4, 1, 1))
    found = uncertainty.variances(model, block, np.zeros((0, 0), int)).value
    np.testing.assert_allclose(found.epistemic, 9e-9 * np.arange(1, 5), rtol=1e-5)
    np.testing.assert_allclose(found.aleatoric, 9.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("made", "width"), LIKELIHOODS, ids=lambda v: type(v).__name__ if not isinstance(v, int) else ""
)
def test_total_is_aleatoric_plus_epistemic(made, width):
    prediction = predict(made, RNG.normal(size=(40, 6, width)))
    np.testing.assert_allclose(prediction.total, prediction.aleatoric + prediction.epistemic, rtol=1e-6)
    assert (prediction.epistemic > 0).all()
    assert (prediction.aleatoric > 0).all()
    same = predict(made, np.repeat(RNG.normal(size=(1, 6, width)), 40, 0))
    np.testing.assert_allclose(same.epistemic, 0, atol=2e-6)
    if prediction.kind != "classes":
        np.testing.assert_allclose(prediction.total, prediction.std**2, rtol=1e-5)


def test_ignorance_of_classes_is_never_below_zero():
    """The entropy of equal probabilities, averaged, can exceed that of their average by a rounding."""
    same = predict(Categorical(5), np.repeat(RNG.normal(size=(1, 500, 5)), 7, 0))
    assert (same.epistemic >= 0).all()
    assert same.epistemic.max() < 1e-6
    np.testing.assert_allclose(same.total, same.aleatoric + same.epistemic, rtol=1e-7)


def test_a_probability_that_the_mean_rounds_to_zero_has_an_error():
    """1.5e-38 in one draw of four: float32 has no quarter of it on a CPU, and its cross-entropy would be infinite."""
    logits = jnp.asarray([[np.log(1.5e-38), 0.0], *[[-200.0, 0.0]] * 3], jnp.float32)[:, None]
    model = Model(linear(), Categorical(2))
    found = uncertainty.entropies(model, Components(logits, None), np.zeros((0, 0), int))
    for part in found.standard_error:
        np.testing.assert_allclose(part, 0.0, atol=1e-6)


def test_sure_but_disagreeing_draws_are_pure_ignorance():
    prediction = predict(Bernoulli(), np.array([[[30.0]], [[-30.0]]]))
    np.testing.assert_allclose(prediction.total, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(prediction.epistemic, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(prediction.aleatoric, 0, atol=1e-5)
    np.testing.assert_allclose(prediction.variation_ratio, 0.5)


def test_agreeing_but_unsure_draws_are_pure_noise():
    prediction = predict(Bernoulli(), np.zeros((5, 1, 1)))
    np.testing.assert_allclose(prediction.aleatoric, np.log(2), rtol=1e-5)
    np.testing.assert_allclose(prediction.epistemic, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("made", "width", "deviation"),
    [(HeteroscedasticGaussian(), 2, 1.0), (Categorical(3), 3, 1.0), (Poisson(), 1, 0.3)],
    ids=["variance", "entropy", "counts"],
)
def test_standard_errors_match_the_spread_over_repeats(made, width, deviation):
    """Each row is an independent repeat of the same 60 draws' experiment.

    Of counts whose log rate has a deviation of 1, 60 draws do not know the variance: their tails are too heavy.
    """
    # off the symmetric point, where the entropy is flat and its error of second order
    prediction = predict(made, deviation * RNG.normal(size=(60, 2000, width)) + np.arange(width))
    for name in ("total", "aleatoric", "epistemic"):
        actual = getattr(prediction, name).std()
        stated = np.median(getattr(prediction.standard_error, name))
        assert abs(stated / actual - 1) < 0.2, name


@pytest.mark.parametrize(("made", "width"), [(HeteroscedasticGaussian(), 2), (Categorical(3), 3)])
@pytest.mark.parametrize(("shape", "rho"), [((8, 1), 0.0), ((8, 100), 0.3), ((8, 200), 0.95), ((4, 100), 0.95)])
def test_two_errors_hold_the_exact_value_with_few_draws(made, width, shape, rho):
    """An ensemble of 8, chains as of HMC, chains as of SGHMC: at most 8 % of 1024 runs are farther away."""
    scale, shift = np.array([1.0, 0.4, 1.0])[:width], np.arange(width)
    exact = predict(made, RNG.normal(size=(50_000, 1, width)) * scale + shift)
    chains = autoregressive(rho, (*shape, 1024, width)) * scale + shift
    found = predict(made, chains.transpose(1, 0, 2, 3).reshape(-1, 1024, width), num_chains=shape[0])
    for name in ("total", "aleatoric", "epistemic"):
        away = np.abs(getattr(found, name) - getattr(exact, name))
        missed = np.mean(away > 2 * getattr(found.standard_error, name))
        assert missed <= 0.08, (name, missed)


def test_one_draw_cannot_tell_its_error():
    prediction = predict(Gaussian(0.3), np.zeros((1, 3, 1)))
    assert np.isnan(prediction.standard_error.epistemic).all()
    np.testing.assert_array_equal(prediction.epistemic, 0)


def test_the_jackknife_removes_most_of_the_bias_of_few_draws():
    logits = RNG.normal(size=(2000, 1, 3))
    truth = predict(Categorical(3), logits).epistemic[0]
    few = predict(Categorical(3), logits.reshape(5, 400, 3))
    plain, corrected = few.epistemic.mean() - truth, few.mutual_information.mean() - truth
    assert plain < -0.02
    assert abs(corrected) < abs(plain) / 4
