"""Stuck chains: found on warm-up alone, started afresh, said in the receipt, never averaged in silently."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import HMC, Gaussian, Model, Normal, fit, from_function, mlp, resume
from posterity.inference.checkpoint import Checkpoint
from posterity.inference.restarts import StuckError
from posterity.inference.step_size import stuck_chains

X, Y = np.zeros((4, 1)), np.zeros(4)


def pitted(depth_of):
    """A network whose first weight decides: below 0 it falls into a spike so narrow that no step size fits."""

    def init(key, x):
        return {"w": depth_of(key), "v": jnp.zeros(())}

    def apply(params, x):
        narrow = jnp.where(params["w"] < 0, 1e7, 1.0)
        return jnp.broadcast_to(narrow * params["v"] + 1e-3 * params["w"], (x.shape[0], 1))

    return Model(from_function(init, apply), Gaussian(1.0), Normal(0.0, 3.0))


def trace(acceptance, step_size):
    count = len(step_size)
    log_joint = np.random.default_rng(0).normal(size=(count, 20))
    return {
        "acceptance": np.repeat(np.array(acceptance)[:, None], 20, 1),
        "step_size": np.repeat(np.array(step_size)[:, None], 20, 1),
        "log_joint": log_joint,
    }


def test_what_counts_as_stuck():
    assert stuck_chains(trace([0.8, 0.7, 0.8, 0.9], [0.1, 0.2, 0.1, 1e-9])).tolist() == [False, False, False, True]
    assert stuck_chains(trace([0.8, 0.0], [0.1, 0.1])).tolist() == [False, True]
    assert stuck_chains(trace([0.8, 0.7], [0.1, 0.02])).tolist() == [False, False]


def test_a_warm_up_of_a_few_steps_cannot_tell():
    few = {name: values[:, -2:] for name, values in trace([0.8, 0.7], [0.1, 0.1]).items()}
    assert stuck_chains(few).tolist() == [False, False]
    few["acceptance"][1] = 0.0
    assert stuck_chains(few).tolist() == [False, True]


METHOD = HMC(num_draws=20, num_burn_in=20, max_leapfrog=200)


def test_a_stuck_chain_is_restarted_and_said():
    def sometimes(key):
        return jnp.where(jax.random.uniform(key) < 0.35, -50.0, 5.0)

    posterior = fit(pitted(sometimes), METHOD, (X, Y), seed=2)
    assert "started afresh (attempt 1)" in posterior.receipt.notes[0]
    weights = np.asarray(posterior.family.draws["network"]["w"])
    assert weights.shape == (4, 20)
    assert (weights > 0).mean() > 0.5


def test_a_chain_that_stays_stuck_is_left_out_aloud(monkeypatch):
    monkeypatch.setattr(HMC, "stuck", lambda self, trace: np.array([False, True, False, False]))
    with pytest.warns(UserWarning, match="chain 1 stayed stuck"):
        posterior = fit(pitted(lambda key: jnp.asarray(5.0)), METHOD, (X, Y))
    assert posterior.family.num_chains == 3
    assert posterior.receipt.num_chains == 3
    assert posterior.trace["acceptance"].shape[0] == 3
    assert "left out" in posterior.receipt.notes[-1]


def test_a_restart_survives_the_store_and_a_cut(tmp_path, monkeypatch):
    """Killed after the restarts, a resumed run has the same draws, and still leaves out what stayed stuck."""
    rows = np.array([False, True, False, False])
    monkeypatch.setattr(HMC, "stuck", lambda self, trace: rows)
    model = Model(mlp((2,)), Gaussian(1.0), Normal(0.0, 1.0))
    data = (np.random.default_rng(0).normal(size=(6, 1)), np.zeros(6))
    with pytest.warns(UserWarning, match="stuck"):
        whole = fit(model, METHOD, data)
    save = Checkpoint.save

    def save_then_stop(self, *arguments):
        save(self, *arguments)
        if self.progress["phase"] == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", save_then_stop)
    monkeypatch.setattr("posterity.inference.checkpoint.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("posterity.inference.run.SEGMENT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        fit(model, METHOD, data, store=tmp_path / "run")
    monkeypatch.setattr(Checkpoint, "save", save)
    with pytest.warns(UserWarning, match="stuck"):
        back = resume(tmp_path / "run")
    assert back.family.num_chains == 3
    pairs = zip(jax.tree.leaves(back.family), jax.tree.leaves(whole.family), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert all(np.array_equal(back.trace[name], whole.trace[name]) for name in whole.trace)


def test_nothing_but_stuck_chains_is_an_error(monkeypatch):
    monkeypatch.setattr(HMC, "stuck", lambda self, trace: np.ones(4, bool))
    with pytest.raises(StuckError, match=r"start=MAP\(\)"):
        fit(pitted(lambda key: jnp.asarray(5.0)), METHOD, (X, Y))
