"""A posterior as a prior: exact where weights are independent, for every method that takes one; coresets; two tasks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import (
    HMC,
    MAP,
    METHODS,
    BayesByBackprop,
    Bernoulli,
    Categorical,
    Exact,
    Fixed,
    Gaussian,
    Laplace,
    MCDropout,
    Model,
    Normal,
    continual_learning,
    coreset,
    fit,
    linear,
    load,
    mlp,
)
from posterity.core.types import Batch

RNG = np.random.default_rng(0)
# Columns that are orthogonal to each other and to the constant: the weights are independent given the rows.
HALF = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
X = np.tile(HALF, (6, 1))
Y = X @ np.array([0.7, -0.3]) + 0.2 + 0.5 * RNG.normal(size=24)
LINE = Model(linear(), Gaussian(0.5), Normal(0.0, 1.0))


def test_two_halves_one_after_the_other_are_the_whole():
    """Where weights are independent given the rows, nothing is lost but the error of 4,000 draws of the width."""
    whole = fit(LINE, Exact(), (X, Y), progress=False).predict(X[:4])
    first = fit(LINE, Exact(), (X[:12], Y[:12]), progress=False)
    second = fit(Model(linear(), Gaussian(0.5), first.as_prior()), Exact(), (X[12:], Y[12:]), progress=False)
    found = second.predict(X[:4])
    spread = np.sqrt(whole.epistemic)
    assert (abs(found.mean - whole.mean) < 0.1 * spread).all()
    np.testing.assert_allclose(found.epistemic, whole.epistemic, rtol=0.05)


def test_the_density_and_the_draws_of_such_a_prior_are_those_of_gaussians():
    posterior = fit(LINE, Exact(), (X, Y), progress=False)
    given = posterior.as_prior(widen=2.0)
    model = Model(linear(), Gaussian(0.5), given)
    params = model.init(jax.random.key(0), X)
    draws = posterior.weights(4000)
    mean = jax.tree.map(lambda leaf: leaf.mean(0), draws)
    std = jax.tree.map(lambda leaf: 2 * leaf.std(0, ddof=1), draws)
    wanted = jax.tree.map(lambda w, m, s: Normal(m, s).log_prob(w).sum(), params, mean, std)
    assert float(model.log_prior(params)) == pytest.approx(sum(map(float, jax.tree.leaves(wanted))), rel=1e-5)
    keys = jax.random.split(jax.random.key(1), 5000)
    sampled = jax.vmap(lambda key: model.sample_prior(key, params))(keys)
    jax.tree.map(
        lambda leaf, m, s: np.testing.assert_allclose((leaf.mean(0) - m) / s, 0.0, atol=5 / np.sqrt(5000)),
        *(sampled, mean, std),
    )
    jax.tree.map(lambda leaf, s: np.testing.assert_allclose(leaf.std(0) / s, 1.0, atol=0.06), sampled, std)
    assert "Normal of each weight" in str(given)


def test_a_mean_field_posterior_is_handed_on_as_it_is(monkeypatch):
    settings = {"num_steps": 200, "batch_size": "full", "learning_rate": 1e-2}
    posterior = fit(LINE, BayesByBackprop(**settings), (X, Y), progress=False)
    # Draws of large networks would fill the memory, and nothing needs them.
    monkeypatch.setattr(type(posterior), "weights", lambda *_: pytest.fail("draws were made"))
    given = posterior.as_prior()
    monkeypatch.undo()
    weight = given.find("network/layer_0/weight")
    np.testing.assert_array_equal(weight.loc, posterior.family.mean["network"]["layer_0"]["weight"][0])
    np.testing.assert_array_equal(weight.scale, posterior.family.scale["network"]["layer_0"]["weight"][0])
    # Its closed-form log prior is the expectation of the density over the family.
    again = Model(linear(), Gaussian(0.5), given)
    from posterity.inference.methods.bayes_by_backprop import _expected_log_prior

    mean, scale = (jax.tree.map(lambda leaf: leaf[0], part) for part in (posterior.family.mean, posterior.family.scale))
    keys = jax.random.split(jax.random.key(0), 4000)
    densities = jax.vmap(lambda key: again.log_prior(again.sample_prior(key, mean)))(keys)
    error = float(densities.std()) / np.sqrt(4000)
    assert float(_expected_log_prior(again, mean, scale)) == pytest.approx(float(densities.mean()), abs=4 * error)


def test_such_a_prior_can_be_stored(tmp_path):
    first = fit(LINE, Exact(), (X, Y), progress=False)
    second = fit(Model(linear(), Gaussian(0.5), first.as_prior()), Exact(), (X, Y), progress=False)
    second.save(tmp_path / "second")
    again = load(tmp_path / "second")
    batch = Batch(jnp.asarray(X), jnp.asarray(Y), jnp.ones(24))
    params = LINE.init(jax.random.key(0), X)
    assert float(again.model.log_joint(params, batch)) == pytest.approx(float(second.model.log_joint(params, batch)))


def test_what_is_held_fixed_stays_so_and_points_are_refused():
    with pytest.raises(ValueError, match="do not vary over draws"):
        fit(LINE, MAP(num_steps=5), (X, Y), progress=False).as_prior()
    with pytest.raises(ValueError, match="number above 0"):
        fit(LINE, Exact(), (X, Y), progress=False).as_prior(widen=0)
    partly = Model(linear(), Gaussian(0.5), {"*bias": Fixed(), "*": Normal(0.0, 1.0)})
    given = fit(partly, Exact(), (X, Y), progress=False).as_prior()
    assert given.is_fixed("network/layer_0/bias")
    assert given.is_gaussian("network/layer_0/weight")


SMALL = {"num_steps": 30, "batch_size": "full"}
TAKING = {
    "map": MAP(**SMALL),
    "mc_dropout": MCDropout(**SMALL),
    "bayes_by_backprop": BayesByBackprop(**SMALL),
    "laplace": Laplace(start=MAP(**SMALL)),
    "swag": METHODS["swag"](**SMALL, start=MAP(**SMALL), rank=3),
    "hmc": HMC(num_draws=5, num_burn_in=10, max_leapfrog=8),
    "nuts": METHODS["nuts"](num_draws=5, num_burn_in=10, max_depth=3),
    "sghmc": METHODS["sghmc"](num_draws=5, num_burn_in=20, thin=2),
    "mile": METHODS["mile"](num_draws=6, num_burn_in=100, start=METHODS["deep_ensemble"](**SMALL, num_members=2)),
    "smc": METHODS["smc"](num_particles=8, num_moves=1, num_last_steps=2, max_leapfrog=4),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:chain .* accepted no step")
@pytest.mark.parametrize("name", TAKING)
def test_every_method_takes_such_a_prior(name):
    network = mlp((3,), activation="tanh", dropout=0.1)
    first = fit(Model(network, Gaussian(0.5)), BayesByBackprop(**SMALL), (X, Y), progress=False)
    second = fit(Model(network, Gaussian(0.5), first.as_prior()), TAKING[name], (X, Y), progress=False)
    assert np.isfinite(second.predict(X).total).all()


@pytest.mark.long
def test_hmc_samples_the_posterior_under_such_a_prior():
    """Widths that differ from weight to weight by a factor of ten: masses follow them."""
    first = fit(LINE, Exact(), (X * np.array([1.0, 5.0]), Y), progress=False)
    model = Model(linear(), Gaussian(0.5), first.as_prior())
    exact = fit(model, Exact(), (X, Y), progress=False).predict(X[:4])
    found = fit(model, HMC(num_draws=500, num_burn_in=200), (X, Y), chains=4, progress=False).predict(X[:4])
    assert (abs(found.mean - exact.mean) < 0.15 * np.sqrt(exact.epistemic)).all()
    np.testing.assert_allclose(found.epistemic, exact.epistemic, rtol=0.2)


def test_a_coreset_covers_the_inputs():
    points = np.concatenate([RNG.normal(scale=0.1, size=(50, 2)) + centre for centre in ((0, 0), (5, 0), (0, 5))])
    assert sorted(coreset(points, 3) // 50) == [0, 1, 2]
    assert len(set(coreset(points, 40))) == 40
    assert len(set(coreset({"a": points, "b": points[:, 0]}, 10, "random"))) == 10
    with pytest.raises(ValueError, match="there are 150 rows"):
        coreset(points, 151)
    with pytest.raises(ValueError, match="choose 'spread'"):
        coreset(points, 2, "near")  # type: ignore[arg-type]


def permuted_digits(num_tasks):
    """(x, y) to train on and to test on of each task: the pixels in an order of its own."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(y))
    parts = [((x[part] / 16).astype(np.float32), y[part]) for part in (rows[:1200], rows[1200:])]
    orders = [rng.permutation(64) for _ in range(num_tasks)]
    return [[(x[:, order], y) for x, y in parts] for order in orders]


@pytest.mark.long
def test_three_tasks_are_all_known_at_the_end_where_fine_tuning_forgets():
    """Permuted digits: 0.85 on average, and with 50 rows of each task set aside above 0.9 on every one."""
    tasks = permuted_digits(3)
    train = [rows for rows, _ in tasks]
    model = Model(mlp((100,)), Categorical(10), Normal(0.0, 1.0))
    settings = {"num_steps": 4000, "batch_size": 256, "learning_rate": 3e-3}
    method = BayesByBackprop(**settings)

    def accuracies(posterior):
        return [np.mean(posterior.predict(x).label == y) for _, (x, y) in tasks]

    handed_on = accuracies(continual_learning(model, method, train)[-1])
    last = BayesByBackprop(**settings | {"num_steps": 1000, "batch_size": None})
    kept = accuracies(continual_learning(model, method, train, coreset_size=50, coreset_method=last)[-1])
    tuned = None
    for rows in train:
        tuned = fit(model, MAP(**settings, start=tuned), rows, progress=False)
    print("handed on", handed_on, "with a coreset", kept, "fine-tuned", accuracies(tuned))
    assert np.mean(handed_on) > 0.8
    assert min(kept) > 0.9
    assert accuracies(tuned)[0] < 0.5


@pytest.mark.long
def test_a_task_that_contradicts_the_first_replaces_it_as_the_free_energy_asks():
    """Classes by the sign of the first column, at two places of the second: opposite at the second place.

    The nearest mean-field posterior is the one that forgets. Begun where both tasks are known, the second still ends
    there, at a free energy no higher than from where the first ended: it is no failure of the optimiser.
    """
    rng = np.random.default_rng(1)

    def task(place):
        x = np.stack([rng.normal(size=200), place + 0.3 * rng.normal(size=200)], 1)
        return x, ((x[:, 0] > 0) == (place > 0)).astype(int)

    tasks = [task(-2.0), task(2.0)]
    model = Model(mlp((20,), activation="tanh"), Bernoulli(), Normal(0.0, 1.0))
    method = BayesByBackprop(num_steps=3000, batch_size="full", learning_rate=1e-2)

    def accuracies(posterior):
        return [np.mean(posterior.predict(x).label == y) for x, y in tasks]

    first = fit(model, method, tasks[0], progress=False)
    joint = fit(model, method.beginning_at(first), tuple(map(np.concatenate, zip(*tasks, strict=True))), progress=False)
    assert min(accuracies(joint)) > 0.9
    again = Model(model.network, model.likelihood, first.as_prior())
    from_first, from_joint = (fit(again, method.beginning_at(p), tasks[1], progress=False) for p in (first, joint))
    loss = [float(np.asarray(found.trace["loss"])[..., -200:].mean()) for found in (from_first, from_joint)]
    print("free energy a row", loss, accuracies(from_first), accuracies(from_joint))
    assert accuracies(from_joint)[0] < 0.5
    assert loss[1] < loss[0] + 0.02
