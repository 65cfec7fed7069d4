"""Runs that end early, by a budget, Ctrl-C, validation rows or a full disk: what they come to, and that they go on."""

import contextlib
import os
import signal

import numpy as np
import pytest
from stores import SIMPLE, X, Y, cut_off, same

from posterity import HMC, MAP, MILE, NUTS, SGHMC, Cyclical, DeepEnsemble, Model, fit, load, resume
from posterity.inference.engine import run as running
from posterity.inference.methods.sampler import NoDrawsError
from posterity.models.likelihoods import Gaussian
from posterity.networks import linear
from posterity.storage.codec import StoreError

FIXED = HMC(num_draws=40, num_burn_in=10, step_size=0.02, trajectory_length=0.2)
SMALL_MILE = MILE(num_draws=6, num_burn_in=100, start=DeepEnsemble(num_members=2, num_steps=20))  # 80 : 10 : 10 steps


@contextlib.contextmanager
def ctrl_c_after(steps):
    """Press Ctrl-C in the segment that comes so far in the plan, counted in steps."""
    original = running.advance

    def advance(layout, shared, chains, span, feed):
        if span.offset + span.last_stride * span.thin > steps:
            os.kill(os.getpid(), signal.SIGINT)
        return original(layout, shared, chains, span, feed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "advance", advance)
        patch.setattr(running, "SEGMENT_SECONDS", 0.01)
        yield


def equal(one, other):
    """The same draws, the same trace, and the same count of what they cost."""
    counts = [(p.receipt.num_steps, p.receipt.num_gradients, p.receipt.restarts) for p in (one, other)]
    traces = all(np.array_equal(one.trace[name], other.trace[name]) for name in other.trace)
    return same(one.family, other.family) and traces and counts[0] == counts[1]


# --------------------------------------------------------------------------------------------------- cut and resumed


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "steps"),
    [
        pytest.param(HMC(num_draws=10, num_burn_in=20, max_leapfrog=50), 8, id="hmc adapting"),
        pytest.param(SMALL_MILE, 85, id="mile in phase II"),
        pytest.param(SMALL_MILE, 89, id="mile before it looks at phase II"),
        pytest.param(SMALL_MILE, 90, id="mile in phase III"),
        pytest.param(SMALL_MILE, 110, id="mile in its draws"),
        pytest.param(
            SGHMC(num_draws=10, num_burn_in=40, thin=2, batch_size=8, preconditioner="rmsprop"),
            20,
            id="sghmc",
        ),
        pytest.param(NUTS(num_draws=10, num_burn_in=100, max_depth=3), 40, id="nuts in its windows"),
        pytest.param(
            Cyclical(base="sghmc", num_cycles=3, cycle_length=20, draws_per_cycle=3, thin=2),
            *(25,),
            id="cyclical",
        ),
    ],
)
def test_a_run_cut_while_it_adapts_equals_the_uninterrupted_one(method, steps, tmp_path):
    whole = fit(SIMPLE, method, (X, Y), progress=False)
    run = cut_off(tmp_path / "run", SIMPLE, method, steps)
    assert equal(resume(run, progress=False), whole)


@pytest.mark.parametrize("how", ["ctrl-c", "budget"])
def test_a_run_that_ended_early_is_readable_and_goes_on(how, tmp_path):
    whole = fit(SIMPLE, FIXED, (X, Y), progress=False)
    if how == "ctrl-c":
        with ctrl_c_after(20):
            part = fit(SIMPLE, FIXED, (X, Y), store=tmp_path / "run", progress=False)
        ending = f"interrupted after {part.receipt.num_steps} of 50 steps"
    else:  # of which the last phase alone is cut
        method = HMC(num_draws=50, num_burn_in=0, step_size=0.02, trajectory_length=0.2)
        whole = fit(SIMPLE, method, (X, Y), progress=False)
        part = fit(SIMPLE, method, (X, Y), store=tmp_path / "run", progress=False, budget=1e-3)
        ending = f"draws ended by the budget after {part.receipt.num_steps} of 50 steps"
    assert part.receipt.notes == (ending,)
    assert 0 < part.family.num_draws < whole.family.num_draws
    assert equal(load(tmp_path / "run"), part)
    back = resume(tmp_path / "run", progress=False)
    assert equal(back, whole)
    assert back.receipt.notes == (f"{ending}, and resumed",)
    assert equal(load(tmp_path / "run"), whole)
    assert equal(resume(tmp_path / "run"), whole)  # which is over now, and only loaded
    files = {path.name.split("-")[0] for path in (tmp_path / "run").iterdir()}
    assert "draws" not in files


TWO_STAGES = HMC(num_draws=5, num_burn_in=5, step_size=0.02, trajectory_length=0.2, start=MAP(num_steps=2_000))


@pytest.mark.long
def test_ctrl_c_in_a_first_stage_ends_the_run_which_goes_on_there(tmp_path):
    """What begins from a stage that was cut off would begin elsewhere, and whoever pressed the keys wants an end."""
    whole = fit(SIMPLE, TWO_STAGES, (X, Y), chains=2, progress=False)
    with ctrl_c_after(20), pytest.raises(KeyboardInterrupt, match=r"MAP, where HMC begins, was cut off: resume"):
        fit(SIMPLE, TWO_STAGES, (X, Y), chains=2, store=tmp_path / "run", progress=False)
    back = resume(tmp_path / "run", progress=False)
    assert equal(back, whole)
    assert any("MAP: interrupted after" in note for note in back.receipt.notes)
    with ctrl_c_after(20), pytest.raises(KeyboardInterrupt, match="give fit a store"):
        fit(SIMPLE, TWO_STAGES, (X, Y), chains=2, progress=False)


@pytest.mark.long
def test_a_first_stage_cut_by_the_budget_is_told_of():
    posterior = fit(SIMPLE, TWO_STAGES, (X, Y), chains=2, budget=1e-3, progress=False)
    assert posterior.receipt.notes[0].startswith("MAP: phase 1 ended by the budget after ")


def test_a_run_killed_in_burn_in_has_no_draws_yet_and_says_so(tmp_path):
    run = cut_off(tmp_path / "run", SIMPLE, FIXED, 2)
    with pytest.raises(StoreError, match=r"after \d steps, with no draw kept yet: resume\('.*run'\) goes on"):
        load(run)


# ------------------------------------------------------------------------------------------------- draws that tune


@pytest.mark.long
@pytest.mark.parametrize("method", [SMALL_MILE, MILE()])
def test_mile_ends_under_any_budget(method):
    """Phases II and III end after one record, from which no length can be told."""
    posterior = fit(SIMPLE, method, (X, Y), budget=1e-3, progress=False)
    assert posterior.family.num_draws >= method.num_chains
    np.testing.assert_allclose(posterior.trace["length"], 15.0)  # as it began
    assert np.isfinite(posterior.predict(X).mean).all()


@pytest.mark.long
def test_draws_that_tune_are_never_the_posterior(tmp_path):
    """Phases II and III of MILE keep draws to choose a length by: no posterior after Ctrl-C, and none after a kill."""
    for steps in (82, 92):
        with ctrl_c_after(steps), pytest.raises(NoDrawsError, match="before its first kept draw"):
            fit(SIMPLE, SMALL_MILE, (X, Y), progress=False)
        run = cut_off(tmp_path / str(steps), SIMPLE, SMALL_MILE, steps)
        assert list(run.glob("draws-*"))
        with pytest.raises(StoreError, match="no draw kept yet"):
            load(run)


# -------------------------------------------------------------------------------------------------- validation rows


def test_an_epoch_of_one_step_is_no_reason_to_look_at_every_step():
    """Validation rows that only get worse: the run ends ten looks after the first, fifty steps apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = x @ np.array([1.0, -2.0])
    model, method = Model(linear(), Gaussian(0.3)), MAP(num_steps=20_000)
    stopped = fit(model, method, (x, y), validation=(x, -y), progress=False)
    assert "stopped early" in stopped.receipt.notes[0]
    assert 11 * 50 <= stopped.receipt.num_steps < 20_000


# -------------------------------------------------------------------------------------------------------- a full disk


def full_after(patch, folder, count):
    """A disk with room for so many files after the first one of draws."""
    fsync, left = os.fsync, iter(range(count))

    def sync(descriptor):
        if list(folder.glob("draws-*")) and next(left, None) is None:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    patch.setattr(os, "fsync", sync)


def biases(posterior):
    return np.asarray(posterior.family.draws["network"]["layer_0"]["bias"])  # [C, D, 4]


@pytest.mark.parametrize("count", [3, *(pytest.param(count, marks=pytest.mark.long) for count in (2, 4, 5))])
def test_a_disk_that_fills_up_during_a_run_loses_nothing(count, tmp_path):
    """Whichever file of the second save of draws finds no room: trace, draws, state or manifest."""
    whole = fit(SIMPLE, FIXED, (X, Y), progress=False)
    with pytest.MonkeyPatch.context() as patch:
        full_after(patch, tmp_path / "run", count)
        patch.setattr("posterity.inference.engine.checkpoint.SAVE_SECONDS", 0.0)
        patch.setattr(running, "SEGMENT_SECONDS", 0.001)
        with pytest.raises(StoreError, match=r"Cannot write .*No space left.*whole and readable; make room.*resume"):
            fit(SIMPLE, FIXED, (X, Y), store=tmp_path / "run", progress=False)
    part = load(tmp_path / "run")
    assert 0 < part.family.num_draws < whole.family.num_draws
    np.testing.assert_array_equal(biases(part), biases(whole)[:, : biases(part).shape[1]])
    assert equal(resume(tmp_path / "run", progress=False), whole)


def test_a_folder_one_may_not_write_into_is_said(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", refuse)
        with pytest.raises(StoreError, match=r"Cannot make the folder .*: Permission denied. Choose another store"):
            fit(SIMPLE, FIXED, (X, Y), store=tmp_path / "run", progress=False)
    monkeypatch.setattr("posterity.storage.folder.open", refuse, raising=False)
    with pytest.raises(StoreError, match=r"Cannot write .*job.safetensors: Permission denied"):
        fit(SIMPLE, FIXED, (X, Y), store=tmp_path / "run", progress=False)
