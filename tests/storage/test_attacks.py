"""Stores from strangers and stores of two writers: refused in words, and nothing outside a store is touched."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import safetensors.numpy
from stores import SIMPLE, X, Y, cut_off, rewrite, same

from posterity import HMC, MAP, Gaussian, Laplace, Model, Normal, fit, from_function, load, resume
from posterity.core.names import printable
from posterity.storage import folder as folders
from posterity.storage.codec import StoreError
from posterity.storage.folder import Reader, Writer
from posterity.storage.lock import LOCK, hold

METHOD = HMC(num_draws=30, num_burn_in=3, step_size=0.002, trajectory_length=0.01, start=MAP(num_steps=20))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks") / "finished"
    fit(SIMPLE, METHOD, (X, Y), chains=2, store=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    return cut_off(tmp_path_factory.mktemp("attacks") / "unfinished", SIMPLE, METHOD, 6, chains=2)


@pytest.fixture
def run(unfinished, tmp_path):
    return shutil.copytree(unfinished, tmp_path / "run")


def signed(folder, name, payload):
    """Put a file into a store, and sign it."""
    (folder / name).write_bytes(payload)
    rewrite(folder, lambda body: None)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Links


@pytest.mark.parametrize("kind", ["manifest", "state"])
def test_writing_never_follows_a_link(kind, run, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (state,) = run.glob("state-*")
    number = int(state.stem.removeprefix("state-"))
    name = "manifest.json" if kind == "manifest" else f"state-{number + 1:06d}.safetensors"
    (run / f".{name}.partial").symlink_to(victim)
    resume(run, progress=False)
    assert victim.read_text() == "mine"
    assert not (run / f".{name}.partial").is_symlink()


@pytest.mark.parametrize("name", ["manifest.json", "job.safetensors", "start", "start/posterior.safetensors"])
def test_links_within_a_store_are_refused(name, run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / name, elsewhere)
    (run / name).symlink_to(elsewhere)
    before = contents(tmp_path)
    for read in (load, lambda folder: resume(folder, progress=False)):
        with pytest.raises(StoreError, match=f"{name} is a link, which no store makes"):
            read(run)
    assert contents(tmp_path) == before


def test_a_store_may_be_reached_by_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    assert same(resume(tmp_path / "link", progress=False).family, load(run).family)


def test_a_lock_that_is_a_link_is_refused(run, tmp_path):
    (run / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="lock is a link"):
        resume(run, progress=False)
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("name", ["manifest.json", "job.safetensors"])
def test_a_pipe_in_a_store_is_refused_and_not_waited_for(name, run):
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(StoreError, match=f"{name} is not a file"):
        load(run)


def test_a_pipe_where_no_manifest_is_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "job.safetensors")
    with pytest.raises(StoreError, match="is not a store"):
        load(tmp_path)
    with pytest.raises(StoreError, match=r"not empty: it holds job.safetensors"):
        Writer(tmp_path)


@pytest.mark.parametrize("name", ["../out.safetensors", "a\0.safetensors", "\udcff.safetensors", "/etc/a.safetensors"])
def test_a_file_of_another_place_or_of_no_name_is_refused(name, finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    reader, writer = Reader(copy), Writer(copy)
    writer.files = {**reader.files, name: "0" * 64}
    writer.manifest({})
    refused(copy, "manifest.json is damaged")


# Two writers

HOLDER = """
import sys, time
from pathlib import Path
from posterity.storage.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(run):
    with subprocess.Popen([sys.executable, "-c", HOLDER, run], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_writer_is_refused_and_a_dead_one_is_not_waited_for(run, holder):
    before = contents(run)
    with pytest.raises(StoreError, match=rf"in use by process {holder.pid} on {os.uname().nodename}.*Nothing was chan"):
        resume(run, progress=False)
    assert contents(run) == before
    load(run)  # reading is free
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (run / LOCK).exists()
    resume(run, progress=False)
    assert not (run / LOCK).exists()


RESUMER = """
import sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "The chains have not converged")  # they were hardly run
from posterity import resume
resume(sys.argv[1], progress=False)
"""


def test_two_processes_resuming_one_store_lose_nothing(tmp_path):
    method = HMC(num_draws=3000, num_burn_in=3, step_size=0.002, trajectory_length=0.01)
    whole = fit(SIMPLE, method, (X, Y), chains=2, progress=False)
    folder = cut_off(tmp_path / "run", SIMPLE, method, 6, chains=2)
    both = [
        subprocess.Popen([sys.executable, "-c", RESUMER, folder], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes, said
    for code, text in zip(codes, said, strict=True):
        assert code == 0 or "is in use by process" in text
    assert same(load(folder).family, whole.family)


def test_two_threads_of_a_process_are_two_writers(run):
    with hold(run), pytest.raises(StoreError, match=f"in use by process {os.getpid()} "):
        resume(run, progress=False)
    resume(run, progress=False)


def test_a_folder_that_cannot_lock_is_warned_of(run, monkeypatch):
    import fcntl

    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match=r"cannot be locked \(Operation not supported\): make sure"):
        resume(run, progress=False)


def test_a_finished_run_is_read_by_many_at_once(finished):
    with hold(finished):
        resume(finished, progress=False)


def test_a_refused_store_leaves_no_folder_behind(tmp_path):
    network = from_function(lambda key, x: {1.5: np.zeros((2, 1))}, lambda params, x: x @ params[1.5])
    with pytest.raises(StoreError):
        fit(Model(network, Gaussian(0.3)), MAP(num_steps=1), (X, Y), store=tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Damage


def test_every_file_of_a_finished_run_is_checked(finished, tmp_path):
    names = [str(path.relative_to(finished)) for path in finished.rglob("*.safetensors")]
    assert {name.split("-")[0].split(".")[0] for name in names} >= {"job", "trace", "state", "posterior", "start/job"}
    for name in names:
        copy = shutil.copytree(finished, tmp_path / name.replace("/", "+"))
        payload = bytearray((copy / name).read_bytes())
        payload[-1] ^= 1
        (copy / name).write_bytes(payload)
        with pytest.raises(StoreError, match="damaged"):
            load(copy)


def test_a_run_that_goes_on_while_it_is_read_is_not_called_damaged(run):
    reader = Reader(run)
    resume(run, progress=False)
    with pytest.raises(StoreError, match="went on while its store was read: read it again"):
        reader.check_files()


# Sizes


def memory_taken(action):
    """The most bytes that Python and numpy held at once."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def header(**arrays):
    text = json.dumps(arrays).encode()
    return len(text).to_bytes(8, "little") + text


def refused(folder, match):
    with pytest.raises(StoreError, match=match):
        load(folder)


HUGE = {"dtype": "F32", "shape": [2, 2**40, 0], "data_offsets": [0, 0]}


def test_draws_without_weights_cannot_be_2_to_the_40(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (name,) = (path.name for path in copy.glob("weights-*"))
    number = len(safetensors.numpy.load_file(copy / name))
    signed(copy, name, header(**{f"{i:04d}": HUGE for i in range(number)}))
    assert memory_taken(lambda: refused(copy, "header does not describe draws")) < 1e8


def test_rows_without_columns_cannot_be_2_to_the_40(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    arrays = safetensors.numpy.load_file(copy / "posterior.safetensors")
    arrays["inputs"] = np.zeros((2**40, 0), np.float32)
    signed(copy, "posterior.safetensors", safetensors.numpy.save(arrays))
    assert memory_taken(lambda: refused(copy, "inputs has shape")) < 1e8


def test_arrays_cannot_share_their_bytes(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (name,) = (path.name for path in copy.glob("weights-*"))
    number = len(safetensors.numpy.load_file(copy / name))
    block = {"dtype": "F32", "shape": [2, 30, 4], "data_offsets": [0, 960]}
    signed(copy, name, header(**{f"{i:04d}": block for i in range(number)}) + bytes(960))
    refused(copy, "share their bytes")


def test_a_shard_cannot_be_named_a_hundred_thousand_times(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")

    def repeat(body):
        body["posterior"]["family"]["shards"] *= 100_000

    rewrite(copy, repeat)
    assert memory_taken(lambda: refused(copy, "several times")) < 1e8


def test_an_array_cannot_be_named_a_hundred_thousand_times(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")

    def repeat(body):
        body["posterior"]["inputs"] = {"tuple": [body["posterior"]["inputs"]] * 100_000}

    rewrite(copy, repeat)
    assert memory_taken(lambda: refused(copy, "does not hold together")) < 1e8


def test_a_gigabyte_of_json_is_not_read(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    os.truncate(copy / "manifest.json", 2**30)
    assert memory_taken(lambda: refused(copy, "takes 1,074 MB, and no manifest takes more than 134 MB")) < 1e7
    writer = Writer(tmp_path / "new")
    with pytest.raises(StoreError, match="pass less metadata"):
        writer.manifest({"metadata": "x" * folders.MANIFEST_BYTES})


def test_a_header_of_many_megabytes_is_not_read(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    (path,) = copy.glob("weights-*")
    path.write_bytes((2**26).to_bytes(8, "little") + bytes(2**26))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    reader, writer = Reader(copy), Writer(copy)
    writer.files = {**reader.files, path.name: digest}
    writer.manifest({name: reader.body[name] for name in ("run", "progress", "posterior")})
    assert memory_taken(lambda: refused(copy, "a header of 67108864 bytes")) < 1e7


def test_a_file_larger_than_memory_is_not_read(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")
    os.truncate(copy / "posterior.safetensors", int(folders._memory()) + 1)  # of which the disk holds little
    with pytest.raises(StoreError, match="more than the memory of this machine"):
        Reader(copy).arrays("posterior")


# What reaches people

ESCAPE = "\x1b]0;owned\x07\x9b31m\u202e"


def test_control_characters_of_a_store_never_reach_a_terminal(finished, tmp_path):
    copy = shutil.copytree(finished, tmp_path / "copy")

    def edit(body):
        body["posterior"]["receipt"]["notes"] = [ESCAPE]
        body["posterior"]["receipt"]["devices"] = ESCAPE
        body["posterior"]["receipt"]["versions"] = {ESCAPE: ESCAPE}

    rewrite(copy, edit)
    shown = str(load(copy).receipt)
    assert printable(shown) == shown
    assert r"\x1b]0;owned\x07\x9b31m\u202e" in shown
    rewrite(copy, lambda body: body["posterior"]["method"].update(record=ESCAPE))
    with pytest.raises(StoreError) as caught:
        load(copy)
    assert printable(str(caught.value)) == str(caught.value)


def own(noise, width):
    network = from_function(lambda key, x: {"w": np.zeros((2, 1), np.float32)}, lambda params, x: x @ params["w"])
    return Model(network, Gaussian(noise), Normal(0.0, width))


@pytest.mark.parametrize("stored", ["run", "posterior"])
def test_another_prior_or_noise_than_the_stored_one_is_warned_of(stored, tmp_path):
    method = MAP(num_steps=40)
    if stored == "run":
        cut_off(tmp_path / "own", own(0.3, 1.0), method, 10)
    else:
        fit(own(0.3, 1.0), method, (X, Y)).save(tmp_path / "own")
    read = load if stored == "posterior" else lambda path, model: resume(path, model, progress=False)
    kept = load(tmp_path / "own", own(0.3, 1.0))
    with pytest.warns(UserWarning, match=r"the prior .*Normal\(loc=0, scale=5\); the store was made with .*scale=1\)"):
        assert float(load(tmp_path / "own", own(0.3, 5.0)).model.likelihood.scale) == pytest.approx(0.3)
    with pytest.warns(
        UserWarning, match=r"likelihood Gaussian\(scale=0.9.*; the store was made with Gaussian\(scale=0.3"
    ):
        changed = read(tmp_path / "own", own(0.9, 1.0))
    assert changed.model.likelihood == kept.model.likelihood


def test_what_the_method_tuned_is_not_warned_of(tmp_path):
    posterior = fit(own(2.0, 1.0), Laplace(tune=("prior", "noise"), start=MAP(num_steps=50)), (X, Y))
    posterior.save(tmp_path / "own")
    load(tmp_path / "own", own(2.0, 1.0))
