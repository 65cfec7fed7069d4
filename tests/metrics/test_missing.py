"""What chains miss: draws, mixing, burn-in, from chains of which each is known."""

import time

import numpy as np
import pytest
from targets import autoregressive

from posterity.metrics import convergence, missing

NUM_INPUTS = 60


def functions(rho, num_chains, num_draws, seed=0, num_weights=8):
    """Chains of functions linear in a few weights, so that inputs are correlated as those of a network, [C, D, N]."""
    features = np.random.default_rng(99).normal(size=(num_weights, NUM_INPUTS)) / np.sqrt(num_weights)
    return autoregressive(rho, (num_chains, num_draws, num_weights), seed) @ features


def found(make, runs=20):
    """How often each answer is given."""
    answers = [missing.progress(make(seed)).missing for seed in range(runs)]
    return {name: answers.count(name) for name in set(answers)}


def test_the_effective_draws_for_an_r_hat_are_those_of_independent_draws():
    """The largest R-hat at independent inputs is under the limit every other time, but for 1 / n of n draws a half."""
    assert 1900 < missing.draws_for(1.01, 8, 300) < 2100
    num_draws = round(missing.draws_for(1.02, 4, 30) / 4)
    values = np.random.default_rng(0).normal(size=(100, 4, num_draws, 30))
    largest = np.array([np.sqrt(convergence.r_hat(each).max() ** 2 + 2 / num_draws) for each in values])
    assert abs(np.mean(largest < 1.02) - 0.5) < 4 * np.sqrt(0.25 / 100)


@pytest.mark.parametrize(("rho", "num_draws"), [(0.0, 50), (0.3, 100), (0.5, 300)])
def test_chains_that_mix_and_are_short_miss_draws(rho, num_draws):
    assert found(lambda seed: functions(rho, 8, num_draws, seed)).get("draws", 0) >= 18
    state = missing.progress(functions(rho, 8, num_draws))
    assert state.r_hat > 1.01
    longer = functions(rho, 8, num_draws + state.more_draws, seed=1)
    assert missing.progress(longer).missing == "nothing"


def test_chains_that_are_long_miss_nothing():
    assert found(lambda seed: functions(0.3, 8, 1500, seed), 5) == {"nothing": 5}
    assert missing.progress(np.ones((4, 50, 3))).missing == "nothing"


def test_chains_in_regions_of_their_own_miss_mixing():
    apart = np.random.default_rng(5).normal(size=(8, 1, 1))
    assert found(lambda seed: functions(0.3, 8, 200, seed) + 0.5 * apart).get("mixing", 0) >= 19
    assert missing.progress(functions(0.99, 8, 60)).missing in ("mixing", "burn-in")  # shorter than their memory


@pytest.mark.parametrize(("num_chains", "rho", "drift"), [(8, 0.3, 0.8), (8, 0.9, 1.5), (4, 0.3, 1.0), (1, 0.3, 1.0)])
def test_chains_that_drift_miss_burn_in(num_chains, rho, drift):
    """Also where R-hat alone would call them usable."""
    path = drift * np.linspace(0, 1, 400)[:, None]
    assert found(lambda seed: functions(rho, num_chains, 400, seed) + path).get("burn-in", 0) >= 19
    if num_chains == 8 and rho == 0.3:
        assert np.mean(convergence.r_hat(functions(rho, 8, 400) + path) < 1.1) > 0.95


def test_few_stationary_chains_are_called_drifting():
    alarms = sum(found(lambda seed, r=rho: functions(r, 8, 200, seed), 50).get("burn-in", 0) for rho in (0.3, 0.9))
    assert alarms <= 4  # of 100


def test_acceptance_far_below_its_target_misses_burn_in():
    values = functions(0.3, 8, 1500)
    for accepted, answer in ((0.75, "nothing"), (0.99, "nothing"), (0.3, "burn-in"), (np.nan, "burn-in")):
        acceptance = np.r_[np.full(7, 0.8), accepted]
        assert missing.progress(values, acceptance=acceptance, target_acceptance=0.8).missing == answer


def test_a_share_of_inputs_may_be_worse():
    values = functions(0.0, 8, 1500)
    values[3, :, :2] += 3.0
    assert missing.progress(values).missing == "mixing"
    assert missing.progress(values, share=0.95).missing == "nothing"


def test_too_few_draws_and_values_that_are_not_finite():
    assert missing.progress(np.zeros((4, 5, 2)))[::4] == ("draws", 3)
    values = functions(0.0, 4, 50)
    values[1, 2, 3] = np.inf
    assert missing.progress(values).missing == "burn-in"


def test_the_largest_r_hat_is_the_rank_based_one():
    values = functions(0.5, 8, 300)
    assert missing.progress(values).r_hat == pytest.approx(convergence.r_hat(values).max(), rel=1e-12)


def test_it_is_quick():
    """A second is what a round of sampling between two looks takes."""
    values = np.random.default_rng(0).normal(size=(8, 2000, 1000)).astype(np.float32)
    begin = time.process_time()
    missing.progress(values)
    assert time.process_time() - begin < 1.0
