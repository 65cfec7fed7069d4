"""Stuck chains: found on warm-up alone, started afresh, said in the receipt, never averaged in silently."""

import os
import signal
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import DATA

from posterity import (
    HMC,
    MAP,
    MILE,
    NUTS,
    SGLD,
    DeepEnsemble,
    Gaussian,
    HeteroscedasticGaussian,
    Model,
    Normal,
    fit,
    from_function,
    mlp,
    resume,
)
from posterity.core import records
from posterity.data.arrays import dataset
from posterity.datasets import load as load_data
from posterity.inference.engine import restarts, run
from posterity.inference.engine.checkpoint import Checkpoint
from posterity.inference.engine.job import Job, Progress, Run
from posterity.inference.engine.restarts import StuckError, warn_unmoved
from posterity.inference.engine.start import starting_point
from posterity.inference.methods.sampler import NoDrawsError
from posterity.inference.methods.step_size import rounded_away, stuck_chains
from posterity.models.priors import Fixed, prior
from posterity.posterior.trace import Trace

X, Y = np.zeros((4, 1)), np.zeros(4)


def pitted(depth_of, edge=0.0):
    """A network whose first weight decides: below the edge it falls into a spike so narrow that no step size fits."""

    def init(key, x):
        return {"w": depth_of(key), "v": jnp.zeros(())}

    def apply(params, x):
        narrow = jnp.where(params["w"] < edge, 1e7, 1.0)
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


HEALTHY = pitted(lambda key: jnp.asarray(5.0))  # one for several tests: they share their programs
METHOD = HMC(num_draws=20, num_burn_in=20, max_leapfrog=200)


def test_a_stuck_chain_is_restarted_and_said():
    def sometimes(key):
        return jnp.where(jax.random.uniform(key) < 0.35, -50.0, 5.0)

    posterior = fit(pitted(sometimes), METHOD, (X, Y), seed=2)
    assert "started afresh (attempt 1)" in posterior.receipt.notes[0]
    assert posterior.receipt.restarts == sum(
        len(note.split(" was ")[0].split(",")) for note in posterior.receipt.notes if "afresh" in note
    )
    assert_free(posterior, 4)


def assert_free(posterior, num_chains):
    """No chain, not one, has a draw in the spike, and each of them moves."""
    weights = np.asarray(posterior.family.draws["network"]["w"])
    assert weights.shape == (num_chains, 20)
    assert (weights > 0).all(1).all()
    assert (np.ptp(weights, 1) > 0).all()


SPIKE = {"w": jnp.asarray(-50.0), "v": jnp.zeros(())}


@pytest.mark.parametrize("start", [MAP(num_steps=1, learning_rate=1e-6, start=SPIKE), SPIKE], ids=["map", "weights"])
def test_a_fresh_start_is_not_once_more_the_start_that_was_given(start):
    posterior = fit(HEALTHY, records.replace(METHOD, start=start), (X, Y))
    words = "was stuck in warm-up and started afresh from the network's own initialisation, not from start"
    assert f"chain 0, 1, 2, 3 {words} (attempt 1)" in posterior.receipt.notes
    assert posterior.receipt.restarts == 4
    assert_free(posterior, 4)


def test_a_fresh_start_leaves_fixed_weights_as_they_were_given():
    model = records.replace(HEALTHY, prior=prior({"v": Fixed(), "*": Normal(0.0, 3.0)}))
    start = {"w": jnp.asarray(-50.0), "v": jnp.asarray(0.25)}
    rows, method = dataset((X, Y), model.likelihood), records.replace(METHOD, start=start)
    _, free, fixed = starting_point(Job(model, method, rows, None, None, 0, 2, None, {}), attempt=1)
    assert free["network"]["w"].tolist() == [5.0, 5.0]
    assert fixed["network"]["v"].tolist() == [0.25, 0.25]


def test_a_fresh_copy_of_a_healthy_chain_may_fail(monkeypatch):
    """All chains run again in one program, but only those that were stuck count."""

    def broken(job, attempt=0):
        start = starting_point(job, attempt)
        bad = jnp.nan if attempt else 0.0
        return start._replace(free=jax.tree.map(lambda leaf: leaf.at[0].add(bad), start.free))

    answers = iter([np.array([False, True, False, False]), np.zeros(4, bool)])
    monkeypatch.setattr(HMC, "stuck", lambda self, trace: next(answers))
    monkeypatch.setattr(restarts, "starting_point", broken)
    posterior = fit(HEALTHY, METHOD, (X, Y))
    assert np.isfinite(np.asarray(posterior.family.draws["network"]["w"])).all()
    assert posterior.receipt.restarts == 1


def test_ctrl_c_is_seen_while_stuck_chains_start_afresh(tmp_path, monkeypatch):
    def stuck(self, trace):
        if not asked:
            asked.append(os.kill(os.getpid(), signal.SIGINT))  # once: a second time would end the process
        return np.array([False, True, False, False])

    advance, taken, asked = run.advance, [], []

    def counted(layout, shared, chains, span, feed):
        taken.append(span.first_stride)
        return advance(layout, shared, chains, span, feed)

    with monkeypatch.context() as patch:
        patch.setattr(HMC, "stuck", stuck)
        patch.setattr(run, "advance", counted)
        with pytest.raises(NoDrawsError, match="before its first kept draw"):
            fit(HEALTHY, METHOD, (X, Y), store=tmp_path / "run")
    assert taken.count(0) == 2  # the warm-up, and of the second one its first segment alone
    assert taken[-1] == 0
    assert_free(resume(tmp_path / "run", HEALTHY), 4)


@pytest.mark.long
def test_a_member_of_mile_that_is_stuck_is_seen():
    """By its step sizes in phase I; and not averaged in."""

    def sometimes(key):
        return jnp.where(jax.random.uniform(key) < 0.35, -50.0, 5.0)

    assert MILE(step_size=0.1, num_burn_in=100).stuck(trace([1.0, 1.0], [0.1, 1e-9])) is None
    method = MILE(num_draws=20, num_burn_in=100, thin=1, start=DeepEnsemble(num_members=4, num_steps=1))
    posterior = fit(pitted(sometimes, edge=-20.0), method, (X, Y), seed=2)
    assert "was stuck in warm-up and started afresh" in posterior.receipt.notes[0]
    last = posterior.trace["step_size"][:, -1]
    assert (last > 1e-3 * last.max()).all()


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
        posterior = fit(HEALTHY, METHOD, (X, Y))
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
        saved = save(self, *arguments)
        if self.progress.phase == 1:
            raise KeyboardInterrupt
        return saved

    monkeypatch.setattr(Checkpoint, "save", save_then_stop)
    monkeypatch.setattr("posterity.inference.engine.checkpoint.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("posterity.inference.engine.run.SEGMENT_SECONDS", 0.0)
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
        fit(HEALTHY, METHOD, (X, Y))


YACHT = DATA / "uci" / "yacht.npz"


@pytest.mark.long
@pytest.mark.skipif(not YACHT.exists(), reason=f"{YACHT} is absent; set POSTERITY_DATA")
@pytest.mark.parametrize("seed", [0, 1])
def test_no_stuck_chain_is_averaged_in_silently_on_yacht(seed):
    """A network that may say how sure it is of each row finds spikes where it is sure of one row beyond measure.

    On some processors a warm-up of seed 1 looks healthy and ends with a step too long for every draw: that is said.
    """
    data = load_data("yacht", DATA)
    x, y = ((values - values.mean(0)) / values.std(0) for values in (data.x_train, data.y_train))
    model = Model(mlp((50,)), HeteroscedasticGaussian(), Normal(0.0, 1.0))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        posterior = fit(model, HMC(num_draws=40, num_burn_in=40, max_leapfrog=500), (x, y), seed=seed)
    left_out = [str(each.message) for each in said if "left out" in str(each.message)]
    assert (posterior.family.num_chains < 4) == bool(left_out)
    assert all(words in posterior.receipt.notes for words in left_out)
    step_sizes, accepted = posterior.trace["step_size"][:, -1], posterior.trace["accepted"][:, -40:]
    assert (step_sizes > 1e-3 * step_sizes.max()).all()
    unmoved = [note for note in posterior.receipt.notes if "accepted no step" in note]
    named = [name for note in unmoved for name in note.partition(" accepted")[0].removeprefix("chain ").split(", ")]
    assert len(named) == (~accepted.any(1)).sum()
    assert all(note in map(str, (each.message for each in said)) for note in unmoved)
    log_joint = posterior.trace["log_joint"][:, -20:].mean(1)
    print("log joint of each chain", log_joint, posterior.receipt.notes)


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
    return traced("accepted", np.asarray(accepted, float), **facts)


def traced(name, values, **facts):
    """A run that has recorded this, and has no chains any more."""
    strides = np.ones(values.shape[1], int)
    return Run(None, Progress(**facts), (Trace({name: values}, strides > 0, strides),))  # type: ignore[arg-type]


def kept(num_draws):
    return {"w": np.zeros((4, num_draws, 3))}


def test_which_chains_accepted_nothing():
    """Of the kept steps alone; a chain left out as stuck has been spoken of; few draws need a few steps more."""
    accepted = np.ones((4, 30))
    accepted[[0, 2], 10:] = 0
    run = run_of(accepted)
    with pytest.warns(UserWarning, match="chain 0, 2 accepted no step.*lower step_size"):
        run = warn_unmoved(run, HMC(step_size=5.0), kept(20))
    assert run.progress.notes[0].startswith("chain 0, 2 accepted")
    with pytest.warns(UserWarning, match=r"chain 0 accepted no step.*start=MAP\(\)"):
        warn_unmoved(run_of(accepted, stuck=(False, False, True, False)), HMC(), kept(20))
    for draws in (kept(21), None):
        run = run_of(accepted)
        assert warn_unmoved(run, HMC(), draws) is run
    accepted = np.ones((1, 10))
    accepted[:, -4:] = 0
    warn_unmoved(run_of(accepted), HMC(), {"w": np.zeros((1, 1))})
    with pytest.warns(UserWarning, match="chain 0 accepted no step"):
        warn_unmoved(run_of(0 * accepted), HMC(), {"w": np.zeros((1, 1))})
    warn_unmoved(traced("learning_rate", np.ones((1, 9))), SGLD(), kept(3))
