"""Laplace against the exact posterior, against loops over rows, and its structures against each other."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
from flax import nnx
from jax.flatten_util import ravel_pytree
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

from posterity import MAP, DeepEnsemble, Model, fit
from posterity.core.types import Batch
from posterity.data.batches import clock
from posterity.inference.methods import curvature as curvatures
from posterity.inference.methods import wide
from posterity.inference.methods.exact import Exact
from posterity.inference.methods.laplace import Laplace
from posterity.models.counts import Poisson
from posterity.models.likelihoods import Bernoulli, Categorical, Gaussian, GaussianLearnedNoise
from posterity.models.priors import Fixed, Flat
from posterity.networks import from_equinox, from_function, from_nnx, linear, mlp
from posterity.weights.linearized import row_jacobian

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.4 + 0.3 * RNG.normal(size=12)
DESIGN = np.concatenate([np.ones((12, 1)), X], 1)
CLASSES = np.arange(12) % 3
WEIGHT = np.array([1.0] * 9 + [2.0, 0.5, 0.0])
NETWORK = mlp((4,), activation="tanh")
MATRICES = ("full", "diagonal", "kronecker")


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def result(method, model, params, y, x=X, weight=WEIGHT):
    """What a method makes of given weights, without the driver: the state after one step, and the Result."""
    free, fixed = model.split(params)
    method.check(model.bind(fixed), free, type("Data", (), {"x": x})())

    state = _run(method, model, free, fixed, Batch(np.asarray(x), np.asarray(y), np.asarray(weight)))
    stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (state, fixed))
    return wide.on_host(state), method.finish(model, stacked[0], None, stacked[1])


@jax.jit
def _run(method, model, free, fixed, batch):
    kernel, zero = method.kernel(model.bind(fixed)), jnp.zeros((), int)
    now = clock(zero, zero + 1, zero, 1, len(batch.y))
    return kernel.step(None, kernel.init(None, free, batch, now), batch, now)[0]


def start(model):
    """Weights of the right shapes, none of them zero."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), X)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0.2, 0.6, leaf.shape).astype(leaf.dtype), shapes)


def covariance(family):
    """The dense covariance of a family, from the linear map that its structure applies to basis vectors."""
    return np.asarray(_covariance(family.mean, family.covariance))


@jax.jit
def _covariance(mean, spread):
    flat, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], mean))
    unit = jax.tree.map(lambda leaf: leaf[None, None], jax.vmap(unravel)(jnp.eye(flat.size)))
    return jax.tree.map(lambda leaf: leaf[0], spread).output_covariance(unit)[0, 0]


# ---- the exact posterior of a linear-Gaussian model


@pytest.mark.parametrize("tempering", ["posterior", pytest.param("likelihood", marks=pytest.mark.long)])
def test_full_is_exact_where_the_model_is_linear_gaussian(tempering):
    for temperature in (1.0, 0.5, 2.0):
        model = Model(linear(), Gaussian(0.3), dist.Normal(0.2, 2.0), temperature, tempering)
        exact = fit(model, Exact(), (X, Y, WEIGHT))
        laplace = fit(model, Laplace(start=exact, batch_size=5), (X, Y, WEIGHT))
        for one, other in zip(jax.tree.leaves(laplace.family), jax.tree.leaves(exact.family), strict=True):
            # Two triangular factors of one matrix may differ in the signs of their columns.
            one, other = (np.abs(leaf) for leaf in (one, other))
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(covariance(laplace.family), covariance(exact.family), rtol=1e-8, atol=1e-12)
        assert laplace.facts["log_evidence"] == pytest.approx(exact.facts["log_evidence"], abs=1e-8)
        for one, other in zip(*(_moments(p.family, model) for p in (laplace, exact)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8)


def test_without_data_the_posterior_is_the_prior():
    model = Model(NETWORK, Categorical(3), dist.Normal(0.0, 2.0))
    for matrix in MATRICES:
        made = result(Laplace(matrix=matrix), model, start(model), CLASSES, weight=WEIGHT * 1e-14)[1]
        np.testing.assert_allclose(covariance(made.family), 4 * np.eye(31), atol=1e-8)


def test_tuning_and_fitting_in_turn_reach_the_maximum_of_the_evidence():
    start_scale, start_noise = 2.0, 1.0
    model = Model(linear(), Gaussian(start_noise), dist.Normal(0.0, start_scale))
    mode = MAP(num_steps=1500, learning_rate=lambda step: 0.03 * 0.995**step)
    tuned = fit(model, Laplace(start=mode, tune=("prior", "noise"), num_rounds=8), (X, Y))

    def loss(log_scales):
        scale, noise = np.exp(log_scales)
        return -multivariate_normal.logpdf(Y, np.zeros(12), noise**2 * np.eye(12) + scale**2 * DESIGN @ DESIGN.T)

    best = scipy.optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    scale, noise = np.exp(best.x)
    assert tuned.facts["log_evidence"] == pytest.approx(-best.fun, abs=1e-5)
    assert tuned.facts["noise_scale"] == tuned.model.likelihood.scale == pytest.approx(noise, rel=2e-3)
    assert tuned.facts["prior_scale"] == tuned.model.prior.scale == pytest.approx(scale / start_scale, rel=2e-3)


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_a_temperature_tunes_scales_as_the_densities_it_makes(temperature):
    """N(y, s^2)^(1/T) is N(y, T s^2) but for a constant that tuning must not see: what is tuned has s sqrt(T) alike."""
    params, tune = start(Model(linear(), Gaussian(0.5))), ("prior", "noise")

    def tuned(temperature, tempering):
        model = Model(linear(), Gaussian(0.5), dist.Normal(0.0, 1.0), temperature, tempering)
        return result(Laplace(tune=tune), model, params, Y)[1].facts

    plain, both = tuned(1.0, "posterior"), tuned(temperature, "posterior")
    likelihood, width = tuned(temperature, "likelihood"), np.sqrt(temperature)
    assert both["prior_scale"] * width == pytest.approx(plain["prior_scale"], rel=1e-4)
    assert likelihood["prior_scale"] == pytest.approx(plain["prior_scale"], rel=1e-4)
    for found in (both, likelihood):
        assert found["noise_scale"] * width == pytest.approx(plain["noise_scale"], rel=1e-4)


# ---- curvature


@pytest.mark.parametrize("chosen", [GaussianLearnedNoise(0.5, num_outputs=2), Categorical(3), Poisson()])
def test_curvature_is_the_sum_over_rows(chosen):
    model = Model(NETWORK, chosen)
    own_noise = isinstance(chosen, GaussianLearnedNoise)
    params = start(model)
    flat, unravel = ravel_pytree(params)
    outputs = jax.jit(lambda p: model.outputs(p, X))(params)
    rows = jax.jit(jax.jacobian(lambda w: model.outputs(unravel(w), X)))(flat)
    fisher = np.asarray(model.likelihood.fisher(outputs))
    expected = sum(w * j.T @ f @ j for w, j, f in zip(WEIGHT, np.asarray(rows), fisher, strict=True))
    y = np.zeros((12, 2)) if own_noise else CLASSES
    state, _ = result(Laplace(), model, params, y)
    matrix = np.asarray(state.curvature.matrix)
    np.testing.assert_allclose(matrix, expected, rtol=1e-8, atol=1e-10)
    diagonal = result(Laplace(matrix="diagonal"), model, params, y)[0].curvature.diagonal
    np.testing.assert_allclose(diagonal, np.diag(matrix), rtol=1e-9, atol=1e-12)
    if own_noise:  # its own parameter has a block of its own, which is exact
        rest = result(Laplace(matrix="kronecker"), model, params, y)[0].curvature.rest
        assert rest.names == ("likelihood/log_scale",)
        np.testing.assert_allclose(rest.diagonal, matrix[:1, 0], rtol=1e-10)


def test_large_batches_are_cut_up(monkeypatch):
    model = Model(NETWORK, Categorical(3))
    params, weight = start(model), WEIGHT[::-1]  # the last row, which pads the last piece, must count
    methods = [Laplace(matrix=matrix) for matrix in ("full", "kronecker")]
    whole = [result(method, model, params, CLASSES, weight=weight)[0] for method in methods]
    monkeypatch.setattr(
        curvatures, "JACOBIAN_BYTES", curvatures.NUMBER_BYTES * 5 * 3 * 31
    )  # five rows of the full Jacobian
    _run.clear_cache()
    parts = [result(method, model, params, CLASSES, weight=weight)[0] for method in methods]
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-14)


def test_kronecker_factors_against_a_loop():
    model = Model(NETWORK, Categorical(3))
    params, y = start(model), CLASSES
    layers = [jax.tree.map(np.asarray, params["network"][f"layer_{i}"]) for i in (0, 1)]
    inputs, outputs = [np.zeros((4, 4)), np.zeros((5, 5))], [np.zeros((4, 4)), np.zeros((3, 3))]
    for row, weight in zip(X, WEIGHT, strict=True):
        hidden = np.tanh(row @ layers[0]["weight"] + layers[0]["bias"])
        logits = hidden @ layers[1]["weight"] + layers[1]["bias"]
        probs = np.exp(logits) / np.exp(logits).sum()
        fisher = np.diag(probs) - np.outer(probs, probs)
        gradient = layers[1]["weight"].T * (1 - hidden**2)  # d logits / d products of the first layer
        for i, (a, g) in enumerate([(row, gradient), (hidden, np.eye(3))]):
            inputs[i] += weight * np.outer([*a, 1], [*a, 1])
            outputs[i] += weight * g.T @ fisher @ g
    state, _ = result(Laplace(matrix="kronecker"), model, params, y)
    for i, layer in enumerate(state.curvature.layers):
        np.testing.assert_allclose(layer.inputs, inputs[i], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(layer.outputs, outputs[i], rtol=1e-9, atol=1e-12)
        assert float(layer.count) == pytest.approx(WEIGHT.sum())


def test_kronecker_is_exact_for_one_row():
    # Each leaf its own prior width, and a flat one: still exact, for the prior is one number a leaf.
    believed = {"layer_0/bias": dist.Normal(0.0, 0.5), "layer_1/bias": Flat(), "*": dist.Normal(0.0, 2.0)}
    model = Model(NETWORK, Categorical(3), believed, 0.5, "likelihood")
    params, weight = start(model), np.zeros(12)
    weight[3] = 4.0
    y = CLASSES
    matrix = np.asarray(result(Laplace(), model, params, y, weight=weight)[0].curvature.matrix)
    _, made = result(Laplace(matrix="kronecker"), model, params, y, weight=weight)
    prior = np.concatenate([np.full(4, 4.0), np.full(12, 0.25), np.zeros(3), np.full(12, 0.25)])
    blocks = block_diag(matrix[:16, :16], matrix[16:, 16:]) * 2 + np.diag(prior)
    # Softmax does not change with a common shift of the logits: the flat bias is left undetermined there.
    known = np.ones(31, bool)
    known[16:19] = False
    got = np.linalg.inv(covariance(made.family) + 0)
    np.testing.assert_allclose(got[np.ix_(known, known)], blocks[np.ix_(known, known)], rtol=1e-4, atol=1e-5)


def test_kronecker_determinant_and_covariance_for_one_layer():
    model = Model(linear(2), Gaussian(0.3, 2), {"*bias": dist.Normal(0.0, 0.5), "*": dist.Normal(0.0, 2.0)})
    params, y = start(model), np.stack([Y, -Y], 1)
    full, kronecker = (result(Laplace(matrix=m), model, params, y)[1] for m in ("full", "kronecker"))
    np.testing.assert_allclose(covariance(kronecker.family), covariance(full.family), rtol=1e-8, atol=1e-12)
    assert kronecker.facts["log_evidence"] == pytest.approx(full.facts["log_evidence"], abs=1e-8)


def test_last_layer_and_subset_are_blocks_of_full():
    model = Model(NETWORK, Categorical(3))
    params, y = start(model), CLASSES
    state, _ = result(Laplace(), model, params, y)
    for method in (Laplace(weights="last_layer"), Laplace(weights="layer_1/*")):
        block, made = result(method, model, params, y)
        np.testing.assert_allclose(block.curvature.matrix, state.curvature.matrix[16:, 16:], rtol=1e-9, atol=1e-12)
        expected = np.linalg.inv(np.asarray(state.curvature.matrix)[16:, 16:] + np.eye(15))
        np.testing.assert_allclose(
            covariance(made.family), block_diag(np.zeros((16, 16)), expected), rtol=1e-8, atol=1e-12
        )


def test_the_evidence_of_some_weights_takes_the_others_for_constants():
    """As with a trunk that is held fixed: its weights have no spread, so their prior has no say in tuning."""
    model = Model(NETWORK, Gaussian(0.3))
    held = Model(NETWORK, Gaussian(0.3), {"layer_0/*": Fixed(), "*": dist.Normal(0.0, 1.0)})
    params, tune = start(model), ("prior", "noise")
    head = result(Laplace(weights="last_layer", tune=tune), model, params, Y)[1].facts
    alone = result(Laplace(tune=tune), held, params, Y)[1].facts
    assert head["prior_scale"] == pytest.approx(alone["prior_scale"], rel=1e-4)
    assert head["log_evidence"] == pytest.approx(alone["log_evidence"], abs=1e-6)


@pytest.mark.long
def test_targets_of_a_row_are_correlated_as_they_share_weights():
    """The closed form is the multivariate normal of a row, and samples of it are draws of the function."""
    x, y = X, np.stack([Y, Y**2], 1)
    model = Model(NETWORK, Gaussian(0.3, num_outputs=2))
    posterior = fit(model, Laplace(start=MAP(num_steps=300)), (x, y), progress=False)
    at = 2.0 * x[:5]
    prediction, (mean, spread) = posterior.predict(at), posterior.family.moments(posterior.model, jnp.asarray(at))
    total = np.asarray(spread[0]) + 0.09 * np.eye(2)
    exact = [multivariate_normal(m, v).logpdf(row) for m, v, row in zip(mean[0], total, y[:5], strict=True)]
    np.testing.assert_allclose(prediction.log_prob(y[:5]), exact, rtol=1e-6)
    np.testing.assert_allclose(prediction.total, np.diagonal(total, axis1=1, axis2=2), rtol=1e-6)
    drawn = prediction.sample(4000)
    np.testing.assert_allclose(np.cov(drawn[:, 0].T), total[0], atol=6 * np.max(total[0]) / np.sqrt(4000))
    by_draws = posterior.predict(at, num_draws=4000).outputs[..., 0]
    between = np.corrcoef(by_draws[:, 0], by_draws[:, 1])[0, 1]
    noise_share = np.sqrt(np.prod(np.asarray(spread[0])[:2, 0, 0] / total[:2, 0, 0]))
    assert np.corrcoef(drawn[:, 0, 0], drawn[:, 1, 0])[0, 1] == pytest.approx(between * noise_share, abs=0.08)


def test_priors_that_are_not_log_concave_never_take_precision_away():
    model = Model(linear(), Gaussian(10.0), dist.StudentT(3.0, 0.0, 0.1))
    state, made = result(Laplace(), model, start(model), Y)
    precision = np.linalg.inv(covariance(made.family))
    assert (np.diag(precision) >= np.diag(state.curvature.matrix) - 1e-12).all()


# ---- the family


@jax.jit
def _moments_and_draws(family, model, params):
    rows = jax.tree.map(lambda leaf: leaf[0, 0], row_jacobian(model, params, X[:1]))
    draws = family.outputs(model, jax.random.key(1), X[:2], jnp.arange(10_000))
    weights = family.draw(jax.random.key(1), jnp.asarray(7))
    return family.moments(model, X[:2]), jax.vmap(lambda j: ravel_pytree(j)[0])(rows), draws, weights


def test_draws_have_the_moments_for_all_weights_and_all_matrices():
    model = Model(NETWORK, Categorical(3), dist.Normal(0.0, 0.7))
    params = start(model)
    for which, matrix in itertools.product(("all", "last_layer"), MATRICES):
        family = result(Laplace(weights=which, matrix=matrix), model, params, CLASSES)[1].family
        moments, rows, draws, weights = jax.tree.map(np.asarray, _moments_and_draws(family, model, params))
        mean, wanted = moments[0][0], moments[1][0]
        np.testing.assert_allclose(wanted[0], rows @ covariance(family) @ rows.T, rtol=1e-8, atol=1e-12)
        variance = np.einsum("nkk->nk", wanted)
        np.testing.assert_array_less(np.abs(draws.mean(0) - mean), 5 * np.sqrt(variance / len(draws)))
        centred = draws - mean
        sampled = np.einsum("snk,snl->nkl", centred, centred) / len(draws)
        error = np.sqrt((np.einsum("nk,nl->nkl", variance, variance) + wanted**2) / len(draws))
        np.testing.assert_array_less(np.abs(sampled - wanted), 5 * error)
        moved = [bool(np.any(a != b)) for a, b in zip(*map(jax.tree.leaves, (weights, params)), strict=True)]
        assert moved == ([False, False, True, True] if which == "last_layer" else [True] * 4)


# ---- networks of every make


class Flax(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.second = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


class Convolution(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.windows = nnx.Conv(1, 1, (2,), rngs=rngs)
        self.head = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(self.windows(x[..., None])[..., 0])


def scan(p, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ p["a"]), None), x, None, length=2)[0] @ p["b"]


def plain(p, x):
    return jnp.tanh(x @ p["a"] + p["b"]) @ p["c"] + p["d"]


NETWORKS = {
    "nnx": (
        from_nnx(lambda key: Flax(nnx.Rngs(key))),
        lambda p: {
            "first": {"kernel": p[0]["weight"], "bias": p[0]["bias"]},
            "second": {"kernel": p[1]["weight"], "bias": p[1]["bias"]},
        },
    ),
    "equinox": (
        from_equinox(lambda key: eqx.nn.MLP(3, 3, 4, 1, jnp.tanh, key=key)),
        lambda p: {
            **{f"layers/{i}/weight": p[i]["weight"].T for i in (0, 1)},
            **{f"layers/{i}/bias": p[i]["bias"] for i in (0, 1)},
        },
    ),
    "function": (
        from_function(lambda *_: {}, plain),
        lambda p: {"a": p[0]["weight"], "b": p[0]["bias"], "c": p[1]["weight"], "d": p[1]["bias"]},
    ),
}


LAST_LAYERS = {
    "nnx": ["second/bias", "second/kernel"],
    "equinox": ["layers/1/bias", "layers/1/weight"],
    "function": ["c", "d"],
}


def test_networks_of_every_make_give_the_same_posterior():
    own, kronecker = Model(NETWORK, Categorical(3)), Laplace(matrix="kronecker")
    params = start(own)
    _, wanted = result(kronecker, own, params, CLASSES)
    for name, (network, convert) in NETWORKS.items():
        model = Model(network, Categorical(3))
        converted = {"network": convert([params["network"][f"layer_{i}"] for i in (0, 1)])}
        _, made = result(kronecker, model, converted, CLASSES)
        assert made.facts["log_evidence"] == pytest.approx(wanted.facts["log_evidence"], rel=1e-6)
        last = curvatures.last_layer(model, converted, X)
        assert [path.removeprefix("network/") for path in last] == LAST_LAYERS[name]
        if name == "equinox":  # whose matrices are transposed
            for one, other in zip(_moments(made.family, model), _moments(wanted.family, own), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@jax.jit
def _moments(family, model):
    return family.moments(model, X[:3])


def test_weights_held_fixed_are_no_part_of_a_layer():
    model = Model(NETWORK, Categorical(3), {"layer_0/weight": Fixed(), "layer_1/bias": Fixed(), "*": dist.Normal(0, 1)})
    state, made = result(Laplace(matrix="kronecker"), model, start(model), CLASSES)
    assert [layer.address.weight for layer in state.curvature.layers] == [None, "network/layer_1/weight"]
    assert [layer.inputs.shape for layer in state.curvature.layers] == [(1, 1), (4, 4)]
    assert _moments(made.family, model)[1].shape == (1, 3, 3, 3)


@pytest.mark.long
def test_an_ensemble_of_modes_is_a_mixture():
    with jax.enable_x64(False):
        model = Model(NETWORK, Gaussian(0.3))
        method = Laplace(start=DeepEnsemble(num_steps=50, num_members=3), matrix="kronecker")
        posterior = fit(model, method, (X, Y))
        mean, variance = map(np.asarray, _moments(posterior.family, model))
        assert mean.shape == (3, 3, 1)
        assert len(posterior.facts["log_evidence_of_chains"]) == 3
        predicted = posterior.predict(X[:3])
        total = variance[..., 0, 0].mean(0) + mean[..., 0].var(0) + 0.09
        np.testing.assert_allclose(predicted.std, np.sqrt(total), rtol=1e-4)


# ---- errors


def test_errors_name_the_remedy():
    scanned = from_function(lambda *_: {"a": jnp.ones((3, 3)), "b": jnp.ones((3, 1))}, scan)
    kronecker = Laplace(matrix="kronecker")
    for network, named in (
        (from_nnx(lambda key: Convolution(nnx.Rngs(key))), "windows/kernel"),
        (scanned, "network/a"),
    ):
        model = Model(network, Gaussian(0.3))
        with pytest.raises(ValueError, match=f"{named}.*'diagonal' or 'full', weights='last_layer'"):
            result(kronecker, model, start(model), Y)
    model = Model(linear(), Bernoulli())
    with pytest.raises(ValueError, match="tune='noise' sets the scale of Gaussian; the likelihood is Bernoulli"):
        result(Laplace(tune="noise"), model, start(model), Y > 0)
    with pytest.raises(ValueError, match="leaves no weight a spread"):
        result(Laplace(weights="nothing"), model, start(model), Y > 0)
    model = Model(linear(), Gaussian(0.3), Flat())
    for matrix in ("full", "diagonal"):
        with pytest.raises(ValueError, match="posterior is improper"):
            result(Laplace(matrix=matrix), model, start(model), Y, x=X * [1, 1, 0])
    for settings in ({"matrix": "block"}, {"tune": "scale"}, {"num_rounds": 2}, {"num_rounds": 0}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            Laplace(**settings)
