"""Bayes by Backprop against optima known in closed form or by quadrature, and its loss against numpy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy import optimize, stats

from posterity.core import pytrees, records
from posterity.core.types import Batch, Clock
from posterity.inference.engine.driver import fit
from posterity.inference.methods.bayes_by_backprop import BayesByBackprop, Gaussian, minibatch_weight
from posterity.models.likelihoods import Gaussian as GaussianLikelihood
from posterity.models.model import Model
from posterity.models.priors import Flat, scale_mixture
from posterity.networks import linear
from posterity.posterior.pruning import prune, signal_to_noise
from posterity.weights.families import DiagonalGaussian, Samples

NOISE, PRIOR = 0.5, 0.4  # a prior strong enough for its share of the optimum to show
NUM_STEPS, NUM_CHAINS = 3000, 8
SCHEDULE = optax.cosine_decay_schedule(0.03, NUM_STEPS)
METHOD = BayesByBackprop(num_steps=NUM_STEPS, learning_rate=SCHEDULE, batch_size="full", num_samples=4)


def linear_data(num_rows=20, num_features=3, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_rows, num_features)) @ np.array([[1, 0.6, 0], [0, 1, 0.3], [0, 0, 1]])[:num_features]
    y = x[:, 0] * 0.8 - 0.4 + NOISE * generator.normal(size=num_rows)
    return x.astype(np.float32), y.astype(np.float32)


def linear_model(temperature=1.0, tempering="posterior", prior=None):
    prior = dist.Normal(0.0, PRIOR) if prior is None else prior
    return Model(linear(), GaussianLikelihood(NOISE), prior, temperature, tempering)


def flat_weights(params):
    """[..., 4]: the weights of three features, then the bias."""
    layer = params["network"]["layer_0"]
    return np.concatenate([np.asarray(layer["weight"])[..., 0], np.asarray(layer["bias"])], -1)


def clock(batch_index=0, num_batches=1, num_data=20):
    numbers = (jnp.asarray(float(num_batches)), jnp.asarray(float(num_data)))
    return Clock(jnp.asarray(0), jnp.asarray(1), jnp.asarray(0), jnp.asarray(batch_index), *numbers)


@jax.jit
def one_step(model, method, q, batch, key, now):
    """(info, gradient) of a step, the gradient read off a step of plain SGD at rate 1."""
    kernel = records.replace(method, optimizer=optax.sgd, learning_rate=1.0).kernel(model)
    state = kernel.init(key, q.mean, batch, now)._replace(params=q)
    moved, info = kernel.step(key, state, batch, now)
    return info, jax.tree.map(lambda old, new: old - new, q, moved.params)


def assert_near(values, exact, spread):
    """The mean over chains agrees with the exact value: 5 standard errors, and 0.2 % of `spread` for the last steps."""
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    assert np.all(values.std(0, ddof=1) < 0.05 * spread), "chains have not converged: the check below would be empty"
    np.testing.assert_array_less(np.abs(values.mean(0) - exact), 5 * error + 0.002 * spread)


@pytest.fixture(scope="module")
def example():
    """Variables away from any optimum, with rows, in one batch of five."""
    x, y = linear_data()
    batch = Batch(jnp.asarray(x[:4]), jnp.asarray(y[:4]), jnp.ones(4).at[3].set(0.0))
    mean = linear_model().init(jax.random.key(3), x)
    rho = jax.tree.map(lambda leaf: leaf * 0.3 - 1.0, mean)
    return Gaussian(mean, rho), batch


@pytest.fixture(scope="module")
def posterior():
    return fit(linear_model(), METHOD, linear_data(), chains=NUM_CHAINS, progress=False)


@pytest.mark.parametrize(
    ("temperature", "tempering"),
    [
        pytest.param(1.0, "posterior", marks=pytest.mark.long),
        (3.0, "likelihood"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in ((0.5, "posterior"), (3.0, "posterior"))),
        pytest.param(0.5, "likelihood", marks=pytest.mark.long),
    ],
)
def test_reaches_the_mean_field_optimum(temperature, tempering):
    """KL(q || N(m, A^-1)) over independent Gaussians is least at mean m and variances 1 / diag(A)."""
    x, y = linear_data()
    design = np.concatenate([x, np.ones((len(x), 1))], 1).astype(np.float64)
    prior_precision = np.eye(4) / PRIOR**2 / (temperature if tempering == "posterior" else 1.0)
    precision = design.T @ design / NOISE**2 / temperature + prior_precision
    exact_mean = np.linalg.solve(precision, design.T @ y / NOISE**2 / temperature)
    exact_scale = 1 / np.sqrt(np.diag(precision))
    family = fit(linear_model(temperature, tempering), METHOD, (x, y), chains=NUM_CHAINS, progress=False).family
    assert isinstance(family, DiagonalGaussian)
    assert family.num_chains == NUM_CHAINS
    assert_near(flat_weights(family.mean), exact_mean, exact_scale)
    assert_near(flat_weights(family.scale), exact_scale, exact_scale)


def test_scale_mixture_reaches_the_optimum_found_by_quadrature():
    """One weight, a quadratic log-likelihood: the free energy is a one-dimensional integral."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(6, 1)).astype(np.float32)
    y = (0.5 * x[:, 0] + NOISE * generator.normal(size=6)).astype(np.float32)
    prior = scale_mixture(0.4, 1.0, 0.2)
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)

    def free_energy(variables):
        mean, log_scale = variables
        w = mean + np.exp(log_scale) * nodes
        log_prior = np.logaddexp(np.log(0.4) + stats.norm.logpdf(w, 0, 1.0), np.log(0.6) + stats.norm.logpdf(w, 0, 0.2))
        log_likelihood = stats.norm.logpdf(y[:, None], x * w, NOISE).sum(0)
        return -log_scale - weights @ (log_likelihood + log_prior) / np.sqrt(2 * np.pi)

    best = optimize.minimize(free_energy, (0.3, np.log(0.2)), method="Nelder-Mead", options={"xatol": 1e-8})
    exact_mean, exact_scale = best.x[0], np.exp(best.x[1])
    model = Model(linear(bias=False), GaussianLikelihood(NOISE), prior)
    start = {"layer_0": {"weight": jnp.full((1, 1), 0.3)}}
    family = fit(model, dataclasses.replace(METHOD, start=start), (x, y), chains=NUM_CHAINS, progress=False).family
    mean, scale = (np.asarray(part["network"]["layer_0"]["weight"])[:, 0] for part in (family.mean, family.scale))
    assert_near(mean, exact_mean, exact_scale)
    assert_near(scale, exact_scale, exact_scale)


def test_closed_form_and_sampled_complexity_agree(example):
    """One key gives both the same draws and so the same likelihood: the difference is the prior's alone."""
    q, batch = example
    model = linear_model(0.7)
    keys = jax.random.split(jax.random.key(0), 20_000)

    def run(closed_form):
        method = BayesByBackprop(closed_form=closed_form)
        info, gradient = jax.jit(jax.vmap(lambda key: one_step(model, method, q, batch, key, clock(0, 5))))(keys)
        columns = [info.complexity[:, None], info.loss[:, None]]
        columns += [leaf.reshape(len(keys), -1) for leaf in jax.tree.leaves(gradient)]
        return np.concatenate([np.asarray(column, np.float64) for column in columns], 1)

    difference = run(closed_form=True) - run(closed_form=False)
    error = difference.std(0) / np.sqrt(len(keys))
    assert np.all(error > 0), "a sampled prior must differ from draw to draw"
    np.testing.assert_array_less(np.abs(difference.mean(0)), 4.5 * error)


@pytest.mark.parametrize("num_batches", [1, 2, 10, 500])
@pytest.mark.parametrize("kind", ["uniform", "geometric"])
def test_minibatch_weights_sum_to_one(kind, num_batches):
    shares = np.array([minibatch_weight(kind, i, num_batches) for i in range(num_batches)], np.float64)
    np.testing.assert_allclose(shares.sum(), 1.0, rtol=num_batches * 2e-7)
    if kind == "geometric":
        index = np.arange(1, num_batches + 1)
        exact = [2.0 ** float(-i) / (1 - 2.0**-num_batches) for i in index]
        np.testing.assert_allclose(shares[:100], exact[:100], rtol=1e-5)


def test_an_epoch_counts_the_divergence_once(example):
    """With rows of weight 0 nothing but the complexity is left; its gradients over an epoch average to the KL's."""
    q, batch = example
    silent = batch._replace(weight=jnp.zeros(4))
    method = BayesByBackprop(minibatch_weights="geometric")
    num_batches, num_data = 10, 20

    def divergence(q):
        prior = dist.Normal(0.0, PRIOR)
        parts = jax.tree.map(lambda m, s: dist.kl_divergence(dist.Normal(m, s), prior), q.mean, q.scale)
        return pytrees.total(parts) / num_data

    def step(index):
        return one_step(linear_model(), method, q, silent, jax.random.key(0), clock(index, num_batches, num_data))

    infos, gradients = zip(*map(step, range(num_batches)), strict=True)
    value, exact = jax.jit(jax.value_and_grad(divergence))(q)
    np.testing.assert_allclose([info.complexity for info in infos], value, rtol=1e-5)
    mean = jax.tree.map(lambda *leaves: sum(leaves) / num_batches, *gradients)
    jax.tree.map(lambda got, wanted: np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6), mean, exact)
    first, second = (flat_weights(gradient.mean) for gradient in gradients[:2])
    np.testing.assert_allclose(first, 2 * second, rtol=1e-4)


@pytest.mark.parametrize("tempering", ["posterior", "likelihood"])
def test_loss_equals_numpy_term_by_term(example, tempering):
    """Normal prior on the matrix (fan-in scaled, closed form), none on the bias: two draws, one batch of five."""
    q, batch = example
    temperature, num_batches, num_data, num_samples = 0.6, 5, 20, 2
    prior = {"*bias": Flat(), "*": dist.Normal(0.3, PRIOR)}
    model = linear_model(temperature, tempering, prior)
    model = dataclasses.replace(model, prior=dataclasses.replace(model.prior, fan_in=True))
    method = BayesByBackprop(num_samples=num_samples, minibatch_weights="geometric")
    key = jax.random.key(5)
    info, _ = one_step(model, method, q, batch, key, clock(1, num_batches, num_data))

    mean, rho = (flat_weights(part).astype(np.float64) for part in q)
    scale = np.log1p(np.exp(rho))
    misfit = []
    for key_draw in jax.random.split(key, num_samples):
        w = mean + scale * flat_weights(pytrees.normal_like(key_draw, q.mean))
        outputs = np.asarray(batch.x) @ w[:3] + w[3]
        misfit.append(-stats.norm.logpdf(np.asarray(batch.y), outputs, NOISE)[:3].sum())
    negative_log_likelihood = num_batches * np.mean(misfit) / num_data
    entropy = stats.norm(0, scale).entropy().sum()
    centre, width = 0.3 / np.sqrt(3), PRIOR / np.sqrt(3)
    expected = stats.norm.logpdf(mean[:3], centre, width) - 0.5 * (scale[:3] / width) ** 2
    log_prior = expected.sum() / (temperature if tempering == "posterior" else 1.0)
    complexity = (-entropy - log_prior) / num_data
    wanted = (complexity + negative_log_likelihood / temperature, complexity, negative_log_likelihood)
    np.testing.assert_allclose(info, wanted, rtol=2e-5)


def test_loss_with_a_mixture_prior_equals_numpy(example):
    q, batch = example
    model = linear_model(prior={"*bias": dist.Normal(0.0, PRIOR), "*": scale_mixture(0.25, 1.0, 0.1)})
    key = jax.random.key(7)
    info, _ = one_step(model, BayesByBackprop(), q, batch, key, clock(1, 5, 20))
    scale = flat_weights(q.scale).astype(np.float64)
    mean = flat_weights(q.mean)
    w = (mean + scale * flat_weights(pytrees.normal_like(key, q.mean)))[:3]
    log_prior = np.log(0.25 * stats.norm.pdf(w, 0, 1.0) + 0.75 * stats.norm.pdf(w, 0, 0.1)).sum()
    log_prior += stats.norm.logpdf(mean[3], 0, PRIOR) - 0.5 * (scale[3] / PRIOR) ** 2
    complexity = (-stats.norm(0, scale).entropy().sum() - log_prior) / 20
    np.testing.assert_allclose(info.complexity, complexity, rtol=2e-5)


def test_trace_holds_the_parts_of_the_free_energy(posterior):
    trace = posterior.trace
    np.testing.assert_allclose(trace["loss"], trace["complexity"] + trace["negative_log_likelihood"], rtol=1e-4)
    assert posterior.receipt.temperature == 1.0


def test_pruning_removes_the_weights_of_lowest_signal_to_noise(posterior):
    mean = {"network": {"a": jnp.array([[3.0, -0.1, 0.0], [1.0, 1.0, -4.0]]), "b": jnp.array([[-2.0], [0.5]])}}
    scale = {"network": {"a": jnp.array([[9.0, 0.01, 1.0], [1.0, 2.0, 16.0]]), "b": jnp.array([[2.0], [0.1]])}}
    own = {"log_scale": jnp.array([0.01, 0.01])}
    family = DiagonalGaussian({**mean, "likelihood": own}, {**scale, "likelihood": own})
    np.testing.assert_allclose(signal_to_noise(family)["network"]["a"], [[1 / 3, 10, 0], [1, 0.5, 0.25]], rtol=1e-6)
    pruned = prune(dataclasses.replace(posterior, family=family), 0.5)
    np.testing.assert_array_equal(pruned.family.mean["network"]["a"], np.float32([[0, -0.1, 0], [1, 0, 0]]))
    np.testing.assert_array_equal(pruned.family.scale["network"]["a"], np.float32([[0, 0.01, 0], [1, 0, 0]]))
    np.testing.assert_array_equal(pruned.family.mean["network"]["b"], mean["network"]["b"])
    np.testing.assert_array_equal(pruned.family.mean["likelihood"]["log_scale"], own["log_scale"])
    assert pruned.facts["pruned_share"] == 0.5
    again = prune(pruned, 0.5)  # zeros stay the lowest: nothing more goes
    np.testing.assert_array_equal(again.family.mean["network"]["a"], pruned.family.mean["network"]["a"])


def test_pruning_nothing_and_everything(posterior):
    untouched, empty = prune(posterior, 0.0), prune(posterior, 1.0)
    np.testing.assert_array_equal(flat_weights(untouched.family.mean), flat_weights(posterior.family.mean))
    assert not flat_weights(empty.family.mean).any()
    assert not flat_weights(empty.family.scale).any()
    with pytest.raises(ValueError, match=r"share=1\.5"):
        prune(posterior, 1.5)


def test_other_families_and_settings_are_refused(posterior):
    point = Samples(jax.tree.map(lambda leaf: leaf[:, None], posterior.family.mean))
    with pytest.raises(TypeError, match="BayesByBackprop"):
        prune(dataclasses.replace(posterior, family=point), 0.5)
    with pytest.raises(ValueError, match="HalfNormal"):
        fit(linear_model(prior=dist.HalfNormal(1.0)), METHOD, linear_data(), progress=False)
    with pytest.raises(ValueError, match="num_samples=0"):
        BayesByBackprop(num_samples=0)
    with pytest.raises(ValueError, match="'linear'"):
        BayesByBackprop(minibatch_weights="linear")
    with pytest.raises(ValueError, match=r"initial_scale=0\.0"):
        BayesByBackprop(initial_scale=0.0)
