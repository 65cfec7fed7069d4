"""`posterity audit`: sentences, JSON, and what is refused, of posteriors whose draws are made here."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from posterity import HMC, MAP, Gaussian, Model, fit, linear
from posterity.cli import app
from posterity.posterior.trace import Trace
from posterity.weights.families import Samples


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folders(tmp_path_factory, line):
    """HMC with two seeds, one that is too sure, and one of other targets: eight chains of independent draws each."""
    x, y = line
    place = tmp_path_factory.mktemp("fits")
    point = fit(Model(linear(), Gaussian(1.0)), MAP(num_steps=200, learning_rate=0.05), (x, y), progress=False)
    fixed = jax.tree.map(lambda leaf: None, point.model.init(jax.random.key(0), x))
    for seed, (name, width) in enumerate({"hmc": 0.1, "again": 0.1, "sure": 0.07, "other": 0.1}.items()):
        rng = np.random.default_rng(seed)
        draws = jax.tree.map(
            lambda leaf, rng=rng, width=width: (leaf + width * rng.normal(size=(8, 100, *leaf.shape[2:]))).astype("f4"),
            point.family.draws,
        )
        targets = "0" * 16 if name == "other" else point.receipt.targets
        receipt = dataclasses.replace(point.receipt, targets=targets, num_chains=8)
        method = HMC(num_draws=100)
        made = dataclasses.replace(
            point, family=Samples(draws, fixed), method=method, trace=Trace.empty(), receipt=receipt
        )
        made.save(place / name)
    return place


def test_a_fit_alone_is_diagnosed(folders):
    done = run("audit", folders / "hmc")
    assert done.exit_code == 0, done.output
    assert "Mean: " in done.stdout
    assert "--reference HMC_DIR" in done.stdout


@pytest.mark.parametrize(("name", "different"), [("again", False), ("sure", True)])
def test_a_fit_is_held_against_the_reference(folders, name, different):
    done = run("audit", folders / name, "--reference", folders / "hmc", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)[str(folders / name)]
    assert found["parts"]["mean"]["missing"] in ("nothing", "draws")
    assert found["reference"]["different"] == different
    assert found["reference"]["distances"]["epistemic_distance"]["monte_carlo_error"] > 0
    assert set(found["reference"]["p_values"]) == {"mean", "spread"}


def test_what_cannot_be_audited_is_refused_in_words(folders, tmp_path):
    refused = run("audit", folders / "other", "--reference", folders / "hmc")
    assert refused.exit_code == 2
    assert "fitted to other targets" in refused.stderr
    assert "no folder" in run("audit", tmp_path / "none").stderr
    assert "holds no fit" in run("audit", tmp_path).stderr
    assert "its own reference" in run("audit", folders / "hmc", "--reference", folders / "hmc").stderr
