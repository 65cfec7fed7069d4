"""Heads integrated out: density, gradient and conditional in closed form; which heads are found; whole posteriors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import stores
from jax.flatten_util import ravel_pytree
from stores import cut_off, same

from posterity import (
    HMC,
    MAP,
    NUTS,
    Categorical,
    Fixed,
    Flat,
    Gaussian,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    Learned,
    Model,
    Normal,
    Rescaled,
    StudentT,
    fit,
    from_equinox,
    from_function,
    from_nnx,
    linear,
    mlp,
    prior,
    resume,
)
from posterity.core.types import Batch, Clock
from posterity.inference.methods.head import Head, find_head, integrated, log_evidence, solve_head
from posterity.models.units import in_network_units

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=20)
WEIGHT = RNG.uniform(0.2, 2.0, size=20)
NETWORK = mlp((4,), activation="tanh")
PRIOR = prior({"*bias": Normal(0.3, 0.7), "*": Normal(-0.2, 1.5)}, fan_in=True)
LIKELIHOODS = {
    "known": Gaussian(0.3),
    "learned": GaussianLearnedNoise(0.3),
    "heteroscedastic": HeteroscedasticGaussian(0.05),
    "two targets": Gaussian(0.3, num_outputs=2),
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def rows(likelihood):
    targets = np.stack([Y, np.cos(X[:, 1])], 1) if likelihood.num_means == 2 else Y
    return Batch(jnp.asarray(X), jnp.asarray(targets), jnp.asarray(WEIGHT))


def start(model, seed=0):
    params = model.init(jax.random.key(seed), jnp.asarray(X))
    return jax.tree.map(lambda leaf: leaf + 0.3 * RNG.normal(size=leaf.shape), params)


def exact_parts(model, theta, batch):
    """(log of the integral over the head, its mean [P], its covariance [P, P]) by linear algebra in numpy.

    The log joint is quadratic in the head's weights: value, gradient and Hessian at one point are all there is to know.
    """
    head = find_head(model, head_filled(model, theta, batch), batch.x)
    template = jax.eval_shape(lambda t: head_filled(model, t, batch), theta)

    def joint(vector):
        inputs = (len(vector) // head.num_means) - (head.bias is not None)
        matrix = vector[: inputs * head.num_means].reshape(inputs, head.num_means)
        return model.log_joint(head.join(theta, matrix, vector[inputs * head.num_means :]), batch)

    hidden = template["network"][f"layer_{len(NETWORK.hidden)}"]["weight"].shape[0]
    zero = jnp.zeros((hidden + 1) * head.num_means)
    gradient, hessian = np.asarray(jax.grad(joint)(zero)), np.asarray(jax.hessian(joint)(zero))
    covariance = np.linalg.inv(-hessian)
    mean = covariance @ gradient
    log_integral = joint(zero) + gradient @ mean / 2 + np.linalg.slogdet(2 * np.pi * covariance)[1] / 2
    return float(log_integral), mean, covariance


def head_filled(model, theta, batch):
    """Complete weights whose shapes are those of theta with any head."""
    head = find_head(model, model.init(jax.random.key(0), batch.x), batch.x)
    shape = model.init(jax.random.key(0), batch.x)["network"][f"layer_{len(NETWORK.hidden)}"]["weight"].shape
    return head.join(theta, jnp.zeros((shape[0], head.num_means)), jnp.zeros(head.num_means))


TEMPERATURES = [(1.0, "posterior"), (0.3, "posterior"), (4.0, "likelihood")]


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize(("temperature", "tempering"), TEMPERATURES)
def test_the_density_is_the_joint_density_with_the_head_integrated_out(name, temperature, tempering):
    likelihood = LIKELIHOODS[name]
    check_integral(Model(NETWORK, likelihood, PRIOR, temperature, tempering), rows(likelihood))


@pytest.mark.parametrize(("temperature", "tempering"), TEMPERATURES)
@pytest.mark.parametrize(
    ("by", "name"), [("layer", "two targets"), ("input", "heteroscedastic"), ("output", "heteroscedastic")]
)
def test_heads_whose_scales_are_learned(by, name, temperature, tempering):
    """The head is the standardised one; its scales, those of the mean's column where they differ, are sampled."""
    learned = prior({"*bias": Learned(Normal(0.3, 0.7)), "*": Learned(Normal(-0.2, 1.5), by)}, fan_in=True)
    likelihood = LIKELIHOODS[name]
    check_integral(Model(NETWORK, likelihood, learned, temperature, tempering), rows(likelihood))


def test_targets_whose_scales_differ_are_sampled():
    model = Model(NETWORK, LIKELIHOODS["two targets"], Learned(Normal(0.0, 1.0), "output"))
    found = find_head(model, model.init(jax.random.key(0), jnp.asarray(X)), jnp.asarray(X))
    assert found == "the scales of network/layer_1/weight differ by target"


def check_integral(model, batch):
    """At several theta, up to one constant; and given theta the head's mean and covariance."""
    found = []
    for seed in range(3):
        params = start(model, seed)
        head = find_head(model, params, batch.x)
        density = integrated(model, head, batch)
        theta = density.position(params)
        expected, mean, covariance = exact_parts(model, theta, batch)
        found.append(float(density.measure(theta)) - expected)
        draws = jax.vmap(lambda key, theta=theta, density=density: density.complete(key, theta))(
            jax.random.split(jax.random.key(seed), 4000)
        )
        layer = draws["network"]["layer_1"]
        flat = np.concatenate([
            np.asarray(layer["weight"])[:, :, : head.num_means].reshape(4000, -1),
            np.asarray(layer["bias"])[:, : head.num_means],
        ], 1)  # fmt: skip
        deviation = np.sqrt(np.diag(covariance))
        assert (abs(flat.mean(0) - mean) < 4.5 * deviation / np.sqrt(4000)).all()
        np.testing.assert_allclose(np.cov(flat.T), covariance, atol=0.12 * np.outer(deviation, deviation).max())
    np.testing.assert_allclose(found, found[0], atol=1e-8)


def test_the_gradient_is_that_of_the_formula():
    features, targets = jnp.asarray(RNG.normal(size=(15, 3))), jnp.asarray(RNG.normal(size=(15, 2)))
    precision, ridge = jnp.asarray(RNG.uniform(0.1, 3.0, 15)), jnp.asarray(0.7)

    def formula(features, precision, targets):
        root, mean = solve_head(features, precision, targets, ridge)
        quadratic = jnp.sum(precision[:, None] * targets * (targets - features @ mean))
        return -quadratic / 2 - 2 * jnp.log(jnp.diagonal(root)).sum()

    arguments = (features, precision, targets)
    np.testing.assert_allclose(log_evidence(*arguments, ridge), formula(*arguments), rtol=1e-14)
    ours = jax.grad(lambda *a: log_evidence(*a, ridge), (0, 1, 2))(*arguments)
    for got, wanted in zip(ours, jax.grad(formula, (0, 1, 2))(*arguments), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


def single(tree):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), tree)


def test_float32_weights_keep_the_energy_and_the_algebra_is_float64():
    """A head whose precision matrix has a condition of 1e7, in float32 up to its features."""
    x = np.linspace(-1, 1, 200)[:, None]
    model = Model(mlp((30,), activation="tanh"), Gaussian(0.003), prior(Normal(0.0, 1.0), fan_in=True))
    batch = Batch(jnp.asarray(x), jnp.asarray(np.sin(3 * x[:, 0])), jnp.ones(200))
    params = model.init(jax.random.key(0), batch.x)
    near = jax.tree.map(lambda leaf: leaf + 1e-3 * RNG.normal(size=leaf.shape), params)
    exact, rounded = (
        integrated(model, find_head(model, p, b.x), b) for p, b in ((params, batch), (single(params), single(batch)))
    )
    theta = [exact.position(p) for p in (params, near)]
    difference = exact.measure(theta[1]) - exact.measure(theta[0])
    found = rounded.measure(single(theta[1])) - rounded.measure(single(theta[0]))
    assert found.dtype == jnp.float64
    assert abs(float(found - difference)) < 0.02, "an energy must not be off by more than acceptance feels"
    slopes = exact.gradient(theta[0]), rounded.gradient(single(theta[0]))
    assert jax.tree.leaves(slopes[1])[0].dtype == jnp.float32
    exact_slope, slope = (np.asarray(ravel_pytree(each)[0], float) for each in slopes)
    assert np.linalg.norm(slope - exact_slope) < 2e-3 * np.linalg.norm(exact_slope)
    method = HMC(step_size=0.01, trajectory_length=0.05)
    now = Clock(*(jnp.asarray(value) for value in (0, 10, 1, 0, 1.0, 200.0)))
    kernel = method.kernel(model)
    state = jax.eval_shape(kernel.init, jax.random.key(0), single(params), single(batch), now)
    program = jax.make_jaxpr(kernel.step)(jax.random.key(0), state, single(batch), now)
    factored = [equation.outvars[0].aval.dtype for equation in equations(program.jaxpr, "cholesky")]
    assert factored
    assert set(factored) == {jnp.dtype("float64")}


def equations(jaxpr, name):
    """All equations of a primitive, in calls and loops too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner, name)


def test_heads_of_other_libraries_are_found():
    eqx = pytest.importorskip("equinox")
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.inner, self.outer = nnx.Linear(2, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.outer(jnp.tanh(self.inner(x)))

    by_hand = from_function(
        lambda key, x: {"a": jax.random.normal(key, (4, 2)), "b": jnp.ones((2, 4))},
        lambda params, x: (params["b"] @ jnp.tanh(params["a"] @ x.T)).T,
    )
    networks = {
        "nnx": (from_nnx(lambda key: Net(nnx.Rngs(key))), "outer/kernel", "outer/bias"),
        "equinox": (from_equinox(eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))), "layers/1/weight", "layers/1/bias"),
        "by hand": (by_hand, "b", None),
    }
    for name, (network, weight, bias) in networks.items():
        model = Model(network, HeteroscedasticGaussian(), Normal(0.0, 1.0))
        params = model.init(jax.random.key(0), jnp.asarray(X))
        head = find_head(model, params, jnp.asarray(X))
        assert isinstance(head, Head), f"{name}: {head}"
        assert head.weight.removeprefix("network/").lstrip(".") == weight, name
        assert (head.bias is None) == (bias is None), name
        density = integrated(model, head, rows(HeteroscedasticGaussian()))
        theta = density.position(params)
        assert np.isfinite(density.measure(theta)), name
        again = density.position(density.complete(jax.random.key(1), theta))
        assert same(again, theta), name


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Model(NETWORK, StudentT(), Normal(0.0, 1.0)), "StudentT is not Gaussian"),
        (Model(NETWORK, Categorical(2), Normal(0.0, 1.0)), "Categorical is not Gaussian"),
        (Model(NETWORK, Gaussian(), {"layer_1/*": dist.Laplace(0.0, 1.0), "*": Normal(0.0, 1.0)}), "is not Normal"),
        (Model(NETWORK, Gaussian(), {"layer_1/bias": Flat(), "*": Normal(0.0, 1.0)}), "layer_1/bias is not Normal"),
        (Model(NETWORK, Gaussian(), {"layer_1/*": Fixed(), "*": Normal(0.0, 1.0)}), "held fixed"),
        (Model(linear(), Gaussian(), Normal(0.0, 1.0)), "nothing else would be left"),
        (Model(from_function(NETWORK.with_outputs(1).init, lambda p, x: jnp.exp(NETWORK.with_outputs(1).apply(p, x))),
               Gaussian(), Normal(0.0, 1.0)), "does not end in a dense layer"),
    ],
)  # fmt: skip
def test_why_a_head_is_not_integrated_out(model, reason):
    params, _ = model.split(model.init(jax.random.key(0), jnp.asarray(X)))
    assert reason in find_head(model.bind(_), params, jnp.asarray(X))


def test_the_receipt_has_the_reason():
    with jax.enable_x64(False):
        method = HMC(2, num_burn_in=2, step_size=0.01, trajectory_length=0.02)
        for likelihood, words in ((StudentT(), "StudentT is not Gaussian"), (Gaussian(0.3), "integrated out")):
            posterior = fit(Model(NETWORK, likelihood, Normal(0.0, 1.0)), method, (X, Y), chains=2, progress=False)
            assert words in posterior.receipt.remarks[0]
            assert jax.tree.leaves(posterior.weights())[0].dtype == jnp.float32
    with pytest.raises(ValueError, match=r"head='gone'.*choose"):
        HMC(head="gone")


@pytest.mark.parametrize("method", [HMC(400, num_burn_in=100), NUTS(400, num_burn_in=200)], ids=["hmc", "nuts"])
def test_a_linear_model_with_unknown_noise(method):
    """Against quadrature over the noise of the closed form given it, in units of the user's own."""
    noise = GaussianLearnedNoise(0.5)
    units = Rescaled(noise, shift=100.0, scale=10.0)
    y = 100.0 + 10.0 * (X @ [1.0, -2.0] + 0.5 * RNG.normal(size=20))
    model = Model(linear(), units, Normal(0.0, 1.0))
    with jax.enable_x64(False):
        posterior = fit(model, method, (X, y), chains=4, progress=False)
        mean, error = posterior.predict(X[:3]).mean, posterior.diagnose(X[:3]).monte_carlo_error
    inner, (z,) = in_network_units(units, y)
    del inner
    grid = np.linspace(np.log(0.5) - 5, np.log(0.5) + 4, 3000)
    design = np.column_stack([X, np.ones(20)])
    log_weights, means = [], []
    for scale in np.exp(grid) + 0.0005:
        covariance = design @ design.T + scale**2 * np.eye(20)
        log_weights.append(dist.MultivariateNormal(jnp.zeros(20), jnp.asarray(covariance)).log_prob(z))
        means.append(design[:3] @ design.T @ np.linalg.solve(covariance, z))
    log_weights = np.array(log_weights) + np.asarray(dist.Normal(np.log(0.5), 2.0).log_prob(grid))
    weights = np.exp(log_weights - log_weights.max())
    expected = 100.0 + 10.0 * weights @ np.array(means) / weights.sum()
    assert (error < 0.5).all()
    np.testing.assert_array_less(abs(mean - expected), 4.5 * error)


def test_nuts_knows_its_stuck_chains_without_the_head():
    """The weights of a chain are more than those its mass matrix is of."""
    with jax.enable_x64(False):
        model = Model(NETWORK, HeteroscedasticGaussian(), Normal(0.0, 1.0))
        posterior = fit(model, NUTS(4, num_burn_in=25, max_depth=3), (X, Y), chains=2, progress=False)
    assert posterior.family.num_draws == 8


def test_a_weight_of_two_is_the_row_twice():
    model = Model(NETWORK, GaussianLearnedNoise(0.3), PRIOR)
    params = start(model)
    head = find_head(model, params, jnp.asarray(X))
    doubled = Batch(jnp.asarray(X), jnp.asarray(Y), 2 * jnp.ones(20))
    twice = Batch(jnp.concatenate([doubled.x] * 2), jnp.concatenate([doubled.y] * 2), jnp.ones(40))
    again = find_head(model, params, twice.x)
    theta = head.others(params)
    np.testing.assert_allclose(
        integrated(model, head, doubled).measure(theta), integrated(model, again, twice).measure(theta), rtol=1e-12
    )


def test_a_run_that_was_cut_off_goes_on_bit_for_bit(tmp_path):
    with jax.enable_x64(False):
        model = Model(NETWORK, HeteroscedasticGaussian(), Normal(0.0, 1.0))
        method = HMC(12, num_burn_in=6, start=MAP(num_steps=20))
        folder = cut_off(tmp_path / "run", model, method, steps=9, chains=2)
        resumed = resume(folder, progress=False)
        rows = stores.X, stores.Y
        assert same(resumed.family, fit(model, method, rows, chains=2, progress=False).family)


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "posterior"), (0.3, "posterior"), (4.0, "likelihood")])
def test_a_network_against_a_long_reference(temperature, tempering):
    """All weights sampled in float64, by the library's NUTS without the head's closed form, for very long."""
    model = Model(mlp((10,), activation="tanh"), HeteroscedasticGaussian(0.05), PRIOR, temperature, tempering)
    at = np.linspace(-2, 2, 7)[:, None] * np.ones(2)
    reference = fit(model, NUTS(4000, num_burn_in=2000, head="sampled"), (X, Y), chains=4, seed=5, progress=False)
    with jax.enable_x64(False):
        posterior = fit(model, HMC(2000, num_burn_in=300), (X, Y), chains=4, progress=False)
        found, error = posterior.predict(at, num_draws=8000), posterior.diagnose(at).monte_carlo_error
        mean, deviation, density = found.mean, found.std, found.log_prob(np.zeros(7))
    exact, exact_error = reference.predict(at, num_draws=16000), reference.diagnose(at).monte_carlo_error
    assert (error < 0.1 * deviation).all()
    np.testing.assert_array_less(abs(mean - exact.mean), 4 * np.hypot(error, exact_error))
    np.testing.assert_allclose(deviation, exact.std, rtol=0.1)
    np.testing.assert_allclose(density, exact.log_prob(np.zeros(7)), atol=0.1)
