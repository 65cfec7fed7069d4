"""Sampling until a diagnosis is reached: rounds of draws, burn-in that was too short, chains that never settle."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stores import same

from posterity import HMC, MAP, Gaussian, Model, Normal, fit, linear, mlp, resume
from posterity.core import records
from posterity.core.types import Array, Kernel, Params, Phase
from posterity.inference.engine.checkpoint import Checkpoint
from posterity.inference.methods.sampler import Sampler

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 1))
Y = np.sin(X[:, 0]) + 0.3 * RNG.normal(size=30)
MODEL = Model(linear(), Gaussian(0.3), Normal(0.0, 1.0))
AT = np.linspace(-2, 2, 5)[:, None]


def test_draws_are_added_until_the_verdict_is_reached():
    posterior = fit(MODEL, HMC(10, num_burn_in=20), (X, Y), chains=4, until="good", at=AT, progress=False)
    found = posterior.diagnose(AT)
    assert found.verdict == "good", str(found)
    assert found.num_draws > 10
    assert posterior.receipt.num_steps == 20 + found.num_draws
    planned = fit(MODEL, HMC(10, num_burn_in=20), (X, Y), chains=4, progress=False)
    first = jax.tree.map(lambda leaf: leaf[:, :10], posterior.family.draws)
    assert same(first, planned.family.draws), "the first round is the run that was planned"


def test_a_burn_in_that_was_too_short_is_extended_and_not_averaged_in():
    """Chains from far away, with steps so short that the planned burn-in cannot bring them back."""
    far = {"network": {"layer_0": {"weight": np.full((1, 1), 60.0), "bias": np.full(1, 60.0)}}}
    method = HMC(20, num_burn_in=2, step_size=0.02, trajectory_length=0.1, start=far)
    model = Model(linear(), Gaussian(3.0), Normal(0.0, 30.0))
    posterior = fit(model, method, (X, Y), chains=4, until="usable", at=AT, progress=False)
    assert any("burn-in was too short" in note for note in posterior.receipt.notes)
    found = posterior.diagnose(AT)
    assert found.verdict in ("usable", "good")
    assert posterior.trace.is_draw.sum() == found.num_draws
    assert abs(posterior.predict(AT).mean).max() < 10


class DriftState(NamedTuple):
    params: Params
    log_joint: Array


class DriftInfo(NamedTuple):
    log_joint: Array
    acceptance: Array


@records.record
class Drifting(Sampler):
    """Never stationary: every step adds a little to all weights."""

    num_draws: int = records.host(default=40)
    start: object = records.host(default=None)

    def plan(self, num_rows):
        del num_rows
        return Phase(20), Phase(self.num_draws, keep=True)

    def kernel(self, model):
        def init(key, params, batch, clock):
            del key, clock
            return DriftState(params, model.log_joint(params, batch))

        def step(key, state, batch, clock):
            del clock
            noise = jax.random.normal(key, ())
            params = jax.tree.map(lambda leaf: leaf + 0.05 + 0.02 * noise, state.params)
            return DriftState(params, model.log_joint(params, batch)), DriftInfo(state.log_joint, jnp.ones(()))

        return Kernel(init, step)


def test_chains_that_never_settle_are_not_converged_when_time_is_out():
    posterior = fit(MODEL, Drifting(), (X, Y), chains=4, until="usable", at=AT, budget=3.0, progress=False)
    assert posterior.diagnose(AT).verdict == "not converged"


def test_a_run_in_rounds_that_was_cut_off_goes_on_bit_for_bit(tmp_path, monkeypatch):
    method = HMC(10, num_burn_in=10, start=MAP(num_steps=10))
    settings = {"chains": 4, "until": "good", "at": AT, "progress": False}
    whole = fit(MODEL, method, (X, Y), **settings)
    save = Checkpoint.save

    def save_then_stop(self, run):
        saved = save(self, run)
        if self.writer.folder == tmp_path / "run" and run.progress.lengths:
            raise InterruptedError
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", save_then_stop)
        patch.setattr("posterity.inference.engine.checkpoint.SAVE_SECONDS", 0.0)
        with pytest.raises(InterruptedError):
            fit(MODEL, method, (X, Y), store=tmp_path / "run", **settings)
    assert same(resume(tmp_path / "run", progress=False).family, whole.family)


def test_what_cannot_be_asked_for():
    for method, asked, words in (
        (HMC(), {"until": "perfect"}, "choose 'good' or 'usable'"),
        (MAP(), {"until": "good"}, "does not sample"),
        (HMC(), {"at": AT}, "happens with until"),
        (HMC(), {"until": "good", "at": np.zeros((3, 2))}, "at"),
    ):
        with pytest.raises(ValueError, match=words):
            fit(Model(mlp((3,)), Gaussian(0.3), Normal(0.0, 1.0)), method, (X, Y), progress=False, **asked)
