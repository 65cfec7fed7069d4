"""What a run carries between segments: its progress as a record, and a trace that knows which strides are draws."""

import jax
import numpy as np
import pytest
from stores import SIMPLE, X, Y, cut_off

from posterity import HMC, MILE, Cyclical, DeepEnsemble, fit, load, resume
from posterity.inference.engine.job import Progress
from posterity.posterior.diagnose import _kept_trace
from posterity.storage.codec import decode, encode

ADAPTED = HMC(num_draws=12, num_burn_in=15, max_leapfrog=20)


def assert_log_priors_are_those_of_the_draws(posterior):
    """The strides that are said to be draws recorded what the draws come to; others would not."""
    draws = posterior.family.draws
    log_prior = jax.vmap(jax.vmap(SIMPLE.log_prior))(jax.tree.map(np.asarray, draws))
    np.testing.assert_allclose(posterior.trace["log_prior"][:, posterior.trace.is_draw], log_prior, rtol=1e-4)


def num_kept(posterior):
    return posterior.family.num_draws // posterior.family.num_chains


def test_the_trace_of_a_whole_run_knows_its_draws(tmp_path):
    posterior = fit(SIMPLE, ADAPTED, (X, Y), chains=2, progress=False, store=tmp_path / "run")
    np.testing.assert_array_equal(posterior.trace.is_draw, np.arange(27) >= 15)
    assert (posterior.trace.num_steps == 1).all()
    assert_log_priors_are_those_of_the_draws(posterior)
    np.testing.assert_array_equal(load(tmp_path / "run").trace.is_draw, posterior.trace.is_draw)


@pytest.mark.parametrize(
    "method",
    [
        HMC(num_draws=4_000, num_burn_in=400, step_size=0.02, trajectory_length=0.2),
        Cyclical(base="sghmc", num_cycles=3, cycle_length=4_000, draws_per_cycle=300, thin=3),
    ],
    ids=["hmc", "cyclical"],
)
def test_a_budget_that_cuts_phases_leaves_the_flags_right(method):
    posterior = fit(SIMPLE, method, (X, Y), chains=2, budget=1e-3, progress=False)
    trace = posterior.trace
    assert 0 < num_kept(posterior) == trace.is_draw.sum() < trace.is_draw.size
    assert trace.num_steps.sum() == posterior.receipt.num_steps
    if isinstance(method, HMC):
        assert_log_priors_are_those_of_the_draws(posterior)
        kept, steps = _kept_trace(trace, num_kept(posterior))
        assert kept["log_prior"].shape == (2, num_kept(posterior))
        assert steps == 1
    else:
        assert set(trace.num_steps[trace.is_draw]) == {3}
        changes = np.flatnonzero(np.diff(trace.is_draw.astype(int)))
        assert len(changes) == 5  # three cycles, each of strides that are no draws and strides that are


def test_a_run_with_restarts_that_was_cut_and_resumed_has_the_flags_of_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.setattr(HMC, "stuck", lambda self, trace: np.array([False, True]))
    with pytest.warns(UserWarning, match="chain 1 stayed stuck"):
        whole = fit(SIMPLE, ADAPTED, (X, Y), chains=2, progress=False)
    run = cut_off(tmp_path / "run", SIMPLE, ADAPTED, 18, chains=2)
    with pytest.warns(UserWarning, match="chain 1 stayed stuck"):
        back = resume(run, progress=False)
    assert back.receipt.restarts == whole.receipt.restarts == 2
    for posterior in (whole, back):
        np.testing.assert_array_equal(posterior.trace.is_draw, np.arange(27) >= 15)
        assert_log_priors_are_those_of_the_draws(posterior)


@pytest.mark.long
def test_draws_that_tune_are_flagged_as_none():
    method = MILE(num_draws=6, num_burn_in=100, start=DeepEnsemble(num_members=2, num_steps=20))
    trace = fit(SIMPLE, method, (X, Y), progress=False).trace
    assert trace.is_draw.sum() == 6
    assert trace.is_draw[-6:].all()
    assert trace.num_steps[trace.is_draw].tolist() == [5] * 6


def test_progress_is_stored_as_the_record_it_is():
    progress = Progress(phase=1, num_gradients=2.5, ended="late", stuck=(True, False), notes=("cut",), num_shards=3)
    assert decode(encode(progress, {}, "progress"), {}) == progress


@pytest.mark.parametrize(
    "wrong",
    [
        {"phase": -1},
        {"stride": 1.0},
        {"num_steps": (1, 2)},
        {"seconds": float("nan")},
        {"notes": ["text"]},
        {"stuck": (1, 0)},
        {"ended": "late"},
        {"ended": "?", "notes": ("?",)},
    ],
)
def test_progress_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"^Progress\("):
        Progress(**wrong)
