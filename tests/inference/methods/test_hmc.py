"""HMC: exact targets, the leapfrog's identities, the acceptance test in float32, and broken samplers that must fail."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import targets
from broken import Unrefreshed, check_energy

from posterity.core import pytrees
from posterity.core.types import Batch, Clock
from posterity.inference.engine.driver import fit
from posterity.inference.methods import hamiltonian, hmc
from posterity.inference.methods import step_size as adaptation
from posterity.inference.methods.density import plain
from posterity.inference.methods.hamiltonian import Point
from posterity.inference.methods.hmc import HMC, HMCState
from posterity.metrics import convergence
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.models.priors import Flat, prior
from posterity.networks import linear, mlp
from posterity.weights.families import Samples

CASES, DATA = targets.TEMPERED, targets.DATA
COARSE = {"num_burn_in": 50, "num_draws": 24_000}  # static: tests that agree on it share a program


# ---------------------------------------------------------------------------------------------------- exact targets


@pytest.mark.parametrize("target", DATA)
@pytest.mark.parametrize(
    ("temperature", "tempering"),
    [pytest.param(*case, marks=pytest.mark.long if case == (1.0, "likelihood") else ()) for case in CASES],
)
def test_exact_targets(temperature, tempering, target):
    """Through `fit`: draws, and what is predicted."""
    data, method = DATA[target](), HMC(num_draws=8000, num_burn_in=100)
    posterior = fit(targets.model(temperature, tempering), method, data, progress=False)
    assert isinstance(posterior.family, Samples)
    targets.check_posterior(posterior, targets.reference(data, temperature, tempering))
    check_adapted({name: values[:, 100:] for name, values in posterior.trace.items()})


def check_adapted(trace):
    assert 0.7 < trace["acceptance"].mean() < 0.98  # adapted to 0.8, which in two dimensions it overshoots
    assert (np.ptp(trace["step_size"], axis=1) == 0).all()
    assert trace["diverged"].mean() < 0.05  # the banana's tails are stiff: there a rejection is often a divergence


@pytest.mark.parametrize(("temperature", "tempering"), CASES)
def test_quadrature_agrees_with_the_closed_form(temperature, tempering):
    data = targets.linear_gaussian()
    mean, covariance = targets.gaussian_moments(data, temperature, tempering)
    expected = targets.reference(data, temperature, tempering)
    np.testing.assert_allclose([expected.mean["a"], expected.mean["b"]], mean, rtol=1e-5)
    np.testing.assert_allclose(expected.mean["variance of a"], covariance[0, 0], rtol=1e-4)
    np.testing.assert_allclose(expected.mean["variance of b"], covariance[1, 1], rtol=1e-4)


# ------------------------------------------------------------------------------------------------- broken samplers


@pytest.fixture(scope="module")
def coarse():
    """Chains whose step is so long that on the banana four proposals in ten are rejected: [(data, draws, info)]."""
    data = [targets.linear_gaussian(), targets.banana()]
    method = HMC(num_burn_in=0, step_size=0.2)
    cases = [(targets.model(), rows) for rows in data]
    results = targets.run_cases(method, cases, **COARSE)
    return [(rows, *result) for rows, result in zip(data, results, strict=True)]


def test_coarse_steps_are_exact_too(coarse):
    for data, draws, _ in coarse:
        targets.check_draws(draws, targets.reference(data, 1.0, "posterior"))


def test_only_accepted_states_fail(coarse):
    data, draws, info = coarse[1]
    assert 0.5 < info.acceptance.mean() < 0.7
    count = int(info.accepted.sum(1).min())
    kept = {
        name: np.stack([chain[moved > 0][:count] for chain, moved in zip(values, info.accepted, strict=True)])
        for name, values in draws.items()
    }
    with pytest.raises(AssertionError, match="from the truth"):
        targets.check_draws(kept, targets.reference(data, 1.0, "posterior"))


def test_wrong_temperature_fails(coarse):
    for data, draws, _ in coarse:
        with pytest.raises(AssertionError, match="from the truth"):
            targets.check_draws(draws, targets.reference(data, 1.5, "posterior"))


def test_momentum_that_is_not_refreshed_fails():
    method = Unrefreshed(num_burn_in=0, step_size=0.1)
    cases = [(targets.model(), data()) for data in DATA.values()]
    results = targets.run_cases(method, cases, **COARSE)
    for data, (draws, _) in zip(DATA.values(), results, strict=True):
        with pytest.raises(AssertionError, match=r"from the truth|too large to judge"):
            targets.check_draws(draws, targets.reference(data(), 1.0, "posterior"))


def test_a_rejected_step_repeats_the_state(coarse):
    for _, draws, info in coarse:
        stayed = np.all([np.diff(leaf, axis=1) == 0 for leaf in draws.values()], axis=0)
        np.testing.assert_array_equal(stayed, info.accepted[:, 1:] == 0)
        assert 0.02 < stayed.mean() < 0.6
        same = np.diff(info.log_joint, axis=1)[stayed]
        assert (same == 0).all()


# ----------------------------------------------------------------------------------------------------------- energy


def test_energy_of_a_gaussian_target(coarse):
    """In d dimensions H less its minimum is Gamma(d, 1). A flow at fixed energy shares it evenly between position and
    momentum, whatever its length, so a fresh momentum leaves a correlation of 1/2 from step to step: E-BFMI is 1."""
    del coarse  # compiled its program
    method, data = HMC(num_burn_in=0, step_size=0.05), targets.linear_gaussian()
    temperatures = (1.0, 4.0)
    cases = [(targets.model(t), data) for t in temperatures]
    results = targets.run_cases(method, cases, **COARSE)
    for temperature, (_, info) in zip(temperatures, results, strict=True):
        check_energy(info.energy, data, temperature, "posterior")
        measured = convergence.e_bfmi(info.energy.astype(float))
        print("E-BFMI", measured, "of the log joint", convergence.e_bfmi(info.log_joint.astype(float)))
        assert abs(measured.mean() - 1) < 4 * 2.5 / np.sqrt(info.energy.size)


# --------------------------------------------------------------------------------------------------------- leapfrog


@jax.jit
def flow(model, data, vector, step_size, num_steps):
    """(a, b, momentum of a, momentum of b) after so many leapfrog steps, and the energy lost."""
    x, y = (jnp.asarray(values, vector.dtype) for values in data)
    batch = Batch(x, y, jnp.ones(len(y), vector.dtype))
    params, momentum = ({"network": {"a": pair[0], "b": pair[1]}} for pair in (vector[:2], vector[2:]))
    gradient = jax.grad(model.log_joint)(params, batch)
    begin = Point(params, momentum, gradient, model.log_likelihood(params, batch))
    density, widths = plain(model, batch), hamiltonian.relative_widths(model, params)[1]
    end = hamiltonian.integrate(density, begin, widths, step_size, num_steps)
    return jnp.stack(jax.tree.leaves((end.position, end.momentum))), hamiltonian.energy_drop(density, begin, end)


BEGIN = np.array([0.3, -0.6, 0.9, 1.1])


def banana_flow(vector, step_size, num_steps):
    return flow(targets.model(), targets.banana(), jnp.asarray(vector), step_size, num_steps)


def test_leapfrog_is_reversible():
    flip = np.array([1, 1, -1, -1])
    with jax.enable_x64(True):
        end, _ = banana_flow(BEGIN, 0.07, 40)
        assert abs(end - BEGIN).min() > 0.1
        back, _ = banana_flow(end * flip, 0.07, 40)
        np.testing.assert_allclose(back * flip, BEGIN, atol=1e-10)


def test_leapfrog_error_is_of_second_order():
    with jax.enable_x64(True):
        drops = np.array([banana_flow(BEGIN, 1.0 / n, n)[1] for n in (50, 100, 200)])
    np.testing.assert_allclose(np.log2(np.abs(drops[:-1] / drops[1:])), 2, atol=0.1)


def test_leapfrog_preserves_volume():
    with jax.enable_x64(True):
        columns = [
            (banana_flow(BEGIN + h, 0.07, 40)[0] - banana_flow(BEGIN - h, 0.07, 40)[0]) / 2e-5 for h in 1e-5 * np.eye(4)
        ]
    jacobian = np.stack(columns, 1)
    assert abs(jacobian - np.eye(4)).max() > 0.5
    np.testing.assert_allclose(np.linalg.det(jacobian), 1, atol=1e-6)


def test_one_width_is_unit_mass():
    """With one prior width a trajectory is the textbook's, written out in numpy."""
    (x, y), narrow = targets.linear_gaussian(), {name: dist.Normal(0.0, 0.3) for name in ("a", "b")}
    with jax.enable_x64(True):
        model = Model(targets.NETWORK, Gaussian(0.5), narrow)
        end, _ = flow(model, (x, y), jnp.array([0.2, 0.5, 1.0, -0.7]), 0.05, 7)
    design, w, p = np.stack([np.ones(4), x[:, 0]], 1), np.array([0.2, 0.5]), np.array([1.0, -0.7])
    slope = lambda w: design.T @ (y - design @ w) / 0.25 - w / 0.09  # noqa: E731
    for _ in range(7):
        p = p + 0.025 * slope(w)
        w = w + 0.05 * p
        p = p + 0.025 * slope(w)
    np.testing.assert_allclose(end, [*w, *p], rtol=1e-12)


# ------------------------------------------------------------------------------------------------------- acceptance


def test_acceptance_in_float32_with_many_rows():
    """With 10^5 rows the difference of two sums is lost in float32, the sum of differences is not."""
    rng = np.random.default_rng(0)
    model = Model(mlp([5], activation="tanh"), Gaussian(0.02))
    x = jnp.asarray(rng.normal(size=(100_000, 2)), jnp.float32)
    params = model.init(jax.random.key(1), x[:1])
    y = model.outputs(params, x)[:, 0] + jnp.asarray(0.02 * rng.normal(size=len(x)), jnp.float32)
    batch = Batch(x, y, jnp.ones(len(x), jnp.float32))

    @jax.jit
    def trajectory(params, momentum, batch):
        begin = Point(params, momentum, jax.grad(model.log_joint)(params, batch), jnp.zeros(()))
        widths = jax.tree.map(lambda leaf: jnp.ones((), leaf.dtype), params)
        return hamiltonian.integrate(plain(model, batch), begin, widths, jnp.asarray(3e-5), jnp.asarray(20))

    @jax.jit
    def drops(begin, end, batch):
        """The log acceptance ratio term by term, and as a difference of two energies."""
        ends = [Point(*point, None, model.log_likelihood(point[0], batch)) for point in (begin, end)]
        energies = [
            pytrees.total(jax.tree.map(jnp.square, e.momentum)) / 2 - model.log_joint(e.position, batch) for e in ends
        ]
        return hamiltonian.energy_drop(plain(model, batch), *ends), energies[0] - energies[1]

    termwise, naive = [], []
    for seed in range(6):
        momentum = pytrees.normal_like(jax.random.key(seed), params)
        end = trajectory(params, momentum, batch)
        points = ((params, momentum), (end.position, end.momentum), batch)
        in_single = drops(*points)
        with jax.enable_x64(True):
            double = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), points)
            exact = [float(drop) for drop in drops(*double)]
        assert abs(exact[0] - exact[1]) < 1e-6
        assert abs(exact[0]) < 10  # a trajectory that might be accepted
        termwise.append(abs(float(in_single[0]) - exact[0]))
        naive.append(abs(float(in_single[1]) - exact[0]))
    print(f"errors of the log acceptance ratio: term by term {np.round(termwise, 5)}, naive {np.round(naive, 5)}")
    assert max(termwise) < 1e-2
    assert max(naive) > 1e-2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pairwise_sum(size):
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    np.testing.assert_allclose(hamiltonian.pairwise_sum(jnp.asarray(values)), values.astype(float).sum(), atol=2e-5)


# ------------------------------------------------------------------------------------- trajectory length and steps


@pytest.mark.parametrize(("tempering", "factor"), [("posterior", 2.0), ("likelihood", 1.0)])
def test_default_trajectory_at_temperature_four(tempering, factor):
    params = {"network": {"a": jnp.zeros(()), "b": jnp.zeros(())}}
    narrow = Model(targets.NETWORK, Gaussian(0.5), dist.Normal(0.0, 0.3), 4.0, tempering)
    length, widths = hmc.trajectory(HMC(), narrow, params)
    np.testing.assert_allclose(length, np.pi / 2 * 0.3 * factor, rtol=1e-6)
    np.testing.assert_allclose(jax.tree.leaves(widths), 1, rtol=1e-6)
    length, widths = hmc.trajectory(HMC(), targets.model(4.0, tempering), params)
    np.testing.assert_allclose(length, np.pi / 2 * np.sqrt(0.8 * 1.2) * factor, rtol=1e-6)
    np.testing.assert_allclose(widths["network"]["b"] / widths["network"]["a"], 1.5, rtol=1e-6)


def test_fan_in_widths():
    model = Model(linear(), Gaussian(0.5), prior({"*bias": dist.Normal(0, 2.0), "*": dist.Normal(0, 1.0)}, fan_in=True))
    params = model.init(jax.random.key(0), jnp.zeros((1, 4)))
    widths = hamiltonian.prior_widths(model, params)["network"]["layer_0"]
    np.testing.assert_allclose([widths["weight"], widths["bias"]], [0.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize("wide", [Flat(), dist.Cauchy(0.0, 1.0), dist.StudentT(2.0, 0.0, 1.0)])
def test_no_finite_variance(wide):
    model = Model(targets.NETWORK, Gaussian(0.5), {"a": dist.Normal(0, 0.3), "b": wide})
    params = {"network": {"a": jnp.zeros(()), "b": jnp.zeros(())}}
    with pytest.raises(ValueError, match=r"prior of 'network/b' has no finite variance.*trajectory_length"):
        HMC().check(model, params, None)  # type: ignore[arg-type]
    method = HMC(trajectory_length=0.7)
    method.check(model, params, None)  # type: ignore[arg-type]
    length, widths = hmc.trajectory(method, model, params)
    np.testing.assert_allclose(length, 0.7, rtol=1e-6)
    np.testing.assert_array_equal(jax.tree.leaves(widths), 1)


def clock_at(step, phase):
    return Clock(*(jnp.asarray(v) for v in (step, 100, phase, 0, 1.0, 4.0)))


def test_number_of_leapfrog_steps():
    given = HMCState(None, None, jnp.zeros(1), None)
    steps = lambda method, length, t=0, state=given: hmc._steps(method, state, jnp.asarray(length), clock_at(t, 1))  # noqa: E731
    assert int(steps(HMC(step_size=1e-5, jitter=0.0), 0.15708)[1]) == 15_708  # the published run
    assert int(steps(HMC(step_size=0.3, jitter=0.0), 1.0)[1]) == 4
    assert int(steps(HMC(step_size=5.0), 1.0)[1]) == 1
    counts = [int(steps(HMC(step_size=1e-3, jitter=0.2), 1.0, t)[1]) for t in range(200)]
    assert 800 <= min(counts) < 805
    assert 1195 < max(counts) <= 1200
    np.testing.assert_allclose(np.mean(counts), 1000, atol=3)
    tiny = given._replace(step_size=adaptation.begin(jnp.asarray(1e-12)))
    assert int(steps(HMC(), 1.0, 0, tiny)[1]) == 10_000
    assert float(steps(HMC(), 1.0, 0, tiny)[2]) < 1e-7  # of a trajectory that was cut
    long = given._replace(step_size=adaptation.begin(jnp.asarray(9.0)))
    step_size, count, covered = steps(HMC(jitter=0.0), 1.0, 0, long)
    # An adapted step is never longer than the trajectory.
    assert (float(step_size), int(count), float(covered)) == (1.0, 1, 1.0)


def test_divergence_is_a_flagged_rejection(coarse):
    del coarse  # compiled its program
    cases = [(targets.model(), targets.linear_gaussian()), (targets.model(), targets.banana())]
    for step_size in (30.0, 1e18):
        results = targets.run_cases(HMC(num_burn_in=0, step_size=step_size), cases, **COARSE)
        draws, info = results[1]
        assert (info.diverged == 1).all()
        assert (info.acceptance == 0).all()
        for name, values in info._asdict().items():
            assert np.isfinite(values).all(), name
        np.testing.assert_array_equal(draws["b"], np.float32(0.1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_size": 0.0}, r"HMC\(step_size=0.0\) must be a number above 0"),
        ({"step_size": -0.1}, r"HMC\(step_size=-0.1\) must be"),
        ({"step_size": float("nan")}, "must be a number above 0"),
        ({"trajectory_length": 0.0}, r"trajectory_length=0.0\) must be"),
        ({"num_draws": 0}, r"HMC\(num_draws=0\): expected a whole number, at least 1"),
        ({"num_draws": 2.5}, "expected a whole number"),
        ({"thin": 0}, "thin=0"),
        ({"num_burn_in": 0}, "leaves no step in which to adapt"),
        ({"jitter": 1.0}, r"must lie in \[0, 1\)"),
        ({"target_acceptance": 0.0}, "must lie between 0 and 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        HMC(**settings)
