"""The store: what comes back is what went in, and damage is refused in words."""

import dataclasses
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import safetensors.numpy
from mutations import contents, damaged, edited
from stores import MODEL, X, Y, cut_off, same

from posterity import (
    HMC,
    MAP,
    DeepEnsemble,
    Gaussian,
    Laplace,
    Model,
    Normal,
    fit,
    from_function,
    load,
    mlp,
)
from posterity.storage.codec import DISTRIBUTIONS, StoreError, decode, encode
from posterity.storage.folder import Reader, Writer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A finished ensemble, in memory and on disk."""
    folder = tmp_path_factory.mktemp("store") / "run"
    method = DeepEnsemble(num_members=2, num_steps=60, batch_size=16)
    return fit(MODEL, method, (X, Y), holdout=0.25, store=folder, metadata={"columns": ["a", "b"]}), folder


def test_values_survive_the_trip():
    arrays = {}
    value = {"a": (1, 2.5, None, "x", True), "b": np.arange(3.0), "m": MODEL, "h": HMC(num_draws=7, step_size=0.1)}
    back = decode(json.loads(json.dumps(encode(value, arrays, "root"))), arrays)
    assert back["a"] == (1, 2.5, None, "x", True)
    assert back["h"] == HMC(num_draws=7, step_size=0.1)
    assert back["m"].network == MODEL.network
    np.testing.assert_array_equal(back["b"], np.arange(3.0))
    same_path = {"a/b": np.zeros(2), "a": {"b": np.ones(2)}}
    assert same(decode(encode(same_path, arrays, "root"), arrays), same_path)
    params = MODEL.init(jax.random.key(0), jnp.asarray(X))
    np.testing.assert_array_equal(back["m"].log_prior(params), MODEL.log_prior(params))


def test_a_stored_run_equals_one_in_memory_and_loads_again(saved):
    posterior, folder = saved
    method = DeepEnsemble(num_members=2, num_steps=60, batch_size=16)
    assert same(posterior.family, fit(MODEL, method, (X, Y), holdout=0.25).family)
    back = load(folder)
    assert same(back.family, posterior.family)
    assert back.receipt == posterior.receipt
    assert back.metadata == {"columns": ["a", "b"]}
    assert back.method == posterior.method
    np.testing.assert_array_equal(back.predict(X).mean, posterior.predict(X).mean)
    np.testing.assert_array_equal(back.predict(X).ood, posterior.predict(X).ood)
    np.testing.assert_array_equal(back.trace["loss"], posterior.trace["loss"])


@pytest.mark.parametrize("matrix", ["full", pytest.param("kronecker", marks=pytest.mark.long)])
def test_save_and_load_a_gaussian_family(matrix, tmp_path):
    model = Model(mlp((3,), activation="tanh"), Gaussian(0.1), Normal(0.0, 1.0))
    posterior = fit(model, Laplace(matrix=matrix, start=MAP(num_steps=50)), (X, Y))
    posterior.save(tmp_path / "laplace")
    back = load(tmp_path / "laplace")
    np.testing.assert_allclose(back.predict(X).std, posterior.predict(X).std, rtol=1e-6)
    assert back.facts["log_evidence"] == pytest.approx(posterior.facts["log_evidence"])
    with pytest.raises(StoreError, match="choose a new folder"):
        posterior.save(tmp_path / "laplace")


def test_a_network_of_ones_own_is_passed_again_and_recognised(tmp_path):
    def made(factor):
        return Model(
            from_function(
                lambda key, x: {"w": jax.random.normal(key, (2, 1))}, lambda params, x: factor * x @ params["w"]
            ),
            Gaussian(0.3),
            dist.Normal(0.0, 1.0),
        )

    posterior = fit(made(1.0), MAP(num_steps=20), (X, Y))
    posterior.save(tmp_path / "own")
    with pytest.raises(StoreError, match=r"could not hold model/network.*load\(path, model\)"):
        load(tmp_path / "own")
    np.testing.assert_array_equal(load(tmp_path / "own", made(1.0)).predict(X).mean, posterior.predict(X).mean)
    with pytest.raises(StoreError, match="other outputs"):
        load(tmp_path / "own", made(2.0))
    with pytest.raises(StoreError, match=r"has the weights network/layer_0/bias.*where the stored one has network/w"):
        load(tmp_path / "own", Model(mlp((3,)), Gaussian(0.3), dist.Normal(0.0, 1.0)))


def test_a_network_is_recognised_where_the_stored_weights_hide_what_it_does(tmp_path):
    """At weights of 0 a line and one of twice its slope are the same."""

    def made(factor):
        network = from_function(lambda key, x: {"w": jnp.zeros((2, 1))}, lambda params, x: factor * x @ params["w"])
        return Model(network, Gaussian(0.3), Normal(0.0, 1.0))

    posterior = fit(made(1.0), MAP(num_steps=1, learning_rate=1e-30), (X, Y))
    for name, write in (("saved", posterior.save), ("run", lambda folder: rerun(made(1.0), folder))):
        write(tmp_path / name)
        load(tmp_path / name, made(1.0))
        with pytest.raises(StoreError, match="other outputs than the stored one"):
            load(tmp_path / name, made(2.0))


def rerun(model, folder):
    fit(model, MAP(num_steps=1, learning_rate=1e-30), (X, Y), store=folder)


@pytest.fixture(scope="module")
def plain():
    return fit(Model(mlp((2,)), Gaussian(0.3), Normal(0.0, 1.0)), MAP(num_steps=1), (X, Y))


PRIORS = {
    **{name: getattr(dist, name)(0.1, 2.0) for name in DISTRIBUTIONS if name != "StudentT"},
    "StudentT": dist.StudentT(4.0, 0.1, 2.0),
    "Uniform": dist.Uniform(-3.0, 3.0),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_distribution_survives_the_trip(name):
    arrays = {}
    back = decode(json.loads(json.dumps(encode(PRIORS[name], arrays, "model/prior"))), arrays)
    assert type(back) is type(PRIORS[name])
    assert float(back.log_prob(0.7)) == float(PRIORS[name].log_prob(0.7))


@pytest.mark.parametrize("name", [name for name in DISTRIBUTIONS if name != "Uniform"])  # which no weight may have
def test_a_posterior_of_every_prior_is_saved_and_loaded(name, plain, tmp_path):
    """Two of them have the name of a record of this package: a method, and a likelihood."""
    model = Model(mlp((2,)), Gaussian(0.3), {"*bias": Normal(0.0, 1.0), "*": PRIORS[name]})
    dataclasses.replace(plain, model=model).save(tmp_path / "saved")
    back = load(tmp_path / "saved").model
    params = model.init(jax.random.key(0), jnp.asarray(X))
    assert float(back.log_prior(params)) == float(model.log_prior(params))
    assert type(back.prior.find("network/layer_0/weight")) is type(PRIORS[name])


def test_a_run_whose_prior_has_the_name_of_a_method_can_be_stored(tmp_path):
    posterior = fit(Model(mlp((2,)), Gaussian(0.3), dist.Laplace(0.0, 1.0)), MAP(num_steps=1), (X, Y), store=tmp_path)
    assert same(load(tmp_path).family, posterior.family)


def test_a_network_of_ones_own_keeps_the_noise_that_was_tuned(tmp_path):
    network = from_function(lambda key, x: {"w": jnp.zeros((2, 1))}, lambda params, x: x @ params["w"])
    model = Model(network, Gaussian(2.0), Normal(0.0, 1.0))
    posterior = fit(model, Laplace(tune="noise", start=MAP(num_steps=50)), (X, Y))
    assert posterior.model.likelihood.scale < 1.5
    posterior.save(tmp_path / "own")
    assert float(load(tmp_path / "own", model).model.likelihood.scale) == float(posterior.model.likelihood.scale)


def test_an_unwritable_or_full_place_is_said_and_nothing_is_lost(saved, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="Cannot make the folder"):
        Writer(tmp_path / "file" / "store")
    posterior, _ = saved
    writer = Writer(tmp_path / "disk")
    writer.arrays("one", {"a": np.ones(3)})
    writer.manifest({"posterior": None})

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left.*whole and readable"):
        writer.arrays("two", {"a": np.ones(3)})
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["manifest.json", "one.safetensors"]
    del posterior


@pytest.fixture(scope="module")
def unfinished(saved, tmp_path_factory):
    """The same run as if it had been cut off before its end."""
    folder = tmp_path_factory.mktemp("store") / "unfinished"
    shutil.copytree(saved[1], folder)
    reader, writer = Reader(folder), Writer(folder)
    kept = ("job", "trace", "draws", "state")
    writer.files = {name: digest for name, digest in reader.files.items() if name.startswith(kept)}
    writer.manifest({name: reader.body[name] for name in ("run", "progress")})
    return folder


@pytest.fixture(scope="module")
def sampling(tmp_path_factory):
    """A run of two stages, cut off among its draws."""
    folder = tmp_path_factory.mktemp("store") / "sampling"
    method = HMC(num_draws=20, num_burn_in=3, step_size=0.002, trajectory_length=0.01, start=MAP(num_steps=20))
    return cut_off(folder, MODEL, method, 6, chains=2)


def files(folder):
    """All files of a store, its first stage included."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))


def mutate(folder, scratch, count, seed):
    """Mutate files of a store, one at a time; returns how often the store was refused. A wrong value fails."""
    rng = np.random.default_rng(seed)
    shutil.copytree(folder, scratch)
    names = files(folder)
    original = {name: (folder / name).read_bytes() for name in names}
    expected, refused = contents(load(folder)), 0
    for trial in range(count):
        name = names[rng.integers(len(names))]
        kind = rng.integers(20)
        if kind == 0:
            (scratch / name).unlink()
        elif kind == 1:
            (scratch / name).write_bytes(original[names[rng.integers(len(names))]])
        elif name.endswith("manifest.json") and kind < 11:
            (scratch / name).write_bytes(edited(rng, original[name], signed=False))
        else:
            (scratch / name).write_bytes(damaged(rng, original[name]))
        try:
            assert contents(load(scratch)) == expected, f"mutation {trial} of {name} changed a value in silence"
        except StoreError:
            refused += 1
        (scratch / name).write_bytes(original[name])
    assert contents(load(scratch)) == expected
    return refused


def check_mutations(folders, scratch, count):
    """Of a posterior and of two runs in turn; few accidents do no harm (a blank more, a file for itself)."""
    refused = [mutate(folder, scratch / str(i), count // 3, seed=i) for i, folder in enumerate(folders)]
    assert all(0.9 * (count // 3) < number for number in refused)


def test_mutations_are_refused_or_harmless(saved, unfinished, sampling, tmp_path):
    assert {"draws-", "start/"} <= {name[:6] for name in files(sampling)}
    check_mutations((saved[1], unfinished, sampling), tmp_path, 300)


@pytest.mark.long
def test_ten_thousand_mutations_are_refused_or_harmless(saved, unfinished, sampling, tmp_path):
    check_mutations((saved[1], unfinished, sampling), tmp_path, 10_002)


def check_signed_edits(folder, scratch, count):
    """An edit that signs its work may change values, but must load or be refused in words."""
    rng = np.random.default_rng(2)
    shutil.copytree(folder, scratch)
    original, refused = (folder / "manifest.json").read_bytes(), 0
    for _ in range(count):
        (scratch / "manifest.json").write_bytes(edited(rng, original, signed=True))
        try:
            load(scratch)
        except StoreError:
            refused += 1
    assert 0.1 * count < refused < count


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of 1e300 in float32, which an edit may say
def test_signed_edits_of_a_manifest_load_or_are_refused_in_words(saved, unfinished, tmp_path):
    check_signed_edits(saved[1], tmp_path / "copy", 40)
    check_signed_edits(unfinished, tmp_path / "unfinished", 40)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of 1e300 in float32, which an edit may say
def test_four_hundred_signed_edits_of_a_manifest_load_or_are_refused_in_words(saved, unfinished, sampling, tmp_path):
    check_signed_edits(saved[1], tmp_path / "copy", 400)
    check_signed_edits(unfinished, tmp_path / "unfinished", 400)
    check_signed_edits(sampling, tmp_path / "sampling", 400)


def test_files_of_others_are_left_alone(saved, tmp_path):
    posterior, _ = saved
    (tmp_path / "llama.safetensors").write_text("mine")
    for begin in (posterior.save, lambda folder: fit(MODEL, MAP(num_steps=1), (X, Y), store=folder)):
        with pytest.raises(StoreError, match=r"not empty: it holds llama.safetensors. Choose a new folder"):
            begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["llama.safetensors"]
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / ".DS_Store").write_text("")  # which nobody sees
    posterior.save(folder)
    (folder / "llama.safetensors").write_text("mine")
    writer = Writer(folder)
    writer.files = {name: digest for name, digest in Reader(folder).files.items() if name != "posterior.safetensors"}
    writer.manifest({})
    assert (folder / "llama.safetensors").read_text() == "mine"
    assert not (folder / "posterior.safetensors").exists()  # the store named it, and does no longer


def test_a_folder_of_a_run_killed_as_it_began_can_be_used_again(tmp_path, monkeypatch):
    """Between its description and its first manifest; a file of another's own with that name stays."""

    def die(*_):
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "manifest", die)
        with pytest.raises(InterruptedError):
            fit(MODEL, MAP(num_steps=1), (X, Y), store=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["job.safetensors"]
    with pytest.raises(StoreError, match="killed as it began: call fit again"):
        load(tmp_path / "run")
    posterior = fit(MODEL, MAP(num_steps=1), (X, Y), store=tmp_path / "run")
    assert same(load(tmp_path / "run").family, posterior.family)
    for name, content in (("other", b"mine"), ("tensors", safetensors.numpy.save({"outputs": np.ones(2)}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.safetensors").write_bytes(content)
        with pytest.raises(StoreError, match=r"not empty: it holds job.safetensors"):
            fit(MODEL, MAP(num_steps=1), (X, Y), store=tmp_path / name)


def test_why_a_write_failed_is_said_on_a_read_only_disk(tmp_path, monkeypatch):
    writer = Writer(tmp_path / "disk")

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr("pathlib.Path.unlink", refuse)
    with pytest.raises(StoreError, match=r"Cannot write .*one.safetensors: Read-only"):
        writer.arrays("one", {"a": np.ones(3)})


def test_other_formats_and_missing_files_are_refused(saved, tmp_path):
    _, folder = saved
    with pytest.raises(StoreError, match=r"is not a store: it has no manifest.json"):
        load(tmp_path)
    shutil.copytree(folder, tmp_path / "newer")
    Writer(tmp_path / "newer").manifest({"format": 99})
    with pytest.raises(StoreError, match=r"newer.*pip install -U"):
        load(tmp_path / "newer")
    shutil.copytree(folder, tmp_path / "less")
    (tmp_path / "less" / "posterior.safetensors").unlink()
    with pytest.raises(StoreError, match="missing or damaged"):
        load(tmp_path / "less")
