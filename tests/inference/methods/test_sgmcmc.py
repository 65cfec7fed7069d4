"""SGLD, SGHMC and the cyclical schedule: the law of their own recursions, order of error, broken samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import targets
from recursions import GAUSSIAN, NUM_DATA, check_law, cyclical_moments, law, laws, rate_at
from scipy.linalg import solve_discrete_lyapunov

from posterity.core import pytrees, records
from posterity.core.types import Batch, Clock, Kernel
from posterity.inference.engine.driver import fit
from posterity.inference.methods.sgmcmc import SGHMC, SGLD, Cyclical
from posterity.weights.families import Samples

BANANA = targets.banana()
BENT = targets.reference(BANANA, 1.0, "posterior")
POSTERIOR, LIKELIHOOD = (
    [(targets.model(t, tempering), GAUSSIAN) for t, tempering in targets.TEMPERED[half]]
    for half in (slice(0, 3), slice(3, 6))
)
COUNTS = {"num_burn_in": 200, "num_draws": 2000, "thin": 4, "num_chains": 64}
SHARE = 0.24  # of the largest stable learning rate: leaves the stiffest direction a variance of 1 / (1 - 0.24) times
METHODS = {"sgld": (SGLD, 0.0), "sghmc": (SGHMC, 0.9)}  # with the momentum
COLD, HOT, HOT_LIKELIHOOD = (0.25, "posterior"), (4.0, "posterior"), (4.0, "likelihood")


def test_the_place_in_a_cycle_is_the_clocks():
    """Whatever steps were taken: a budget may have cut the phase before."""
    method = Cyclical(base=SGLD(learning_rate=0.01), cycle_length=100, draws_per_cycle=10, thin=2)
    kernel, data = method.kernel(targets.model()), GAUSSIAN
    batch = Batch(*(jnp.asarray(values, float) for values in data), jnp.ones(len(data[1])))
    params = {"network": {"a": jnp.zeros(()), "b": jnp.zeros(())}}
    for phase, step, num_steps, place in ((0, 10, 80, 10), (1, 5, 20, 85), (2, 0, 80, 0)):
        now = Clock(*(jnp.asarray(value) for value in (step, num_steps, phase, 0, 1.0, 4.0)))
        state = kernel.init(None, params, batch, now)
        _, info = kernel.step(jax.random.key(0), state, batch, now)
        assert float(info.learning_rate) == pytest.approx(0.005 * (np.cos(np.pi * place / 100) + 1), rel=1e-5)


def stiff_error(draws, case):
    """Of the variance along the stiffest direction: its relative error, and the Monte Carlo standard error."""
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    values, directions = np.linalg.eigh(covariance)
    along = sum(directions[i, 0] * (np.asarray(draws[name], float) - mean[i]) for i, name in enumerate("ab"))
    variance, error = targets.batch_means(along**2)
    return variance / values[0] - 1, error / values[0]


def run_at(name, case, share, **counts):
    """Draws of a method at a share of its largest stable rate, and that rate; each tempering is one program."""
    method, momentum = METHODS[name]
    rate = rate_at(share, case, momentum)
    ((draws, info),) = targets.run_cases(
        method(learning_rate=rate), [(targets.model(*case), GAUSSIAN)], **COUNTS | counts
    )
    np.testing.assert_allclose(info.learning_rate, rate, rtol=1e-6)
    return draws, rate


def run_all(method, **counts):
    """Results in the order of `targets.TEMPERED`; each tempering is one program."""
    first, second = (targets.run_cases(method, cases, **counts) for cases in (POSTERIOR, LIKELIHOOD))
    return [*first, *second]


# ------------------------------------------------------------------------------------------------- stationary laws


@pytest.mark.parametrize("name", METHODS)
def test_stationary_law_in_closed_form(name):
    """At three temperatures and both temperings, where the error is a third of the variance: this pins temperature and
    noise, and the formula to a tenth of what it says beyond the truth."""
    for seed, case in enumerate(targets.TEMPERED):
        draws, rate = run_at(name, case, SHARE, seed=seed)
        scores = check_law(draws, *law(case, rate, METHODS[name][1]))
        error, noise = stiff_error(draws, case)
        print(f"{name} at {case}: worst {abs(scores).max():.1f} errors, variance off by {error:.3f} +- {noise:.3f}")
        assert abs(error - (1 / (1 - SHARE) - 1)) < 4 * noise < 0.15 * error


@pytest.mark.parametrize("momentum", [0.0, 0.6, 0.9])
def test_the_closed_form_is_the_recursions(momentum):
    """The formula of the docstring against the Lyapunov equation of v <- beta v - eta A w + noise, w <- w + v."""
    rate = 0.04
    _, covariance = targets.gaussian_moments(GAUSSIAN, 1.0, "posterior")
    pull, one = rate / NUM_DATA * np.linalg.inv(covariance), np.eye(2)
    step = np.block([[one - pull, momentum * one], [-pull, momentum * one]])
    noise = 2 * (1 - momentum) * rate / NUM_DATA * np.ones((2, 2))
    solved = solve_discrete_lyapunov(step, np.kron(noise, one))
    np.testing.assert_allclose(solved[:2, :2], law((1.0, "posterior"), rate, momentum)[1], rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("case", [COLD, HOT, HOT_LIKELIHOOD])
@pytest.mark.parametrize("name", METHODS)
def test_error_is_of_first_order_and_extrapolates(name, case):
    """The error of the sampler's variance halves with the rate, and three rates extrapolate to the truth."""
    shares = [SHARE, SHARE / 2, SHARE / 4]
    runs = [run_at(name, case, share, num_draws=6000, seed=seed)[0] for seed, share in enumerate(shares)]
    estimates = [stiff_error(draws, case) for draws in runs]
    print(name, case, "relative errors of the variance", np.round(estimates, 4).tolist())
    targets.check_order(estimates, 1)


@pytest.mark.long
@pytest.mark.parametrize(("method", "rate"), [(SGLD, 0.03), (SGHMC, 0.04)])
def test_error_on_the_banana_is_of_first_order_and_extrapolates(method, rate):
    """The variance of an output across the bend, where errors are largest."""
    estimates = []
    for seed, divisor in enumerate((1, 2, 4)):
        counts = {"num_burn_in": 500, "num_draws": 6000, "thin": 8, "num_chains": 256, "seed": seed}
        ((draws, _),) = targets.run_cases(method(learning_rate=rate / divisor), [(targets.model(), BANANA)], **counts)
        estimates.append(targets.relative_error(draws, BENT, "variance of output 1"))
    print(method.__name__, "relative errors of the variance", np.round(estimates, 4).tolist())
    targets.check_order(estimates, 1)


# ------------------------------------------------------------------------------------------------- broken samplers


@records.record
class WrongNoise(SGLD):
    """Broken on purpose: noise times a factor."""

    factor: float = records.traced(default=1.0)

    def kernel(self, model):
        whole = super().kernel(model)

        def step(key, state, batch, clock):
            new, info = whole.step(key, state, batch, clock)
            gradient = jax.grad(model.log_joint)(state.params, batch)
            middle = jax.tree.map(lambda w, g: w + self.learning_rate / NUM_DATA * g, state.params, gradient)
            wrong = jax.tree.map(lambda w, m: m + self.factor * (w - m), new.params, middle)
            return new._replace(params=wrong), info

        return Kernel(whole.init, step)


@records.record
class Redrawn(SGHMC):
    """Broken on purpose, as blackjax's: momentum is redrawn at each step from the key that the noise uses too."""

    def kernel(self, model):
        whole = super().kernel(model)

        def step(key, state, batch, clock):
            momentum = pytrees.normal_like(key, state.params)
            return whole.step(key, state._replace(momentum=momentum), batch, clock)

        return Kernel(whole.init, step)


@pytest.mark.long
def test_wrong_noise_fails():
    """Off by 3 %; and scaled by the temperature, which the gradient has already."""
    for factor, cases, fails in (
        (1.0, [HOT], False),
        (1.03, [COLD, HOT], True),
        (2.0, [HOT], True),
        (0.5, [COLD], True),
    ):
        for case in cases:
            rate = rate_at(SHARE, case)
            method = WrongNoise(learning_rate=rate, factor=factor)
            ((draws, _),) = targets.run_cases(method, [(targets.model(*case), GAUSSIAN)], **COUNTS)
            if not fails:
                check_law(draws, *law(case, rate))
                continue
            with pytest.raises(AssertionError, match="from the truth"):
                check_law(draws, *law(case, rate))


@pytest.mark.long
def test_redrawn_momentum_fails():
    for case in targets.TEMPERED[:3]:
        rate = rate_at(SHARE, case, 0.9)
        ((draws, _),) = targets.run_cases(Redrawn(learning_rate=rate), [(targets.model(*case), GAUSSIAN)], **COUNTS)
        with pytest.raises(AssertionError, match="from the truth"):
            check_law(draws, *law(case, rate, 0.9))


def test_an_error_of_no_order_or_the_wrong_one_fails():
    for values in ([0.3, 0.3, 0.3], [0.32, 0.08, 0.02], [0.34, 0.19, 0.13], [-0.1, 0.1, 0.1]):
        with pytest.raises(AssertionError, match=r"of order|extrapolate to"), np.errstate(invalid="ignore"):
            targets.check_order([(value, 0.003) for value in values], 1)
    with pytest.raises(AssertionError, match="too uncertain"):
        targets.check_order([(0.3, 0.1), (0.15, 0.1), (0.07, 0.1)], 1)


# ------------------------------------------------------------------------------------------------- preconditioner


def preconditioned_law(square, rate, case, momentum):
    """Closed form in the coordinates P^-1/2 w, in which P is 1."""
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    root = np.diag(np.sqrt(1 / (np.sqrt(square) + 1e-5)))
    precision = root @ np.linalg.inv(covariance) @ root
    inner = np.linalg.inv(precision @ (np.eye(2) - rate / NUM_DATA * precision / (2 * (1 + momentum))))
    return mean, root @ inner @ root


@pytest.mark.parametrize(("method", "momentum"), [(SGLD, 0.0), (SGHMC, 0.9)])
def test_frozen_preconditioner_keeps_the_law(method, momentum):
    """One chain's preconditioner is a fact of the chain: its running mean is read off a kernel run by hand."""
    rate, case = 0.02, HOT_LIKELIHOOD
    kernel_of = method(learning_rate=rate, preconditioner="rmsprop").kernel
    x, y = (jnp.asarray(values, float) for values in GAUSSIAN)

    @jax.jit
    def run(model, key):
        batch, kernel = targets.Batch(x, y, jnp.ones(NUM_DATA)), kernel_of(model)
        now = [targets.clock(jnp.zeros((), int), 1, jnp.asarray(phase), 1, NUM_DATA) for phase in (0, 1)]
        params = {"network": {"a": jnp.zeros(()), "b": jnp.zeros(())}}

        def advance(count, phase):
            def body(index, state):
                return kernel.step(jax.random.fold_in(key, state.num_steps), state, batch, now[phase])[0]

            return lambda state: jax.lax.fori_loop(0, count, body, state)

        state = advance(2000, 0)(kernel.init(key, params, batch, now[0]))

        def record(state, _):
            state = advance(10, 1)(state)
            return state, state.params["network"]

        last, draws = jax.lax.scan(record, state, length=6_000)
        return state.square, last.square, draws

    before, after, draws = jax.vmap(run, (None, 0))(targets.model(*case), jax.random.split(jax.random.key(1), 4))
    for name in "ab":
        np.testing.assert_array_equal(before["network"][name], after["network"][name])
    for chain in range(4):
        square = [float(before["network"][name][chain]) for name in "ab"]
        own = {name: draws[name][chain : chain + 1] for name in "ab"}
        check_law(own, *preconditioned_law(np.array(square), rate, case, momentum))


# ------------------------------------------------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    ("base", "momentum"),
    [pytest.param(SGLD(learning_rate=0.08), 0.0, marks=pytest.mark.long), (SGHMC(learning_rate=0.03), 0.9)],
)
def test_cyclical(base, momentum):
    """Ends of cycles have the law of the method's own recursion, which is near the truth, and are independent."""
    method = Cyclical(base, cycle_length=64, exploration=0.25, draws_per_cycle=1, thin=1)
    results = run_all(method, num_burn_in=0, num_draws=1003, thin=64)
    for case, (draws, info) in zip(targets.TEMPERED, results, strict=True):
        mean, covariance = cyclical_moments(method, momentum, case, num_cycles=3)
        later = {name: values[:, 3:] for name, values in draws.items()}
        check_law(later, mean, covariance)
        exact_mean, exact = targets.gaussian_moments(GAUSSIAN, *case)
        print(type(base).__name__, case, "variance over the truth", np.diag(covariance) / np.diag(exact))
        np.testing.assert_allclose(np.diag(covariance), np.diag(exact), rtol=0.12)
        np.testing.assert_allclose(mean, exact_mean, atol=0.02)
        np.testing.assert_allclose(info.learning_rate[:, -1], base.learning_rate / 2 * (1 - np.cos(np.pi / 64)), 1e-3)


def cyclical_runs(base, rate, cycle_length, model, data, num_draws):
    """(method, draws) at h, h/2, h/4 in cycles 1, 2, 4 times as long, so that each goes as far."""
    for seed, divisor in enumerate((1, 2, 4)):
        length = cycle_length * divisor
        settings = {"cycle_length": length, "exploration": 0.25, "draws_per_cycle": 1, "thin": 1}
        method = Cyclical(base(learning_rate=rate / divisor), **settings)
        counts = {"num_burn_in": 0, "num_draws": num_draws + 3, "thin": length, "num_chains": 256, "seed": seed}
        ((draws, _),) = targets.run_cases(method, [(model, data)], **counts)
        yield method, {name: values[:, 3:] for name, values in draws.items()}


@pytest.mark.long
@pytest.mark.parametrize("case", [COLD, HOT, HOT_LIKELIHOOD])
@pytest.mark.parametrize(("name", "share", "cycle_length"), [("sgld", 0.8, 12), ("sghmc", 0.6, 48)])
def test_cyclical_error_is_of_first_order_and_extrapolates(name, share, cycle_length, case):
    """The ends of cycles have an error of the variance that halves with the rate, for they remember steps before the
    rate had fallen, and three rates extrapolate to the truth."""
    base, momentum = METHODS[name]
    estimates, rate = [], rate_at(share, case, momentum)
    for method, draws in cyclical_runs(base, rate, cycle_length, targets.model(*case), GAUSSIAN, num_draws=500):
        check_law(draws, *cyclical_moments(method, momentum, case, num_cycles=3))
        estimates.append(stiff_error(draws, case))
    print(name, case, "relative errors of the variance", np.round(estimates, 4).tolist())
    targets.check_order(estimates, 1)


@pytest.mark.long
def test_cyclical_extrapolates_on_the_banana():
    """With one draw per cycle Monte Carlo leaves the order of so small an error open, but not that it goes away."""
    runs = cyclical_runs(SGHMC, 0.06, 64, targets.model(), BANANA, num_draws=250)
    estimates = [targets.relative_error(draws, BENT, "variance of output 1") for _, draws in runs]
    print("relative errors of the variance", np.round(estimates, 4).tolist())
    values, errors = np.array(estimates).T
    assert values[0] > 4 * errors[0]
    value, error = 2 * values[2] - values[1], np.hypot(2 * errors[2], errors[1])
    assert abs(value) < 4 * error < 1.5 * values[0]


def test_cyclical_keeps_the_ends_of_cycles():
    base = SGLD(learning_rate=0.02, batch_size=2)
    method = Cyclical(base, num_cycles=3, cycle_length=20, exploration=0.5, draws_per_cycle=2, thin=4)
    posterior = fit(targets.model(), method, GAUSSIAN, chains=2, progress=False)
    assert isinstance(posterior.family, Samples)
    assert posterior.family.draws["network"]["a"].shape == (2, 6)
    rates = 0.01 * (np.cos(np.pi * np.arange(20) / 20) + 1)
    records = [*rates[:12], rates[12:16].mean(), rates[16:].mean()]
    np.testing.assert_allclose(posterior.trace["learning_rate"], np.tile(records, (2, 3)), rtol=1e-5)


def test_decreasing_schedule():
    method = SGLD(learning_rate=0.02, schedule="decreasing", decay_offset=10.0)
    ((_, info),) = targets.run_cases(method, POSTERIOR[:1], num_burn_in=3, num_draws=4)
    np.testing.assert_allclose(info.learning_rate[0], 0.02 * (1 + np.arange(3, 7) / 10) ** (-1 / 3), rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_draws_of_a_decreasing_schedule(name):
    """Counted equally, they have the average of the laws of their steps, which comes near the truth as rates fall."""
    (method, momentum), case = METHODS[name], HOT_LIKELIHOOD
    rate, kept = rate_at(0.4, case, momentum), slice(COUNTS["num_burn_in"] + COUNTS["thin"] - 1, None, COUNTS["thin"])
    sampler = method(learning_rate=rate, schedule="decreasing", decay_offset=10.0)
    ((draws, _),) = targets.run_cases(sampler, [(targets.model(*case), GAUSSIAN)], **COUNTS)
    times = np.arange(COUNTS["num_burn_in"] + COUNTS["num_draws"] * COUNTS["thin"])
    steps = list(laws(rate * (1 + times / 10) ** (-1 / 3), np.ones(len(times)), momentum, case))
    averaged = np.mean([covariance for _, covariance in steps[kept]], 0)
    mean, truth = targets.gaussian_moments(GAUSSIAN, *case)
    check_law(draws, mean, averaged)
    np.testing.assert_allclose(np.diag(averaged) / np.diag(truth), 1, atol=0.06)
    assert (np.diag(law(case, rate, momentum)[1]) > 1.3 * np.diag(truth)).all()  # as it would be at a constant rate


def test_minibatches_are_scaled_to_all_rows():
    """Batches of one row: the mean is the full batch's, and so, at a small rate, is the variance."""
    method = SGLD(num_draws=3000, num_burn_in=500, thin=40, learning_rate=0.002, batch_size=1)
    posterior = fit(targets.model(4.0), method, GAUSSIAN, chains=8, progress=False)
    mean, covariance = targets.gaussian_moments(GAUSSIAN, 4.0, "posterior")
    check_law(posterior.family.draws["network"], mean, covariance)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SGLD(learning_rate=0.0), ValueError, r"SGLD\(learning_rate=0.0\) must be a number above 0"),
        (lambda: SGHMC(learning_rate=-1.0), ValueError, r"SGHMC\(learning_rate=-1.0\)"),
        (lambda: SGHMC(momentum=1.0), ValueError, r"must lie in \[0, 1\)"),
        (lambda: SGLD(num_draws=0), ValueError, "expected a whole number, at least 1"),
        (lambda: SGLD(schedule="cosine"), ValueError, "choose 'constant' or 'decreasing'"),
        (lambda: SGLD(preconditioner="adam"), ValueError, "choose None or 'rmsprop'"),
        (lambda: SGLD(preconditioner="rmsprop", num_burn_in=0), ValueError, "no step in which to learn"),
        (lambda: Cyclical("hmc"), ValueError, "choose 'sgld' or 'sghmc'"),
        (lambda: Cyclical(3), TypeError, r"expected 'sgld', 'sghmc', SGLD"),
        (lambda: Cyclical(SGLD(schedule="decreasing")), ValueError, "takes no schedule"),
        (lambda: Cyclical(exploration=1.0), ValueError, r"must lie in \[0, 1\)"),
        (lambda: Cyclical(SGLD(preconditioner="rmsprop"), exploration=0), ValueError, "learn the preconditioner of"),
        (lambda: Cyclical(cycle_length=100), ValueError, r"200 steps, but only 50 of a cycle's 100 steps have noise"),
    ],
)
def test_bad_settings(make, error, message):
    with pytest.raises(error, match=message):
        make()
