"""The study of Bayes by Backprop: what it writes, its arithmetic, and the rules of the bandit."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import DATA

from posterity import MLE, BayesByBackprop, Gaussian, Model, Normal, mlp
from posterity.studies.published import bandit, blundell2015
from posterity.studies.study import reproduce

needs_data = pytest.mark.skipif(
    not ((DATA / "mnist").exists() and (DATA / "mushroom").exists()),
    reason="MNIST and the mushrooms are not in the data folder; name another in POSTERITY_DATA",
)


@needs_data
@pytest.mark.long
def test_tiny_run_writes_numbers_table_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(DATA))
    rows = {row.name: row for row in reproduce("blundell2015", "tiny", tmp_path)}
    document = json.loads((tmp_path / "blundell2015-tiny.json").read_text())
    assert {"mnist/sgd", "mnist/mixture", "curve/bayes", "bandit/thompson"} <= set(document["parts"])
    assert all((tmp_path / name).stat().st_size > 5_000 for name in document["pictures"])
    assert "| MNIST, maximum likelihood" in (tmp_path / "blundell2015-tiny.md").read_text()

    mixture = document["parts"]["mnist/mixture"]
    assert mixture["error"] == pytest.approx(100 * len(mixture["wrong"]) / 500)
    assert mixture["wrong_pruned"]["0"] == mixture["wrong"], "removing nothing changes nothing"
    removed = [len(wrong) for wrong in mixture["wrong_pruned"].values()]
    assert removed[-1] > removed[0], "two weights in a hundred do not make a classifier of 20 units"
    for part in ("sgd", "mixture"):
        assert document["parts"][f"mnist/{part}"]["error"] < 75, "nine in ten are wrong by chance"
    assert rows["MNIST, maximum likelihood: test error, %"].published == 1.83
    assert rows["Curve: epistemic sd far outside (x < -0.1 or x > 1) / inside the data"].ours > 1


def test_errors_of_the_same_rows_are_compared_as_pairs():
    rng = np.random.default_rng(0)
    first, second = rng.random(1000) < 0.05, rng.random(1000) < 0.03
    more, error = blundell2015._paired(np.flatnonzero(first).tolist(), np.flatnonzero(second).tolist(), 1000)
    differences = 100 * (first.astype(float) - second)
    assert more == pytest.approx(differences.mean())
    assert error == pytest.approx(differences.std() / np.sqrt(1000))


def test_rewards_and_regret_of_the_bandit():
    keys = jax.random.split(jax.random.key(0), 4000)

    def rewards(poisonous, action):
        return np.asarray(jax.vmap(bandit.earn, (0, None, None))(keys, jnp.array(poisonous), jnp.array(action)))

    assert set(rewards(0, bandit.EAT)) == {5.0}
    assert set(rewards(1, bandit.EAT)) == {5.0, -35.0}
    assert not rewards(0, bandit.PASS).any()
    assert not rewards(1, bandit.PASS).any()
    assert abs(rewards(1, bandit.EAT).mean() + 15) < 4 * 20 / np.sqrt(len(keys))
    regrets = [[float(bandit.expected_regret(jnp.array(p), jnp.array(a))) for a in (0, 1)] for p in (0, 1)]
    assert regrets == [[5.0, 0.0], [0.0, 15.0]]


@pytest.mark.parametrize("method", [BayesByBackprop(learning_rate=1e-2), MLE(learning_rate=1e-2)])
def test_an_agent_learns_what_is_poisonous(method):
    poisonous = jnp.arange(40) % 2
    table = bandit.Mushrooms(jax.nn.one_hot(poisonous, 2), poisonous)
    model = Model(mlp((10,)), Gaussian(5.0), Normal(0.0, 1.0))
    protocol = bandit.Protocol(num_interactions=300, num_updates=4, batch_size=16, memory=100, num_draws=2)
    keys = jax.random.split(jax.random.key(1), 3)
    history = bandit.play(model, method, table, protocol, 0.1, keys)
    assert history.regret.shape == (3, 300)
    # A coin would regret (5 + 15) / 4 a mushroom; the random tenth of the actions alone, a tenth of that.
    assert history.regret[:, -100:].mean() < 2 < history.regret[:, :20].mean()
    assert np.isfinite(history.loss).all()
    assert not np.array_equal(history.action[0], history.action[1])


@pytest.mark.long
def test_runs_of_one_program_do_not_touch_each_other():
    table = bandit.Mushrooms(jnp.eye(4), jnp.arange(4) % 2)
    model = Model(mlp((5,)), Gaussian(5.0), Normal(0.0, 1.0))
    protocol = bandit.Protocol(num_interactions=30, num_updates=1, batch_size=8, memory=10, num_draws=2)
    keys = jax.random.split(jax.random.key(0), 3)
    together = bandit.play(model, BayesByBackprop(), table, protocol, 0.0, keys)
    alone = bandit.play(model, BayesByBackprop(), table, protocol, 0.0, keys[2:])
    np.testing.assert_array_equal(together.action[2:], alone.action)
    np.testing.assert_allclose(together.loss[2:], alone.loss, rtol=1e-4)
