"""The driver: exact optima, chains, early stopping, budgets, non-finite values, repeatability, bad input."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

from posterity import HMC, MAP, MLE, BayesByBackprop, DeepEnsemble, MCDropout, Model, fit
from posterity.core import pytrees
from posterity.inference.engine import program, run
from posterity.inference.engine.run import NonFiniteError
from posterity.models.counts import Poisson
from posterity.models.likelihoods import Bernoulli, Categorical, Gaussian, GaussianLearnedNoise, HeteroscedasticGaussian
from posterity.models.priors import Fixed
from posterity.networks import from_function, linear, mlp
from posterity.posterior.posterior import _evenly_spaced

FULL = {"num_steps": 1500, "learning_rate": optax.cosine_decay_schedule(0.05, 1500), "batch_size": "full"}


def solution(posterior):
    layer = posterior.weights(1)["network"]["layer_0"]
    return np.concatenate([np.asarray(layer["weight"])[0, :, 0], np.asarray(layer["bias"])[0]])


def design(x):
    return np.column_stack([x, np.ones(len(x))])


def test_map_is_ridge_and_mle_is_least_squares(line):
    x, y = line
    model, a = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5)), design(x)
    ridge = np.linalg.solve(a.T @ a / 0.09 + np.eye(3) / 0.25, a.T @ y / 0.09)
    np.testing.assert_allclose(solution(fit(model, MAP(**FULL), line)), ridge, atol=2e-4)
    np.testing.assert_allclose(solution(fit(model, MLE(**FULL), line)), np.linalg.lstsq(a, y, rcond=None)[0], atol=2e-4)


def test_mle_leaves_out_the_prior_of_the_noise_too(line):
    x, y = line[0][:10], line[1][:10]
    residuals = y - design(x) @ np.linalg.lstsq(design(x), y, rcond=None)[0]
    model = Model(linear(), GaussianLearnedNoise(30.0), dist.Normal(0.0, 0.5))  # whose own prior would pull it up
    posterior = fit(model, MLE(num_steps=6000, learning_rate=lambda step: 0.05 * 0.999**step), (x, y))
    assert posterior.predict(x).aleatoric == pytest.approx(np.mean(residuals**2), rel=5e-3)


def test_draws_of_a_few_come_alike_from_all_chains():
    for count, num_chains, num_draws in (
        (100, 4, 100),
        (1000, 4, 1000),
        (200, 4, 100),
        (7, 4, 5),
        (2, 4, 50),
        (1, 1, 9),
    ):
        chosen = _evenly_spaced(count, num_chains, num_draws)
        assert len(np.unique(chosen)) == count
        of_chain = [chosen[chosen % num_chains == chain] // num_chains for chain in range(num_chains)]
        sizes = [len(draws) for draws in of_chain]
        assert max(sizes) - min(sizes) <= 1
        assert all({0, num_draws - 1} <= {*draws} for draws in of_chain if len(draws) > 1)


def test_weights_of_rows_count_as_repeats(line):
    x, y = line
    model = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5))
    weight = np.where(np.arange(40) < 10, 3.0, 1.0)
    repeated = np.concatenate([np.arange(40), np.arange(10), np.arange(10)])
    weighted = fit(model, MAP(**FULL), (x, y, weight))
    np.testing.assert_allclose(
        solution(weighted), solution(fit(model, MAP(**FULL), (x[repeated], y[repeated]))), atol=5e-4
    )


@pytest.mark.long
def test_an_ensemble_equals_its_members_fitted_one_by_one(wave):
    model = Model(mlp((8,)), Gaussian(0.1), dist.Normal(0.0, 1.0))
    settings = {"num_steps": 200, "batch_size": 16}
    together = fit(model, DeepEnsemble(num_members=3, **settings), wave)
    first = fit(model, DeepEnsemble(num_members=1, **settings), wave)
    members = together.predict(wave[0]).outputs
    np.testing.assert_allclose(members[:1], first.predict(wave[0]).outputs, atol=1e-3)
    assert np.abs(members[1] - members[0]).max() > 0.01


def test_anchored_members_settle_around_draws_of_the_prior():
    """With no data to speak of, an anchored ensemble is the prior."""
    model = Model(linear(bias=False), Gaussian(100.0), dist.Normal(1.0, 2.0))
    ensemble = fit(model, DeepEnsemble(num_members=200, anchored=True, **FULL), (np.ones((2, 1)), np.zeros(2)))
    weights = np.asarray(ensemble.family.draws["network"]["layer_0"]["weight"]).ravel()
    assert abs(weights.mean() - 1) < 4 * 2 / np.sqrt(200)
    assert abs(weights.std() - 2) < 4 * 2 / np.sqrt(400)


def test_the_same_seed_repeats_and_segments_do_not_matter(wave, monkeypatch):
    model = Model(mlp((8,)), Gaussian(0.1), dist.Normal(0.0, 1.0))
    method = DeepEnsemble(num_members=2, num_steps=130, batch_size=16)
    one, again, other = (fit(model, method, wave, seed=seed) for seed in (3, 3, 4))
    monkeypatch.setattr(run, "SEGMENT_SECONDS", 0.0)
    cut = fit(model, method, wave, seed=3)
    for same in (again, cut):
        assert all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one.family), jax.tree.leaves(same.family), strict=True)
        )
    assert not np.array_equal(jax.tree.leaves(one.family)[0], jax.tree.leaves(other.family)[0])
    assert np.array_equal(one.trace["loss"], cut.trace["loss"])
    assert one.trace["loss"].shape == (2, 130)


def test_the_trace_holds_the_loss_per_datum(line):
    _, y = line
    model = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5))
    start = {"layer_0": {"weight": jnp.zeros((2, 1)), "bias": jnp.zeros(1)}}
    posterior = fit(model, MAP(num_steps=1, batch_size="full", start=start), line)
    likelihood = -dist.Normal(0.0, 0.3).log_prob(y).mean()
    prior = -3 * dist.Normal(0.0, 0.5).log_prob(0.0) / 40
    np.testing.assert_allclose(posterior.trace["negative_log_likelihood"][0, 0], likelihood, rtol=1e-5)
    np.testing.assert_allclose(posterior.trace["penalty"][0, 0], prior, rtol=1e-4)
    np.testing.assert_allclose(posterior.trace["loss"][0, 0], likelihood + prior, rtol=1e-5)


def test_programs_compile_once_for_any_temperature_rate_rows_and_steps(line):
    method = {"num_steps": 40, "batch_size": "full"}
    fit(Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5)), MAP(**method), line)
    compiled = program.compiled_advance(False)._cache_size()
    for temperature, rate, steps in ((0.5, 1e-2, 40), (2.0, 1e-3, 70), (1.5, 5e-3, 900)):
        model = Model(linear(), Gaussian(temperature), dist.Normal(0.0, rate), temperature=temperature)
        fit(model, MAP(num_steps=steps, batch_size="full", learning_rate=rate), line)
    assert program.compiled_advance(False)._cache_size() == compiled


def test_early_stopping_keeps_the_best_weights_of_each_chain():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5))
    y = x[:, 0] + rng.normal(size=30)
    held_out = rng.normal(size=(400, 5))
    validation = (held_out, held_out[:, 0] + rng.normal(size=400))
    model = Model(mlp((8,)), Gaussian(1.0), dist.Normal(0.0, 10.0))
    settings = {"num_steps": 3000, "learning_rate": 1e-2}
    long = fit(model, DeepEnsemble(num_members=2, **settings), (x, y))
    settings = {**settings, "num_steps": 20_000}
    stopped = fit(model, DeepEnsemble(num_members=2, patience=3, **settings), (x, y), validation=validation)
    losses = [-posterior.predict(held_out).log_prob(validation[1]).mean() for posterior in (stopped, long)]
    assert losses[0] < losses[1] - 0.05
    assert "stopped early" in stopped.receipt.notes[0]
    assert stopped.receipt.num_steps < 20_000


def test_a_run_shorter_than_an_epoch_is_not_thrown_away(line):
    x, y = (np.repeat(values, 10, 0) for values in line)
    model = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 10.0))
    posterior = fit(model, MAP(num_steps=300, batch_size=1, learning_rate=0.05), (x, y), validation=0.1)
    np.testing.assert_allclose(solution(posterior), [1.0, -2.0, 0.5], atol=0.5)


def test_a_budget_ends_a_run_and_says_so(wave):
    model = Model(mlp((8,)), Gaussian(0.1), dist.Normal(0.0, 1.0))
    began = time.perf_counter()
    posterior = fit(model, MAP(num_steps=10**9, batch_size=16), wave, budget=2.0)
    assert time.perf_counter() - began < 15
    assert "budget" in posterior.receipt.notes[0]
    assert 0 < posterior.receipt.num_steps < 10**9


def test_a_non_finite_value_stops_the_run_and_names_chain_and_step(line):
    def init(key, x):
        return {"w": jax.random.uniform(key, (), minval=0.5)}

    def apply(params, x):  # the weight falls by 0.01 a step under Adam until its square root ends
        return jnp.sqrt(params["w"] - 0.3) * jnp.ones((x.shape[0], 1)) * 1e3

    model = Model(from_function(init, apply), Gaussian(1.0), dist.Normal(0.0, 1.0))
    with pytest.raises(NonFiniteError, match=r"chain [01]: non-finite value at step \d+.*learning rate") as caught:
        fit(model, DeepEnsemble(num_members=2, num_steps=200, learning_rate=0.01, batch_size="full"), line)
    assert caught.value.trace["loss"].shape[0] == 2


def test_fixed_weights_stay_and_the_rest_moves(wave):
    model = Model(mlp((8,)), Gaussian(0.1), {"layer_0/*": Fixed(), "*": dist.Normal(0.0, 1.0)})
    start = mlp((8,), 1).init(jax.random.key(7), jnp.asarray(wave[0]))
    weights = fit(model, MAP(num_steps=50, start=start), wave).weights(1)["network"]
    np.testing.assert_array_equal(weights["layer_0"]["weight"][0], start["layer_0"]["weight"])
    assert np.abs(weights["layer_1"]["weight"][0] - start["layer_1"]["weight"]).max() > 1e-3


def test_a_start_may_be_a_method_a_posterior_or_weights(line):
    model = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5))
    first = fit(model, MAP(**FULL), line)
    for start in (first, MAP(**FULL)):
        second = fit(model, MAP(num_steps=1, learning_rate=1e-6, batch_size="full", start=start), line)
        np.testing.assert_allclose(solution(second), solution(first), atol=1e-4)
    with pytest.raises(ValueError, match="the network has"):
        fit(model, MAP(start={"layer_0": {"weight": jnp.zeros((3, 1)), "bias": jnp.zeros(1)}}), line)


@pytest.mark.long
def test_a_posterior_to_start_from_must_be_of_the_network(line):
    """Its weights would fit, only to another network; a likelihood's own weights begin as they always do."""
    small = fit(Model(mlp((3,)), Gaussian(0.3)), MAP(num_steps=3), line)
    with pytest.raises(ValueError, match=r"start has shape \(3,\) for network/layer_0/bias; the network has \(5,\)"):
        fit(Model(mlp((5,)), Gaussian(0.3)), MAP(num_steps=3, start=small), line)
    with pytest.raises(ValueError, match=r"start holds the weights .*layer_1.*but the network has"):
        fit(Model(linear(), Gaussian(0.3)), MAP(num_steps=3, start=small), line)
    learned = Model(mlp((3,)), GaussianLearnedNoise(0.2))
    weights = fit(learned, MAP(num_steps=1, learning_rate=1e-9, start=small), line, chains=2).weights()
    expected = learned.init(jax.random.key(0), jnp.asarray(line[0]))["likelihood"]
    for found, begun in zip(jax.tree.leaves(weights["likelihood"]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, np.stack([begun, begun]), rtol=1e-6)
    for found, begun in zip(jax.tree.leaves(weights["network"]), jax.tree.leaves(small.weights()), strict=True):
        np.testing.assert_allclose(found, np.concatenate([begun, begun]), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_chains_of_a_sampler_that_all_begin_at_one_point_are_noted(line):
    model, sampler = Model(linear(), Gaussian(0.3)), {"num_draws": 3, "num_burn_in": 2, "step_size": 0.01}
    note = "all chains began at the same weights, so that a low R-hat says less than usual"
    one = fit(model, MAP(num_steps=3), line)
    weights = pytrees.take_rows(one.weights()["network"], 0)
    for start, chains, expected in ((one, 2, True), (weights, 2, True), (one, 1, False), (None, 2, False)):
        notes = fit(model, HMC(**sampler, start=start), line, chains=chains).receipt.notes
        assert (note in notes) == expected


def test_members_of_an_ensemble_that_would_be_copies_are_told(line):
    """From one instance, or one set of weights, there is one start; anchors tell members apart all the same."""
    model = Model(linear(), Gaussian(0.3))
    one = fit(model, MAP(num_steps=2), line)
    with pytest.warns(UserWarning, match="DeepEnsemble: all chains began at the same weights.*if at all"):
        copies = fit(model, DeepEnsemble(2, num_steps=2, start=one), line)
    assert "differ by the order of their batches alone" in copies.receipt.notes[0]
    assert not fit(model, DeepEnsemble(2, num_steps=2, start=one, anchored=True), line).receipt.notes
    assert not fit(model, DeepEnsemble(2, num_steps=2), line).receipt.notes


@pytest.mark.long
def test_weights_of_all_stored_draws_or_of_one_that_is_fresh(line):
    model = Model(mlp((2,), dropout=0.1), Gaussian(0.3))
    ensemble = fit(model, DeepEnsemble(num_members=3, num_steps=2), line)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(ensemble.weights())} == {3}
    gaussian = fit(model, BayesByBackprop(num_steps=2), line)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(gaussian.weights())} == {1}
    with pytest.raises(TypeError, match=r"masks on units, not weights: posterior.starting_weights\(1\)"):
        fit(model, MCDropout(num_steps=2), line).weights()
    # fit begins with key(seed), and fresh draws at the same seed must not repeat its numbers
    repeated = gaussian.family.draw(jax.random.key(0), jnp.asarray(0))
    pairs = zip(jax.tree.leaves(gaussian.weights(1, seed=0)), jax.tree.leaves(repeated), strict=False)
    assert not any(np.array_equal(fresh[0], other) for fresh, other in pairs)


def test_outputs_may_have_axes_between_rows_and_channels():
    """A scale and a shift of little pictures, per pixel, with noise that differs from pixel to pixel."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3, 4))
    noise = np.where(np.arange(4) < 2, 0.1, 0.5)
    y = 2 * x + 1 + noise * rng.normal(size=x.shape)

    def init(key, x):
        return {"scale": jnp.zeros(()), "shift": jnp.zeros(()), "log_variance": jnp.zeros(4)}

    def apply(params, x):
        mean = params["scale"] * x + params["shift"]
        return jnp.stack([mean, jnp.broadcast_to(params["log_variance"], mean.shape)], -1)

    model = Model(from_function(init, apply), HeteroscedasticGaussian(), dist.Normal(0.0, 3.0))
    posterior = fit(model, MAP(num_steps=1500, learning_rate=1e-2, batch_size=20), (x, y))
    prediction = posterior.predict(x)
    assert prediction.mean.shape == prediction.aleatoric.shape == prediction.interval(0.9)[0].shape == (50, 3, 4)
    assert prediction.log_prob(y).shape == (50,)
    np.testing.assert_allclose(np.sqrt(prediction.aleatoric[0, 0]), noise, rtol=0.2)
    assert np.abs(prediction.mean - (2 * x + 1)).max() < 0.2


REGRESSION = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5))
X, Y = np.zeros((6, 2)), np.zeros(6)
NAN = np.where(np.arange(6) == 4, np.nan, 0.0)


@pytest.mark.parametrize(
    ("model", "data", "settings", "error", "message"),
    [
        (REGRESSION, (np.where(X == 0, np.nan, X), Y), {}, ValueError, r"x has 12 NaN.*first at index \(0, 0\)"),
        (REGRESSION, (X, NAN), {}, ValueError, r"y has 1 NaN.*\(4,\)"),
        (REGRESSION, (X, np.full(6, np.inf)), {}, ValueError, "NaN or infinite"),
        (REGRESSION, (X, Y[:5]), {}, ValueError, "x has 6 rows and y has 5"),
        (REGRESSION, (X[:0], Y[:0]), {}, ValueError, "no rows"),
        (REGRESSION, (X, Y, -np.ones(6)), {}, ValueError, "weight must hold"),
        (REGRESSION, (X.astype(str), Y), {}, TypeError, "text.*get_dummies"),
        (REGRESSION, (X, Y.astype("datetime64[s]")), {}, TypeError, "dates"),
        (REGRESSION, X, {}, TypeError, r"tuple \(x, y\)"),
        (REGRESSION, (X, np.zeros((6, 2))), {}, ValueError, "y has shape"),
        (Model(linear(), Categorical(3)), (X, Y), {}, ValueError, "one class only"),
        (Model(linear(), Categorical(3)), (X, np.arange(6)), {}, ValueError, "has 3 classes"),
        (Model(linear(), Bernoulli()), (X, Y + 0.5), {}, ValueError, "class labels"),
        (Model(linear(), Poisson()), (X, Y - 1), {}, ValueError, "counts"),
        (Model(linear(3), HeteroscedasticGaussian()), (X, Y), {}, ValueError, "takes 2 outputs"),
        (REGRESSION, (X, Y), {"chains": 0}, ValueError, "at least 1"),
        (REGRESSION, (X, Y), {"budget": -1}, ValueError, "a number of seconds above 0"),
        (REGRESSION, (X, Y), {"seed": -1}, ValueError, "seed"),
        (REGRESSION, (X, Y), {"holdout": 1.5}, ValueError, "between 0 and 1"),
        (REGRESSION, (X, Y), {"validation": 0.01}, ValueError, "empty side"),
        (REGRESSION, (X, Y), {"holdout": (X, Y)}, ValueError, "inputs alone, without targets"),
        (REGRESSION, (X, Y), {"holdout": X[:, :1]}, ValueError, r"holdout has rows of shape \(1,\)"),
        (REGRESSION, (X, Y), {"validation": (X[:, :1], Y)}, ValueError, r"validation has rows of shape \(1,\)"),
        (REGRESSION, (X, Y), {"method": MAP}, TypeError, r"MAP\(\)"),
        (REGRESSION, (X, Y), {"method": MAP(batch_size=7)}, ValueError, "more than the 6 rows.*'full'"),
        (REGRESSION, (X, Y), {"method": MAP(batch_size=0)}, ValueError, "at least 1"),
        (linear(), (X, Y), {}, TypeError, r"Model\(network"),
    ],
)
def test_bad_input_names_the_remedy(model, data, settings, error, message):
    method = settings.pop("method", MAP())
    with pytest.raises(error, match=message):
        fit(model, method, data, **settings)


@pytest.mark.parametrize("settings", [{"num_steps": 0}, {"learning_rate": 0.0}, {"num_epochs": -1}])
def test_bad_settings_of_a_method(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))}"):
        MAP(**settings)


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword"):
        MAP(steps=3)


def test_ctrl_c_ends_a_run_politely(wave):
    model = Model(mlp((8,)), Gaussian(0.1), dist.Normal(0.0, 1.0))
    timer = threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    posterior = fit(model, MAP(num_steps=10**9, batch_size=16), wave)
    timer.join()
    assert "interrupted after" in posterior.receipt.notes[0]
    assert 0 < posterior.receipt.num_steps < 10**9
    assert np.isfinite(posterior.predict(wave[0]).mean).all()


@pytest.mark.long
def test_the_receipt_counts_gradients_by_steps_and_not_by_records(line):
    model = Model(linear(), Gaussian(0.3), dist.Normal(0.0, 0.5))
    posterior = fit(model, HMC(num_draws=5, num_burn_in=10, thin=4), line)
    steps = np.array([1] * 10 + [4] * 5)
    assert posterior.receipt.num_gradients == round(float((posterior.trace["num_gradients"] * steps).sum()))


def test_the_receipt_names_a_temperature_where_it_moves_the_answer(line):
    def stated(method, tempering):
        model = Model(linear(), Gaussian(0.3), temperature=0.5, tempering=tempering)
        return fit(model, method, line).receipt.temperature

    assert stated(MAP(num_steps=5), "likelihood") == 0.5
    assert stated(MAP(num_steps=5), "posterior") == "not applicable"
    assert stated(MLE(num_steps=5), "likelihood") == "not applicable"


@pytest.mark.long
def test_a_run_that_begins_where_another_ended_does_not_repeat_its_random_numbers(line):
    """Chains with common noise run into each other: draws of the second would be those of the first once more."""
    model, sampler = Model(linear(), Gaussian(0.3)), HMC(num_draws=60, num_burn_in=20, step_size=0.02)
    first = fit(model, sampler, line)
    second = fit(model, HMC(num_draws=60, num_burn_in=20, step_size=0.02, start=first), line)
    third = fit(model, HMC(num_draws=60, num_burn_in=20, step_size=0.02, start=second), line)
    runs = (first, second, third)
    draws = [np.asarray(one.family.draws["network"]["layer_0"]["bias"])[:, 30:].ravel() for one in runs]
    between = np.abs(np.corrcoef(draws)[np.triu_indices(3, 1)])
    assert between.max() < 5 / np.sqrt(len(draws[0]))
    assert "start=HMC(" in second.receipt.method
