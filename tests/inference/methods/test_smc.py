"""SMC: its parts, the log evidence and its stated error, moments and modes, and runs that are cut off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import targets
from stores import SIMPLE, X, Y, cut_off, same

from posterity import HMC, MAP, SMC, Exact, Fixed, Flat, Gaussian, Model, Normal, fit, linear, load, mlp, resume
from posterity.core.types import Batch
from posterity.inference.methods.density import plain
from posterity.inference.methods.smc import evidence_error, next_share, path_factors, systematic
from posterity.storage.codec import StoreError

SMALL = SMC(16, num_last_steps=2, max_leapfrog=8)


def test_systematic_resampling_is_unbiased_and_rounds_expected_copies():
    log_weights = jnp.log(jnp.array([0.05, 0.4, 0.0, 0.3, 0.25]))
    expected = 5 * np.exp(log_weights)
    ancestors = jax.vmap(lambda key: systematic(key, log_weights))(jax.random.split(jax.random.key(0), 20_000))
    copies = (np.asarray(ancestors)[..., None] == np.arange(5)).sum(1)
    assert (copies >= np.floor(expected - 1e-5)).all()
    assert (copies <= np.ceil(expected + 1e-5)).all()
    np.testing.assert_allclose(copies.mean(0), expected, atol=4 * 0.5 / np.sqrt(20_000))


def test_the_next_temperature_leaves_the_effective_share_asked_for():
    gain = 1e6 * jax.random.normal(jax.random.key(1), (200,))
    share = next_share(gain, jnp.zeros(()), 0.7)
    weights = np.exp(np.float64(share) * np.asarray(gain, float))
    assert abs(weights.sum() ** 2 / (weights**2).sum() - 140) < 0.01
    assert next_share(1e-3 * gain / 1e6, jnp.asarray(0.2), 0.7) == 1
    # particles where the density is zero: the rise that is left is tiny, and resampling removes them
    assert 0 < next_share(gain.at[:100].set(-jnp.inf), jnp.zeros(()), 0.7) < 1e-20


def test_the_path_leads_from_the_prior_to_the_tempered_density():
    model = targets.model(0.3, "posterior")
    x, y = targets.banana()
    batch = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(4))
    params = {"network": {"a": jnp.asarray(0.1), "b": jnp.asarray(0.7)}}
    own, rows = plain(model, batch), model.log_likelihood(params, batch)
    for share, value in ((0.0, model.log_prior(params)), (1.0, model.log_joint(params, batch))):
        found = plain(model, batch, path_factors(model, jnp.asarray(share))).report(params, rows).log_density
        np.testing.assert_allclose(found, value, rtol=1e-6)
    last = plain(model, batch, path_factors(model, jnp.ones(()))).gradient(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), last, own.gradient(params))


@pytest.mark.parametrize("tempering", ["posterior", "likelihood"])
def test_the_log_evidence_is_that_of_exact(tempering):
    x = np.random.default_rng(0).normal(size=(30, 4))
    y = x @ np.array([1.0, -0.5, 0.3, 0.0]) + 0.3 * np.random.default_rng(1).normal(size=30)
    for temperature in (1.0, 0.5, 4.0):
        model = Model(linear(), Gaussian(0.3), Normal(0.0, 1.0), temperature, tempering)
        found = fit(model, SMC(num_last_steps=0), (x, y), chains=16, progress=False).facts
        assert found["log_evidence_error"] < 0.3
        expected = fit(model, Exact(), (x, y), progress=False).facts["log_evidence"]
        assert abs(found["log_evidence"] - expected) < 1.5 * found["log_evidence_error"]


def test_the_stated_error_covers_the_log_evidence():
    """Of each four islands of a large fit, which are four independent runs: 95 % are expected."""
    data, model = targets.linear_gaussian(), targets.model()
    found = fit(model, SMC(num_last_steps=0), data, chains=400, progress=False).facts
    expected = fit(model, Exact(), data, progress=False).facts["log_evidence"]
    groups = np.array(found["log_evidence_of_islands"]).reshape(-1, 4)
    estimates = np.logaddexp.reduce(groups, axis=1) - np.log(4)
    covered = np.abs(estimates - expected) <= [evidence_error(group) for group in groups]
    assert covered.mean() >= 0.9
    # Many islands leave the bias of temperatures that adapt to 64 particles.
    assert abs(found["log_evidence"] - expected) < 1.5 * found["log_evidence_error"] + 2 / 64 < 0.1


def test_an_integrated_head_leaves_the_log_evidence_as_it_is():
    x = np.linspace(-2, 2, 12)[:, None]
    model = Model(mlp((3,), activation="tanh"), Gaussian(0.3), Normal(0.0, 1.0), 0.7, "posterior")
    data = x, np.sin(2 * x[:, 0])
    facts = [fit(model, SMC(head=head), data, chains=12, progress=False).facts for head in ("integrated", "sampled")]
    values, errors = ([one[name] for one in facts] for name in ("log_evidence", "log_evidence_error"))
    assert max(errors) < 0.7
    assert abs(values[0] - values[1]) < np.hypot(*errors)


def test_one_island_states_no_error():
    assert evidence_error(np.array([-3.0])) is None
    # t_1(0.975) = 12.706; variance 2
    np.testing.assert_allclose(evidence_error(np.array([0.0, 2.0])), 12.706 * np.sqrt(2 / 2 + 4 / 2), rtol=1e-4)


def scores_of_islands(draws, expected):
    """Deviations of means over islands [C, P], in standard errors from the islands' own means."""
    values = targets.quantities(*(np.asarray(draws[name], float) for name in ("a", "b")), expected.centre)
    scores = {}
    for name, value in values.items():
        means = value.mean(1)
        error = means.std(ddof=1) / np.sqrt(len(means))
        assert error < 0.06 * expected.std[name], f"{name}: standard error {error:.3g} is too large to judge"
        scores[name] = (means.mean() - expected.mean[name]) / error
    return scores


@pytest.mark.parametrize("kind", targets.DATA)
def test_particles_have_the_moments_of_the_posterior(kind):
    data = targets.DATA[kind]()
    for temperature in (1.0, 4.0):
        posterior = fit(targets.model(temperature), SMC(), data, chains=32, progress=False)
        expected = targets.reference(data, temperature, "posterior")
        targets.check_scores(scores_of_islands(posterior.family.draws["network"], expected))


def two_modes():
    """f = a + b^2, observed at 2.25: b near 1.5 or -1.5, the former preferred by the prior; and P(b > 0)."""
    model = Model(targets.NETWORK, Gaussian(0.2), {"a": Normal(0.0, 0.1), "b": Normal(0.25, 1.0)})
    x, y = np.array([[0.0, 1.0]] * 4), np.full(4, 2.25)
    a, b = np.meshgrid(np.linspace(-1, 1, 201), np.linspace(-4, 4, 801), indexing="ij")
    log_density = -(a**2) / (2 * 0.1**2) - (b - 0.25) ** 2 / 2 - 4 * (2.25 - a - b**2) ** 2 / (2 * 0.2**2)
    mass = np.exp(log_density - log_density.max())
    return model, (x, y), mass[b > 0].sum() / mass.sum()


def test_both_modes_at_their_weights():
    model, data, expected = two_modes()
    assert 0.6 < expected < 0.75
    chain = fit(model, HMC(num_draws=200), data, chains=1, progress=False).family.draws["network"]["b"]
    assert np.ptp(np.sign(chain)) == 0  # it stays in the mode where it began
    islands = fit(model, SMC(), data, chains=64, progress=False).family.draws["network"]["b"]
    shares = (np.asarray(islands) > 0).mean(1)
    error = shares.std(ddof=1) / 8
    assert error < 0.03
    assert abs(shares.mean() - expected) < 4 * error


def test_a_run_that_is_cut_off_goes_on_bit_for_bit(tmp_path):
    whole = fit(SIMPLE, SMALL, (X, Y), progress=False)
    run = cut_off(tmp_path / "run", SIMPLE, SMALL, 4)
    with pytest.raises(StoreError, match="no partial result"):
        load(run)
    back = resume(run, progress=False)
    assert same(back.family, whole.family)
    assert back.facts == whole.facts
    assert all(np.array_equal(back.trace[name], whole.trace[name]) for name in whole.trace)


def test_islands_begin_at_draws_of_their_own_and_chains_at_particles():
    posterior = fit(SIMPLE, HMC(num_draws=4, num_burn_in=4, start=SMALL), (X, Y), progress=False)
    particles = posterior.method.start
    assert posterior.family.num_chains == particles.family.num_chains == 4
    assert particles.family.num_draws == 4 * 16
    flat = np.asarray(jax.tree.leaves(particles.family.draws)[0]).reshape(4, -1)
    assert len(np.unique(flat, axis=0)) == 4
    assert {"log_evidence", "log_evidence_error", "num_temperatures"} <= set(particles.facts)
    assert posterior.receipt.num_gradients > particles.receipt.num_gradients > 0


def test_weights_that_are_fixed_stay_those_of_the_start():
    model = Model(mlp((4,)), Gaussian(0.7), {"layer_0/*": Fixed(), "*": Normal(0.0, 1.0)})
    trained = fit(Model(mlp((4,)), Gaussian(0.7)), MAP(num_steps=50), (X, Y), progress=False)
    method = SMC(64, num_last_steps=0, start=trained)
    posterior = fit(model, method, (X, Y), chains=8, progress=False)
    trunk = jax.tree.map(lambda leaf: leaf[:, 0], trained.family.draws)["network"]["layer_0"]
    assert np.array_equal(posterior.family.fixed["network"]["layer_0"]["weight"][3], trunk["weight"][0])
    exact = fit(model, Exact(start=trained), (X, Y), chains=1, progress=False).facts["log_evidence"]
    assert abs(posterior.facts["log_evidence"] - exact) < 1.5 * posterior.facts["log_evidence_error"]


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match=r"prior of 'network/layer_0/bias' is flat.*proper"):
        fit(Model(linear(), Gaussian(0.3), {"*bias": Flat(), "*": Normal(0.0, 1.0)}), SMC(), (X, Y))
    with pytest.raises(ValueError, match=r"of the way from prior to posterior in 2 temperatures: raise max_temp"):
        fit(SIMPLE, SMC(16, max_temperatures=2, num_last_steps=0), (X, Y), progress=False)
    with pytest.raises(ValueError, match="ess_share=1"):
        SMC(ess_share=1)


@pytest.mark.long
def test_the_log_evidence_of_a_network_is_that_of_thermodynamic_integration():
    """log Z = int_0^1 E_b[log-likelihood] db, by the trapezoidal rule with its correction (Friel et al. 2014)."""
    x = np.linspace(-2, 2, 12)[:, None]
    y = np.sin(2 * x[:, 0])
    network, prior = mlp((3,), activation="tanh"), Normal(0.0, 1.0)
    rungs = np.linspace(0, 1, 31)[1:] ** 4
    prior_draws = fit(
        Model(network, Gaussian(0.3), prior, 1e8, "likelihood"), HMC(4000, head="sampled"), (x, y), progress=False
    )
    found = [prior_draws.trace.of_draws()["log_likelihood"]]
    for rung in rungs:
        model = Model(network, Gaussian(0.3), prior, float(1 / rung), "likelihood")
        found.append(fit(model, HMC(2000, head="sampled"), (x, y), progress=False).trace.of_draws()["log_likelihood"])
    means = np.array([values.mean(1, dtype=float) for values in found])  # [rungs, C]
    variances = np.array([values.var(1, dtype=float) for values in found])
    widths = np.diff(np.concatenate([[0.0], rungs]))[:, None]
    integrals = (widths * (means[1:] + means[:-1]) / 2 - widths**2 * np.diff(variances, axis=0) / 12).sum(0)
    posterior = fit(Model(network, Gaussian(0.3), prior), SMC(256), (x, y), chains=16, progress=False)
    error = np.hypot(posterior.facts["log_evidence_error"], 4 * integrals.std(ddof=1) / 2)
    assert error < 0.5
    assert abs(posterior.facts["log_evidence"] - integrals.mean()) < error
