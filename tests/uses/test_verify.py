"""Every method is found to do what its card states; methods broken on purpose are rejected, for the right reason."""

import dataclasses
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken import Unrefreshed
from typer.testing import CliRunner

from posterity import HMC, METHODS, SGLD, Gaussian, MCDropout, Model, Normal, linear, verify
from posterity.cli import app
from posterity.core import pytrees, records
from posterity.core.types import Kernel
from posterity.uses import laws
from posterity.uses.verify import Check, Verification, check_calibration, check_keys, check_resume

QUICK = {"num_draws": 400, "num_burn_in": 500, "thin": 10, "learning_rate": 0.01}


@records.record
class HalvedVariance(SGLD):
    """Broken on purpose: draws are drawn together."""

    def finish(self, model, states, kept, fixed):
        middle = jax.tree.map(lambda leaf: leaf.mean((0, 1), keepdims=True), kept)
        together = jax.tree.map(lambda leaf, m: m + (leaf - m) / jnp.sqrt(2.0), kept, middle)
        return super().finish(model, states, together, fixed)


@records.record
class Cold(HMC):
    """Broken on purpose: T = 0.1, whatever the model says."""

    def kernel(self, model):
        return super().kernel(records.replace(model, temperature=0.1))


@records.record
class WrongTau(MCDropout):
    """Broken on purpose: the precision of the noise is a twentieth of what it should be beside the prior."""

    def penalty(self, model, params):
        return 20 * super().penalty(model, params)


@records.record
class Loud(SGLD):
    """Broken on purpose: noise of twice the size."""

    def kernel(self, model):
        inner = super().kernel(model)

        def step(key, state, batch, clock):
            key_step, key_more = jax.random.split(key)
            state, info = inner.step(key_step, state, batch, clock)
            width = jnp.sqrt(3 * 2 * self.learning_rate / clock.num_data)
            noise = pytrees.normal_like(key_more, state.params)
            return state._replace(params=jax.tree.map(lambda w, xi: w + width * xi, state.params, noise)), info

        return Kernel(inner.init, step)


@records.record
class Counting(SGLD):
    """Broken on purpose: what it does depends on how often its kernel was made."""

    def kernel(self, model):
        COUNTED.append(1)
        inner, shift = super().kernel(model), float(len(COUNTED))

        def step(key, state, batch, clock):
            state, info = inner.step(key, state, batch, clock)
            return state._replace(params=jax.tree.map(lambda w: w + shift, state.params)), info

        return Kernel(inner.init, step)


COUNTED: list[int] = []


def rejected(method, *names):
    """The verdict is "fails", and these are among the checks that say so."""
    found = verify(method, num_simulations=0)
    failed = {name for name, check in found.checks.items() if check.counts and not check.passed}
    print(found)
    assert found.verdict == "fails"
    assert set(names) <= failed, str(found)
    assert str(found).startswith(f"{method!r} does not do what its own equations state.")
    return found


def test_a_halved_variance_is_rejected():
    found = rejected(HalvedVariance(**QUICK), "own equations", "posterior", "temperature")
    assert found.checks["mixing"].passed
    assert found.checks["keys"].passed


def test_the_method_that_it_is_made_of_is_not():
    found = verify(SGLD(**QUICK), num_simulations=0)
    assert found.verdict == "samples", str(found)
    assert found.divergence < 0.05


def test_a_key_used_twice_is_rejected():
    found = check_keys(Unrefreshed())
    assert not found.passed
    assert "used twice" in found.words
    assert check_keys(HMC()).passed


def test_hidden_state_is_rejected():
    assert not check_resume(Counting(**QUICK)).passed
    assert check_resume(SGLD(**QUICK)).passed


@pytest.mark.long
def test_a_chain_that_does_not_mix_is_rejected():
    rejected(SGLD(num_draws=100, num_burn_in=10, learning_rate=1e-7), "mixing")


@pytest.mark.long
def test_a_cold_posterior_is_rejected():
    found = rejected(Cold(num_draws=200, num_burn_in=100), "posterior", "temperature", "classes")
    assert abs(float(found.checks["temperature"].words.split()[0]) - 0.1) < 0.02


@pytest.mark.long
def test_the_wrong_tau_of_mc_dropout_is_rejected():
    settings = METHODS["mc_dropout"].card.settings(size())
    rejected(WrongTau(**settings), "own equations")
    assert verify(MCDropout(**settings)).verdict == "approximates"


@pytest.mark.long
def test_noise_of_twice_the_size_is_rejected():
    rejected(Loud(**QUICK), "temperature")


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_what_its_card_states(name):
    begun = time.process_time()
    found = verify(name)
    print(found)
    assert found.verdict == METHODS[name].card.verdict, str(found)
    assert time.process_time() - begun < 120  # of the processor, whatever else the machine does


@pytest.mark.long
def test_calibration_on_a_model_of_ones_own_rejects_a_wrong_temperature():
    """At T = 0.1; a cold chain is too sure of its weights."""
    model, x = Model(linear(), Gaussian(1.0), Normal(0.0, 1.0)), np.linspace(-1, 1, 5)[:, None]
    settings = {"num_draws": 60, "num_burn_in": 40}
    assert check_calibration(HMC(**settings), model, x, 40).passed
    assert not check_calibration(Cold(**settings), model, x, 40).passed


def size():
    from posterity.inference.methods.card import TableSize

    return TableSize(laws.numbers().num_rows)


def test_the_laws_are_those_of_the_exact_method_and_of_quadrature():
    from posterity import Exact, fit

    law = laws.posterior_of_numbers()
    moments = fit(laws.NUMBERS, Exact(), laws.numbers(), progress=False).predict(laws.AT)
    np.testing.assert_allclose(moments.mean, law.mean, rtol=1e-4)
    np.testing.assert_allclose(moments.epistemic, np.diag(law.covariance), rtol=1e-4)
    assert laws.divergence(law, law) == pytest.approx(0.0, abs=1e-12)
    halved = law._replace(covariance=law.covariance / 2)
    assert laws.divergence(halved, law) == pytest.approx((1 - 2 + 2 * np.log(2)) / 2)
    # Mean-field is the Gaussian with independent weights that is nearest: to widen either weight takes it further off.
    nearest = laws.law_of(METHODS["bayes_by_backprop"]())
    back = np.linalg.inv(laws.DESIGN_AT)
    for direction in np.eye(2):
        for factor in (0.9, 1.1):
            weights = back @ nearest.covariance @ back.T
            weights = weights * (1 + (factor - 1) * np.diag(direction))
            other = nearest._replace(covariance=laws.DESIGN_AT @ weights @ laws.DESIGN_AT.T)
            assert laws.divergence(other, law) > laws.divergence(nearest, law)


def test_the_law_of_mc_dropout_is_the_least_of_its_expected_loss():
    """By the loss of Gal & Ghahramani itself, averaged over both masks."""
    rows, keep = laws.numbers(), 1 - laws.DROPPED
    law = laws.law_of(MCDropout())
    back = np.linalg.inv(laws.DESIGN_AT)
    best = back @ law.mean

    def loss(weights):
        a, b = weights
        errors = [np.square(rows.y - a * z / keep * rows.x[:, 0] - b).sum() / 2 / laws.NOISE**2 for z in (0, 1)]
        return laws.DROPPED * errors[0] + keep * errors[1] + keep * a**2 / 2 + b**2 / 2

    for change in np.r_[np.eye(2), -np.eye(2)] * 0.01:
        assert loss(best + change) > loss(best)
    assert law.covariance[1, 1] == pytest.approx(best[0] ** 2 * laws.DROPPED / keep)


def test_the_command_prints_the_verdict_and_ends_with_1_where_a_method_fails(monkeypatch):
    import posterity.cli.verify as command

    good = Verification("Exact()", "samples", {"keys": Check(True, "none is used twice")})
    monkeypatch.setattr(command, "verify", lambda name, seed: good)
    done = CliRunner().invoke(app, ["verify", "exact"])
    assert (done.exit_code, done.stdout.split("\n")[0]) == (0, "Exact() samples the posterior.")
    bad = dataclasses.replace(good, checks={"keys": Check(False, "a random key is used twice")})
    monkeypatch.setattr(command, "verify", lambda name, seed: bad)
    done = CliRunner().invoke(app, ["verify", "exact", "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verdict"] == "fails"
    assert CliRunner().invoke(app, ["verify", "exac"]).exit_code == 2
