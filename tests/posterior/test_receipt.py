"""The receipt: every field says what was done."""

import dataclasses
import importlib.metadata

import jax
import numpy as np
import pytest

from posterity import HMC, MAP, SGLD, Cyclical, Gaussian, Model, Normal, fit, linear
from posterity.posterior.receipt import Receipt, _devices

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 2))
Y = X @ np.array([1.0, -2.0]) + 0.3 * RNG.normal(size=20)
MODEL = Model(linear(), Gaussian(0.3), Normal(0.0, 2.0), temperature=0.5, tempering="likelihood")


@pytest.fixture(scope="module")
def sampled():
    """Ten steps of MAP for each of two chains, then thirteen of HMC with two leapfrog steps each."""
    method = HMC(
        num_draws=10, num_burn_in=3, step_size=0.02, trajectory_length=0.04, jitter=0.0, start=MAP(num_steps=10)
    )
    return fit(MODEL, method, (X, Y), chains=2, seed=7)


def test_every_field(sampled):
    receipt = sampled.receipt
    expected = {
        "method": "HMC(num_draws=10, num_burn_in=3, step_size=0.02, trajectory_length=0.04, jitter=0, "
        "start=MAP(num_steps=10))",
        "num_data": 20,
        "num_weights": 3,
        "num_chains": 2,
        "num_steps": 13,
        "num_gradients": 2 * 10 + 2 * 13 * 2,  # those of the first stage are counted, as its seconds are
        "step_size": "0.02, 0.02",
        "prior": str(MODEL.prior),
        "likelihood": "Gaussian(scale=0.3)",
        "temperature": 0.5,
        "tempering": "likelihood",
        "seed": 7,
        "devices": f"{min(2, jax.device_count())} of {jax.device_count()} {jax.devices()[0].device_kind}",
        "precision": "float32",
        "restarts": 0,
        "notes": (),
        "remarks": (
            "the head is sampled with the other weights: nothing else would be left to sample (Exact() gives that "
            "posterior in closed form)",
            "trajectories cover 100 % of their length",
        ),
    }
    stated = dataclasses.asdict(receipt)
    assert {name: stated[name] for name in expected} == expected
    assert set(stated) == {*expected, "seconds", "versions", "targets", "warnings"}
    assert "have not converged: their log joint still drifts" in receipt.warnings[0]  # ten draws after three steps
    assert len(receipt.targets) == 16
    assert receipt.seconds > 0
    packages = ("posterity", "jax", "jaxlib", "numpyro", "optax", "blackjax")
    assert receipt.versions == {name: importlib.metadata.version(name) for name in packages}
    for field in dataclasses.fields(Receipt):
        assert (field.name.replace("_", " ") in str(receipt)) == (stated[field.name] != ())


def test_a_posterior_that_was_there_before_costs_nothing_again(sampled):
    method = HMC(num_draws=10, num_burn_in=3, step_size=0.02, trajectory_length=0.04, jitter=0.0, start=sampled)
    assert fit(MODEL, method, (X, Y), chains=2).receipt.num_gradients == 2 * 13 * 2


@pytest.mark.long
def test_samplers_on_batches_state_their_learning_rate():
    decreasing = SGLD(num_draws=5, num_burn_in=100, thin=1, learning_rate=1e-3, schedule="decreasing", decay_offset=10)
    stated = fit(MODEL, decreasing, (X, Y)).receipt.step_size
    assert stated == f"learning rate 0.001 at first, {1e-3 * (1 + 104 / 10) ** (-1 / 3):.3g} at last"
    cyclical = Cyclical(num_cycles=2, cycle_length=10, draws_per_cycle=1, thin=1)
    last = 1e-3 / 2 * (np.cos(np.pi * 0.9) + 1)
    assert fit(MODEL, cyclical, (X, Y)).receipt.step_size == f"learning rate 0.001 at first, {last:.3g} at last"
    assert fit(MODEL, MAP(num_steps=3), (X, Y)).receipt.step_size == "none"


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_devices_for_rows_are_counted():
    stated = fit(MODEL, MAP(num_steps=3), (X, Y), mesh=(1, 2)).receipt.devices
    assert stated == _devices((1, 2))
    assert stated.startswith("2 of ")
    assert stated.endswith("(1 for chains, each with 2 for rows)")
