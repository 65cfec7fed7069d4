"""MC dropout: the loss term by term, the relation of its constants, its moments, and what its spread does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from posterity import MCDropout, Model, fit
from posterity.core.types import Batch
from posterity.data.batches import clock
from posterity.inference.methods.mc_dropout import dropout_relation
from posterity.models.likelihoods import Categorical, Gaussian
from posterity.models.priors import Flat
from posterity.networks import from_function, mlp
from posterity.networks.dropout import apply_per_row

LENGTH_SCALE, PRECISION = 0.5, 4.0
X = jnp.asarray(np.random.default_rng(0).normal(size=(7, 2)), jnp.float32)
Y = jnp.asarray(np.random.default_rng(1).normal(size=7), jnp.float32)


def start(model, x):
    free, fixed = model.split(jax.jit(model.init)(jax.random.key(0), jnp.asarray(x, jnp.float32)))
    return free, model.bind(fixed)


@pytest.mark.parametrize("num_masks", [1, 3])
def test_the_loss_is_gals_objective_term_by_term(num_masks):
    """tau times (1/N) sum E + sum_i (p_i l^2/(2 tau N) ||M_i||^2 + l^2/(2 tau N) ||m_i||^2), up to constants."""
    network = mlp((3,), 1, input_dropout=0.2, dropout=0.4)
    prior = dist.Normal(0.0, 1 / LENGTH_SCALE)
    params, model = start(Model(network, Gaussian(PRECISION**-0.5), prior), X)
    method = MCDropout(num_masks=num_masks)
    kernel = method.kernel(model)
    batch, key, zero = Batch(X, Y, jnp.ones(7)), jax.random.key(3), jnp.zeros((), int)
    now = clock(zero, zero, zero, 1, 7)
    state = jax.jit(kernel.init)(jax.random.key(0), params, batch, now)
    _, info = jax.jit(kernel.step)(key, state, batch, now)

    outputs, errors = jax.jit(partial(apply_per_row, network.apply)), []
    for key_mask in jax.random.split(key, num_masks):
        f = outputs(params["network"], X, jax.random.split(key_mask, 7))[:, 0]
        errors.append(np.square(np.asarray(f - Y)) / 2)
    expected_error = PRECISION * np.mean(errors) + 0.5 * np.log(2 * np.pi / PRECISION)
    np.testing.assert_allclose(info.negative_log_likelihood, expected_error, rtol=1e-5)

    squares = {
        name: {kind: float(jnp.sum(leaf**2)) for kind, leaf in layer.items()}
        for name, layer in params["network"].items()
    }
    weights = 0.8 * squares["layer_0"]["weight"] + 0.6 * squares["layer_1"]["weight"]
    biases = squares["layer_0"]["bias"] + squares["layer_1"]["bias"]
    constant = -stats.norm.logpdf(0, 0, 1 / LENGTH_SCALE) * 13
    expected_penalty = (LENGTH_SCALE**2 / 2 * (weights + biases) + constant) / 7
    np.testing.assert_allclose(info.penalty, expected_penalty, rtol=1e-5)
    np.testing.assert_allclose(info.loss, expected_error + expected_penalty, rtol=1e-5)


def test_learned_rates_pay_for_their_entropy():
    params, model = start(
        Model(mlp((3,), 1, input_dropout=0.2, dropout=0.4, learn_dropout=True), Gaussian(1.0), Flat()), X
    )
    entropy = stats.bernoulli(0.2).entropy() * 2 + stats.bernoulli(0.4).entropy() * 3
    np.testing.assert_allclose(MCDropout().penalty(model, params), -entropy, rtol=1e-5)


def test_rates_of_a_foreign_network_are_told():
    network = mlp((3,), 1, input_dropout=0.2, dropout=0.4)
    foreign = from_function(network.init, network.apply)
    params, ours = start(Model(network, Gaussian(1.0), dist.Normal(0.0, 1.0)), X)
    _, theirs = start(Model(foreign, Gaussian(1.0), dist.Normal(0.0, 1.0)), X)
    told = MCDropout(rates={"layer_0/*": 0.2, "layer_1/*": 0.4})
    np.testing.assert_allclose(told.penalty(theirs, params), MCDropout().penalty(ours, params), rtol=1e-6)
    plain = MCDropout().penalty(theirs, params)  # nobody says: the prior as it is
    np.testing.assert_allclose(plain, -theirs.log_prior(params), rtol=1e-6)


def test_the_relation_can_be_solved_for_every_unknown():
    numbers = {"precision": 0.3, "keep": 0.95, "length_scale": 1e-2, "num_data": 927.0}
    numbers["weight_decay"] = dropout_relation(**numbers)
    np.testing.assert_allclose(numbers["weight_decay"], 0.95 * 1e-4 / (2 * 927 * 0.3), rtol=1e-12)
    for name in numbers:
        rest = {other: value for other, value in numbers.items() if other != name}
        np.testing.assert_allclose(dropout_relation(**rest), numbers[name], rtol=1e-12)
    with pytest.raises(ValueError, match="exactly four"):
        dropout_relation(precision=1.0)
    with pytest.raises(ValueError, match="KEEP"):
        dropout_relation(precision=1.0, keep=1.5, length_scale=1.0, num_data=10)
    with pytest.raises(ValueError, match="would need keep=2, and a probability is at most 1"):
        dropout_relation(precision=1.0, length_scale=1.0, num_data=10, weight_decay=0.1)
    all_kept = {"length_scale": 0.7, "num_data": 927.0, "weight_decay": 1e-3}
    assert dropout_relation(precision=dropout_relation(keep=1.0, **all_kept), **all_kept) == pytest.approx(1, abs=1e-9)


def test_weight_decay_by_the_relation_gives_the_same_penalty():
    """lambda ||W||^2 with lambda = p l^2 / (2 N tau) is the penalty over tau: usable as in the paper."""
    decay = dropout_relation(precision=PRECISION, keep=0.6, length_scale=LENGTH_SCALE, num_data=7)
    network = mlp((3,), 1, dropout=0.4)
    params, model = start(
        Model(network, Gaussian(PRECISION**-0.5), {"layer_1/weight": dist.Normal(0.0, 2.0), "*": Flat()}), X
    )
    square = float(jnp.sum(params["network"]["layer_1"]["weight"] ** 2))
    constant = -stats.norm.logpdf(0, 0, 2) * 3
    penalty = float(MCDropout().penalty(model, params)) - constant
    np.testing.assert_allclose(penalty / (7 * PRECISION), decay * square, rtol=1e-5)


@pytest.mark.parametrize("per_row", [False, pytest.param(True, marks=pytest.mark.long)])
def test_predictive_moments_are_gals(wave, per_row):
    """Var[y] = 1/tau + mean f^2 - (mean f)^2, log p by logsumexp, for one mask a draw and for one a row."""
    x, y = wave
    model = Model(mlp((8,), dropout=0.2), Gaussian(PRECISION**-0.5), dist.Normal(0.0, 1.0))
    posterior = fit(model, MCDropout(num_steps=100, batch_size="full", per_row=per_row), wave)
    prediction = posterior.predict(x, num_draws=50)
    f = prediction.outputs[..., 0].astype(float)
    np.testing.assert_allclose(prediction.total, 1 / PRECISION + (f**2).mean(0) - f.mean(0) ** 2, rtol=1e-3)
    np.testing.assert_allclose(prediction.aleatoric, 1 / PRECISION, rtol=1e-5)
    expected = np.logaddexp.reduce(-PRECISION / 2 * (y - f) ** 2, axis=0) - np.log(50)
    np.testing.assert_allclose(
        prediction.log_prob(y), expected + 0.5 * np.log(PRECISION / (2 * np.pi)), rtol=1e-3, atol=1e-4
    )
    alone = posterior.predict(x[3:5], num_draws=50).outputs[..., 0]
    np.testing.assert_allclose(alone, f[:, 3:5], rtol=1e-4, atol=1e-5)  # draws do not depend on the company of a row


def test_classification_averages_softmax_outputs():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = (x[:, 0] > 0).astype(int)
    model = Model(mlp((8,), dropout=0.3), Categorical(2), dist.Normal(0.0, 1.0))
    prediction = fit(model, MCDropout(num_steps=300, batch_size="full"), (x, y)).predict(x, num_draws=64)
    f = prediction.outputs.astype(float)
    softmax = np.exp(f) / np.exp(f).sum(-1, keepdims=True)
    np.testing.assert_allclose(prediction.probs, softmax.mean(0), rtol=1e-4)
    assert (prediction.label == y).mean() > 0.9


def spread(num_rows, learned):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(num_rows, 1))
    y = np.sin(2 * x[:, 0]) + 0.5 * rng.normal(size=num_rows)
    network = mlp((32,), dropout=0.1, learn_dropout=learned)
    model = Model(network, Gaussian(0.5), dist.Normal(0.0, 1.0))
    posterior = fit(model, MCDropout(num_steps=3000, learning_rate=1e-2, batch_size=min(num_rows, 100)), (x, y))
    return float(np.sqrt(posterior.predict(np.linspace(-2, 2, 64)[:, None]).epistemic.mean()))


@pytest.mark.long
def test_a_fixed_rate_does_not_concentrate_and_a_learned_one_does():
    """Twenty times the data: the fixed rate's spread stays, the learned rate's falls."""
    fixed = [spread(num_rows, learned=False) for num_rows in (100, 2000)]
    learned = [spread(num_rows, learned=True) for num_rows in (100, 2000)]
    assert 0.6 < fixed[1] / fixed[0] < 1.5
    assert learned[1] / learned[0] < 0.5


def test_a_network_without_dropout_is_refused(wave):
    with pytest.raises(ValueError, match=r"mlp\(\.\.\., dropout=0.1\)"):
        fit(Model(mlp((4,)), Gaussian(0.1)), MCDropout(), wave)


@pytest.mark.parametrize("settings", [{"num_masks": 0}, {"rates": 1.0}, {"rates": {"*": -0.2}}])
def test_bad_settings(settings):
    with pytest.raises(ValueError, match="MCDropout"):
        MCDropout(**settings)
