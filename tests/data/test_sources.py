"""Rows read as a run goes: the batches of arrays, loaders that fail, memory, augmentation, resuming."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import (
    HMC,
    MAP,
    SGHMC,
    SWAG,
    Bernoulli,
    Categorical,
    Gaussian,
    Heads,
    Laplace,
    Model,
    Rescaled,
    StoreError,
    fit,
    linear,
    load,
    mlp,
    resume,
)
from posterity.core import records
from posterity.data import sources
from posterity.data.sources import LoaderError
from posterity.inference.engine import feed

pytestmark = pytest.mark.filterwarnings("ignore:.* has not converged")  # runs are short

RNG = np.random.default_rng(0)
X = RNG.normal(size=(103, 3)).astype(np.float32)
Y = X @ [1.0, -2.0, 0.5] + 0.1 * RNG.normal(size=103)
MODEL = Model(mlp((8,)), Gaussian(0.1))
SHORT = MAP(num_steps=60, batch_size=10)


class Loader:
    """The protocol of torch's DataLoader: batches as lists, a length, an epoch each time it is iterated."""

    def __init__(self, x, y, batch_size=16, change=None):
        self.x, self.y, self.batch_size, self.change = x, y, batch_size, change
        self.num_epochs = 0

    def __len__(self):
        return -(-len(self.x) // self.batch_size)

    def __iter__(self):
        self.num_epochs += 1
        for number, first in enumerate(range(0, len(self.x), self.batch_size)):
            rows = slice(first, first + self.batch_size)
            batch = [self.x[rows], self.y[rows]]
            yield batch if self.change is None else self.change(number, self.num_epochs, batch)


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """X as a memory map, of which any is large."""
    monkeypatch.setattr(sources, "RESIDENT_BYTES", 0)
    monkeypatch.setattr(feed, "FEED_BYTES", 4_000)  # a few steps at a time
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


def same(one, other):
    for a, b in zip(jax.tree.leaves(one.weights()), jax.tree.leaves(other.weights()), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(SHORT, id="map"),
        pytest.param(SGHMC(num_draws=4, num_burn_in=20, thin=3, batch_size=10, preconditioner="rmsprop"), id="sghmc"),
        pytest.param(SWAG(num_steps=60, batch_size=10, start=SHORT, rank=3), id="swag", marks=pytest.mark.long),
        pytest.param(Laplace(batch_size=40, start=SHORT), id="laplace", marks=pytest.mark.long),
    ],
)
def test_a_memory_map_gives_the_fit_of_arrays_bit_for_bit(mapped, method):
    model = Model(mlp((8,)), Rescaled(Gaussian(0.1), 1.0, 2.0))
    whole = fit(model, method, (X, Y), chains=2)
    streamed = fit(model, method, (mapped, Y), chains=2)
    same(whole, streamed)
    assert streamed.receipt.num_data == 103
    assert "memory maps" in str(streamed.receipt)
    assert len(jax.tree.leaves(streamed.inputs)[0]) == 103


def test_shares_that_are_set_aside_are_those_of_arrays(mapped):
    options = {"holdout": 0.2, "validation": 0.2, "seed": 3}
    whole, streamed = (fit(MODEL, SHORT, (x, Y), **options) for x in (X, mapped))
    same(whole, streamed)
    np.testing.assert_array_equal(whole.calibration.scores, streamed.calibration.scores)


def test_a_loader_in_the_order_of_arrays_gives_their_fit():
    """Of batches that are not shuffled: a loader's own are cut into those of the plan."""
    loaded = fit(MODEL, SHORT, Loader(X, Y), num_rows=103)
    again = fit(MODEL, SHORT, Loader(X, Y, batch_size=7), num_rows=103)
    same(loaded, again)
    assert "order of rows is the loader's" in str(loaded.receipt)
    assert loaded.receipt.num_data == 103
    unshuffled = fit(MODEL, InOrder(num_steps=60, batch_size=10), (X, Y))
    same(loaded, unshuffled)


@records.record
class InOrder(MAP):
    """MAP whose epochs all have the order of the rows."""

    def plan(self, num_rows):
        return tuple(phase._replace(shuffle=False) for phase in super().plan(num_rows))


def test_loaders_of_heads_weights_and_generators():
    heads = Model(mlp((4,)), Heads(kind=Categorical(3), size=Gaussian(0.1)))

    def endless():
        while True:
            for rows in np.array_split(np.arange(103), 9):
                yield X[rows], {"kind": X[rows].argmax(1), "size": Y[rows]}, np.full(len(rows), 2.0)

    posterior = fit(heads, SHORT, endless(), num_rows=103)
    assert posterior.predict(X)["kind"].probs.shape == (103, 3)


def bad(number, epoch, batch):
    x, y = batch
    if (number, epoch) != (2, 4):
        return batch
    return {"shape": [x[:, :2], y], "type": {"x": x}, "nan": [x * np.nan, y]}[bad.what]


@pytest.mark.parametrize("what", ["shape", "type", "nan", "raises", "short", "long", "ends", "empty"])
def test_a_loader_that_fails_says_where_and_loses_nothing(what, tmp_path):
    """The third batch of the third epoch of training; the first look at the loader is an epoch too."""
    words = {
        "shape": r"Batch 2 of epoch 2 of the loader does not fit: x has rows of shape \(2,\)",
        "type": "Batch 2 of epoch 2 of the loader is dict; expected",
        "nan": "Batch 2 of epoch 2 .* 48 NaN or infinite",
        "raises": "The loader raised OSError at batch 2 of epoch 2: the disk is gone",
        "short": r"ended after 103 rows of an epoch of num_rows=110",
        "long": r"exceeds num_rows=90",
        "ends": "iterator is used up",
        "empty": "gave no batch",
    }[what]

    def raises(number, epoch, batch):
        if (number, epoch) == (2, 4):
            raise OSError("the disk is gone")
        return batch

    loader, num_rows = Loader(X, Y), {"short": 110, "long": 90}.get(what, 103)
    if what in ("shape", "type", "nan"):
        bad.what = what
        loader = Loader(X, Y, change=bad)
    if what == "raises":
        loader = Loader(X, Y, change=raises)
    if what == "ends":
        loader = iter(loader)
    if what == "empty":
        loader = []
        with pytest.raises(TypeError, match="data is a list of 0"):
            fit(MODEL, SHORT, loader)
        loader = iter([])
    with pytest.raises(LoaderError, match=words) as caught:
        fit(MODEL, SHORT, loader, num_rows=num_rows, store=tmp_path / "run")
    if what == "raises":
        assert "stored up to step" in str(caught.value)
        with pytest.raises(StoreError, match="does not hold the 103 rows"):
            resume(tmp_path / "run")
        with pytest.raises(StoreError, match="fingerprint differs"):
            resume(tmp_path / "run", data=Loader(X, Y), num_rows=102)
        resumed = resume(tmp_path / "run", data=Loader(X, Y), num_rows=103)
        same(resumed, fit(MODEL, SHORT, Loader(X, Y), num_rows=103))  # its order repeats, so that this is exact


def test_a_run_on_a_memory_map_resumes_exactly(mapped, tmp_path):
    method = MAP(num_steps=4000, batch_size=10)
    whole = fit(MODEL, method, (mapped, Y))
    part = fit(MODEL, method, (mapped, Y), store=tmp_path / "run", budget=0.3)
    assert part.receipt.num_steps < 4000
    assert load(tmp_path / "run").receipt.num_data == 103
    with pytest.raises(StoreError, match="pass resume"):
        resume(tmp_path / "run")
    same(resume(tmp_path / "run", data=(mapped, Y)), whole)


def test_what_needs_all_rows_says_so(mapped):
    with pytest.raises(ValueError, match=r"HMC takes all 103 rows at every step, .* GB in memory.*SGHMC"):
        fit(MODEL, HMC(), (mapped, Y))
    with pytest.raises(ValueError, match="MAP takes all 103 rows"):
        fit(MODEL, MAP(batch_size="full"), Loader(X, Y), num_rows=103)
    with pytest.raises(TypeError, match=r"num_rows=len\(loader\.dataset\)"):
        fit(MODEL, SHORT, Loader(X, Y))
    with pytest.raises(ValueError, match="cannot be taken from a loader"):
        fit(MODEL, SHORT, Loader(X, Y), num_rows=103, holdout=0.1)
    with pytest.raises(ValueError, match="num_rows=3 is for loaders"):
        fit(MODEL, SHORT, (X, Y), num_rows=3)
    broken = np.array(X)
    broken[50, 1] = np.nan
    np.save(Path(mapped.filename).with_name("broken.npy"), broken)
    with pytest.raises(LoaderError, match="Row 50 of the memory map"):
        fit(MODEL, SHORT, (np.load(Path(mapped.filename).with_name("broken.npy"), mmap_mode="r"), Y))


def mirrored(key, x):
    """An input or its mirror image, with the same label."""
    return jnp.where(jax.random.bernoulli(key), x, -x)


def test_augmentation_is_the_mean_log_likelihood_over_changes():
    """Of a linear classifier: under x and -x with the same label the best slope is 0, and only the bias is learned."""
    x = np.abs(RNG.normal(size=(200, 1))) + 0.5
    y = (RNG.uniform(size=200) < 0.8).astype(int)
    y[:2] = 0, 1
    method = MAP(num_steps=1500, learning_rate=0.02, batch_size=100)
    posterior = fit(Model(linear(), Bernoulli()), method, (x, y), augment=mirrored)
    bias, weight = (float(np.ravel(leaf)[0]) for leaf in jax.tree.leaves(posterior.weights()["network"]))
    assert abs(weight) < 0.15
    assert bias == pytest.approx(np.log(y.mean() / (1 - y.mean())), abs=0.15)
    assert "exp(E_t log p(y | t(x)))" in str(posterior.receipt)
    same(posterior, fit(Model(linear(), Bernoulli()), method, (x, y), augment=mirrored))


def test_augmentation_that_cannot_be_is_refused(mapped, tmp_path):
    with pytest.raises(ValueError, match="HMC samples one fixed density"):
        fit(MODEL, HMC(), (X, Y), augment=mirrored)
    with pytest.raises(ValueError, match="expected the same shapes"):
        fit(MODEL, SHORT, (X, Y), augment=lambda key, x: x[:2])
    with pytest.raises(TypeError, match="expected a function"):
        fit(MODEL, SHORT, (X, Y), augment=3)
    fit(MODEL, MAP(num_steps=4000, batch_size=10), (mapped, Y), augment=mirrored, store=tmp_path / "run", budget=0.2)
    with pytest.raises(StoreError, match="pass that function again"):
        resume(tmp_path / "run", data=(mapped, Y))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_a_memory_map_larger_than_the_memory(tmp_path):
    """A map of 4 GB, of zeros that take no room on disk, in a process that may allocate 700 MB more than it has."""
    script = f"""
import resource
import numpy as np
from posterity import MAP, Gaussian, Model, fit, mlp
model, rng = Model(mlp((4,)), Gaussian(1.0)), np.random.default_rng(0)
fit(model, MAP(num_steps=20, batch_size=64), (rng.normal(size=(500, 1000)), rng.normal(size=500)))  # warm up
x = np.memmap({str(tmp_path / "x")!r}, np.float32, "w+", shape=(1_000_000, 1000))
x.flush()
x = np.memmap({str(tmp_path / "x")!r}, np.float32, "r", shape=(1_000_000, 1000))
with open("/proc/self/status") as status:
    held = next(int(line.split()[1]) for line in status if line.startswith("VmData")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (held + 700 * 2**20, resource.RLIM_INFINITY))
posterior = fit(model, MAP(num_steps=300, batch_size=64), (x, rng.normal(size=1_000_000)))
print(posterior.receipt.remarks[0], posterior.receipt.num_data)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "memory maps of 3.73 GB 1000000" in ended.stdout
