"""Draws on disk: the very predictions of draws in memory, read in pieces, within the memory asked for."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stores import rewrite

from posterity import HMC, MAP, Categorical, Fixed, Gaussian, Model, Normal, fit, from_function, load, mlp
from posterity.data.arrays import Dataset
from posterity.inference.engine.checkpoint import Checkpoint
from posterity.storage.codec import StoreError
from posterity.weights import on_disk as disk
from posterity.weights.families import Samples
from posterity.weights.on_disk import StoredArray, StoredSamples, join, settle

CHAINS, DRAWS = 3, 20
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 2))
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1)
MODEL = Model(mlp((5, 4)), Categorical(3), {"network/layer_1/bias": Fixed(), "*": Normal(0.0, 1.0)})


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(left, right, equal_nan=True) for left, right in leaves)


def with_random_draws(posterior, num_draws):
    """The posterior with so many draws a chain of standard normals, and other fixed weights in each chain."""

    def noise(leaf, *shape):
        return jnp.asarray(RNG.standard_normal((leaf.shape[0], *shape), np.float32) / 4)

    draws = jax.tree.map(lambda leaf: noise(leaf, num_draws, *leaf.shape[2:]), posterior.family.draws)
    fixed = jax.tree.map(lambda leaf: noise(leaf, *leaf.shape[1:]), posterior.family.fixed)
    return dataclasses.replace(posterior, family=Samples(draws, fixed))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(in memory, on disk in several files, its folder)."""
    folder = tmp_path_factory.mktemp("stored") / "posterior"
    posterior = with_random_draws(fit(MODEL, MAP(num_steps=1), (X, Y), chains=CHAINS, progress=False), DRAWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "SHARD_BYTES", 4000)
        posterior.save(folder)
    return posterior, load(folder, memory=0), folder


def test_the_rule_what_stays_on_disk(pair):
    posterior, on_disk, folder = pair
    assert len(list(folder.glob("weights-*"))) > 2
    assert isinstance(on_disk.family, StoredSamples)
    assert (on_disk.family.num_chains, on_disk.family.num_draws) == (CHAINS, CHAINS * DRAWS)
    size = on_disk.family.num_draws * on_disk.family.bytes_of_draw
    assert size == sum(leaf.nbytes for leaf in jax.tree.leaves(posterior.family.draws))
    assert isinstance(load(folder, memory=size - 1).family, StoredSamples)
    for held in (load(folder), load(folder, memory=size)):
        assert isinstance(held.family, Samples)
        assert same(held.family, posterior.family)


@pytest.mark.parametrize("memory", [512 * 2**20, 20_000])
@pytest.mark.parametrize("num_draws", [None, 7])
def test_predictions_are_those_of_draws_in_memory_bit_for_bit(pair, memory, num_draws):
    """The same rows go through the network together; how many draws are read at a time changes no bit."""
    posterior, on_disk, _ = pair
    expected = posterior.predict(X, num_draws=num_draws, memory=memory)
    got = on_disk.predict(X, num_draws=num_draws, memory=memory)
    assert same(got.outputs, expected.outputs)
    for name in ("probs", "std", "total", "epistemic", "mutual_information"):
        assert same(getattr(got, name), getattr(expected, name)), name
    assert same(got.log_prob(Y), expected.log_prob(Y))
    if memory == 20_000 and num_draws is None:
        sizes = got._stream._sizes
        assert sizes.draws < expected._stream._sizes.draws
        assert not sizes.keep


def test_draws_are_read_once_for_all_blocks_of_rows(pair, monkeypatch):
    posterior, on_disk, _ = pair
    read, many = [], np.tile(X, (40, 1))
    monkeypatch.setattr("posterity.prediction.streaming.BLOCK_ROWS", (32, 256))
    original = StoredSamples._read
    monkeypatch.setattr(StoredSamples, "_read", lambda self, draws: read.append(len(draws)) or original(self, draws))
    prediction = on_disk.predict(many)
    assert same(prediction.probs, posterior.predict(many).probs)
    assert same(prediction.epistemic, posterior.predict(many).epistemic)
    assert prediction._stream._sizes.num_blocks > 10
    assert sum(read) < 1.2 * CHAINS * DRAWS


@pytest.mark.long
def test_everything_else_of_a_posterior_works_from_disk(pair, tmp_path):
    posterior, on_disk, _ = pair
    assert same(on_disk.weights(5), posterior.weights(5))
    assert same(on_disk.starting_weights(4), posterior.starting_weights(4))
    assert same(on_disk.feature_distance()(X), posterior.feature_distance()(X))
    assert same(on_disk.calibrate(X[:30]).predict(X).ood, posterior.calibrate(X[:30]).predict(X).ood)
    diagnoses = on_disk.diagnose(X[:10]), posterior.diagnose(X[:10])
    assert str(diagnoses[0]) == str(diagnoses[1])
    started = [
        fit(MODEL, MAP(num_steps=2, start=p), (X, Y), chains=CHAINS, progress=False) for p in (on_disk, posterior)
    ]
    assert same(started[0].family, started[1].family)
    on_disk.save(tmp_path / "copy")
    assert same(load(tmp_path / "copy").family, posterior.family)


def test_a_stored_family_passes_through_compiled_programs(pair):
    posterior, on_disk, _ = pair
    mapped = jax.tree.map(jnp.asarray, on_disk.family)
    assert isinstance(mapped, StoredSamples)
    draw = jax.jit(jax.vmap(lambda family, index: family.draw(jax.random.key(0), index), (None, 0)))
    index = jnp.asarray([0, 59, 31, 31])
    assert same(draw(mapped, index), draw(posterior.family, index))
    assert same(jax.tree.map(np.asarray, mapped.draws), posterior.family.draws)
    leaf = mapped.draws["network"]["layer_0"]["weight"]
    assert same(leaf.columns(np.array([1, 7])), np.asarray(leaf).reshape(CHAINS, DRAWS, -1)[:, :, [1, 7]])
    assert same(np.asarray(leaf[np.array([2, 0])]), np.asarray(leaf)[[2, 0]])


def test_damage_is_refused_when_loading_and_change_when_reading(pair, tmp_path):
    _, _, folder = pair
    shutil.copytree(folder, tmp_path / "copy")
    on_disk = load(tmp_path / "copy", memory=0)
    shard = sorted((tmp_path / "copy").glob("weights-*"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"weights-000001.*damaged"):
        load(tmp_path / "copy", memory=0)
    with pytest.raises(StoreError, match=r"changed since.*load the posterior again"):
        _ = on_disk.predict(X).outputs
    shard.unlink()
    with pytest.raises(StoreError, match=r"moved or changed"):
        on_disk.weights(CHAINS * DRAWS)


@pytest.mark.parametrize("name", ["posterior", "weights-000000"])
@pytest.mark.parametrize("length", [2**63 + 5, 2**40, 3, 0])
def test_a_header_of_another_length_is_refused_in_words(name, length, pair, tmp_path):
    shutil.copytree(pair[2], tmp_path / "copy")
    path = tmp_path / "copy" / f"{name}.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    rewrite(tmp_path / "copy", lambda body: None)
    with pytest.raises(StoreError, match=f"{name}.safetensors is damaged"):
        load(tmp_path / "copy")


LIES = {
    "shape": [[10**9, 10**9], [-1, -1], [60], [], "?", [3, 1e300], [0, 20]],
    "data_offsets": [[0, 10**15], [-8, 0], [8, 4], [0], None, ["0", "4"]],
    "dtype": ["F99", None, "U8"],
}


@pytest.mark.parametrize("entry", LIES)
def test_a_header_that_lies_is_refused_in_words(entry, pair, tmp_path):
    shutil.copytree(pair[2], tmp_path / "copy")
    path = tmp_path / "copy" / "weights-000001.safetensors"
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for lie in LIES[entry]:
        header = json.loads(content[8 : 8 + length])
        header["0001"][entry] = lie
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        rewrite(tmp_path / "copy", lambda body: None)
        with pytest.raises(StoreError, match=r"weights-000001.safetensors is damaged: its header"):
            load(tmp_path / "copy")


@pytest.mark.long
def test_a_run_lets_go_of_draws_that_are_on_disk(tmp_path, monkeypatch):
    held, save = [], Checkpoint.save

    def watched(self, run):
        run = save(self, run)
        held.append([type(leaf) for leaf in jax.tree.leaves(run.draws)])
        return run

    monkeypatch.setattr(Checkpoint, "save", watched)
    monkeypatch.setattr("posterity.inference.engine.checkpoint.SAVE_SECONDS", 0.0)
    method = HMC(num_draws=30, num_burn_in=5, step_size=0.01, trajectory_length=0.02)
    posterior = fit(MODEL, method, (X, Y), chains=2, progress=False, store=tmp_path / "run")
    assert len(held[-1]) > 5
    assert all(kind is StoredArray for kinds in held for kind in kinds)
    assert same(load(tmp_path / "run").family, posterior.family)
    monkeypatch.setattr(disk, "SHARD_BYTES", 1000)
    again = Checkpoint.create(tmp_path / "again", _Job(posterior))
    moved = again.finish(dataclasses.replace(posterior, family=load(tmp_path / "run", memory=0).family))
    assert isinstance(moved.family, StoredSamples)
    assert {piece.file.path.parent for piece in moved.family.leaves[0].pieces} == {tmp_path / "again"}
    assert same(moved.predict(X).outputs, posterior.predict(X).outputs)


class _Job:
    """What Checkpoint.create asks of a job."""

    def __init__(self, posterior):
        self.model, self.method, self.metadata = posterior.model, posterior.method, {}
        self.rows, self.validation, self.calibration = Dataset(X, Y, np.ones(len(Y))), None, None
        self.seed, self.num_chains, self.mesh, self.given = 0, 2, None, ""


def test_stretches_of_a_run_are_joined_and_settled(pair):
    posterior, on_disk, _ = pair
    draws = on_disk.family.draws
    twice = join([draws, draws])
    expected = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], 1), posterior.family.draws)
    assert all(isinstance(leaf, StoredArray) for leaf in jax.tree.leaves(twice))
    assert same(jax.tree.map(np.asarray, twice), expected)
    assert same(join([posterior.family.draws, draws]), expected)  # partly in memory: all in memory
    assert join([]) is None
    family = Samples(jax.tree.map(lambda leaf: leaf[:2], twice), posterior.family.fixed)
    assert isinstance(settle(family, memory=0), StoredSamples)
    held = settle(family)
    assert isinstance(held, Samples)
    assert same(held.draws, jax.tree.map(lambda leaf: leaf[:2], expected))


class Pair(NamedTuple):
    a: Any
    b: Any


def model_of_two(make, take):
    """A network of two weights in a tree of the user's choice, for inputs in two parts."""
    network = from_function(
        lambda key, x: make(jnp.zeros((1, 1)), jnp.ones((1, 1))),
        lambda params, x: x[0] @ take(params)[0] + jnp.tanh(x[1]) @ take(params)[1],
    )
    return Model(network, Gaussian(0.3), Normal(0.0, 1.0))


@pytest.mark.parametrize("where", ["x", "weights"])
def test_what_a_store_cannot_hold_is_refused_before_a_run(where, tmp_path):
    parts = X[:, :1], X[:, 1:]
    model = model_of_two(Pair if where == "weights" else lambda a, b: (a, b), lambda params: params)
    data = Pair(*parts) if where == "x" else parts, X[:, 0]
    with pytest.raises(StoreError, match=rf"cannot hold .*{where}.* of type Pair: use arrays in a dict, list or tuple"):
        fit(model, MAP(num_steps=2), data, store=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    posterior = fit(model, MAP(num_steps=2), data)
    with pytest.raises(StoreError, match="of type Pair"):
        posterior.save(tmp_path / "saved")


def test_lists_and_ordered_dicts_of_weights_come_back(tmp_path):
    trees = {
        "list": (lambda a, b: [a, b], lambda params: params),
        "ordered": (lambda a, b: OrderedDict(z=a, y=b), lambda params: (params["z"], params["y"])),
    }
    for name, tree in trees.items():
        model, parts = model_of_two(*tree), (X[:, :1], X[:, 1:])
        posterior = fit(model, MAP(num_steps=5), (parts, X[:, 0]))
        posterior.save(tmp_path / name)
        np.testing.assert_array_equal(load(tmp_path / name, model).predict(parts).mean, posterior.predict(parts).mean)


MEASURE = """
import sys
import numpy as np
from posterity import load

def memory(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))

folder, rows, budget = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
posterior = load(folder)
x = np.random.default_rng(1).normal(size=(rows, 13)).astype(np.float32)
for name in ("mean", "std"):
    getattr(posterior.predict(x[:100], num_draws=50, memory=budget), name)  # warm up
before = memory("VmRSS")
prediction = posterior.predict(x, memory=budget)
prediction.mean, prediction.std, prediction.epistemic
print(type(posterior.family).__name__, prediction.num_draws, memory("VmHWM") - before)
"""


def growth(folder, num_draws, num_rows, budget):
    """By how many MB another process grows to predict from a store of a network of 50,000 weights."""
    model = Model(mlp((216, 216)), Gaussian(0.1), Normal(0.0, 1.0))
    x = RNG.normal(size=(20, 13)).astype(np.float32)
    posterior = fit(model, MAP(num_steps=1), (x, x[:, 0]), chains=4, progress=False)
    assert posterior.receipt.num_weights > 50_000
    with_random_draws(posterior, num_draws // 4).save(folder)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", MEASURE, str(folder), str(num_rows), str(budget)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    kind, count, grown = result.stdout.split()
    assert (kind, int(count)) == ("StoredSamples", num_draws)
    print(f"{num_draws} draws at {num_rows} rows: {float(grown):.0f} MB")
    return float(grown)


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")


@needs_proc
@pytest.mark.long
def test_memory_stays_within_bounds(tmp_path):
    """The draws take 160 MB, twice that while they are handed to a device; within 64 MB, less than they do."""
    assert growth(tmp_path / "store", num_draws=800, num_rows=200, budget=64 * 2**20) < 150


@needs_proc
@pytest.mark.long
def test_two_thousand_draws_at_twenty_thousand_rows_take_less_than_500_megabytes(tmp_path):
    assert growth(tmp_path / "store", num_draws=2000, num_rows=20_000, budget=400 * 2**20) < 500
