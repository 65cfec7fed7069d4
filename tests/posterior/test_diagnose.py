"""The diagnosis of a posterior: its verdict, its words, the draws it asks for, and its export."""

import dataclasses
import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from arviz_stats.base import array_stats
from scipy import stats
from targets import NETWORK, autoregressive, linear_gaussian

from posterity import HMC, MILE, Model, fit
from posterity.metrics import convergence
from posterity.metrics.convergence import Convergence
from posterity.models.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian
from posterity.networks import from_function
from posterity.posterior import diagnose
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior
from posterity.posterior.trace import Trace
from posterity.prediction import uncertainty
from posterity.weights.families import DiagonalGaussian, Samples


def table_posterior(outputs, likelihood, trace=None, num_burn_in=5, thin=1):
    """A posterior whose draws predict exactly `outputs` [C, D, N, K]: the network looks them up."""
    outputs = np.asarray(outputs, np.float32)
    num_rows = outputs.shape[2]
    network = from_function(lambda key, x: {"table": jnp.zeros(outputs.shape[2:])}, lambda p, x: p["table"][x])
    family = Samples({"network": {"table": jnp.asarray(outputs)}}, {"network": {"table": None}})
    method = HMC(num_draws=outputs.shape[1], num_burn_in=num_burn_in, thin=thin)
    receipt = SimpleNamespace(num_data=num_rows)
    model = Model(network, likelihood, dist.Normal(0.0, 1.0))
    length = num_burn_in + outputs.shape[1]
    is_draw, num_steps = np.arange(length) >= num_burn_in, np.full(length, thin)
    return Posterior(
        model=model,
        family=family,
        method=method,
        receipt=receipt,
        trace=Trace(trace, is_draw, num_steps) if trace else Trace.empty(),
        facts={},
        inputs=np.arange(num_rows),
    )


def untraced(model, family, x):
    """A posterior of which nobody knows how it was made."""
    return Posterior(model=model, family=family, method=None, receipt=None, trace=Trace.empty(), facts={}, inputs=x)


def of_chains(values, trace=None, weights=None, **more):
    """The diagnosis of predicted means [C, D, N]."""
    return diagnose._of_chains({"mean": values, **more}, trace or {}, 1, weights, ())


# The verdict


def judge(r_hat, draws=None, stuck=(), divergent=0.0, bulk=400.0, tail=400.0):
    """The verdict on four chains."""
    ess = [np.where(np.isnan(r_hat), np.nan, value) for value in (bulk, tail)]
    found = Convergence(r_hat, *ess, np.zeros_like(r_hat))
    return diagnose._judge(found, draws or {}, list(stuck), divergent, 4)


@pytest.mark.parametrize(
    ("r_hat", "verdict"),
    [
        (np.full(100, 1.0099), "good"),
        (np.r_[np.full(99, 1.0), 1.0101], "usable"),
        (np.r_[np.full(95, 1.099), np.full(5, 3.0)], "usable"),
        (np.r_[np.full(94, 1.099), np.full(6, 1.101)], "not converged"),
        (np.stack([np.full(100, 1.0), np.full(100, 1.2)], 1), "not converged"),  # the worst of an input counts
        (np.r_[np.full(99, 1.0), np.nan], "usable"),  # which is not known to be good
        (np.r_[np.full(99, np.nan), 1.0], "not converged"),
        (np.full(100, np.nan), "undetermined"),
        (np.full(100, np.inf), "not converged"),
    ],
)
def test_thresholds(r_hat, verdict):
    assert judge(r_hat)[0] == verdict
    assert judge(r_hat, stuck=[2])[0] == "not converged"
    assert judge(r_hat, {"mean": np.array([np.nan])})[0] == "not converged"


@pytest.mark.parametrize(
    ("settings", "verdict", "reason"),
    [
        ({"bulk": 399.0}, "usable", "at the worst input 399 for the centre and 400 for the tails"),
        ({"tail": 399.0}, "usable", "100 per chain, here 400, are needed"),
        ({"divergent": 0.011}, "usable", "Too many divergences to be good: 1 % of the kept steps"),
        ({"divergent": 0.3}, "not converged", "30 % of the kept steps"),
        ({"divergent": 0.01}, "good", None),
    ],
)
def test_r_hat_alone_makes_nothing_good(settings, verdict, reason):
    found, reasons = judge(np.full(100, 1.0), **settings)
    assert found == verdict
    assert (reasons == ()) if reason is None else (reason in reasons[0])


def test_few_draws_and_many_divergences_are_not_good():
    """Eight draws of each chain can have any R-hat."""
    few = next(
        found for seed in range(50) if (found := of_chains(autoregressive(-0.5, (4, 8, 1), seed))).r_hat[0] < 1.01
    )
    assert few.verdict == "usable"
    assert "Too few effective draws to be good" in str(few)
    assert "R-hat and intervals are rough" in str(few)
    values = autoregressive(0.0, (4, 3000, 5))
    diverged = np.zeros((4, 3000))
    assert of_chains(values, {"diverged": diverged}).verdict == "good"
    diverged[:, :900] = 1
    bad = of_chains(values, {"diverged": diverged})
    assert bad.verdict == "not converged"
    assert "30 % of the kept steps" in str(bad)


def test_chains_that_agree_are_good():
    found = of_chains(autoregressive(0.0, (4, 3000, 20)))
    assert found.verdict == "good"
    assert found.share_under(1.01) == 1
    assert str(found).startswith("Good: R-hat is under 1.01 at 20 inputs")
    assert "1 input:" not in str(found)


def test_a_shifted_chain_is_flagged_and_named():
    values = autoregressive(0.3, (4, 200, 20))
    values[2, :, 5:] += 3
    found = of_chains(values)
    assert found.verdict == "not converged"
    assert found.odd_chain == 2
    assert found.share_under(1.1) == 0.25
    assert set(found.worst_inputs(15)) == set(range(5, 20))
    text = str(found)
    assert text.startswith("Not converged: of 20 inputs, R-hat is under 1.1 at 25 %")
    assert "Chain 2 disagrees with the others" in text
    assert "do not average yet" in text
    values[1, :, 5:] -= 3  # two apart: no single chain is to blame
    assert of_chains(values).odd_chain is None
    assert of_chains(values[:2]).odd_chain is None
    either = autoregressive(0.0, (4, 2000, 5)) + np.array([0.0, 0.7, 0.0, -0.7])[:, None, None]
    assert of_chains(either).odd_chain is None  # without the one or the other the rest would pass


def test_the_spread_counts_as_well_as_the_mean():
    values = autoregressive(0.0, (4, 500, 3))
    spread = values + np.arange(4)[:, None, None]
    found = of_chains(values, log_std=spread)
    np.testing.assert_array_equal(found.r_hat, convergence.r_hat(spread))
    np.testing.assert_allclose(found.monte_carlo_error, convergence.honest_error(values), rtol=1e-12)
    assert found.verdict == "not converged"


def test_mean_noise_and_log_joint_are_judged_apart():
    values = autoregressive(0.0, (4, 3000, 3))
    apart = autoregressive(0.0, (4, 3000, 3)) + np.array([0.0, 1.0, 2.0, 3.0])[:, None, None]
    found = of_chains(values, {"log_joint": autoregressive(0.5, (4, 3000))}, log_std=apart)
    assert {name: part.verdict for name, part in found.parts.items()} == {
        "mean": "good",
        "log_std": "not converged",
        "log_joint": "good",
    }
    np.testing.assert_array_equal(found.parts["mean"].r_hat, convergence.r_hat(values))
    assert found.parts["mean"].missing == "nothing"
    assert found.missing == found.parts["log_std"].missing == "mixing"
    assert "Mean: good, R-hat 1.00" in str(found)
    assert "mixing is missing" in str(found)
    assert found.halves["log_joint"].shape == found.halves["log_std"].shape == (4, 2)
    np.testing.assert_allclose(found.halves["log_std"][:, 1], apart[:, 1500:].mean((1, 2)))
    assert "Log standard deviation by chain, first / second half: " in str(found)


@pytest.mark.parametrize("drifting", ["mean", "log_joint"])
def test_chains_that_drift_are_never_usable(drifting):
    """Slowly enough that R-hat is under 1.1 at every input."""
    values, joint = autoregressive(0.3, (8, 400, 5)), autoregressive(0.3, (8, 400))
    path = 0.9 * np.linspace(0, 1, 400)
    if drifting == "mean":
        values += path[:, None]
    else:
        joint += path
    found = of_chains(values, {"log_joint": joint})
    assert (found.r_hat < 1.1).all()
    assert found.verdict == "not converged"
    assert found.missing == found.parts[drifting].missing == "burn-in"
    assert "chains still drift: burn-in is missing" in str(found)


def test_missing_draws_are_counted():
    found = of_chains(autoregressive(0.0, (8, 100, 40)))
    assert found.verdict == "usable"
    assert found.missing == "draws"
    assert "draws are missing: about " in str(found)


def test_chains_of_one_draw_are_not_called_independent():
    found = table_posterior(autoregressive(0.0, (8, 1, 3, 1)), Gaussian(1.0)).diagnose(np.arange(3))
    assert found.verdict == "undetermined"
    assert found.stuck_chains == ()
    assert str(found).startswith("Undetermined: 1 draw per chain is too few for R-hat")
    assert np.isfinite(found.monte_carlo_error).all()


def test_many_short_chains_from_few_starts_have_a_nested_r_hat():
    values = np.random.default_rng(0).normal(size=(800, 2, 3))
    agreed = diagnose._of_chains({"mean": values}, {}, 1, None, (), num_starts=4)
    np.testing.assert_array_equal(agreed.r_hat, convergence.nested_r_hat(values, 4))
    assert agreed.verdict == "good"
    assert "nested R-hat" in str(agreed)
    values += np.tile(np.arange(4.0), 200)[:, None, None]
    assert diagnose._of_chains({"mean": values}, {}, 1, None, (), num_starts=4).verdict == "not converged"
    assert diagnose._of_chains({"mean": values}, {}, 1, None, (), num_starts=800).verdict == "undetermined"


def test_stuck_chains_are_named():
    values = autoregressive(0.3, (4, 100, 6))
    values[1] = values[1, :1]
    acceptance = np.full((4, 100), 0.8)
    acceptance[1], acceptance[3] = 0.0, 0.004
    found = of_chains(values, {"acceptance": acceptance})
    assert found.stuck_chains == (1, 3)
    assert found.verdict == "not converged"
    assert "Chain 1 is stuck: all its draws are the same (acceptance 0)." in str(found)
    assert "Chain 3 is stuck: it accepts 0.004 of its proposals." in str(found)
    assert "do not use this average" in str(found)
    with pytest.raises(ValueError, match="Chains 1, 3 are stuck: more draws do not help"):
        found.draws_needed(0.01)


def test_values_without_variation_are_left_out_and_said():
    values = autoregressive(0.3, (4, 200, 6))
    weights = autoregressive(0.3, (4, 200, 2))
    values[:, :, 4] = 1.0
    found = of_chains(values, weights=weights)
    assert "At 1 input every draw predicts the same" in str(found)
    assert 4 not in found.worst_inputs(6)
    longer = autoregressive(0.0, (4, 3000, 6))
    longer[:, :, 4] = 1.0
    assert of_chains(longer).verdict == "good"  # where all predict the same, they agree
    saturated = of_chains(np.ones((4, 200, 3)), weights=weights)
    assert saturated.verdict == "undetermined"
    assert saturated.stuck_chains == ()
    assert "no R-hat exists" in str(saturated)


def test_predictions_that_are_not_finite_are_named():
    values = autoregressive(0.0, (3, 100, 5))
    values[1, 50, 2:4] = np.nan
    found = of_chains(values)
    assert found.verdict == "not converged"
    assert "Chain 1 predicts a mean that is not finite at 2 inputs." in str(found)
    with pytest.raises(ValueError, match="cannot tell their own Monte Carlo error: more draws do not help"):
        found.draws_needed(0.1)


def test_predictions_that_are_not_finite_are_not_called_the_same():
    everywhere = str(of_chains(np.full((4, 100, 3), np.nan), weights=autoregressive(0.0, (4, 100, 2))))
    assert everywhere.startswith("Not converged: at 3 inputs no R-hat exists, as what is predicted is not finite.")
    assert "Monte Carlo error of the predictive mean: not known, as what is predicted is not finite." in everywhere
    assert "the same" not in everywhere
    assert "cannot tell" not in everywhere
    values = np.ones((4, 100, 3))
    values[2, 5, 1] = np.inf
    partly = str(of_chains(values, weights=autoregressive(0.0, (4, 100, 2))))
    assert "not finite at 1 of them, and the same in every draw at the others" in partly
    noiseless = of_chains(autoregressive(0.0, (4, 100, 3)), log_std=np.full((4, 100, 3), -np.inf))
    assert noiseless.draws_needed(1.0) == 0  # of the mean, which is finite
    assert "Halving it takes" in str(noiseless)


@pytest.mark.parametrize("num_draws", [2, 7])
def test_too_few_draws_give_words_and_no_number(num_draws):
    found = of_chains(autoregressive(0.0, (4, num_draws, 5)))
    assert found.verdict == "undetermined"
    assert np.isnan(found.r_hat).all()
    assert str(found).startswith(f"Undetermined: {num_draws} draws per chain are too few for R-hat")
    assert np.isfinite(found.monte_carlo_error).all()  # four chains can tell by their means
    single = of_chains(autoregressive(0.0, (1, num_draws, 5)))
    assert "cannot tell" in str(single)
    with pytest.raises(ValueError, match="at least 16 draws per chain"):
        single.draws_needed(0.1)


def test_one_chain_is_said_to_be_weaker():
    found = of_chains(autoregressive(0.0, (1, 2000, 5)))
    assert found.verdict in ("good", "usable")
    assert "One chain alone" in str(found)
    drift = of_chains(autoregressive(0.0, (1, 200, 5)) + np.linspace(0, 3, 200)[None, :, None])
    assert drift.verdict == "not converged"


def test_energy_and_divergences():
    values = autoregressive(0.0, (2, 400, 3))
    energies = np.stack([autoregressive(0.0, (1, 400))[0], autoregressive(0.98, (1, 400))[0]])
    trace = {"acceptance": np.full((2, 400), 0.9), "energy": energies, "diverged": np.zeros((2, 400))}
    trace["diverged"][1, 10:13] = 1
    found = of_chains(values, trace)
    np.testing.assert_allclose(found.e_bfmi, array_stats.bfmi(energies, 0, 1), rtol=1e-10)
    assert found.num_divergences.tolist() == [0, 3]
    text = str(found)
    assert "Chain 1 diverged in 3 of its 400 steps" in text
    assert "Chain 1 is slow to change energy (E-BFMI under 0.3)" in text
    assert "0.90, 0.90" in text
    assert f"E-BFMI of the energy by chain: {found.e_bfmi[0]:.2f}, {found.e_bfmi[1]:.2f}." in text
    without = of_chains(values, {"acceptance": trace["acceptance"], "log_joint": -energies})
    assert without.e_bfmi is None  # the log joint knows nothing of momenta
    assert "No divergences." not in str(without)  # it was not recorded
    assert without.densities["log_joint"].r_hat == convergence.r_hat(energies)


def test_draws_needed_are_enough_and_not_too_many():
    """Each repeat has one input; the exact number follows from the autocorrelation time."""
    rho, target, num_draws = 0.8, 0.02, 500
    runs = autoregressive(rho, (4, num_draws, 60))
    needed = [of_chains(runs[:, :, i : i + 1]).draws_needed(target) for i in range(60)]
    exact = (1 + rho) / (1 - rho) / target**2 / 4
    assert abs((np.median(needed) + num_draws) / exact - 1) < 0.1
    longer = autoregressive(rho, (4, num_draws + int(np.median(needed)), 400), seed=1)
    assert abs(longer.mean((0, 1)).std() / target - 1) < 4 / np.sqrt(2 * 400)
    found = of_chains(longer[:, :, :5])
    assert found.draws_needed(2 * found.monte_carlo_error.max()) == 0
    assert found.draws_needed(found.monte_carlo_error.max() / 2) == 3 * found.num_draws
    with pytest.raises(ValueError, match="above 0"):
        found.draws_needed(0.0)


# Monte Carlo errors of uncertainty


@pytest.mark.parametrize(("made", "width"), [(HeteroscedasticGaussian(), 2), (Categorical(3), 3)])
def test_errors_of_uncertainty_know_that_draws_are_correlated(made, width):
    """Each row is an independent repeat of the same four chains."""
    outputs = autoregressive(0.8, (4, 150, 1024, width)) + np.arange(width)
    prediction = table_posterior(outputs, made).predict(np.arange(1024))
    split = uncertainty.entropies if made.kind == "classes" else uncertainty.variances
    ignoring = prediction._stream.map(split, shared=(np.zeros((0, 0), int),)).standard_error
    for name in ("total", "aleatoric", "epistemic"):
        actual = getattr(prediction, name).std()
        stated = np.median(getattr(prediction.standard_error, name))
        independent = np.median(getattr(ignoring, name))
        assert abs(stated / actual - 1) < 0.12, name
        assert independent / actual < 0.75, name


def test_positions_of_chains_among_draws():
    family = Samples({"w": jnp.zeros((3, 20, 2))})
    every = uncertainty.chain_positions(family, np.arange(60))
    np.testing.assert_array_equal(every, np.arange(60).reshape(20, 3).T)
    some = np.linspace(0, 59, 25).round().astype(int)
    positions = uncertainty.chain_positions(family, some)
    assert positions.shape[0] == 3
    np.testing.assert_array_equal(some[positions] % 3, np.arange(3)[:, None] * np.ones_like(positions))
    assert (np.diff(some[positions], axis=1) > 0).all()
    assert uncertainty.chain_positions(Samples({"w": jnp.zeros((3, 1, 2))}), np.arange(3)).size == 0
    gaussian = DiagonalGaussian({"w": jnp.zeros((3, 2))}, {"w": jnp.ones((3, 2))})
    assert uncertainty.chain_positions(gaussian, np.arange(60)).size == 0


# From a posterior


@pytest.fixture(scope="module")
def sampled():
    """HMC on the linear-Gaussian target, two weights."""
    model = Model(NETWORK, Gaussian(0.5), {"*a": dist.Normal(0.0, 0.8), "*b": dist.Normal(0.0, 1.2)})
    return fit(model, HMC(num_draws=50, num_burn_in=20), linear_gaussian(), progress=False)


@pytest.fixture(scope="module")
def diagnosis(sampled):
    return sampled.diagnose(np.array([[0.7, 0.0], [0.3, 1.0], [-1.0, 0.0]]))


def test_diagnosis_of_a_run(sampled, diagnosis):
    assert isinstance(diagnosis, Diagnosis)
    assert (diagnosis.num_chains, diagnosis.num_draws) == (4, 50)
    assert diagnosis.r_hat.shape == diagnosis.ess_tail.shape == diagnosis.monte_carlo_error.shape == (3,)
    weights = sampled.family.draws["network"]
    first = weights["a"] + 0.7 * weights["b"]
    np.testing.assert_allclose(diagnosis.draws["mean"][:, :, 0], first, atol=1e-6)
    assert list(diagnosis.draws) == ["mean"]  # the noise is known, and so never varies
    assert diagnosis.verdict in ("good", "usable")
    assert diagnosis.weight_names == ("network/a[]", "network/b[]")
    np.testing.assert_allclose(diagnosis.weight_space.r_hat[0], convergence.r_hat(np.asarray(weights["a"])))
    assert set(diagnosis.densities) == {"log_joint", "log_likelihood", "log_prior"}


def test_the_trace_is_that_of_the_kept_draws(sampled, diagnosis):
    weights = sampled.family.draws["network"]
    exact = dist.Normal(0.0, 0.8).log_prob(weights["a"]) + dist.Normal(0.0, 1.2).log_prob(weights["b"])
    np.testing.assert_allclose(diagnosis.trace["log_prior"], exact, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(diagnosis.acceptance, sampled.trace["acceptance"][:, 20:].mean(1), rtol=1e-5)
    values = np.arange(4 * 8).reshape(4, 8)
    cycles = Trace({"a": values}, np.arange(8) % 4 >= 2, np.where(np.arange(8) % 4 >= 2, 3, 1))  # two of them
    kept, steps = diagnose._kept_trace(cycles, 4)
    np.testing.assert_array_equal(kept["a"], values[:, [2, 3, 6, 7]])
    assert steps == 3
    assert diagnose._kept_trace(cycles, 3) == ({}, 1)  # a posterior of some of the draws


def test_a_sampler_that_rejects_nothing_shows_no_acceptance():
    outputs = autoregressive(0.0, (4, 50, 2, 1))
    trace = {"acceptance": np.ones((4, 55)), "accepted": np.ones((4, 55)), "log_joint": autoregressive(0.0, (4, 55))}
    posterior = table_posterior(outputs, Gaussian(1.0), trace)
    assert "Acceptance by chain: 1.00" in str(posterior.diagnose(np.arange(2)))
    for adjusted in (False, True):
        method = MILE(num_draws=50, num_burn_in=5, thin=1, step_size=0.1, length=1.0, adjusted=adjusted)
        found = dataclasses.replace(posterior, method=method).diagnose(np.arange(2))
        assert ("Acceptance" in str(found)) == adjusted
        assert "log_joint" in found.densities


def test_the_words_of_a_run(diagnosis):
    text = str(diagnosis)
    assert text.split("\n")[0].startswith(("Good", "Usable"))
    assert "Worst inputs, by row of x (R-hat): " in text
    assert "Monte Carlo error of the predictive mean: " in text
    assert "Halving it takes 150 more draws per chain" in text
    assert "No divergences." in text
    assert "Weight space, which says little" in text


def test_classes_are_diagnosed_by_their_probabilities():
    logits = autoregressive(0.5, (3, 60, 4, 3))
    found = table_posterior(logits, Categorical(3)).diagnose(np.arange(4))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(found.draws["probability"], probs, atol=1e-6)
    assert found.r_hat.shape == (4, 3)
    assert len(found.weight_names) == 12
    assert found.weight_names[4] == "network/table[1, 1]"


def test_a_noise_of_the_network_is_diagnosed_too():
    outputs = autoregressive(0.0, (4, 150, 3, 2))
    outputs[2, :, 1, 1] += 4
    found = table_posterior(outputs, HeteroscedasticGaussian()).diagnose(np.arange(3))
    np.testing.assert_allclose(found.draws["log_std"], outputs[..., 1] / 2, atol=1e-3)
    assert found.worst_inputs(1).tolist() == [1]
    assert found.verdict == "not converged"


def test_independent_draws_have_nothing_to_diagnose(sampled):
    weights = sampled.family.draws["network"]
    gaussian = DiagonalGaussian(
        {"network": {name: value.mean(1) for name, value in weights.items()}},
        {"network": {name: value.std(1) for name, value in weights.items()}},
        sampled.family.fixed,
    )
    x = np.array([[0.0, 0.0], [2.0, 0.0]])
    found = untraced(sampled.model, gaussian, x).diagnose(x)
    assert found.verdict == "independent"
    assert str(found).startswith("Not a Markov chain: its draws are independent; nothing to diagnose.")
    drawn = found.draws["mean"].reshape(100, 2)
    wider = stats.t.ppf(stats.norm.cdf(2), 99) / 2  # 99 degrees of freedom
    np.testing.assert_allclose(found.monte_carlo_error, wider * drawn.std(0, ddof=1) / 10, rtol=1e-5)
    assert found.draws_needed(found.monte_carlo_error.max() / 2) == 75
    one = Samples(
        {"network": {name: value[:1, :1] for name, value in weights.items()}}, {"network": dict.fromkeys("ab")}
    )
    single = untraced(sampled.model, one, x).diagnose(x)
    assert single.verdict == "independent"
    assert np.isnan(single.monte_carlo_error).all()
    assert "one draw cannot tell" in str(single)


# Export


def test_plain_arrays(diagnosis):
    groups = diagnosis.to_dict()
    assert groups["posterior"]["mean"].shape == (4, 50, 3)
    assert groups["sample_stats"]["lp"].shape == groups["sample_stats"]["acceptance_rate"].shape == (4, 50)
    assert groups["sample_stats"]["diverging"].dtype == bool


def test_arviz_is_asked_for_by_name(diagnosis, monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ImportError, match="pip install arviz"):
        diagnosis.to_arviz()
    new = SimpleNamespace(from_dict=lambda groups: groups)
    monkeypatch.setitem(sys.modules, "arviz", new)
    assert diagnosis.to_arviz().keys() == {"posterior", "sample_stats"}
    old = SimpleNamespace(InferenceData=None, from_dict=lambda posterior, sample_stats: posterior)
    monkeypatch.setitem(sys.modules, "arviz", old)
    assert diagnosis.to_arviz()["mean"] is diagnosis.draws["mean"]


def test_arviz_reads_the_export(diagnosis):
    assert diagnosis.to_arviz().posterior["mean"].shape == (4, 50, 3)


def test_a_thinned_trace_says_nothing_of_the_draws_densities():
    """A record is then a mean over steps, whose spread and correlation are not those of the draws."""
    rng = np.random.default_rng(0)
    trace = {"log_joint": rng.normal(size=(4, 50)), "acceptance": np.full((4, 50), 0.8)}
    values = {"mean": rng.normal(size=(4, 50, 3))}
    assert set(diagnose._of_chains(values, trace, 1, None, ()).densities) == {"log_joint"}
    thinned = diagnose._of_chains(values, trace, 10, None, ())
    assert thinned.densities == {}
    assert "lp" not in thinned.to_dict()["sample_stats"]


def test_a_value_that_is_not_finite_in_one_of_several_targets_is_told():
    values = np.random.default_rng(0).normal(size=(4, 100, 3, 2))
    values[1, 5, 2, 1] = np.inf
    assert "not converged" in str(of_chains(values)).lower()
