"""SWAG against numpy on a stored trajectory, and its draws against the formula of the paper."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from sklearn.datasets import load_digits

from posterity import metrics
from posterity.core import pytrees, records
from posterity.core.types import Batch, Clock
from posterity.inference.engine.driver import fit
from posterity.inference.methods.point import MAP
from posterity.inference.methods.swag import SWAG
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.networks import linear
from posterity.tables.defaults import table_model
from posterity.weights.families import LowRankGaussian

NUM_ROWS, BATCHES, RANK = 12, 3, 4
MODEL = Model(linear(), Gaussian(0.5), dist.Normal(0.0, 1.0))
START = {"layer_0": {"weight": np.float32([[100.0], [-100.0]]), "bias": np.float32([0.5])}}


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_ROWS, 2)).astype(np.float32)
    return x, (x[:, 0] - 0.5 * x[:, 1] + 0.5 * generator.normal(size=NUM_ROWS)).astype(np.float32)


def flat(params):
    layer = params["network"]["layer_0"]
    return np.concatenate([np.asarray(layer["weight"])[..., 0], np.asarray(layer["bias"])], -1)


@functools.cache
def trajectory(method, num_steps=20):
    """The state after every step, [num_steps, ...], and the start, of a quadratic loss with rows in a fixed order."""
    x, y = data()
    kernel = method.kernel(MODEL)
    params = {"network": jax.tree.map(jnp.asarray, START)}

    def batch(step):
        rows = (step % BATCHES) * 4 + jnp.arange(4)
        return Batch(jnp.asarray(x)[rows], jnp.asarray(y)[rows], jnp.ones(4))

    def clock(step):
        counts = (jnp.asarray(float(BATCHES)), jnp.asarray(float(NUM_ROWS)))
        return Clock(step, jnp.asarray(num_steps), jnp.asarray(0), step % BATCHES, *counts)

    @jax.jit
    def run():
        first = kernel.init(jax.random.key(0), params, batch(jnp.asarray(0)), clock(jnp.asarray(0)))

        def body(state, step):
            state, _ = kernel.step(jax.random.key(1), state, batch(step), clock(step))
            return state, state

        return jax.lax.scan(body, first, jnp.arange(num_steps))[1]

    return run(), flat(params)


def test_the_default_rate_is_a_share_of_the_largest_curvature():
    """Of a linear model the Hessian is known: X^T X / (N s^2) + 1 / N, X with a column of ones, for the batch."""
    states, _ = trajectory(SWAG(rank=RANK))
    design = np.concatenate([data()[0][:4], np.ones((4, 1))], 1)
    hessian = design.T @ design / (4 * 0.5**2) + np.eye(3) / NUM_ROWS
    assert float(states.learning_rate[-1]) == pytest.approx(0.5 / np.linalg.eigvalsh(hessian).max(), rel=0.01)


def test_batches_are_small_enough_for_noise():
    assert [SWAG().plan(rows)[0].batch_size for rows in (40, 400, 4_000)] == [10, 100, 128]
    assert SWAG(batch_size="full").plan(4_000)[0].batch_size is None


@pytest.mark.long
def test_the_default_spreads_around_the_optimum_and_stays_calibrated():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = ((x - x.mean(0)) / np.maximum(x.std(0), 1e-3))[order], y[order]
    model = table_model("classification", 10)
    start = fit(model, MAP(num_steps=2_000, learning_rate=1e-2, batch_size="full"), (x[:1200], y[:1200]))
    method = SWAG(start=start, num_steps=1_000, snapshot_every=20)
    probs = [np.asarray(p.predict(x[1200:]).mean) for p in (start, fit(model, method, (x[:1200], y[:1200])))]
    assert np.abs(probs[0] - probs[1]).sum(1).mean() / 2 > 5e-3  # total variation
    losses = [-np.log(p[np.arange(len(p)), y[1200:]]) for p in probs]
    worse = losses[1] - losses[0]
    assert worse.mean() < 2 * worse.std() / np.sqrt(len(worse))
    errors = [metrics.calibration_error(p, y[1200:]) for p in probs]
    assert errors[1].value < errors[0].value + 2 * errors[0].standard_error


@pytest.mark.parametrize("snapshot_every", [None, 2])
def test_moments_equal_those_of_the_stored_trajectory(snapshot_every):
    """Far from zero (weights of about 100), where the difference of squares would lose all its digits in float32."""
    method = SWAG(learning_rate=1e-3, rank=RANK, snapshot_every=snapshot_every)
    states, start = trajectory(method)
    every = snapshot_every or BATCHES
    snapshots = flat(states.params)[every - 1 :: every].astype(np.float64)
    path = np.concatenate([start[None], snapshots])
    last = jax.tree.map(lambda leaf: leaf[-1:], states)  # [C = 1, ...]
    count = len(snapshots)
    assert int(last.num_snapshots[0]) == count == 20 // every
    result = method.finish(MODEL, last, None, None)
    family = result.family
    assert result.facts == {"num_snapshots": count}
    assert isinstance(family, LowRankGaussian)
    np.testing.assert_allclose(flat(family.mean)[0], path.mean(0), rtol=1e-6)
    np.testing.assert_allclose(flat(family.scale)[0], path.std(0), rtol=1e-4)
    running = np.cumsum(path, 0) / np.arange(1, len(path) + 1)[:, None]
    wanted = (path - running)[1:]
    slots = [max(n for n in range(count) if n % RANK == slot) for slot in range(RANK)]
    np.testing.assert_allclose(flat(family.deviations)[0], wanted[slots], atol=3e-5)


def test_step_is_sgd_with_momentum_on_the_negative_log_joint_per_datum():
    states, start = trajectory(SWAG(learning_rate=1e-3, rank=RANK))
    x, y = (part.astype(np.float64) for part in data())
    w, velocity, path = start.astype(np.float64), np.zeros(3), []
    for step in range(3):
        rows = slice(4 * step, 4 * step + 4)
        design = np.concatenate([x[rows], np.ones((4, 1))], 1)
        gradient = (BATCHES * design.T @ (design @ w - y[rows]) / 0.25 + w) / NUM_ROWS
        velocity = 0.9 * velocity + gradient
        w = w - 1e-3 * velocity
        path.append(w)
    np.testing.assert_allclose(flat(states.params)[:3], path, rtol=1e-5)


def test_covariance_of_draws_is_the_formula():
    """(diag(scale^2) + D D^T / (R - 1)) / 2; a sample covariance errs by sqrt((c_ii c_jj + c_ij^2) / n)."""
    method = SWAG(learning_rate=1e-3, rank=RANK, snapshot_every=2)
    states, _ = trajectory(method)
    family = method.finish(MODEL, jax.tree.map(lambda leaf: leaf[-1:], states), None, None).family
    num_draws = 40_000
    draws = flat(jax.jit(jax.vmap(lambda index: family.draw(jax.random.key(2), index)))(jnp.arange(num_draws)))
    deviations = flat(family.deviations)[0].astype(np.float64)
    exact = (np.diag(flat(family.scale)[0].astype(np.float64) ** 2) + deviations.T @ deviations / (RANK - 1)) / 2
    variance = np.diag(exact)
    centred = draws.astype(np.float64) - flat(family.mean)[0]
    np.testing.assert_array_less(np.abs(centred.mean(0)), 4.5 * np.sqrt(variance / num_draws))
    error = np.sqrt((np.outer(variance, variance) + exact**2) / num_draws)
    np.testing.assert_array_less(np.abs(centred.T @ centred / num_draws - exact), 4.5 * error)


@pytest.fixture(scope="module")
def mixture():
    method = SWAG(num_steps=9, batch_size=4, start=MAP(num_steps=300, learning_rate=0.03, batch_size="full"))
    return fit(MODEL, method, data(), chains=2, progress=False)


def test_two_chains_are_a_mixture_from_the_optimum(mixture):
    """The first stage finds the optimum; nine small steps keep each chain's mean near it."""
    x, y = data()
    design = np.concatenate([x, np.ones((NUM_ROWS, 1))], 1)
    optimum = np.linalg.solve(design.T @ design / 0.25 + np.eye(3), design.T @ y / 0.25)
    assert mixture.family.num_chains == 2
    np.testing.assert_allclose(flat(mixture.family.mean), [optimum, optimum], atol=0.02)
    weights = flat(mixture.weights(4))
    assert len(np.unique(weights[:, 0])) == 4


def test_slots_without_a_snapshot_are_no_deviations(mixture):
    """Nine steps of three batches an epoch: three snapshots, so rank 3 although 20 were allowed."""
    assert flat(mixture.family.deviations).shape == (2, 3, 3)
    assert mixture.facts["num_snapshots"] == 3
    assert np.all(np.abs(flat(mixture.family.deviations)).max(-1) > 0)
    assert mixture.receipt.temperature == "not applicable"


def test_what_cannot_be_done_is_refused(mixture):
    method = mixture.method
    with pytest.raises(ValueError, match="1 snapshot"):
        fit(MODEL, dataclasses.replace(method, num_steps=5), data(), progress=False)
    with pytest.raises(ValueError, match="rank=1"):
        SWAG(rank=1)
    with pytest.raises(ValueError, match="snapshot_every=0"):
        SWAG(snapshot_every=0)
    states, _ = trajectory(SWAG(learning_rate=1e-3, rank=RANK))
    early = jax.tree.map(lambda leaf: leaf[3:4], states)
    with pytest.raises(ValueError, match="stopped after 1"):
        SWAG(rank=RANK).finish(MODEL, early, None, None)


def test_any_optimiser_can_walk():
    states, _ = trajectory(SWAG(rank=RANK, optimizer=optax.adam, learning_rate=0.1))
    np.testing.assert_allclose(np.abs(flat(states.params)[0] - flat({"network": START})), 0.1, rtol=1e-3)


@pytest.mark.parametrize("method", [MAP(num_steps=7, optimizer=optax.sgd), SWAG(num_steps=9, start=START, rank=2)])
def test_a_posterior_temperature_leaves_the_descent_as_it_is(method):
    """The optimum does not depend on it, nor may the width of SWAG: the loss is not divided by T."""
    families = [
        fit(records.replace(MODEL, temperature=temperature), method, data(), progress=False).family
        for temperature in (1.0, 0.01)
    ]
    jax.tree.map(np.testing.assert_array_equal, *families)


def test_a_likelihood_temperature_weighs_the_prior_and_not_the_step():
    """LL + T LP, whose peak is that of LL / T + LP; one step of SGD follows its gradient per row."""
    x, y = data()
    temperature, rate = 0.1, 1e-3
    model = records.replace(MODEL, temperature=temperature, tempering="likelihood")
    method = MAP(num_steps=1, learning_rate=rate, optimizer=optax.sgd, batch_size="full", start=START)
    moved = flat(fit(model, method, (x, y), progress=False).family.point())[0]
    weights, design = flat({"network": START}).astype(float), np.c_[x, np.ones(NUM_ROWS)].astype(float)
    gradient = design.T @ (y - design @ weights) / 0.5**2 - temperature * weights
    np.testing.assert_allclose(moved, weights + rate * gradient / NUM_ROWS, rtol=1e-5)


@pytest.mark.parametrize("num_chains", [1, 3])
def test_draws_are_those_of_the_formula_and_made_once(num_chains):
    """Against mean + (scale e + D z / sqrt(R - 1)) / sqrt(2) by hand; blocks of rows share what was made."""
    rng = np.random.default_rng(0)
    shape = {"w": (4, 3), "b": (3,)}

    def arrays(*lead):
        return {name: rng.normal(size=(num_chains, *lead, *sizes)).astype(np.float32) for name, sizes in shape.items()}

    mean, scale, deviations = arrays(), arrays(), arrays(5)
    family, key = LowRankGaussian(mean, scale, deviations), jax.random.key(2)
    index = np.array([0, 4, 7])
    made, local = family.at_hand(key, index)
    assert made.num_draws == 3
    for number, draw in zip(local, index, strict=True):
        chain = draw % num_chains
        key_diagonal, key_rank = jax.random.split(jax.random.fold_in(key, draw))
        noise = pytrees.normal_like(key_diagonal, jax.tree.map(lambda leaf: leaf[0], mean))
        along = np.asarray(jax.random.normal(key_rank, (5,))) / 2
        found, drawn = made.draw(key, number), family.draw(key, draw)
        for name in shape:
            low_rank = np.tensordot(along, deviations[name][chain], 1)
            expected = mean[name][chain] + (scale[name][chain] * noise[name] + low_rank) / np.sqrt(2)
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(drawn[name], expected, rtol=1e-5, atol=1e-6)
