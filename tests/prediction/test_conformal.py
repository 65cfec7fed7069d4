"""Conformal calibration: coverage over many exchangeable draws, its formulas, and what is reported of few rows."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr, ndtri, pdtr

from posterity import MAP, Categorical, Exact, Gaussian, Model, Poisson, Rescaled, fit, linear, load, resume
from posterity.data import Dataset
from posterity.prediction.conformal import LAST, Conformal, rows_needed, tempered

DRAWS = 2000


class Normals:
    """A normal distribution at each row."""

    kind = "continuous"

    def __init__(self, mean, scale):
        self.mean, self.scale = mean, scale

    def quantile(self, level):
        return (
            self.mean + self.scale * ndtri(level)
            if np.ndim(level) == 0
            else self.mean[:, None] + self.scale * ndtri(level)
        )

    def cdf(self, y, strict=False):
        del strict  # the same for a continuous distribution
        return ndtr((y - self.mean) / self.scale)


class Counts:
    """A Poisson distribution at each row."""

    kind = "counts"

    def __init__(self, rate):
        self.rate = rate

    def quantile(self, level):
        return (
            stats.poisson.ppf(level, self.rate) if np.ndim(level) == 0 else stats.poisson.ppf(level, self.rate[:, None])
        )

    def cdf(self, y, strict=False):
        return pdtr(y - strict, self.rate)


class Classes:
    kind = "classes"

    def __init__(self, probs):
        self.probs = probs


def numbers(rng, count, scale):
    """Targets with noise of 1 + x^2, and what a model says of them whose noise is `scale`, and its mean off."""
    x = rng.normal(size=count)
    return Normals(x + 0.3, scale), x + (1 + x**2) * rng.normal(size=count)


def counts(rng, count, factor):
    rate = rng.uniform(0.2, 8.0, count)
    return Counts(factor * rate), rng.poisson(rate)


def classes(rng, count, sharpness):
    logits = rng.normal(size=(count, 4))
    y = (logits + rng.gumbel(size=(count, 4))).argmax(1)
    return Classes(tempered(np.exp(logits), 1 / sharpness)), y


def found_inside(make, setting, num_rows, level, seed=None):
    """The share of many repetitions, each with calibration rows and one new row of its own, in which it is held."""
    rng = np.random.default_rng(0)
    inside = []
    for number in range(DRAWS):
        conformal = Conformal(*make(rng, num_rows, setting))
        prediction, y = make(rng, 1, setting)
        if prediction.kind == "classes":
            chosen = conformal.prediction_set(prediction, level, None if seed is None else seed + number)
            inside.append(chosen[0, y[0]])
        else:
            lower, upper = conformal.interval(prediction, level)
            inside.append(lower[0] <= y[0] <= upper[0])
    return np.mean(inside)


@pytest.mark.parametrize(
    ("scale", "num_rows", "level"),
    [(0.02, 24, 0.8), (1.0, 50, 0.9), (30.0, 9, 0.9)],
    ids=["far too sure", "about right", "far too cautious"],
)
def test_intervals_hold_their_share_whatever_the_model(scale, num_rows, level):
    expected = np.ceil(level * (num_rows + 1) - 1e-9) / (num_rows + 1)  # exact where scores have no ties
    error = np.sqrt(expected * (1 - expected) / DRAWS)
    assert level <= expected <= level + 1 / (num_rows + 1)
    assert abs(found_inside(numbers, scale, num_rows, level) - expected) < 4 * error


@pytest.mark.parametrize("factor", [0.1, 1.0])
def test_intervals_of_counts_hold_at_least_their_share(factor):
    assert found_inside(counts, factor, 30, 0.8) > 0.8 - 4 * np.sqrt(0.16 / DRAWS)


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 8.0])
def test_sets_of_classes_hold_their_share(sharpness):
    expected = np.ceil(0.9 * 31) / 31
    error = np.sqrt(expected * (1 - expected) / DRAWS)
    assert abs(found_inside(classes, sharpness, 30, 0.9, seed=1) - expected) < 4 * error  # random ones: exactly
    assert found_inside(classes, sharpness, 30, 0.9) > 0.9 - 4 * error


def test_an_interval_is_the_posteriors_own_at_another_level():
    rng = np.random.default_rng(1)
    conformal = Conformal(*numbers(rng, 99, 1.0))
    new, _ = numbers(rng, 5, 1.0)
    level = conformal.level(0.9)
    assert level > 0.97
    np.testing.assert_allclose(conformal.interval(new, 0.9), new.quantile([(1 - level) / 2, (1 + level) / 2]).T)
    low, high = conformal.coverage_range(0.9)
    np.testing.assert_allclose([low, high], stats.beta.ppf([0.05, 0.95], 90, 10))


def test_beyond_the_last_level_intervals_are_stretched():
    """A model a hundred times too sure: every score lies beyond 3, and is (y - mean) / std there."""
    y = np.linspace(10.0, 20.0, 19)
    conformal = Conformal(Normals(np.zeros(19), 0.01), y)
    lower, upper = conformal.interval(Normals(np.array([5.0]), 0.01), 0.9)
    np.testing.assert_allclose([lower[0], upper[0]], [5 - y[17], 5 + y[17]])
    assert y[17] / 0.01 > LAST


def test_the_score_is_the_level_of_the_interval_that_ends_at_the_target():
    """One row at the 97.5 % quantile, repeated, makes the 95 % interval the calibrated one."""
    conformal = Conformal(Normals(np.zeros(50), 2.0), np.full(50, 2 * stats.norm.ppf(0.975)))
    assert conformal.level(0.9) == pytest.approx(0.95)
    conformal = Conformal(Normals(np.zeros(50), 2.0), np.full(50, 2 * stats.norm.ppf(0.025)))
    assert conformal.level(0.5) == pytest.approx(0.95)


def test_weights_are_repetitions():
    rng = np.random.default_rng(2)
    prediction, y = numbers(rng, 30, 1.0)
    weight = rng.integers(0, 4, 30)
    rows = np.repeat(np.arange(30), weight)
    repeated = Normals(prediction.mean[rows], 1.0)
    weighted, counted = Conformal(prediction, y, weight), Conformal(repeated, y[rows])
    assert [weighted.level(level) for level in (0.3, 0.8, 0.95)] == [counted.level(level) for level in (0.3, 0.8, 0.95)]
    assert weighted.num_rows == counted.num_rows == len(rows)


@pytest.mark.parametrize(("level", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_too_few_rows_are_reported_with_the_number_needed(level, needed):
    assert rows_needed(level) == needed
    rng = np.random.default_rng(0)
    enough = Conformal(*numbers(rng, needed, 1.0))
    new, _ = numbers(rng, 3, 1.0)
    assert np.isfinite(enough.interval(new, level)).all()
    if needed == 1:
        return
    with pytest.warns(UserWarning, match=rf"{needed - 1} held-out rows are too few .* at least {needed} rows"):
        lower, upper = Conformal(*numbers(rng, needed - 1, 1.0)).interval(new, level)
    assert (lower == -np.inf).all()
    assert (upper == np.inf).all()
    with pytest.warns(UserWarning, match="every class is predicted"):
        chosen = Conformal(*classes(rng, needed - 1, 1.0)).prediction_set(classes(rng, 5, 1.0)[0], level)
    assert chosen.all()


def test_the_temperature_undoes_what_was_done_to_the_logits():
    rng = np.random.default_rng(3)
    prediction, y = classes(rng, 20_000, 3.0)  # logits three times too large
    conformal = Conformal(prediction, y)
    assert conformal.temperature == pytest.approx(3.0, rel=0.05)
    right, wrong = (
        -np.log(probs[np.arange(len(y)), y]).mean() for probs in (conformal.probs(prediction), prediction.probs)
    )
    assert right < wrong - 0.1
    np.testing.assert_allclose(conformal.probs(prediction).sum(1), 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, k: c.interval(k, 0.9), "for classes use prediction_set"),
        (lambda c, k: c.prediction_set(k, 1.0), "level=1.0 must be a number between 0 and 1"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    prediction, y = classes(np.random.default_rng(0), 30, 1.0)
    with pytest.raises(ValueError, match=message):
        call(Conformal(prediction, y), prediction)


def test_numbers_have_no_sets_nor_temperature():
    conformal = Conformal(*numbers(np.random.default_rng(0), 30, 1.0))
    with pytest.raises(ValueError, match="for numbers use interval"):
        conformal.prediction_set(numbers(np.random.default_rng(0), 3, 1.0)[0])
    with pytest.raises(ValueError, match="for numbers use interval"):
        _ = conformal.temperature
    with pytest.raises(ValueError, match="one target per row"):
        Conformal(numbers(np.random.default_rng(0), 3, 1.0)[0], np.zeros((3, 2)))


def test_the_cumulative_distribution_of_a_prediction(line):
    x, y = line
    prediction = fit(Model(linear(), Gaussian(0.3)), Exact(), line).predict(x)
    expected = stats.norm(prediction.mean, prediction.std).cdf(y)
    np.testing.assert_allclose(prediction.cdf(y), expected, atol=1e-4)
    np.testing.assert_array_equal(prediction.cdf(y, strict=True), prediction.cdf(y))
    plain, scaled = (
        fit(Model(linear(), noise), MAP(num_steps=50), (x, shift + scale * y)).predict(x).cdf(shift + scale * y)
        for noise, shift, scale in ((Gaussian(0.3), 0.0, 1.0), (Rescaled(Gaussian(0.3), 1e6, 1e3), 1e6, 1e3))
    )
    np.testing.assert_allclose(scaled, plain, atol=1e-3)
    counted = np.round(np.exp(0.3 * y)).astype(int)
    many = fit(Model(linear(), Poisson()), MAP(num_steps=50), (x, counted)).predict(x)
    np.testing.assert_allclose(many.cdf(counted), stats.poisson(many.mean).cdf(counted), atol=1e-3)
    np.testing.assert_allclose(many.cdf(counted, strict=True), stats.poisson(many.mean).cdf(counted - 1), atol=1e-3)
    with pytest.raises(ValueError, match="cdf is for numbers"):
        fit(Model(linear(2), Categorical(2)), MAP(num_steps=1), (x, y > 0)).predict(x).cdf(y)


def test_held_out_rows_come_with_the_posterior(line, tmp_path):
    x, y = line
    model = Model(linear(), Gaussian(0.3))
    posterior = fit(model, MAP(num_steps=20), line, holdout=0.25, store=tmp_path / "run")
    assert posterior.held_out.num_rows == 10
    given = fit(model, MAP(num_steps=20), (x[:30], y[:30]), holdout=Dataset(x[30:], y[30:], np.ones(10)))
    np.testing.assert_array_equal(given.held_out.x, x[30:])
    expected = posterior.conformal().interval(posterior.predict(x), 0.8)
    posterior.save(tmp_path / "saved")
    for read in (load(tmp_path / "saved"), load(tmp_path / "run"), resume(tmp_path / "run")):
        np.testing.assert_array_equal(read.conformal().interval(read.predict(x), 0.8), expected)
    np.testing.assert_array_equal(
        posterior.conformal(x, y).interval(posterior.predict(x), 0.8)[0],
        Conformal(posterior.predict(x), y).interval(posterior.predict(x), 0.8)[0],
    )
    without = fit(model, MAP(num_steps=20), line, holdout=x)
    with pytest.raises(ValueError, match=r"holdout=0.1.*conformal\(x, y\)"):
        without.conformal()
    with pytest.raises(ValueError, match="y is missing"):
        without.conformal(x)
