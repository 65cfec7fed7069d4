"""Inputs nobody thought of: settings, tables and files at random are taken, or refused in words.

Quick forms run a few examples; the long tier takes about a minute each. Whatever breaks becomes a test of its own.
"""

import dataclasses
import gzip
import io
import json
import time

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from mutations import contents, damaged, edited
from stores import MODEL, SIMPLE, X, Y, cut_off

from posterity import (
    HMC,
    MAP,
    METHODS,
    Bernoulli,
    Categorical,
    DeepEnsemble,
    Gaussian,
    HeteroscedasticGaussian,
    NegativeBinomial,
    NoisyCategorical,
    Poisson,
    StudentT,
    fit,
    load,
)
from posterity.cli.errors import InputError
from posterity.cli.tables import read_table, write_csv
from posterity.storage.codec import StoreError, decode, encode

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None)
LONG = settings(QUICK, max_examples=5_000, suppress_health_check=list(HealthCheck))
SECONDS = 60

LIKELIHOODS = (
    *(Bernoulli, Categorical, Gaussian, HeteroscedasticGaussian),
    *(NegativeBinomial, NoisyCategorical, Poisson, StudentT),
)
VALUES = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-3, 2**70),
    some.floats(),
    some.text(max_size=5),
    some.lists(some.integers(0, 3), max_size=2).map(tuple),
    some.sampled_from(["prior", "noise", "full", "diagonal", "rmsprop", "constant", "decreasing", "sgld", "sghmc"]),
)


def check_words(error):
    assert len(str(error)) > 10


@some.composite
def records(draw):
    """A class and settings for it, of which most are wrong."""
    cls = draw(some.sampled_from([*METHODS.values(), *LIKELIHOODS]))
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    return cls, draw(some.dictionaries(some.sampled_from(names), VALUES, max_size=3)) if names else {}


def check_settings(case):
    """What a constructor takes comes back from a store; what it does not take it refuses in words."""
    cls, chosen = case
    try:
        made = cls(**chosen)
    except (ValueError, TypeError) as error:
        check_words(error)
        return
    arrays = {}
    text = json.dumps(encode(made, arrays, "method"))
    again = decode(json.loads(text), arrays)
    assert json.dumps(encode(again, {}, "method")) == text


@QUICK
@given(records())
def test_settings_are_refused_in_words_or_survive_a_store(case):
    check_settings(case)


@pytest.mark.long
@LONG
@given(records())
def test_many_settings_are_refused_in_words_or_survive_a_store(case):
    check_settings(case)


NAMES = some.text(some.characters(blacklist_categories=["Cs"]), min_size=1, max_size=6)
CELLS = {
    "number": some.one_of(some.floats(width=32), some.integers(-(2**80), 2**80)),
    "text": some.text(some.characters(blacklist_categories=["Cs"]), max_size=8),
    "gaps": some.one_of(some.none(), some.integers(0, 3)),
    "flag": some.booleans(),
}


@some.composite
def frames(draw):
    columns = draw(some.lists(some.tuples(NAMES, some.sampled_from(sorted(CELLS))), min_size=1, max_size=4))
    rows = draw(some.integers(0, 6))
    return pd.DataFrame(
        {name: draw(some.lists(CELLS[kind], min_size=rows, max_size=rows)) for name, kind in columns}, dtype=object
    )


def check_table(frame, folder, separator, encoding, safe):
    path = folder / "table.csv"
    text = io.StringIO()
    write_csv(frame, text, safe) if separator == "," else frame.to_csv(text, index=False, sep=separator)
    path.write_bytes(text.getvalue().encode(encoding, errors="replace"))
    try:
        table = read_table(str(path))
    except InputError as error:
        check_words(error)
        return
    assert len(table.frame) > 0
    assert len(set(table.frame.columns)) == table.frame.shape[1]


CHOICES = (some.sampled_from([",", ";", "\t", "|"]), some.sampled_from(["utf-8", "utf-16", "latin-1"]), some.booleans())


@settings(QUICK, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames(), *CHOICES)
def test_tables_are_read_or_refused_in_words(tmp_path, frame, separator, encoding, safe):
    check_table(frame, tmp_path, separator, encoding, safe)


@pytest.mark.long
@LONG
@given(frames(), *CHOICES)
def test_many_tables_are_read_or_refused_in_words(tmp_path, frame, separator, encoding, safe):
    check_table(frame, tmp_path, separator, encoding, safe)


def tables():
    """Good files of every kind that is read."""
    frame = pd.DataFrame({"größe": [1.5, 2.5, 3.5] * 4, "b": ["x", "y, z", 'q"'] * 4, "when": ["2020-01-02"] * 12})
    text = frame.to_csv(index=False)
    parquet = io.BytesIO()
    frame.to_parquet(parquet)
    return {
        "a.csv": text.encode(),
        "b.csv": frame.to_csv(index=False, sep=";", decimal=",").encode("latin-1"),
        "c.csv": text.encode("utf-16"),
        "d.csv.gz": gzip.compress(text.encode()),
        "e.parquet": parquet.getvalue(),
    }


def check_damaged_tables(folder, seed, enough):
    rng, originals, count = np.random.default_rng(seed), tables(), 0
    while not enough(count):
        name = list(originals)[count % len(originals)]
        (folder / name).write_bytes(damaged(rng, originals[name]))
        try:
            assert len(read_table(str(folder / name)).frame)
        except InputError as error:
            check_words(error)
        count += 1
    return count


def test_damaged_tables_are_read_or_refused_in_words(tmp_path):
    check_damaged_tables(tmp_path, 0, lambda count: count >= 500)


@pytest.mark.long
def test_tables_damaged_for_a_minute_are_read_or_refused_in_words(tmp_path):
    ends = time.monotonic() + SECONDS
    assert check_damaged_tables(tmp_path, 1, lambda _: time.monotonic() > ends) > 1000


@pytest.mark.long
def test_stores_damaged_for_a_minute_are_refused_or_right(tmp_path):
    """Every kind of file of a finished run, of one that was cut off, and of what both started from."""
    method = HMC(num_draws=20, num_burn_in=3, step_size=0.002, trajectory_length=0.01, start=MAP(num_steps=20))
    fit(SIMPLE, method, (X, Y), chains=2, store=tmp_path / "hmc", progress=False)
    fit(MODEL, DeepEnsemble(num_members=2, num_steps=20), (X, Y), holdout=0.25, store=tmp_path / "map", progress=False)
    cut_off(tmp_path / "cut", SIMPLE, method, 6, chains=2)
    folders = [tmp_path / name for name in ("hmc", "map", "cut")]
    expected = [contents(load(folder)) for folder in folders]
    files = [[path for path in folder.rglob("*") if path.is_file()] for folder in folders]
    kinds = {path.name.split("-")[0] for paths in files for path in paths}
    assert kinds >= {"manifest.json", "job.safetensors", "posterior.safetensors", "trace", "state", "draws", "weights"}
    rng, ends, count, seen = np.random.default_rng(3), time.monotonic() + SECONDS, 0, set()
    while time.monotonic() < ends:
        which = count % len(folders)
        path = files[which][rng.integers(len(files[which]))]
        original = path.read_bytes()
        is_manifest = path.name == "manifest.json" and rng.integers(2)
        path.write_bytes(edited(rng, original, signed=False) if is_manifest else damaged(rng, original))
        try:
            assert contents(load(folders[which])) == expected[which], f"{path} was changed in silence ({count})"
        except StoreError as error:
            check_words(error)
        path.write_bytes(original)
        seen.add(path.name.split("-")[0])
        count += 1
    assert seen >= kinds
