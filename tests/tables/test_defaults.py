"""What suits a table, and targets in the user's units: exact identities against the scaled problem done by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

from posterity import MAP, METHODS, Gaussian, Laplace, Model, Rescaled, fit, linear, load
from posterity.core.names import nearest_name
from posterity.inference import Method
from posterity.models.counts import Poisson
from posterity.models.likelihoods import (
    Categorical,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    StudentT,
    likelihood,
)
from posterity.models.units import in_network_units, without_units
from posterity.storage.codec import decode, encode, find_missing
from posterity.tables.defaults import num_aside, table_method, table_model, table_prior
from posterity.tables.encoders import TargetEncoder

SHIFT, SCALE = 40.0, 5.0
RNG = np.random.default_rng(0)
OUTPUTS = jnp.asarray(RNG.normal(size=(3, 7, 2)), jnp.float32)
LAPLACE = likelihood(lambda o: dist.Laplace(o[..., 0], jnp.exp(o[..., 1])), num_outputs=2)
LOG_NORMAL = likelihood(lambda o: dist.LogNormal(o[..., 0], jnp.exp(o[..., 1] / 4)), num_outputs=2)
CASES = [
    (Gaussian(0.3), dist.Normal),
    (Gaussian(0.3, num_outputs=2), dist.Independent),
    (GaussianLearnedNoise(), dist.Normal),
    (HeteroscedasticGaussian(), dist.Normal),
    (StudentT(5.0, 0.7), dist.StudentT),
    (LAPLACE, dist.Distribution),
    (LOG_NORMAL, dist.Distribution),
]


@pytest.mark.parametrize(("inner", "family"), CASES, ids=lambda value: type(value).__name__)
def test_rescaled_is_the_same_distribution_in_other_units(inner, family):
    outputs = OUTPUTS if inner.num_outputs == 2 or inner.columns(inner.init()) is not None else OUTPUTS[..., :1]
    made, plain = Rescaled(inner, SHIFT, SCALE)(outputs), inner(outputs)
    assert isinstance(made, family)
    assert (made.batch_shape, made.event_shape) == (plain.batch_shape, plain.event_shape)
    standard = plain.sample(jax.random.key(0))
    targets = max(1, int(np.prod(plain.event_shape)))
    np.testing.assert_allclose(
        made.log_prob(SHIFT + SCALE * standard),
        plain.log_prob(standard) - targets * np.log(SCALE),
        rtol=1e-4,
        atol=1e-4,
    )
    np.testing.assert_allclose(made.mean, SHIFT + SCALE * plain.mean, rtol=1e-5)
    np.testing.assert_allclose(made.variance, SCALE**2 * plain.variance, rtol=1e-5)
    np.testing.assert_allclose(
        made.sample(jax.random.key(1)), SHIFT + SCALE * plain.sample(jax.random.key(1)), rtol=1e-5
    )


def test_rescaled_asks_the_inner_one():
    inner = GaussianLearnedNoise(0.2)
    made = Rescaled(inner, SHIFT, SCALE)
    assert (made.num_outputs, made.kind, made.has_marginal) == (1, "continuous", False)
    assert made.init() == inner.init()
    np.testing.assert_array_equal(made.fisher(OUTPUTS), inner.fisher(OUTPUTS))
    np.testing.assert_array_equal(made.columns(made.init()), inner.columns(inner.init()))
    with pytest.raises(ValueError, match="no units"):
        Rescaled(Poisson())
    with pytest.raises(ValueError, match="above 0"):
        Rescaled(inner, 0.0, 0.0)


@pytest.mark.long
def test_a_model_in_the_users_units_equals_the_scaled_one(line, tmp_path):
    """Linear-Gaussian: both modes are found to rounding, so that moments, densities and intervals must agree."""
    x, y = line
    method = Laplace(start=MAP(num_steps=1_500, learning_rate=0.02, batch_size="full"))
    by_hand = fit(Model(linear(), Gaussian(0.3)), method, (x, y)).predict(x)
    posterior = fit(Model(linear(), Rescaled(Gaussian(0.3), SHIFT, SCALE)), method, (x, SHIFT + SCALE * y))
    made = posterior.predict(x)
    assert made.num_draws == 1  # the closed form
    np.testing.assert_allclose(made.mean, SHIFT + SCALE * by_hand.mean, rtol=1e-5)
    for part in ("total", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(made, part), SCALE**2 * getattr(by_hand, part), rtol=1e-3)
    targets = SHIFT + SCALE * y
    np.testing.assert_allclose(made.log_prob(targets), by_hand.log_prob(y) - np.log(SCALE), atol=1e-3)
    np.testing.assert_allclose(made.crps(targets), SCALE * by_hand.crps(y), atol=1e-3)
    np.testing.assert_allclose(made.interval(0.8)[1], SHIFT + SCALE * by_hand.interval(0.8)[1], rtol=1e-5)
    posterior.save(tmp_path / "store")
    np.testing.assert_array_equal(load(tmp_path / "store").predict(x).mean, made.mean)


def test_a_network_is_trained_by_targets_of_unit_size_in_the_density_of_the_users(line):
    y = np.asarray(line[1])
    for given in (GaussianLearnedNoise(), Rescaled(StudentT(), -1.0, 2.0)):
        made = Rescaled(given, SHIFT, SCALE)
        likelihood, (targets, none) = in_network_units(made, SHIFT + SCALE * y, y[:0])
        inner, shift, scale = without_units(made)
        np.testing.assert_allclose(targets, (SHIFT + SCALE * y - shift) / scale)
        outputs = jnp.asarray(RNG.normal(size=(len(y), 2)), jnp.float32)
        np.testing.assert_allclose(
            likelihood(outputs).log_prob(targets), made(outputs).log_prob(SHIFT + SCALE * y), rtol=1e-4, atol=1e-4
        )
        assert len(none) == 0
    assert in_network_units(inner, y) == (inner, (y,))


def test_a_large_shift_of_the_target_costs_a_fit_no_digits(line):
    """Targets at 2^30, which float32 holds to the hundred only, are learned as those at 0 are."""
    x, y = line
    near, far = (
        fit(
            Model(linear(), Rescaled(Gaussian(0.3), shift, SCALE)),
            MAP(num_steps=20),
            (x, shift + SCALE * y),
            validation=0.2,
            progress=False,
        )
        for shift in (0.0, 2.0**30)
    )
    np.testing.assert_allclose(far.trace["loss"], near.trace["loss"], rtol=1e-5)
    np.testing.assert_allclose(far.predict(x).mean - 2.0**30, near.predict(x).mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_every_name_has_settings(name):
    for num_rows in (30, 100_000):
        method = table_method(name, num_rows)
        assert type(method) is METHODS[name]
        assert sum(phase.num_steps for phase in method.plan(num_rows)) >= 1
    quick, usual = table_method(name, 1_000, effort=0.1), table_method(name, 1_000)
    if name != "exact":
        assert num_steps(quick) < num_steps(usual)


def num_steps(method):
    own = sum(phase.num_steps for phase in method.plan(1_000))
    return own + (num_steps(method.start) if isinstance(method.start, Method) else 0)


def test_mistyped_names_get_the_nearest():
    assert nearest_name("Deep-Ensembles", METHODS) == "deep_ensemble"
    assert nearest_name("HMC", METHODS) == "hmc"
    with pytest.raises(ValueError, match="did you mean 'laplace'"):
        table_method("laplas", 100)
    with pytest.raises(ValueError, match="must be above 0"):
        table_method("map", 100, effort=0.0)


def test_the_model_of_a_table():
    zeros = {"weight": np.zeros((4, 3), np.float32)}
    assert isinstance(table_model("classification", 3).likelihood, Categorical)
    assert table_model("classification", 3).network.num_outputs == 3
    assert not isinstance(table_model("regression").likelihood, Rescaled)
    assert isinstance(table_model("regression", shift=1.0).likelihood, Rescaled)
    assert table_model("regression", temperature=0.5).temperature == 0.5
    assert table_prior("regression", 2.0).distributions[0].scale == 2.0
    _, std = table_prior("classification", num_hidden=1).moments({"layer_0": zeros, "layer_1": zeros})
    np.testing.assert_allclose((std["layer_0"]["weight"][0, 0], std["layer_1"]["weight"][0, 0]), (0.5, 15.0), rtol=1e-6)
    assert table_prior("classification", num_hidden=0).distributions[0].scale == 30.0
    own = dist.Laplace(0.0, 1.0)
    assert table_model("regression", prior=own).prior.distributions[0] is own
    with pytest.raises(ValueError, match="choose 'regression'"):
        table_model("ranking")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least two classes"):
        table_model("classification", 1)


def test_the_defaults_are_stored_whole():
    """Nothing in a table's model or method is a function that a store could not hold."""
    for name in METHODS:
        arrays: dict[str, np.ndarray] = {}
        stored = encode((table_model("regression", scale=2.0), table_method(name, 500)), arrays, "method")
        assert find_missing(decode(stored, arrays)) == [] or name == "swag", name


def test_rows_are_held_out_of_tables_that_have_enough():
    """The same share and the same limit for estimators and command; who says so aloud may begin earlier."""
    assert [num_aside(n, aloud=False) for n in (199, 200, 300, 50_000)] == [0, 20, 30, 1000]
    assert [num_aside(n, aloud=True) for n in (39, 40, 300, 50_000)] == [0, 4, 30, 1000]


@pytest.mark.parametrize(
    ("resolution", "floor"),
    [(0.0, 0.005), (0.068 * 2, 0.005), (0.5 * 2 * np.sqrt(12), 0.3), (0.2 * 2 * np.sqrt(12), 0.2)],
)
def test_the_noise_of_coarsely_rounded_targets_has_a_floor(resolution, floor):
    """In units of a target whose standard deviation is 2."""
    likelihood = table_model("regression", scale=2.0, resolution=resolution).likelihood
    np.testing.assert_allclose(likelihood.likelihood.minimum_scale, floor)


def test_the_resolution_of_a_target_is_its_least_difference():
    assert TargetEncoder("regression").fit(pd.Series([3.0, 5.0, 3.0, 4.5])).resolution == 0.5


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_scales_are_learned_with_hmc_alone_unless_asked_for(task):
    prior = table_model(task, 3, learns_scales=True).prior
    assert prior.learned("network/layer_0/weight").by == "input"
    assert prior.learned("network/layer_2/weight").by == ("output" if task == "regression" else "layer")
    fixed = table_model(task, 3, prior="fixed", learns_scales=True).prior
    assert fixed.learned("network/layer_0/weight") is None
    with pytest.raises(ValueError, match="choose 'learned' or 'fixed'"):
        table_prior(task, "wide")
