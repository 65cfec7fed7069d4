"""NUTS: exact targets, the schedule of its warm-up, and what it reports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import targets
from broken import check_energy

from posterity.inference.engine.driver import fit
from posterity.inference.methods import step_size as adaptation
from posterity.inference.methods.nuts import NUTS, schedule

NUM_WARMUP = 300
SCHEDULE = jax.jit(jax.vmap(schedule, (0, None)))  # one program for all lengths


# Where it is cold the banana mixes slowly, and the last steps of a warm-up can miss its tails: one chain in eight then
# kept a step twice too long, which more chains outweigh.
GROUPS = {
    "posterior": ("posterior", (1.0, 4.0), 4),
    "cold posterior": ("posterior", (0.25,), 16),
    "likelihood": ("likelihood", (1.0, 4.0), 8),
    "cold likelihood": ("likelihood", (0.25,), 16),
}
TIERS = [pytest.param(name, marks=() if name == "posterior" else pytest.mark.long) for name in GROUPS]


@pytest.fixture(scope="module", params=TIERS)
def runs(request):
    """[(data, temperature, tempering, draws, info)] of every case of a group: one program."""
    tempering, temperatures, num_chains = GROUPS[request.param]
    settings = [(data(), t) for data in targets.DATA.values() for t in temperatures]
    cases = [(targets.model(t, tempering), data) for data, t in settings]
    results = targets.run_cases(NUTS(), cases, num_chains, num_burn_in=NUM_WARMUP, num_draws=3000)
    return [(data, t, tempering, *result) for (data, t), result in zip(settings, results, strict=True)]


def test_exact_targets(runs):
    for data, temperature, tempering, draws, _ in runs:
        targets.check_draws(draws, targets.reference(data, temperature, tempering))


FITTED = [(t, tempering, target) for t, tempering in targets.TEMPERED for target in targets.DATA]


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "tempering", "target"), FITTED)
def test_exact_targets_through_fit(temperature, tempering, target):
    """Draws, and what is predicted."""
    data, method = targets.DATA[target](), NUTS(num_draws=6000, num_burn_in=NUM_WARMUP)
    posterior = fit(targets.model(temperature, tempering), method, data, progress=False)
    targets.check_posterior(posterior, targets.reference(data, temperature, tempering))


def test_wrong_temperature_fails(runs):
    for data, temperature, tempering, draws, _ in runs:
        with pytest.raises(AssertionError, match="from the truth"):
            targets.check_draws(draws, targets.reference(data, 1.5 * temperature, tempering))


def test_reports(runs):
    for *_, draws, info in runs:
        for name, values in info._asdict().items():
            assert np.isfinite(values).all(), name
        assert (np.ptp(info.step_size, axis=1) == 0).all()  # adaptation has ended
        assert 0.7 < info.acceptance.mean() < 0.98
        assert info.diverged.mean() < 0.02
        stayed = np.all([np.diff(leaf, axis=1) == 0 for leaf in draws.values()], axis=0)
        np.testing.assert_array_equal(info.accepted[:, 1:] == 0, stayed)
        assert (info.num_gradients >= 1).all()


def test_energy_of_a_gaussian_target(runs):
    """H less its minimum is Gamma(2, 1) in two dimensions, whatever the temperature."""
    for data, temperature, tempering, _, info in runs:
        if not data[0][:, 1].any():
            check_energy(info.energy, data, temperature, tempering)


@pytest.mark.parametrize("num_steps", [10, 20, 100, 149, 150, 300, 500, 1000, 2000])
def test_schedule_is_stans(num_steps):
    from blackjax.adaptation.staged_adaptation import build_schedule

    slow, ends = SCHEDULE(jnp.arange(2000), num_steps)
    expected = np.array(build_schedule(num_steps))
    np.testing.assert_array_equal(slow[:num_steps], expected[:, 0])
    np.testing.assert_array_equal(ends[:num_steps], expected[:, 1])


def test_dual_averaging_finds_the_step_size():
    """With acceptance exp(-step size) and target 0.8 the answer is -log 0.8; restarting elsewhere changes nothing."""

    def tune(first):
        def step(_, state):
            return adaptation.update(state, jnp.exp(-jnp.exp(state.log_step_size)), 0.8)

        state = jax.lax.fori_loop(0, 2000, step, adaptation.begin(first))
        return adaptation.current(state, jnp.asarray(False))

    np.testing.assert_allclose(jax.vmap(tune)(jnp.array([1e-4, 0.1, 10.0])), -np.log(0.8), rtol=0.03)


def test_first_step_size_passes_over_non_finite_energies():
    def drop(step_size):
        return jnp.where(step_size > 0.5, jnp.nan, jnp.where(step_size > 0.2, 50.0, -step_size))

    assert adaptation.first_step_size(drop, jnp.asarray(8.0)) == 0.125
    assert adaptation.first_step_size(drop, jnp.asarray(0.1)) == jnp.asarray(0.1)
    assert adaptation.first_step_size(lambda step_size: step_size * jnp.nan, jnp.asarray(8.0)) == 8 * 2.0**-60


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_draws": 0}, r"NUTS\(num_draws=0\): expected a whole number, at least 1"),
        ({"step_size": -1.0}, r"NUTS\(step_size=-1.0\) must be a number above 0"),
        ({"num_burn_in": 0}, "leaves no step in which to adapt"),
        ({"max_depth": 0}, "max_depth=0"),
        ({"target_acceptance": 1.0}, "must lie between 0 and 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        NUTS(**settings)
