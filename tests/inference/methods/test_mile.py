"""MILE: the integrator's identities, exactness of the adjusted variant, the unadjusted one's error, and the tuning."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import targets

from posterity.core import pytrees, records
from posterity.core.types import Batch, Kernel
from posterity.inference.engine.driver import fit
from posterity.inference.methods import mile
from posterity.inference.methods.mile import MILE, Point
from posterity.inference.methods.point import DeepEnsemble
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.networks import from_function
from posterity.weights.families import Samples

TEMPERATURES = (1.0, 0.25, 4.0)
DATA = {"linear-Gaussian": targets.linear_gaussian, "banana": targets.banana}
COUNTS = {"num_burn_in": 100, "num_draws": 4000, "thin": 3}


def cases_of(tempering):
    """All temperatures and both targets, with their references."""
    settings = [(t, data()) for t in TEMPERATURES for data in DATA.values()]
    cases = [(targets.model(t, tempering), data) for t, data in settings]
    return cases, [targets.reference(data, t, tempering) for t, data in settings]


# ------------------------------------------------------------------------------------------------------- integrator


@jax.jit
def flow(model, data, vector, step_size, num_steps):
    """(a, b, velocity of a, of b) after so many steps, the energy change, and dK."""
    x, y = (jnp.asarray(values, vector.dtype) for values in data)
    batch, params = Batch(x, y, jnp.ones(len(y), vector.dtype)), {"network": {"a": vector[0], "b": vector[1]}}
    slope = mile._slope(model, batch, params)
    begin = Point(vector[:2], vector[2:], *slope(vector[:2]))

    def body(_, carry):
        point, shrinkage = mile.isokinetic_step(slope, carry[0], step_size)
        return point, carry[1] + shrinkage

    end, shrinkage = jax.lax.fori_loop(0, num_steps, body, (begin, jnp.zeros((), vector.dtype)))
    change = mile._energy_change(model, batch, params, begin, end, shrinkage)
    return jnp.concatenate([end.position, end.velocity]), change, shrinkage


BEGIN = np.array([0.3, -0.6, np.cos(0.9), np.sin(0.9)])


def banana_flow(vector, step_size, num_steps):
    return flow(targets.model(), targets.banana(), jnp.asarray(vector), jnp.asarray(step_size), num_steps)


def test_steps_are_reversible():
    flip = np.array([1, 1, -1, -1])
    with jax.enable_x64(True):
        end, change, _ = banana_flow(BEGIN, 0.07, 40)
        assert abs(end - BEGIN).min() > 0.1
        np.testing.assert_allclose(end[2] ** 2 + end[3] ** 2, 1, rtol=1e-12)
        back, again, _ = banana_flow(end * flip, 0.07, 40)
        np.testing.assert_allclose(back * flip, BEGIN, atol=1e-9)
        np.testing.assert_allclose(change, -again, atol=1e-9)


def test_energy_is_conserved_to_second_order():
    with jax.enable_x64(True):
        changes = np.array([banana_flow(BEGIN, 1.0 / n, n)[1] for n in (20, 40, 80)])
    print("energy errors", changes)
    assert abs(changes[-1]) < 1e-4
    np.testing.assert_allclose(np.log2(np.abs(changes[:-1] / changes[1:])), 2, atol=0.2)


def test_volume_shrinks_by_the_kinetic_energy():
    """In (a, b, angle of the velocity) volume shrinks by exp(dK), which is what the acceptance test needs."""

    def at(state):
        begin = np.array([state[0], state[1], np.cos(state[2]), np.sin(state[2])])
        end, _, shrinkage = banana_flow(begin, 0.15, 3)
        return np.array([end[0], end[1], np.arctan2(end[3], end[2])]), float(shrinkage)

    with jax.enable_x64(True):
        middle, nudges = np.array([0.3, -0.6, 0.9]), 1e-5 * np.eye(3)
        jacobian = np.stack([(at(middle + h)[0] - at(middle - h)[0]) / 2e-5 for h in nudges], 1)
        shrinkage = at(middle)[1]
    assert abs(shrinkage) > 0.2
    np.testing.assert_allclose(np.log(np.linalg.det(jacobian)), -shrinkage, atol=1e-6)


@pytest.mark.parametrize("delta", [1e-4, 0.999, 1.001, 30.0])
@pytest.mark.parametrize("angle", [0.0, 1.0, 3.0, np.pi])
def test_turn_in_float32(delta, angle):
    """Against double precision: no overflow, no loss for short turns."""
    velocity, gradient = np.array([np.cos(angle), np.sin(angle), 0.0]), np.array([7.0, 0.0, 0.0])
    time = delta * 2 / 7
    single = mile.turn(*(jnp.asarray(v, jnp.float32) for v in (velocity, gradient, time)))
    with jax.enable_x64(True):
        double = mile.turn(*(jnp.asarray(v, jnp.float64) for v in (velocity, gradient, time)))
    np.testing.assert_allclose(single[0], double[0], atol=2e-6)
    np.testing.assert_allclose(single[1], double[1], rtol=1e-4 if angle != np.pi else 1e-2, atol=1e-8)


# ---------------------------------------------------------------------------------------------------- exact targets


@pytest.mark.parametrize("tempering", [pytest.param("posterior", marks=pytest.mark.long), "likelihood"])
def test_adjusted_is_exact(tempering):
    cases, references = cases_of(tempering)
    results = targets.run_cases(MILE(adjusted=True, step_size=0.25, length=0.5), cases, **COUNTS)
    for expected, (draws, info) in zip(references, results, strict=True):
        scores = targets.check_draws(draws, expected)
        print(f"{tempering}: acceptance {info.acceptance.mean():.2f}, worst {max(map(abs, scores.values())):.1f}")
    assert min(info.acceptance.mean() for _, info in results) < 0.9  # or exactness shows nothing


@records.record
class DensityAlone(MILE):
    """Broken on purpose: a proposal must also pass a test by the density, which forgets that turns change volume."""

    def kernel(self, model):
        whole = super().kernel(model)

        def step(key, state, batch, clock):
            new, info = whole.step(key, state, batch, clock)
            rise = info.log_joint - model.log_joint(state.params, batch)
            accepted = jax.random.uniform(jax.random.fold_in(key, 1)) < jnp.exp(rise)
            return pytrees.select(accepted, new, state), info

        return Kernel(whole.init, step)


@pytest.mark.long
def test_wrong_acceptance_fails():
    cases, references = cases_of("posterior")
    results = targets.run_cases(DensityAlone(step_size=0.25, length=0.5, adjusted=True), cases[:2], **COUNTS)
    for expected, (draws, _) in zip(references, results, strict=False):
        with pytest.raises(AssertionError, match="from the truth"):
            targets.check_draws(draws, expected)


@pytest.mark.long
def test_unadjusted_error_falls_with_the_step_size():
    """At h, h/2, h/4 the error of the variance falls at second order, and extrapolates to the truth."""
    settings = [(0.25, targets.linear_gaussian()), (1.0, targets.banana())]
    cases = [(targets.model(t), data) for t, data in settings]
    steps, counts = (0.4, 0.2, 0.1), {"num_burn_in": 200, "num_draws": 8000, "thin": 5, "num_chains": 8}
    runs = [targets.run_cases(MILE(step_size=h, length=0.5), cases, **counts) for h in steps]
    for index, (temperature, data) in enumerate(settings):
        expected = targets.reference(data, temperature, "posterior")
        estimates = [relative_variance(run[index][0], expected) for run in runs]
        (coarse, noise), (middle, _), (fine, _) = estimates
        print("relative errors of the variance", [f"{value:.4f} +- {error:.4f}" for value, error in estimates])
        assert abs(coarse) > 4 * noise
        assert abs(middle) < abs(coarse) / 2
        extrapolated = (4 * fine - middle) / 3
        assert abs(extrapolated) < 4 * np.hypot(4 * estimates[2][1], estimates[1][1]) / 3
        with pytest.raises(AssertionError, match="from the truth"):
            targets.check_draws(runs[0][index][0], expected)


def relative_variance(draws, expected):
    """The variance of a and b over the truth, less one, and its Monte Carlo error."""
    squares = [(draws[n] - expected.centre[n]) ** 2 / expected.mean[f"variance of {n}"] for n in "ab"]
    batches = np.mean(squares, axis=0).reshape(8 * targets.NUM_BATCHES, -1).mean(1)
    return batches.mean() - 1, batches.std(ddof=1) / np.sqrt(len(batches))


NUM_WEIGHTS, NUM_CHAINS = 200, 256


@pytest.mark.long
def test_unadjusted_error_is_of_second_order():
    """At h, h/2, h/4: where nothing but the order 2 fits, and the extrapolation to the truth has a small error.

    Two weights show the order badly: errors large enough to measure are of steps three standard deviations long. Of
    many independent weights, one a row, every draw measures the variance as many times.
    """
    network = from_function(lambda key, x: {"w": jnp.zeros(NUM_WEIGHTS)}, lambda params, x: params["w"][:, None])
    model, y = Model(network, Gaussian(0.5), dist.Normal(0.0, 1.0)), np.linspace(-1, 1, NUM_WEIGHTS)
    variance = 1 / (1 + 1 / 0.5**2)
    mean = variance * y / 0.5**2
    repeat = lambda leaf: jnp.repeat(jnp.asarray(leaf, float)[None], NUM_CHAINS, 0)  # noqa: E731
    rows = Batch(np.zeros((NUM_WEIGHTS, 1)), y, np.ones(NUM_WEIGHTS))
    models, batches = jax.tree.map(repeat, (model, rows))
    estimates = []
    for seed, step_size in enumerate((6.0, 3.0, 1.5)):
        key_start, key_run = jax.random.split(jax.random.key(seed))
        spread = jax.random.normal(key_start, (NUM_CHAINS, NUM_WEIGHTS)) * np.sqrt(variance)
        start = {"network": {"w": jnp.asarray(mean, float) + spread}}
        keys = jax.random.split(key_run, NUM_CHAINS)
        method, counts = MILE(step_size=step_size, length=6.0), {"num_burn_in": 20, "num_draws": 1000, "thin": 2}
        draws, _ = targets.run(method, models, batches, start, keys, **counts)
        squares = np.square(np.asarray(draws["network"]["w"]) - mean.astype(np.float32)).mean(-1, dtype=float)
        chains = squares.mean(1) / variance - 1
        estimates.append((chains.mean(), chains.std(ddof=1) / np.sqrt(NUM_CHAINS)))
    print("relative errors of the variance", [f"{value:.5f} +- {error:.5f}" for value, error in estimates])
    (coarse, noise), (middle, less), (fine, least) = estimates
    for order, fits in ((1, False), (2, True), (3, False)):
        gap, error = coarse - 2**order * middle, np.hypot(noise, 2**order * less)
        assert (abs(gap) < 4 * error) == fits, f"order {order}: {gap} +- {error}"
    extrapolated, error = (4 * fine - middle) / 3, np.hypot(4 * least, less) / 3
    assert abs(extrapolated) < 4 * error < abs(coarse) / 4


# ----------------------------------------------------------------------------------------------------------- tuning


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:DeepEnsemble. all chains began at the same weights")  # as this target has them
def test_tuning_of_the_adjusted_variant():
    """Through `fit`, from an ensemble: what the phases find, and that the draws are right."""
    start = DeepEnsemble(num_members=4, num_steps=200, learning_rate=0.03)
    method = MILE(num_draws=2000, num_burn_in=1500, adjusted=True, start=start)
    assert method.num_chains == 4
    data = targets.linear_gaussian()
    posterior = fit(targets.model(4.0), method, data, progress=False)
    assert isinstance(posterior.family, Samples)
    assert posterior.family.draws["network"]["a"].shape == (4, 2000)
    expected = targets.reference(data, 4.0, "posterior")
    targets.check_draws(posterior.family.draws["network"], expected)
    trace = posterior.trace
    first, second, third, last, kept = (
        slice(*edge) for edge in ((0, 1200), (1200, 1350), (1350, 1500), (1500, 1650), (1650, None))
    )
    assert (np.ptp(trace["length"][:, first], axis=1) == 0).all()
    np.testing.assert_allclose(trace["length"][:, 0], 15.0)
    # The energy error per dimension is what phase I aims at.
    assert 0.02 < np.mean(trace["energy_change"][:, second] ** 2) / 2 < 0.5
    spread = np.sqrt(expected.mean["variance of a"] + expected.mean["variance of b"])
    np.testing.assert_allclose(trace["length"][:, third], spread, rtol=0.5)
    assert (np.ptp(trace["step_size"][:, 1200:1500], axis=1) < 1e-6).all()
    assert (np.ptp(trace["step_size"][:, last], axis=1) > 0).all()
    assert (np.ptp(trace["step_size"][:, kept], axis=1) == 0).all()
    assert (np.ptp(trace["length"][:, kept], axis=1) == 0).all()
    print(
        "acceptance",
        trace["acceptance"][:, kept].mean(1),
        "lengths",
        trace["length"][:, -1],
        "steps",
        trace["step_size"][:, -1],
    )
    np.testing.assert_allclose(trace["acceptance"][:, kept].mean(1), 0.9, atol=0.09)
    assert (trace["acceptance"][:, :1500] == 1).all()


@pytest.mark.long
def test_tuning_of_the_unadjusted_variant():
    """A step size tuned to energy errors alone leaves a bias, but not a large one."""
    method = MILE(num_draws=2000, num_burn_in=1000, start=None)
    data = targets.banana()
    posterior = fit(targets.model(), method, data, chains=4, progress=False)
    expected = targets.reference(data, 1.0, "posterior")
    draws = posterior.family.draws["network"]
    ratio = [np.var(draws[n]) / expected.mean[f"variance of {n}"] for n in "ab"]
    print("variance over the truth", ratio, posterior.trace["step_size"][:, -1], posterior.trace["length"][:, -1])
    np.testing.assert_allclose(ratio, 1, atol=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_size": 0.0}, r"MILE\(step_size=0.0\) must be a number above 0"),
        ({"length": -1.0}, r"length=-1.0\) must be"),
        ({"num_draws": 0}, r"MILE\(num_draws=0\): expected a whole number, at least 1"),
        ({"thin": 0}, "thin=0"),
        ({"num_burn_in": 50}, r"leaves too few steps to tune.*num_burn_in=2000"),
        ({"target_acceptance": 1.0}, "must lie between 0 and 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        MILE(**settings)


def test_one_weight_is_refused():
    with pytest.raises(ValueError, match=r"needs two free weights or more: use HMC or NUTS"):
        MILE().check(None, {"a": jnp.zeros(1)}, None)  # type: ignore[arg-type]


def test_plans():
    assert [phase.num_steps for phase in MILE().plan(10)] == [1600, 200, 200, 2500]
    assert [phase.num_steps for phase in MILE(adjusted=True).plan(10)] == [1600, 200, 200, 200, 500]
    assert [phase.num_steps for phase in MILE(step_size=0.1, length=1.0, thin=2).plan(10)] == [2000, 1000]
    assert MILE().num_chains == 8
