"""A run that is cut off: killed without warning, out of budget, or between its stages; resumed, it is the same run."""

import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from test_store import MODEL, X, Y, same

from posterity import HMC, MAP, SGLD, Gaussian, Laplace, Model, Normal, fit, load, mlp, resume
from posterity.store import StoreError

RUN = """
import sys
sys.path.insert(0, {tests!r})
import conftest
from test_resume import MODEL, METHOD, X, Y
from posterity import fit, resume
from posterity.inference import checkpoint
checkpoint.SAVE_SECONDS = 0.0
from posterity.inference import run
run.SEGMENT_SECONDS = 0.02
folder = sys.argv[1]
import os
if os.path.exists(os.path.join(folder, "manifest.json")):
    resume(folder, progress=False)
else:
    fit(MODEL, METHOD, (X, Y), store=folder, progress=False)
print("finished")
"""
METHOD = HMC(
    num_draws=400, num_burn_in=100, step_size=0.02, trajectory_length=0.4, start=MAP(num_steps=300, batch_size=8)
)


def run_and_kill(folder, seconds):
    """Run or resume in another process; kill it without warning after some seconds of work. True if it finished."""
    code = RUN.format(tests=os.path.dirname(__file__))
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            begun_writing = (folder / "manifest.json").exists()
            if seconds is not None and begun_writing and time.monotonic() - began > seconds:
                process.send_signal(signal.SIGKILL)
            time.sleep(0.05)
        return "finished" in process.communicate()[0]


def kill_many(folder, kills, seed):
    rng = np.random.default_rng(seed)
    finished, count = False, 0
    while not finished and count < kills:
        finished = run_and_kill(folder, float(rng.uniform(6, 16)))
        count += not finished
    while not finished:
        finished = run_and_kill(folder, None)
    return count


def check_killed_run(folder, kills):
    whole = fit(MODEL, METHOD, (X, Y), progress=False)
    assert kill_many(folder, kills, seed=1) > 0
    back = load(folder)
    assert same(back.family, whole.family)
    assert all(np.array_equal(back.trace[name], whole.trace[name]) for name in whole.trace)


def test_a_run_killed_three_times_equals_the_uninterrupted_one(tmp_path):
    check_killed_run(tmp_path / "run", kills=3)


@pytest.mark.long
def test_a_run_killed_twenty_times_equals_the_uninterrupted_one(tmp_path):
    check_killed_run(tmp_path / "run", kills=20)


def test_a_budgeted_run_is_readable_and_its_data_are_checked(tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    from posterity.inference.checkpoint import Checkpoint

    save = Checkpoint.save

    def save_then_stop(self, *arguments):
        save(self, *arguments)
        if self.progress["num_steps"] > 120:
            raise StopError

    monkeypatch.setattr(Checkpoint, "save", save_then_stop)
    monkeypatch.setattr("posterity.inference.checkpoint.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("posterity.inference.run.SEGMENT_SECONDS", 0.01)
    method = HMC(num_draws=300, num_burn_in=100, step_size=0.02, trajectory_length=0.4)
    with pytest.raises(StopError):
        fit(MODEL, method, (X, Y), store=tmp_path / "run")
    monkeypatch.setattr(Checkpoint, "save", save)
    part = load(tmp_path / "run")
    assert 0 < part.family.num_draws < 1200
    assert "unfinished" in part.receipt.notes[0]
    with pytest.raises(StoreError, match="not the rows"):
        resume(tmp_path / "run", data=(X + 1, Y))
    with pytest.raises(StoreError, match=r"holds a run already.*resume"):
        fit(MODEL, method, (X, Y), store=tmp_path / "run")
    with jax.enable_x64(True), pytest.raises(StoreError, match="float32"):
        resume(tmp_path / "run")
    whole = resume(tmp_path / "run", data=(X, Y))
    assert whole.family.num_draws == 1200
    first = jax.tree.leaves(part.family.draws)[0]
    np.testing.assert_array_equal(jax.tree.leaves(whole.family.draws)[0][:, : first.shape[1]], first)


@pytest.mark.parametrize("start", [SGLD(num_draws=20, num_burn_in=20), Laplace(tune="noise", start=MAP(num_steps=50))])
def test_a_run_cut_in_its_second_stage_goes_on_from_the_first(start, tmp_path, monkeypatch):
    from posterity.inference.checkpoint import Checkpoint

    save = Checkpoint.save

    def save_then_stop(self, *arguments):
        save(self, *arguments)
        if self.writer.folder.name == "run" and self.progress["num_steps"] > 12:
            raise InterruptedError

    model = Model(mlp((4,)), Gaussian(0.7), Normal(0.0, 1.0))
    method = HMC(num_draws=20, num_burn_in=10, step_size=0.02, trajectory_length=0.4, start=start)
    whole = fit(model, method, (X, Y))
    monkeypatch.setattr(Checkpoint, "save", save_then_stop)
    monkeypatch.setattr("posterity.inference.checkpoint.SAVE_SECONDS", 0.0)
    monkeypatch.setattr("posterity.inference.run.SEGMENT_SECONDS", 0.0)
    with pytest.raises(InterruptedError):
        fit(model, method, (X, Y), store=tmp_path / "run")
    monkeypatch.setattr(Checkpoint, "save", save)
    part = load(tmp_path / "run")
    assert float(part.model.likelihood.scale) == float(whole.model.likelihood.scale)  # which Laplace tuned
    assert same(resume(tmp_path / "run").family, whole.family)


def test_a_run_that_cannot_begin_leaves_no_store(tmp_path):
    with pytest.raises(ValueError, match="more than the 40 rows"):
        fit(MODEL, MAP(batch_size=100), (X, Y), store=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    fit(MODEL, MAP(num_steps=10), (X, Y), store=tmp_path / "run")
