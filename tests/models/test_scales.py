"""Learned scales: densities by hand, weights as users see them, every method beside closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

from posterity import (
    HMC,
    MAP,
    MILE,
    MLE,
    NUTS,
    SGHMC,
    SWAG,
    BayesByBackprop,
    DeepEnsemble,
    Exact,
    Fixed,
    Flat,
    Gaussian,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    Laplace,
    Learned,
    MCDropout,
    Model,
    Normal,
    fit,
    linear,
    load,
    mlp,
    prior,
    prior_predictive,
)
from posterity.core import pytrees
from posterity.core.types import Batch
from posterity.inference.methods.bayes_by_backprop import _expected_log_prior
from posterity.inference.methods.hamiltonian import prior_widths

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3))
Y = X @ [1.0, -1.0, 0.5] + 0.4 + 0.3 * RNG.normal(size=12)
NOISE, HYPER = 0.3, Normal(-0.2, 0.6)
SHAPES = {
    "layer": {"layer": (1, 1)},
    "input": {"layer": (1, 1), "input": (3, 1)},
    "output": {"output": (1, 4)},
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def believed(by="layer", initial=1.0):
    """A scale for matrices; biases have a fixed one."""
    return prior({"*bias": Normal(0.0, 2.0), "*": Learned(Normal(0.1, 1.5), by, HYPER, initial)}, fan_in=True)


def network(by, **settings):
    return Model(mlp((4,), activation="tanh"), Gaussian(NOISE), believed(by), **settings)


def moved(model, seed=0):
    """Standardised weights and log scales away from where they start."""
    rng = np.random.default_rng(seed)
    params = model.init(jax.random.key(seed), X)
    return jax.tree.map(lambda leaf: leaf + 0.3 * rng.normal(size=leaf.shape), params)


def batch():
    return Batch(jnp.asarray(X), jnp.asarray(Y), jnp.ones(len(Y)))


@pytest.mark.parametrize(("temperature", "tempering"), [(1.0, "posterior"), (0.3, "posterior"), (4.0, "likelihood")])
@pytest.mark.parametrize("by", SHAPES)
def test_the_density_by_hand(by, temperature, tempering):
    """Of z, s and the rows given exp(s) z; "posterior" tempers the hyperprior too, "likelihood" does not."""
    model = network(by, temperature=temperature, tempering=tempering)
    params = jax.tree.map(np.asarray, moved(model))
    first, second = params["network"]["layer_0"], params["network"]["layer_1"]
    assert {name: leaf.shape for name, leaf in params["log_scales"]["network/layer_0/weight"].items()} == SHAPES[by]
    scales = [np.exp(sum(params["log_scales"][f"network/layer_{i}/weight"].values())) for i in (0, 1)]
    hidden = np.tanh(X @ (scales[0] * first["weight"]) + first["bias"])
    mean = hidden @ (scales[1] * second["weight"]) + second["bias"]
    log_likelihood = stats.norm.logpdf(Y, mean[:, 0], NOISE).sum()
    log_prior = sum(stats.norm.logpdf(layer["bias"], 0, 2).sum() for layer in (first, second))
    for layer in (first, second):
        width = 1 / np.sqrt(len(layer["weight"]))
        log_prior += stats.norm.logpdf(layer["weight"], 0.1 * width, 1.5 * width).sum()
    log_prior += sum(stats.norm.logpdf(leaf, -0.2, 0.6).sum() for leaf in jax.tree.leaves(params["log_scales"]))
    tempered = (log_likelihood + log_prior if tempering == "posterior" else log_likelihood) / temperature
    tempered += 0.0 if tempering == "posterior" else log_prior
    assert float(model.log_joint(params, batch())) == pytest.approx(tempered, rel=1e-10)


@pytest.mark.parametrize("by", SHAPES)
def test_complete_weights_are_those_of_the_network(by):
    model = network(by)
    params = moved(model)
    weights = model.complete(params)
    outputs = model.outputs(params, jnp.asarray(X))
    np.testing.assert_allclose(model.network.apply(weights["network"], jnp.asarray(X)), outputs, rtol=1e-12)
    again = model.standardise(weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), again, params)
    # Weights without scales, such as trained ones, and those of another prior: the scales begin anew.
    alone = model.standardise({"network": weights["network"], "scales": {"another": 2.0}})
    np.testing.assert_allclose(model.outputs(alone, jnp.asarray(X)), outputs, rtol=1e-12)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(alone["log_scales"]))
    with pytest.raises(ValueError, match="standardise"):
        model.log_prior(weights)


def test_the_axes_of_each_layout():
    """[..., in, out] here and in Flax, [out, in, ...] in Equinox; a bias has one scale."""
    by_input, by_output = Learned(Normal(0.0, 1.0), "input"), Learned(Normal(0.0, 1.0), "output")
    assert by_input.shapes((3, 3, 5, 64), -2) == {"layer": (1, 1, 1, 1), "input": (1, 1, 5, 1)}
    assert by_output.shapes((3, 3, 5, 64), -2) == {"output": (1, 1, 1, 64)}
    assert by_input.shapes((64, 5, 3, 3), -1)["input"] == (1, 5, 1, 1)
    assert by_output.shapes((64, 5), -1) == {"output": (64, 1)}
    assert by_input.shapes((64,), -2) == by_output.shapes((64,), -2) == {"layer": (1,)}


def test_the_prior_predictive_is_that_of_the_product():
    """f = x exp(s) z has variance x^2 Var[z] E[exp(2 s)], and the kurtosis of a normal whose scale is log-normal."""
    model = Model(linear(), Gaussian(NOISE), {"*bias": Fixed(), "*": Learned(Normal(0.0, 1.5), log_scale=HYPER)})
    draws = prior_predictive(model, np.array([[2.0]]), num_draws=40_000).outputs[:, 0, 0]
    logs = np.log(np.abs(draws))  # log 2 + s + log |z|: moments of a logarithm are estimated well
    normal = np.log(1.5) - (np.euler_gamma + np.log(2)) / 2
    np.testing.assert_allclose(logs.mean(), np.log(2) - 0.2 + normal, atol=4 * logs.std() / 200)
    assert logs.var() == pytest.approx(0.6**2 + np.pi**2 / 8, rel=0.05)


@pytest.mark.parametrize(
    "method",
    [
        MAP(num_steps=400, learning_rate=0.05),
        MLE(num_steps=50),
        DeepEnsemble(2, num_steps=50, anchored=True),
        MCDropout(num_steps=50),
        SWAG(num_steps=60, start=MAP(num_steps=50)),
        Laplace(start=MAP(num_steps=50)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_methods_that_seek_a_peak_hold_the_scales(method):
    """A joint peak says nothing of a scale: in (w, s) the density has no bound, in (z, s) s falls or grows with z."""
    model = Model(mlp((4,), dropout=0.1), Gaussian(NOISE), believed("input", initial=0.6))
    posterior = fit(model, method, (X, Y), progress=False)
    params = jax.tree.leaves(posterior.family.point())
    assert all(np.isfinite(leaf).all() for leaf in params)
    weights = posterior.starting_weights(posterior.family.num_chains)
    assert weights["scales"].keys() == {"network/layer_0/weight", "network/layer_1/weight"}
    for leaf in jax.tree.leaves(weights["scales"]):
        np.testing.assert_allclose(leaf, 0.6, rtol=1e-6)


def test_a_joint_peak_has_no_bound_in_the_centred_form():
    """Why scales are held: at w = 0 the density of (w, s) gains one nat for each weight as s falls by one."""
    model = Model(linear(), Gaussian(NOISE), Learned(Normal(0.0, 1.0), log_scale=Normal(0.0, 100.0)))
    weights = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0), X))

    def centred(s):
        at = weights | {"log_scales": jax.tree.map(lambda leaf: leaf + s, weights["log_scales"])}
        return float(model.log_prior(at)) - s * pytrees.size(weights["network"])

    rises = [centred(s - 1) - centred(s) for s in (0.0, -5.0, -20.0)]
    np.testing.assert_allclose(rises, 4, atol=0.01)


def linear_model(initial=1.0, by="layer", learned=True):
    width = Learned(Normal(0.1, 1.5), by, HYPER, initial) if learned else Normal(0.1 * initial, 1.5 * initial)
    return Model(linear(), Gaussian(NOISE), {"*bias": Normal(0.0, 2.0), "*": width})


@pytest.mark.parametrize("matrix", ["exact", "full", "diagonal", "kronecker"])
def test_the_evidence_is_that_of_the_scaled_prior(matrix):
    """Held at s, z ~ N(m, v^2) is w ~ N(m exp(s), (v exp(s))^2); predictions agree as well."""
    method = Exact() if matrix == "exact" else Laplace(matrix=matrix, start=MAP(num_steps=4000, learning_rate=0.02))
    learned, plain = (
        fit(linear_model(0.5, learned=learned), method, (X, Y), progress=False) for learned in (True, False)
    )
    assert learned.facts["log_evidence"] == pytest.approx(plain.facts["log_evidence"], abs=1e-4)
    for part in ("mean", "epistemic"):
        np.testing.assert_allclose(getattr(learned.predict(X), part), getattr(plain.predict(X), part), rtol=1e-3)


def test_a_kronecker_matrix_wants_one_scale_for_all_outputs():
    with pytest.raises(ValueError, match="Learned by output"):
        fit(linear_model(by="output"), Laplace(matrix="kronecker"), (X, Y), progress=False)


def test_the_variational_complexity_is_a_sum_of_two_divergences():
    """KL(q || prior) of z and of s, each between independent Gaussians: in closed form."""
    model = network("input")
    mean = moved(model)
    scale = jax.tree.map(lambda leaf: 0.1 + jnp.square(leaf), moved(model, seed=1))
    entropy = sum(float(dist.Normal(0.0, leaf).entropy().sum()) for leaf in jax.tree.leaves(scale))
    complexity = -entropy - float(_expected_log_prior(model, mean, scale))
    expected = 0.0
    for name, m, s in zip(pytrees.leaf_names(mean), jax.tree.leaves(mean), jax.tree.leaves(scale), strict=True):
        width = 1 / np.sqrt(m.shape[0]) if name.startswith("network/") else 1.0
        target = Normal(0.1 * width, 1.5 * width) if name.endswith("/weight") else Normal(0.0, 2.0)
        target = HYPER if name.startswith("log_scales/") else target
        expected += float(dist.kl_divergence(dist.Normal(m, s), target).sum())
    assert complexity == pytest.approx(expected, rel=1e-9)
    fitted = fit(model, BayesByBackprop(num_steps=20), (X, Y), progress=False)
    assert fitted.family.scale["log_scales"]["network/layer_0/weight"]["input"].shape == (1, 3, 1)


@pytest.mark.parametrize("tempering", ["posterior", "likelihood"])
def test_trajectories_know_the_widths_of_weights_and_scales(tempering):
    model = network("input", temperature=4.0, tempering=tempering)
    widths = prior_widths(model, moved(model))
    stretch = 2.0 if tempering == "posterior" else 1.0
    assert float(widths["network"]["layer_0"]["weight"]) == pytest.approx(stretch * 1.5 / np.sqrt(3))
    assert float(widths["network"]["layer_0"]["bias"]) == pytest.approx(stretch * 2.0)
    assert all(float(leaf) == pytest.approx(stretch * 0.6) for leaf in jax.tree.leaves(widths["log_scales"]))


@pytest.mark.parametrize(
    "method",
    [
        HMC(num_draws=1500, num_burn_in=200),
        HMC(num_draws=1500, num_burn_in=200, head="sampled"),
        NUTS(num_draws=800, num_burn_in=300, max_depth=6, head="sampled"),
    ],
    ids=["integrated", "sampled", "nuts"],
)
def test_the_posterior_of_a_scale_against_quadrature(method):
    """Of one scale of a linear model, whose evidence given the scale is a Gaussian's."""
    posterior = fit(linear_model(), method, (X, Y), chains=4, progress=False)
    draws = np.log(np.asarray(posterior.weights()["scales"]["network/layer_0/weight"]["layer"]).reshape(-1, 4))

    def density(s):
        scaled = np.exp(s) * X
        covariance = NOISE**2 * np.eye(12) + 1.5**2 * scaled @ scaled.T + 2.0**2
        return np.exp(stats.multivariate_normal.logpdf(Y, 0.1 * scaled.sum(1), covariance)) * stats.norm.pdf(
            s, -0.2, 0.6
        )

    moments = [integrate.quad(lambda s, k=k: s**k * density(s), -4, 4)[0] for k in range(3)]
    mean = moments[1] / moments[0]
    deviation = np.sqrt(moments[2] / moments[0] - mean**2)
    error = deviation / np.sqrt(len(draws))  # of chains that mix well, with some room
    assert abs(draws.mean() - mean) < 6 * error
    assert draws.std() == pytest.approx(deviation, rel=0.08)


@pytest.mark.parametrize(
    "method",
    [
        MILE(num_draws=5, num_burn_in=100, start=DeepEnsemble(2, num_steps=50)),
        SGHMC(num_draws=5, num_burn_in=20),
    ],
    ids=lambda method: type(method).__name__,
)
def test_other_samplers_infer_the_scales(method):
    posterior = fit(network("output"), method, (X, Y), chains=2, progress=False)
    for leaf in jax.tree.leaves(posterior.weights()["scales"]):
        assert np.isfinite(leaf).all()
        assert (np.asarray(leaf).std(0) > 0).all()


def test_stores_hold_learned_scales(tmp_path):
    model = network("output")
    posterior = fit(model, HMC(num_draws=5, num_burn_in=5), (X, Y), chains=2, progress=False)
    posterior.save(tmp_path / "store")
    again = load(tmp_path / "store")
    assert str(again.model.prior) == str(model.prior)
    same = zip(jax.tree.leaves(again.weights()), jax.tree.leaves(posterior.weights()), strict=True)
    assert all(np.array_equal(left, right) for left, right in same)


def test_a_posterior_is_a_start_for_models_with_and_without_learned_scales():
    """The network begins where it was, and scales too where the model has them."""
    model = network("input")
    sampled = fit(model, HMC(num_draws=5, num_burn_in=5), (X, Y), chains=2, progress=False)
    still = MAP(num_steps=1, learning_rate=1e-12, start=sampled)
    plain = Model(model.network, model.likelihood, Normal(0.0, 1.0))
    for other in (model, plain):
        begun = fit(other, still, (X, Y), chains=2, progress=False)
        np.testing.assert_allclose(begun.predict(X).outputs, sampled.predict(X).outputs[-2:], atol=1e-7)
    held = fit(model, still, (X, Y), chains=2, progress=False).weights()["scales"]
    last = jax.tree.map(lambda leaf: leaf[-2:], sampled.weights()["scales"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), held, last)
    given = fit(model, MAP(num_steps=1, learning_rate=1e-12, start=plain_weights(sampled)), (X, Y), progress=False)
    np.testing.assert_allclose(given.predict(X).outputs[0], sampled.predict(X).outputs[0], atol=1e-7)


def plain_weights(posterior):
    """Of the first draw, as a network has them."""
    return jax.tree.map(lambda leaf: leaf[0], posterior.weights()["network"])


def test_a_prior_describes_itself():
    described = str(prior({"*bias": Normal(0.0, 1.0), "*": Learned(Normal(0.0, 1.0), "input")}, fan_in=True))
    assert (
        "*: Normal(loc=0, scale=1) times a scale by layer and input, whose log is Normal(loc=0, scale=1)" in described
    )


def test_what_cannot_be_learned_is_refused():
    with pytest.raises(ValueError, match="'layer', 'input' or 'output'"):
        Learned(Normal(0.0, 1.0), by="row")
    with pytest.raises(ValueError, match="initial=0"):
        Learned(Normal(0.0, 1.0), initial=0.0)
    for wrong in (Learned(Flat()), Learned(Fixed()), Learned(Normal(0.0, 1.0), log_scale=Flat())):
        with pytest.raises(ValueError, match="proper distributions"):
            prior(wrong)
    with pytest.raises(TypeError, match="expected a numpyro distribution"):
        prior(Learned(1.0))
    noise = Model(linear(), GaussianLearnedNoise(), {"likelihood/*": Learned(Normal(0.0, 1.0)), "*": Normal(0.0, 1.0)})
    with pytest.raises(ValueError, match="not a weight"):
        noise.init(jax.random.key(0), X)


def test_heads_of_two_outputs_have_scales_of_their_own():
    model = Model(mlp((4,)), HeteroscedasticGaussian(0.05), {"layer_1/weight": Learned(HYPER, "output"), "*": HYPER})
    shapes = jax.eval_shape(model.init, jax.random.key(0), X)["log_scales"]
    assert {name: part["output"].shape for name, part in shapes.items()} == {"network/layer_1/weight": (1, 2)}
