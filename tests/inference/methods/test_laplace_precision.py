"""Laplace in float32 against float64, starts that are not at the mode, and budgets that end a pass."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from posterity import MAP, Categorical, Exact, Gaussian, Laplace, Model, fit
from posterity.core.types import Batch
from posterity.data.batches import clock
from posterity.models.likelihoods import GaussianLearnedNoise, HeteroscedasticGaussian
from posterity.networks import linear, mlp

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (60, 1))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=60)
AT = np.linspace(-3, 3, 9)[:, None]
NETWORK = mlp((10,), activation="tanh")
LIKELIHOODS = {
    "gaussian": (Gaussian(0.1), Y),
    "learned noise": (GaussianLearnedNoise(0.1), Y),
    "heteroscedastic": (HeteroscedasticGaussian(), Y),
    "classes": (Categorical(3), np.digitize(Y, [-0.5, 0.5])),
}


def in_float64(model, method, weights, data):
    with jax.enable_x64(True):
        start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), weights)
        posterior = fit(model, method(start), data, progress=False)
        return posterior.facts["log_evidence"], output_variance(posterior)


def output_variance(posterior):
    """[N, K]; of classes less the mean of the logits, which no probability depends on and the prior alone holds."""
    covariance = np.asarray(posterior.family.moments(posterior.model, jnp.asarray(AT))[1], float).squeeze(0)
    if posterior.model.likelihood.kind == "classes":
        centre = np.eye(3) - 1 / 3
        covariance = centre @ covariance @ centre
    return np.einsum("nkk->nk", covariance)


@pytest.mark.parametrize(
    "name", ["gaussian", *(pytest.param(n, marks=pytest.mark.long) for n in list(LIKELIHOODS)[1:])]
)
@pytest.mark.parametrize("matrix", ["full", pytest.param("kronecker", marks=pytest.mark.long)])
def test_float32_networks_get_the_evidence_and_spread_of_float64(name, matrix):
    """Sums of the curvature in float32 were off by 4 nats at a prior standard deviation of 10, and by 63 at 100."""
    likelihood, y = LIKELIHOODS[name]
    mode = fit(Model(NETWORK, likelihood, dist.Normal(0.0, 3.0)), MAP(num_steps=500, learning_rate=1e-2), (X, y))
    weights = jax.tree.map(lambda leaf: leaf[0], mode.starting_weights(1))
    for width in (1.0, 10.0, 100.0):
        model = Model(NETWORK, likelihood, dist.Normal(0.0, width))
        method = lambda start: Laplace(start=start, matrix=matrix, newton=False, batch_size=16)  # noqa: E731
        posterior = fit(model, method(weights), (X, y), progress=False)
        evidence, variance = in_float64(model, method, weights, (X, y))
        assert posterior.facts["log_evidence"] == pytest.approx(evidence, abs=0.1)
        # Centring takes a large common variance off in float32, where derivatives end too.
        np.testing.assert_allclose(output_variance(posterior) / variance, 1, atol=1e-2 if name == "classes" else 2e-3)


def test_the_products_of_a_mapped_program_are_in_float64():
    model, method = Model(NETWORK, Gaussian(0.1)), Laplace()
    batch = Batch(X.astype(np.float32), Y.astype(np.float32), np.ones(60, np.float32))

    def run(params):
        kernel, zero = method.kernel(model), jnp.zeros((), int)
        now = clock(zero, zero, zero, 1, 60)
        step = lambda _, state: kernel.step(None, state, batch, now)[0]  # noqa: E731
        return jax.lax.fori_loop(0, 2, step, kernel.init(None, params, batch, now))

    params = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), model.init(jax.random.key(0), X))
    program = str(jax.make_jaxpr(jax.vmap(run))(params))
    assert "f64[2,31,31] = dot_general" in program


def test_a_start_away_from_the_mode_is_moved_there():
    """Two columns that are nearly one: training stops far from the mode along their difference."""
    first = RNG.normal(size=80)
    x = np.stack([first, first + 0.01 * RNG.normal(size=80)], 1)
    y = x @ [4.0, -3.0] + 0.1 * RNG.normal(size=80)
    model = Model(linear(), Gaussian(0.1), dist.Normal(0.0, 10.0))
    exact = fit(model, Exact(), (x, y), progress=False)
    settings = {"start": MAP(num_steps=500, learning_rate=1e-2), "batch_size": 30}
    there = fit(model, Laplace(**settings), (x, y), progress=False)
    away = fit(model, Laplace(**settings, newton=False), (x, y), progress=False)
    at = np.array([[1.0, -1.0], [1.0, 1.0]])
    wanted = exact.predict(at)
    sd = np.sqrt(wanted.epistemic)
    assert abs(away.predict(at).mean - wanted.mean)[0] > 3 * sd[0]
    np.testing.assert_allclose(there.predict(at).mean, wanted.mean, atol=0.02 * sd.min())
    assert away.facts["newton_decrement"] > 3
    assert there.facts["newton_decrement"] < 0.02
    assert there.facts["log_evidence"] == pytest.approx(exact.facts["log_evidence"], abs=0.02)


@pytest.mark.parametrize("matrix", ["full", pytest.param("kronecker", marks=pytest.mark.long), "diagonal"])
def test_a_step_is_taken_only_where_it_raises_the_log_joint(matrix):
    model = Model(NETWORK, Categorical(3), dist.Normal(0.0, 1.0))
    labels = LIKELIHOODS["classes"][1]
    mode = fit(model, MAP(num_steps=100, learning_rate=1e-2), (X, labels), progress=False)
    joints = {}
    for newton in (False, True):
        posterior = fit(model, Laplace(start=mode, matrix=matrix, newton=newton), (X, labels), progress=False)
        weights = jax.tree.map(lambda leaf: leaf[0], posterior.family.mean)
        batch = Batch(jnp.asarray(X), jnp.asarray(labels), jnp.ones(60))
        joints[newton] = float(model.log_joint(weights, batch)), posterior.facts["newton_decrement"]
    assert joints[True][0] >= joints[False][0]
    if matrix == "full":
        assert joints[True][0] > joints[False][0] + 0.1
        assert joints[True][1] < joints[False][1]


@pytest.mark.long
def test_a_budget_ends_the_pass_over_the_rows():
    """A full matrix over 7,850 weights: each batch takes seconds, and there are many of them."""
    x = RNG.normal(size=(20_000, 784)).astype(np.float32)
    model = Model(linear(), Categorical(10), dist.Normal(0.0, 1.0))
    weights = model.init(jax.random.key(0), x[:2])
    began = time.perf_counter()
    posterior = fit(model, Laplace(start=weights), (x, np.arange(20_000) % 10), budget=30, progress=False)
    assert time.perf_counter() - began < 90  # with the factorisation at the end
    assert 0 < posterior.facts["share_of_rows"] < 1
    assert any("ended by the budget" in note for note in posterior.receipt.notes)


def test_part_of_the_rows_counts_as_all_of_them():
    """Rows a budget left out are taken to be like those that were seen."""
    model = Model(linear(), Gaussian(0.1), dist.Normal(0.0, 1.0))
    x, y = np.tile(X, (4, 1)), np.tile(Y, 4)
    weights = model.init(jax.random.key(0), x)
    method = Laplace(newton=False)
    kernel, zero = method.kernel(model), jnp.zeros((), int)

    def seen(rows):
        batch = Batch(x[:rows], y[:rows], np.ones(rows))
        now = clock(zero, zero, zero, 1, 240)
        state = kernel.step(None, kernel.init(None, weights, batch, now), batch, now)[0]
        return method.finish(model, jax.tree.map(lambda leaf: leaf[None], state), None, None).facts

    part, whole = seen(60), seen(240)
    assert part["share_of_rows"] == 0.25
    assert "share_of_rows" not in whole
    assert part["log_evidence"] == pytest.approx(whole["log_evidence"], rel=1e-5)
    assert part["newton_decrement"] == pytest.approx(whole["newton_decrement"], rel=1e-4)
