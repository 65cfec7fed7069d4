"""Stuck chains: found on warm-up alone, started afresh, said in the receipt, never averaged in silently."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import HMC, NUTS, SGLD, Gaussian, Model, Normal, fit, from_function, mlp, resume
from posterity.inference.checkpoint import Checkpoint
from posterity.inference.job import Run
from posterity.inference.restarts import StuckError, say_unmoved
from posterity.inference.step_size import rounded_away, stuck_chains

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


@pytest.mark.parametrize("num_chains", [1, 4])
def test_a_collapse_is_seen_without_another_chain_to_compare(num_chains):
    """All at 1e-9, from a first step size of 0.1; a dip of a few orders, as dual averaging makes it, is none."""
    collapsed = trace([0.8] * num_chains, [1e-9] * num_chains)
    collapsed["step_size"][:, 0] = 0.1
    assert stuck_chains(collapsed).all()
    dip = trace([0.8] * num_chains, [1e-9] * num_chains)
    dip["step_size"][:, [0, 12]] = 0.1
    assert not stuck_chains(dip).any()
    for step_size in (1e-9, 1e-4, 1e4):  # all along: weights as small as that may well need it
        assert not stuck_chains(trace([0.8] * num_chains, [step_size] * num_chains)).any()


def test_steps_that_weights_cannot_feel():
    weights = np.array([[0.3, -0.2, 0.0, 1.0], [1e-4, -1e-3, 0.0, 1e8], [1e-5, -1e-4, 0.0, 1e-6]])
    small = trace([0.8] * 3, [1e-9] * 3)
    assert rounded_away(small, weights, 1.0).tolist() == [True, False, False]
    assert not rounded_away(trace([0.8] * 3, [1e-6] * 3), weights, 1.0).any()
    # the step size of NUTS is in units of the width of each weight
    assert rounded_away(trace([0.8] * 3, [1e-6] * 3), weights, np.full((3, 4), 1e-3)).tolist() == [True, False, False]
    assert not rounded_away(small, weights, np.full((3, 4), 1e3)).any()


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


@pytest.mark.parametrize(
    "method", [METHOD, pytest.param(NUTS(num_draws=20, num_burn_in=20, max_depth=5), marks=pytest.mark.long)]
)
def test_a_single_chain_that_is_stuck_is_restarted_and_said(method):
    """From its first step in the spike, where nothing but its weights tells that it is one."""

    def sometimes(key):
        return jnp.where(jax.random.uniform(key) < 0.5, -50.0, 5.0)

    posterior = fit(pitted(sometimes), method, (X, Y), chains=1)
    assert posterior.receipt.notes == ("chain 0 was stuck in warm-up and started afresh (attempt 1)",)
    assert (np.asarray(posterior.family.draws["network"]["w"]) > 0).any()


@pytest.mark.parametrize("chains", [pytest.param(1, marks=pytest.mark.long), 4])
def test_chains_that_all_begin_in_the_spike_are_an_error(chains):
    with pytest.raises(StuckError, match="Every chain stayed stuck in warm-up after 2 fresh starts"):
        fit(pitted(lambda key: jnp.asarray(-50.0)), METHOD, (X, Y), chains=chains)


def test_a_chain_that_stays_stuck_is_left_out_aloud(monkeypatch):
    monkeypatch.setattr(HMC, "stuck", lambda self, trace: np.array([False, True, False, False]))
    with pytest.warns(UserWarning, match="chain 1 stayed stuck"):
        posterior = fit(pitted(lambda key: jnp.asarray(5.0)), METHOD, (X, Y))
    assert posterior.family.num_chains == 3
    assert posterior.receipt.num_chains == 3
    assert posterior.trace["acceptance"].shape[0] == 3
    assert "left out" in posterior.receipt.notes[-1]


@pytest.mark.long
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


# ---------------------------------------------------------------------------------------------------- no acceptance


def test_a_sampler_that_accepts_nothing_says_so():
    model = Model(mlp((2,)), Gaussian(0.01), Normal(0.0, 1.0))
    data = (np.random.default_rng(0).normal(size=(6, 1)), np.zeros(6))
    words = "chain 0, 1 accepted no step, so that all draws of it are the same; lower step_size or leave it out"
    with pytest.warns(UserWarning, match=words):
        posterior = fit(model, HMC(num_draws=6, num_burn_in=2, step_size=5.0), data, chains=2)
    assert (posterior.trace["accepted"] == 0).all()
    assert posterior.receipt.notes == (words,)


def run_of(accepted, **facts):
    return Run(len(accepted), None, trace={"accepted": [np.asarray(accepted, float)]}, **facts)  # type: ignore[arg-type]


def kept(num_draws):
    return {"w": np.zeros((4, num_draws, 3))}


def test_which_chains_accepted_nothing():
    """Of the kept steps alone; a chain left out as stuck has been spoken of; few draws need a few steps more."""
    accepted = np.ones((4, 30))
    accepted[[0, 2], 10:] = 0
    run = run_of(accepted)
    with pytest.warns(UserWarning, match="chain 0, 2 accepted no step.*lower step_size"):
        say_unmoved(run, HMC(step_size=5.0), kept(20))
    assert run.notes[0].startswith("chain 0, 2 accepted")
    with pytest.warns(UserWarning, match=r"chain 0 accepted no step.*start=MAP\(\)"):
        say_unmoved(run_of(accepted, stuck=np.array([False, False, True, False])), HMC(), kept(20))
    for draws in (kept(21), None):
        run = run_of(accepted)
        say_unmoved(run, HMC(), draws)
        assert not run.notes
    accepted = np.ones((1, 10))
    accepted[:, -4:] = 0
    say_unmoved(run_of(accepted), HMC(), {"w": np.zeros((1, 1))})
    with pytest.warns(UserWarning, match="chain 0 accepted no step"):
        say_unmoved(run_of(0 * accepted), HMC(), {"w": np.zeros((1, 1))})
    say_unmoved(Run(1, None, trace={"learning_rate": [np.ones((1, 9))]}), SGLD(), kept(3))  # type: ignore[arg-type]
