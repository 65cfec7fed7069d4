"""A run that is cut off: killed without warning, out of budget, or between its stages; resumed, it is the same run."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
import stores
from stores import METHODS, MODEL, SIMPLE, X, Y, cut_off, rewrite, same

from posterity import (
    HMC,
    MAP,
    SGLD,
    DeepEnsemble,
    Gaussian,
    Laplace,
    Model,
    Normal,
    fit,
    from_function,
    load,
    resume,
)
from posterity.core import pytrees, records
from posterity.data.arrays import dataset
from posterity.inference.engine import driver
from posterity.inference.engine.checkpoint import Checkpoint
from posterity.inference.engine.job import Job
from posterity.storage.codec import StoreError

RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import conftest
import jax
jax.config.update("jax_compilation_cache_dir", {programs!r})  # so that most of the time is spent in the run
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
from stores import METHODS, SIMPLE, X, Y
from posterity import fit, resume
from posterity.inference.engine import checkpoint, run
checkpoint.SAVE_SECONDS = 0.0
run.SEGMENT_SECONDS = 0.02
folder = Path({folder!r})
if (folder / "manifest.json").exists():
    resume(folder, progress=False)
else:
    fit(SIMPLE, METHODS[{name!r}], (X, Y), store=folder, progress=False)
"""


def stamps(folder):
    """When the manifests of a run and of its first stage were written."""
    paths = folder / "manifest.json", folder / "start" / "manifest.json"
    return [path.stat().st_mtime_ns for path in paths if path.exists()]


def run_and_kill(folder, name, seconds):
    """Run or resume in another process; kill it without warning so long after its first save. True if it was killed."""
    code = RUN.format(
        tests=os.path.dirname(stores.__file__), programs=str(folder.parent / "programs"), folder=str(folder), name=name
    )
    before, due = stamps(folder), math.inf
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while process.poll() is None and time.monotonic() < due:
            if due == math.inf and stamps(folder) != before:
                due = time.monotonic() + seconds
            time.sleep(0.01)
        process.kill()
    assert process.returncode in (0, -signal.SIGKILL)
    return process.returncode != 0


def check_killed_run(folder, name, kills):
    """Kill so many times; where a run ends before the next kill it is compared, and another one is begun."""
    whole = fit(SIMPLE, METHODS[name], (X, Y), progress=False)
    rng, landed = np.random.default_rng(1), 0
    for number in range(kills):
        run, killed = folder / str(number), True
        while killed:
            killed = run_and_kill(run, name, float(rng.uniform(0, 1)) if landed < kills else math.inf)
            landed += killed
        back = load(run)
        assert same(back.family, whole.family)
        assert all(np.array_equal(back.trace[name], whole.trace[name]) for name in whole.trace)
        assert back.receipt.num_gradients == whole.receipt.num_gradients
        assert back.receipt.num_steps == whole.receipt.num_steps
        if landed == kills:
            return
    raise AssertionError(f"only {landed} of {kills} kills came before the end of a run: make the run longer")


def test_a_run_killed_three_times_equals_the_uninterrupted_one(tmp_path):
    check_killed_run(tmp_path, "sgld", kills=3)


@pytest.mark.long
def test_a_run_killed_twenty_times_equals_the_uninterrupted_one(tmp_path):
    check_killed_run(tmp_path, "hmc", kills=20)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("hmc", "sgld")])
def test_runs_of_eight_methods_killed_five_times_equal_uninterrupted_ones(name, tmp_path):
    """Kills land in every stage of a fit: the ensemble before MILE, each round of Laplace."""
    check_killed_run(tmp_path, name, kills=5)


def test_a_budgeted_run_is_readable_and_its_data_are_checked(tmp_path):
    method = HMC(num_draws=300, num_burn_in=100, step_size=0.02, trajectory_length=0.4)
    run = cut_off(tmp_path / "run", SIMPLE, method, 120)
    part = load(run)
    assert 0 < part.family.num_draws < 1200
    assert "unfinished" in part.receipt.notes[0]
    with pytest.raises(StoreError, match="not the rows"):
        resume(run, data=(X + 1, Y))
    with pytest.raises(StoreError, match=r"holds a run already.*resume"):
        fit(SIMPLE, method, (X, Y), store=run)
    with jax.enable_x64(True), pytest.raises(StoreError, match="float32"):
        resume(run)
    whole = resume(run, data=(X, Y))
    assert whole.family.num_draws == 1200
    first = jax.tree.leaves(part.family.draws)[0]
    np.testing.assert_array_equal(jax.tree.leaves(whole.family.draws)[0][:, : first.shape[1]], first)


def test_the_data_of_a_finished_run_are_checked_too(tmp_path):
    posterior = fit(MODEL, MAP(num_steps=10), (X, Y), store=tmp_path / "run")
    assert same(resume(tmp_path / "run", data=(X, Y)).family, posterior.family)
    with pytest.raises(StoreError, match="not the rows"):
        resume(tmp_path / "run", data=(X, Y + 1))
    posterior.save(tmp_path / "saved")
    with pytest.raises(StoreError, match="cannot be checked: leave out data"):
        resume(tmp_path / "saved", data=(X, Y))


@pytest.mark.parametrize("share", ["holdout", pytest.param("validation", marks=pytest.mark.long)])
def test_the_data_may_be_passed_as_they_were_to_fit(share, tmp_path):
    """All rows, of which a share was set aside; in a run that is over, and in one that was cut off."""
    method = MAP(num_steps=60, batch_size=16)
    cut_off(tmp_path / "cut", MODEL, method, 20, **{share: 0.25})
    fit(MODEL, method, (X, Y), store=tmp_path / "whole", **{share: 0.25})
    for run in (tmp_path / "cut", tmp_path / "whole"):
        with pytest.raises(StoreError, match="not the rows"):
            resume(run, data=(X[:30], Y[:30]))
        assert resume(run, data=(X, Y)).receipt.num_data == 30


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        SGLD(num_draws=20, num_burn_in=20),
        Laplace(tune="noise", start=MAP(num_steps=50)),
    ],
)
def test_a_run_cut_in_its_second_stage_goes_on_from_the_first(start, tmp_path):
    method = HMC(num_draws=20, num_burn_in=10, step_size=0.02, trajectory_length=0.4, start=start)
    whole = fit(SIMPLE, method, (X, Y))
    run = cut_off(tmp_path / "run", SIMPLE, method, 12)
    part = load(run)
    assert float(part.model.likelihood.scale) == float(whole.model.likelihood.scale)  # which Laplace tuned
    shutil.move(run / "start", tmp_path / "start")
    for read in (load, resume):
        with pytest.raises(StoreError, match="start, the stage this run started from, is missing"):
            read(run)
    shutil.move(tmp_path / "start", run / "start")
    manifest = (run / "start" / "manifest.json").read_bytes()
    shutil.copy(run / "manifest.json", run / "start" / "manifest.json")
    for read in (load, resume):
        with pytest.raises(StoreError, match="has no result although the run went on from one"):
            read(run)
    (run / "start" / "manifest.json").write_bytes(manifest)
    assert same(resume(run).family, whole.family)


def begin(folder, model, method):
    """A store as it is before the first step."""
    Checkpoint.create(folder, Job(model, method, dataset((X, Y), model.likelihood), None, None, 0, 1, None, {}))
    return folder


def test_a_run_killed_while_it_began_its_first_stage_can_go_on(tmp_path):
    run = begin(tmp_path / "run", MODEL, MAP(num_steps=10, start=MAP(num_steps=5)))
    (run / "start").mkdir()
    (run / "start" / "job.safetensors").write_bytes(b"half of it")  # there is no manifest beside it yet
    assert resume(run).receipt.num_steps == 10


@pytest.mark.parametrize("kind", ["posterior", "weights"])
def test_a_run_killed_before_its_first_state_still_knows_where_to_begin(kind, tmp_path, monkeypatch):
    """Nothing but the store tells: a start that was lost would be a fresh one, and nobody would see."""
    first = fit(MODEL, MAP(num_steps=30), (X, Y), seed=5)
    start = first if kind == "posterior" else pytrees.take_rows(first.weights(), 0)
    method = MAP(num_steps=10, start=MAP(num_steps=5, start=start))
    whole = fit(MODEL, method, (X, Y))
    with monkeypatch.context() as patch:
        patch.setattr(driver, "run_job", lambda *_: None)  # what a kill leaves: a store, and no state
        fit(MODEL, method, (X, Y), store=tmp_path / "run")
    resumed = resume(tmp_path / "run")
    assert same(resumed.family, whole.family)
    assert not same(resumed.family, fit(MODEL, MAP(num_steps=10, start=MAP(num_steps=5)), (X, Y)).family)


def test_a_method_with_functions_of_ones_own_is_passed_again_and_must_be_the_same(tmp_path):
    def schedule(step):
        return 1e-2 / (1 + step / 100)

    method = MAP(num_steps=10, learning_rate=schedule)
    run = begin(tmp_path / "run", MODEL, method)
    with pytest.raises(StoreError, match=r"could not hold method/learning_rate.*pass resume\(path, method="):
        resume(run)
    with pytest.raises(StoreError, match=r"began with MAP\(num_steps=10\), not 20"):
        resume(run, method=MAP(num_steps=20, learning_rate=schedule))
    with pytest.raises(StoreError, match="one of MAP, not of Laplace"):
        resume(run, method=Laplace())
    assert same(resume(run, method=method).family, fit(MODEL, method, (X, Y)).family)


def own_model(network=jnp.tanh, name="w", **settings):
    def init(key, x):
        return {name: jnp.zeros((2, 1))}

    made = from_function(init, lambda params, x: network(x @ params[name]))
    return Model(made, Gaussian(0.3), Normal(0.0, 1.0), **settings)


def test_another_network_or_target_is_refused_before_a_run_goes_on(tmp_path):
    networks = {
        "other outputs": own_model(jax.nn.relu),
        r"weights network/v \(2, 1\) where the stored one has network/w": own_model(name="v"),
        "does not take the stored rows: .*dot_general": own_model(lambda x: x @ jnp.ones((3, 1))),
    }
    targets = {
        r"temperature 0.25 with posterior.*temperature 1 with posterior": own_model(temperature=1.0),
        "posterior tempering.*likelihood tempering": own_model(temperature=0.25, tempering="likelihood"),
    }
    right = own_model(temperature=0.25)
    run = begin(tmp_path / "run", right, MAP(num_steps=10))
    others = {match: records.replace(model, temperature=0.25) for match, model in networks.items()} | targets
    for match, other in others.items():
        for read in (load, resume):
            with pytest.raises(StoreError, match=match):
                read(run, other)
    assert float(resume(run, right).model.temperature) == 0.25
    with pytest.raises(StoreError, match=r"temperature 0\.25"):  # of the finished run as well
        load(run, own_model())


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume") / "run"
    return cut_off(folder, MODEL, DeepEnsemble(num_members=2, num_steps=60, batch_size=16), 20, holdout=0.25)


EDITS = {
    "run": [],
    "run/seed": "?",
    "run/num_chains": 0,
    "run/mesh": [1, 99],
    "run/metadata": 3,
    "run/rows": {"missing": "rows"},
    "run/rows/tuple/1": {"array": "data/weight"},
    "run/calibration": {"tuple": []},
    "run/model": {"record": "Samples", "fields": {}},
    "run/method/fields/num_steps": "?",
    "run/method/fields/learning_rate": "?",
    "progress": 5,
    "progress/fields/num_shards": 10**12,
    "progress/fields/phase": None,
    "progress/record": 1e300,
    "progress/fields/stride": 1e300,
    "progress/fields/notes": {"tuple": [1]},
    "progress/fields/ended": "late",
    "progress/fields/stuck": {"tuple": [True]},
    "progress/fields/seconds": "?",
}


def put(body, path, value):
    *above, last = path.split("/")
    for key in above:
        body = body[int(key) if isinstance(body, list) else key]
    body[int(last) if isinstance(body, list) else last] = value


@pytest.mark.parametrize("path", EDITS)
def test_a_run_that_was_edited_is_refused_in_words_before_it_goes_on(path, unfinished, tmp_path):
    shutil.copytree(unfinished, tmp_path / "run")
    rewrite(tmp_path / "run", lambda body: put(body, path, EDITS[path]))
    with pytest.raises(StoreError):
        resume(tmp_path / "run", progress=False)


def test_an_array_of_another_shape_is_refused_in_words(unfinished, tmp_path):
    for kind in ("trace", "state"):
        shutil.copytree(unfinished, tmp_path / kind)
        path = next((tmp_path / kind).glob(f"{kind}-*"))
        arrays = safetensors.numpy.load_file(path)
        safetensors.numpy.save_file({name: array[..., None] for name, array in arrays.items()}, path)
        rewrite(tmp_path / kind, lambda body: None)
        for read in (load, resume):
            with pytest.raises(StoreError, match=r"shape|hold together"):
                read(tmp_path / kind)


def test_a_run_that_cannot_begin_leaves_no_store(tmp_path):
    for method, settings, match in (
        (MAP(batch_size=100), {}, "more than the 40 rows"),
        (HMC(), {"validation": 0.1}, r"HMC cannot stop early on validation rows.*start=MAP\(\)"),
        (MAP(), {"mesh": (1, 99)}, "there are . devices"),
    ):
        with pytest.raises(ValueError, match=match):
            fit(MODEL, method, (X, Y), store=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    fit(MODEL, MAP(num_steps=10), (X, Y), store=tmp_path / "run")
