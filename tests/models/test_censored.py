"""Censored and ordinal likelihoods against scipy, also far out in the tails; gradients; fits that use the bounds."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import optimize, special, stats

from posterity import (
    MAP,
    Censored,
    Flat,
    Gaussian,
    Laplace,
    Model,
    Ordinal,
    StudentT,
    evaluate,
    fit,
    likelihood,
    linear,
)
from posterity.models.censored import log_cdf, log_survival
from posterity.models.likelihoods import class_probs

pytestmark = pytest.mark.filterwarnings("ignore:.* has not converged")  # runs are short

INF = np.inf
PAIRS = [(0.4, 0.4), (-INF, 0.3), (-INF, -12.0), (0.3, INF), (15.0, INF), (-0.2, 0.9), (9.0, 9.5), (-20.0, -19.0)]


def between(distribution, lower, upper):
    """log P(lower < z < upper), from the tail that keeps digits."""
    if lower == upper:
        return distribution.logpdf(lower)
    if np.isinf(upper):
        return distribution.logsf(lower)
    if np.isinf(lower):
        return distribution.logcdf(upper)
    if distribution.cdf((lower + upper) / 2) < 0.5:
        return special.logsumexp([distribution.logcdf(upper), distribution.logcdf(lower)], b=[1, -1])
    return special.logsumexp([distribution.logsf(lower), distribution.logsf(upper)], b=[1, -1])


@pytest.mark.parametrize(("lower", "upper"), PAIRS)
@pytest.mark.parametrize(
    ("made", "reference"),
    [(Gaussian(0.7), lambda f: stats.norm(f, 0.7)), (StudentT(5.0, 0.7), lambda f: stats.t(5.0, f, 0.7))],
    ids=["normal", "student"],
)
def test_log_densities(made, reference, lower, upper):
    expected = between(reference(0.2), lower, upper)
    for precise, tolerance in ((True, 1e-9), (False, 2e-5)):
        with jax.enable_x64(precise):
            outputs, pair = jnp.array([0.2]), jnp.array([lower, upper])
            log_prob, slope = jax.value_and_grad(lambda o: Censored(made)(o).log_prob(pair))(outputs)  # noqa: B023
            assert float(log_prob) == pytest.approx(expected, rel=tolerance, abs=tolerance)
            step = 1e-5
            numeric = (between(reference(0.2 + step), lower, upper) - between(reference(0.2 - step), lower, upper)) / (
                2 * step
            )
            assert float(slope[0]) == pytest.approx(numeric, rel=1e-4 if precise else 2e-3)


@pytest.mark.parametrize("width", [1e-1, 1e-3, 1e-5])
def test_narrow_intervals_keep_their_digits(width):
    """Of rounded numbers: the difference of two logs would have two digits left in float32."""
    lower, upper = np.float32(1.5), np.float32(1.5 + width)
    expected = between(stats.norm(), float(lower), float(upper))
    found = Censored(Gaussian())(jnp.zeros(1)).log_prob(jnp.array([lower, upper]))
    assert float(found) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("made", "reference"),
    [
        (dist.Exponential(2.0), stats.expon(scale=0.5)),
        (dist.Weibull(2.0, 1.5), stats.weibull_min(1.5, scale=2.0)),
        (dist.LogNormal(0.3, 0.8), stats.lognorm(0.8, scale=np.exp(0.3))),
        (dist.Gamma(2.5, 1.3), stats.gamma(2.5, scale=1 / 1.3)),
        (dist.Logistic(0.3, 0.8), stats.logistic(0.3, 0.8)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_waiting_times(made, reference):
    with jax.enable_x64(True):
        at = np.array([0.01, 0.5, 2.0, 10.0])
        np.testing.assert_allclose(log_cdf(made, jnp.asarray(at)), reference.logcdf(at), rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(log_survival(made, jnp.asarray(at)), reference.logsf(at), rtol=1e-6)


def censored_line():
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (200, 1))
    z = 1.0 + 2.0 * x[:, 0] + 0.5 * rng.normal(size=200)
    seen = np.minimum(z, 1.2)  # a limit of detection
    return x, z, np.stack([seen, np.where(z < 1.2, seen, INF)], 1)


def test_a_censored_fit_is_the_maximum_of_its_likelihood():
    x, _, y = censored_line()
    above = np.isinf(y[:, 1])

    def loss(w):
        mean = w[0] + w[1] * x[:, 0]
        return -np.where(above, stats.norm.logsf(y[:, 0], mean, 0.5), stats.norm.logpdf(y[:, 0], mean, 0.5)).sum()

    best = optimize.minimize(loss, [0.0, 0.0], method="BFGS")
    model = Model(linear(), Censored(Gaussian(0.5)), Flat())
    posterior = fit(model, MAP(num_steps=2000, learning_rate=0.02, batch_size="full"), (x, y))
    prediction = posterior.predict(np.array([[0.0], [1.0]]))
    np.testing.assert_allclose(prediction.mean, [best.x[0], best.x.sum()], rtol=1e-3)
    # the curvature is that of the censored likelihood: the inverse of the Hessian at its peak
    laplace = fit(model, Laplace(start=posterior), (x, y))
    step = 1e-3
    unit = np.eye(2) * step
    hessian = [
        [
            (loss(best.x + a + b) - loss(best.x + a - b) - loss(best.x - a + b) + loss(best.x - a - b)) / (4 * step**2)
            for a in unit
        ]
        for b in unit
    ]
    design = np.array([[1.0, 0.0], [1.0, 1.0]])
    expected = np.diag(design @ np.linalg.inv(hessian) @ design.T)
    np.testing.assert_allclose(laplace.predict(np.array([[0.0], [1.0]])).epistemic, expected, rtol=0.02)


def test_predictions_are_of_the_number_itself(tmp_path):
    from posterity import load

    x, z, y = censored_line()
    posterior = fit(
        Model(linear(), Censored(Gaussian(0.5))), Laplace(start=MAP(num_steps=600, learning_rate=0.02)), (x, y)
    )
    prediction = posterior.predict(x)
    assert prediction.mean.max() > 2.5  # beyond the limit
    assert prediction.sample(3).shape == (3, 200)
    assert set(evaluate(prediction, y)) == {"nll"}
    whole = evaluate(prediction, z)
    assert whole["coverage_90"].value == pytest.approx(0.9, abs=0.08)
    exact = np.repeat(z[:, None], 2, 1)
    np.testing.assert_allclose(prediction.log_prob(z), prediction.log_prob(exact), rtol=1e-6)
    assert prediction.log_prob(y)[np.isinf(y[:, 1])].max() < 0
    posterior.save(tmp_path / "store")
    np.testing.assert_array_equal(load(tmp_path / "store").predict(x).log_prob(y), prediction.log_prob(y))
    assert posterior.receipt.likelihood.startswith("Censored(likelihood=Gaussian(")


@pytest.mark.parametrize("bounds", [[2.0, 1.0], [-INF, INF], [np.nan, 1.0]])
def test_bounds_that_are_none_are_refused(bounds):
    x, _, y = censored_line()
    with pytest.raises(ValueError, match=r"at \(3,\); expected lower <= upper"):
        fit(Model(linear(), Censored(Gaussian())), MAP(), (x, np.concatenate([y[:3], [bounds], y[4:]])))


def test_what_cannot_be_censored_is_refused():
    for made in (Gaussian(1.0, num_outputs=2), Ordinal(3), Censored(Gaussian())):
        with pytest.raises(ValueError, match="one number a row"):
            Censored(made)


def test_a_likelihood_of_ones_own_may_be_censored():
    waiting = Censored(likelihood(lambda o: dist.Weibull(jnp.exp(o[..., 0]), jnp.exp(o[..., 1])), num_outputs=2))
    pair = jnp.array([1.5, INF])
    found = waiting(jnp.array([0.2, 0.4])).log_prob(pair)
    assert float(found) == pytest.approx(stats.weibull_min.logsf(1.5, np.exp(0.4), scale=np.exp(0.2)), rel=1e-5)


@pytest.mark.parametrize("at", [0.3, -60.0, 60.0])
def test_ordinal_probabilities(at):
    made, moved = Ordinal(4), np.array([0.3, -0.5, 0.2])
    start = special.logit([0.25, 0.5, 0.75])
    gaps = np.exp(moved[1:] + np.log(np.diff(start)))
    thresholds = np.cumsum([start[0] + moved[0], *gaps])
    edges = np.array([-INF, *thresholds, INF])
    expected = [between(stats.logistic(at), a, b) for a, b in itertools.pairwise(edges)]
    with jax.enable_x64(True):
        outputs = jnp.array([at, *moved])
        found = made(outputs)
        np.testing.assert_allclose([found.log_prob(c) for c in range(4)], expected, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(class_probs(found).sum(), 1.0, rtol=1e-12)
        assert np.isfinite(jax.grad(lambda o: made(o).log_prob(1))(outputs)).all()


@pytest.mark.long
def test_ordinal_starts_with_equal_classes_and_learns_its_thresholds():
    made = Ordinal(3)
    np.testing.assert_allclose(class_probs(made(jnp.zeros(3))), 1 / 3, rtol=1e-6)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(400, 1))
    hidden = 2.0 * x[:, 0] + rng.logistic(size=400)
    y = np.digitize(hidden, [-2.0, 1.0])
    posterior = fit(Model(linear(), made), Laplace(start=MAP(num_steps=1500, learning_rate=0.02)), (x, y))
    weights = posterior.starting_weights(1)
    thresholds = made.thresholds(weights["likelihood"]["thresholds"][0])
    bias, slope = (float(np.ravel(leaf)[0]) for leaf in jax.tree.leaves(weights["network"]))
    assert slope == pytest.approx(2.0, abs=0.4)
    np.testing.assert_allclose(thresholds - bias, [-2.0, 1.0], atol=0.4)
    scores = evaluate(posterior.predict(x), y)
    assert scores["accuracy"].value > 0.6
    with pytest.raises(ValueError, match="3 classes"):
        fit(Model(linear(), made), MAP(), (x, y + 1))
