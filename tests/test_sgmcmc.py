"""SGLD, SGHMC and the cyclical schedule: the law of their own recursions, order of error, broken samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import targets
from scipy.linalg import solve_discrete_lyapunov

from posterity import tree
from posterity.families import Samples
from posterity.inference.driver import fit
from posterity.inference.sgmcmc import SGHMC, SGLD, Cyclical
from posterity.types import Batch, Clock, Kernel

GAUSSIAN, BANANA = targets.linear_gaussian(), targets.banana()
NUM_DATA = 4
POSTERIOR, LIKELIHOOD = (
    [(targets.model(t, tempering), GAUSSIAN) for t, tempering in targets.TEMPERED[half]]
    for half in (slice(0, 3), slice(3, 6))
)
COUNTS = {"num_burn_in": 500, "num_draws": 4000, "thin": 8}
# Of every case the shortest period is that at T = 0.25: these rates leave a variance about a third too large there.
RATES = {"sgld": 0.022, "sghmc": 0.042}
METHODS = {"sgld": SGLD, "sghmc": SGHMC}


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


def law(case, rate, momentum=0.0):
    """Mean and stationary covariance of (a, b) in closed form, as the module's docstring has it."""
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    precision = np.linalg.inv(covariance)
    return mean, np.linalg.inv(precision @ (np.eye(2) - rate / NUM_DATA * precision / (2 * (1 + momentum))))


def moments(draws, mean):
    """(estimate, Monte Carlo error) [5] of the mean and the second moments about `mean`: a, b, aa, ab, bb."""
    a, b = (np.asarray(draws[name], float) - centre for name, centre in zip("ab", mean, strict=True))
    values = np.stack([a, b, a * a, a * b, b * b])
    size = values.shape[2] // targets.NUM_BATCHES
    batches = values[:, :, : size * targets.NUM_BATCHES].reshape(5, -1, size).mean(-1)
    return batches.mean(1), batches.std(1, ddof=1) / np.sqrt(batches.shape[1])


def check_law(draws, mean, covariance):
    """Within four Monte Carlo errors, which must be small themselves; returns the deviations."""
    estimate, error = moments(draws, mean)
    exact = np.array([0, 0, covariance[0, 0], covariance[0, 1], covariance[1, 1]])
    scores = (estimate - exact) / error
    assert (abs(scores) < 4).all(), f"standard errors from the truth: {np.round(scores, 1)}"
    assert (error[:2] < 0.1 * np.sqrt(np.diag(covariance))).all(), "too large an error to judge"
    assert (error[[2, 4]] < 0.06 * np.diag(covariance)).all(), "too large an error to judge"
    return scores


@pytest.fixture(scope="module", params=["sgld", "sghmc"])
def halved(request):
    """The name, and for the rates h, h/2, h/4 the results of all six cases and of the banana at T = 1."""
    name = request.param
    rates = [RATES[name] / divisor for divisor in (1, 2, 4)]
    methods = [METHODS[name](learning_rate=rate) for rate in rates]
    return name, rates, [run_all(method, [*POSTERIOR, (targets.model(), BANANA)]) for method in methods]


def run_all(method, posterior_cases=POSTERIOR, counts=COUNTS):
    """Results in the order of `targets.TEMPERED`, then any further ones; each tempering is one program."""
    first, second = (targets.run_cases(method, cases, **counts) for cases in (posterior_cases, LIKELIHOOD))
    return [*first[:3], *second, *first[3:]]


# ------------------------------------------------------------------------------------------------- stationary laws


def test_stationary_law_in_closed_form(halved):
    """At three temperatures, both temperings and three rates: this pins temperature and noise."""
    name, rates, results = halved
    worst = 0.0
    for rate, result in zip(rates, results, strict=True):
        for case, (draws, info) in zip(targets.TEMPERED, result, strict=False):
            scores = check_law(draws, *law(case, rate, momentum=0.9 if name == "sghmc" else 0.0))
            worst = max(worst, abs(scores).max())
            np.testing.assert_allclose(info.learning_rate, rate, rtol=1e-6)
    print(f"{name}: worst deviation of 90 moments {worst:.1f} Monte Carlo errors")


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


def test_error_is_of_first_order_and_extrapolates(halved):
    """Errors of the variance halve with the rate, and three rates extrapolate to the truth, the banana's too."""
    name, rates, results = halved
    for index, case in enumerate(targets.TEMPERED):
        mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
        check_extrapolation([result[index][0] for result in results], mean, np.diag(covariance))
        exact = [np.diag(law(case, rate / 8, 0.9 if name == "sghmc" else 0.0)[1] - covariance) for rate in rates]
        np.testing.assert_allclose(np.log2(exact[0] / exact[1]), 1, atol=0.1)
    expected = targets.reference(BANANA, 1.0, "posterior")
    centre = [expected.mean["a"], expected.mean["b"]]
    variances = [expected.mean["variance of a"], expected.mean["variance of b"]]
    check_extrapolation([result[-1][0] for result in results], centre, variances)
    mean, covariance = targets.gaussian_moments(GAUSSIAN, 0.25, "posterior")  # where errors are largest
    errors = [moments(result[1][0], mean)[0][[2, 4]] - np.diag(covariance) for result in results]
    ratio = errors[0] / errors[1]
    print(f"{name}: errors of the variance at h over those at h/2: {np.round(ratio, 2)}")
    assert ((ratio > 1.6) & (ratio < 3.2)).all()


def check_extrapolation(runs, mean, variances):
    estimates, errors = zip(*(moments(draws, mean) for draws in runs), strict=True)
    weights = np.array([1, -6, 8]) / 3  # removes the first two orders from h, h/2, h/4
    value = weights @ np.array(estimates)[:, [2, 4]]
    error = np.sqrt(weights**2 @ np.array(errors)[:, [2, 4]] ** 2)
    assert (abs(value - variances) < 4 * error).all(), f"{value} +- {error}, truth {variances}"
    assert (error < 0.2 * np.asarray(variances)).all()


# ------------------------------------------------------------------------------------------------- broken samplers


@tree.record
class WrongNoise(SGLD):
    """Broken on purpose: noise times a factor."""

    factor: float = tree.traced(default=1.0)

    def kernel(self, model):
        whole = super().kernel(model)

        def step(key, state, batch, clock):
            new, info = whole.step(key, state, batch, clock)
            gradient = jax.grad(model.log_joint)(state.params, batch)
            middle = jax.tree.map(lambda w, g: w + self.learning_rate / NUM_DATA * g, state.params, gradient)
            wrong = jax.tree.map(lambda w, m: m + self.factor * (w - m), new.params, middle)
            return new._replace(params=wrong), info

        return Kernel(whole.init, step)


@tree.record
class Redrawn(SGHMC):
    """Broken on purpose, as blackjax's: momentum is redrawn at each step from the key that the noise uses too."""

    def kernel(self, model):
        whole = super().kernel(model)

        def step(key, state, batch, clock):
            momentum = tree.normal_like(key, state.params)
            return whole.step(key, state._replace(momentum=momentum), batch, clock)

        return Kernel(whole.init, step)


def test_wrong_noise_fails():
    """Off by sqrt(2); and scaled by the temperature, which the gradient has already."""
    for factor, failing in ((1.0, []), (2**0.5, range(3)), (2.0, [2]), (0.5, [1])):
        method = WrongNoise(learning_rate=RATES["sgld"], factor=factor)
        results = targets.run_cases(method, POSTERIOR, **COUNTS)
        for index in failing:
            with pytest.raises(AssertionError, match="from the truth"):
                check_law(results[index][0], *law(targets.TEMPERED[index], RATES["sgld"]))
        if not failing:
            check_law(results[0][0], *law(targets.TEMPERED[0], RATES["sgld"]))


def test_redrawn_momentum_fails():
    results = targets.run_cases(Redrawn(learning_rate=RATES["sghmc"]), POSTERIOR, **COUNTS)
    for case, (draws, _) in zip(targets.TEMPERED, results, strict=False):
        with pytest.raises(AssertionError, match="from the truth"):
            check_law(draws, *law(case, RATES["sghmc"], 0.9))


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
    rate, case = 0.01, (4.0, "likelihood")
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


def cyclical_moments(method, momentum, case, num_cycles):
    """Mean and covariance of (w, m) after so many cycles, step by step from the method's own recursion."""
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    precision, one = np.linalg.inv(covariance), np.eye(2)
    centre, spread = np.concatenate([[0.0, 0.1] - mean, np.zeros(2)]), np.zeros((4, 4))
    for k in np.tile(np.arange(method.cycle_length), num_cycles):
        eta = method.base.learning_rate / NUM_DATA / 2 * (np.cos(np.pi * k / method.cycle_length) + 1)
        root, noise = np.sqrt(eta), 2 * (1 - momentum) * (k >= method.exploration * method.cycle_length)
        step = np.block([[one - eta * precision, root * momentum * one], [-root * precision, momentum * one]])
        kick = np.kron([root, 1.0], one).T  # of xi on (w, m)
        centre, spread = step @ centre, step @ spread @ step.T + noise * kick @ kick.T
    return mean + centre[:2], spread[:2, :2]


@pytest.mark.parametrize(("base", "momentum"), [(SGLD(learning_rate=0.08), 0.0), (SGHMC(learning_rate=0.03), 0.9)])
def test_cyclical(base, momentum):
    """Ends of cycles have the law of the method's own recursion, which is near the truth, and are independent."""
    method = Cyclical(base, cycle_length=64, exploration=0.25, draws_per_cycle=1, thin=1)
    results = run_all(method, counts={"num_burn_in": 0, "num_draws": 800, "thin": 64})
    for case, (draws, info) in zip(targets.TEMPERED, results, strict=True):
        mean, covariance = cyclical_moments(method, momentum, case, num_cycles=3)
        later = {name: values[:, 3:] for name, values in draws.items()}
        check_law(later, mean, covariance)
        exact_mean, exact = targets.gaussian_moments(GAUSSIAN, *case)
        print(type(base).__name__, case, "variance over the truth", np.diag(covariance) / np.diag(exact))
        np.testing.assert_allclose(np.diag(covariance), np.diag(exact), rtol=0.12)
        np.testing.assert_allclose(mean, exact_mean, atol=0.02)
        np.testing.assert_allclose(info.learning_rate[:, -1], base.learning_rate / 2 * (1 - np.cos(np.pi / 64)), 1e-3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("base", "momentum", "cycle_length"), [(SGLD(learning_rate=0.08), 0.0, 16), (SGHMC(learning_rate=0.12), 0.9, 64)]
)
def test_cyclical_error_is_of_first_order_and_extrapolates(base, momentum, cycle_length):
    """At h, h/2, h/4 in cycles 1, 2, 4 times as long, so that each goes as far: the ends of cycles have an error of the
    variance that halves, for they remember steps before the rate had fallen, and three rates extrapolate to the truth.
    """
    case, runs, exact = (0.25, "posterior"), [], []  # where errors are largest
    mean, covariance = targets.gaussian_moments(GAUSSIAN, *case)
    for seed, divisor in enumerate((1, 2, 4)):
        rate, length = base.learning_rate / divisor, cycle_length * divisor
        method = Cyclical(tree.replace(base, learning_rate=rate), cycle_length=length, exploration=0.25, thin=1)
        counts = {"num_burn_in": 0, "num_draws": 1003, "thin": length, "num_chains": 256, "seed": seed}
        ((draws, _),) = targets.run_cases(method, [(targets.model(*case), GAUSSIAN)], **counts)
        runs.append({name: values[:, 3:] for name, values in draws.items()})
        law_mean, law_covariance = cyclical_moments(method, momentum, case, num_cycles=3)
        check_law(runs[-1], law_mean, law_covariance)
        exact.append(np.diag(law_covariance - covariance))
    np.testing.assert_allclose(np.log2(np.divide(exact[:2], exact[1:])), 1, atol=0.15)
    check_extrapolation(runs, mean, np.diag(covariance))
    estimates, errors = zip(*(moments(draws, mean) for draws in runs), strict=True)
    biases, errors = np.array(estimates)[:, [2, 4]] - np.diag(covariance), np.array(errors)[:, [2, 4]]
    print(type(base).__name__, "relative errors of the variance", np.round(biases / np.diag(covariance), 4).tolist())
    for order, fits in ((0, False), (1, True), (2, False)):
        gap, error = biases[0] - 2**order * biases[1], np.hypot(errors[0], 2**order * errors[1])
        assert ((abs(gap) < 4 * error) == fits).all(), f"order {order}: {gap} +- {error}"


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


def test_minibatches_are_scaled_to_all_rows():
    """Batches of one row: the mean is the full batch's, and so, at a small rate, is the variance."""
    method = SGLD(num_draws=3000, num_burn_in=500, thin=40, learning_rate=0.002, batch_size=1)
    posterior = fit(targets.model(4.0), method, GAUSSIAN, chains=4, progress=False)
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
        (lambda: Cyclical(cycle_length=100), ValueError, r"200 steps, but only 50 of a cycle's 100 steps have noise"),
    ],
)
def test_bad_settings(make, error, message):
    with pytest.raises(error, match=message):
        make()
