"""The audit: distances whose answer is known, the floor of what a reference can see, and what is said in words."""

import dataclasses

import jax
import numpy as np
import pytest
from targets import autoregressive

from posterity import HMC, MAP, Categorical, Gaussian, Model, audit, fit, linear, metrics, mlp
from posterity.models.units import Rescaled
from posterity.posterior.audit import Referee, _differences, own_distance
from posterity.posterior.posterior import prior_predictive
from posterity.posterior.trace import Trace
from posterity.posterior.units import Units, compare, epistemic
from posterity.weights.families import Samples

ROWS, NUM_DRAWS = 8, 40


def sampled(likelihood, y, seed=0):
    """Four chains of independent draws about a point: what a sampler that has arrived would leave."""
    x, rng = np.random.default_rng(0).normal(size=(40, 2)), np.random.default_rng(seed)
    point = fit(Model(linear(), likelihood), MAP(num_steps=200, learning_rate=0.05), (x, y), progress=False)
    draws = jax.tree.map(
        lambda leaf: leaf + 0.1 * rng.normal(size=(4, NUM_DRAWS, *leaf.shape[2:])).astype(np.float32),
        point.family.draws,
    )
    fixed = jax.tree.map(lambda leaf: None, point.model.init(jax.random.key(0), x))
    method = HMC(num_draws=NUM_DRAWS)
    return dataclasses.replace(point, family=Samples(draws, fixed), method=method, trace=Trace.empty())


@pytest.fixture(scope="module")
def reference(line):
    return sampled(Gaussian(0.3), line[1])


@pytest.fixture(scope="module")
def classes(line):
    return sampled(Categorical(3), np.digitize(line[1], [-1.0, 1.0]))


def stretched(posterior, factor, shift=0.0):
    """The same draws, pulled away from their mean by a factor, and moved."""

    def leaf(draws):
        centre = draws.mean((0, 1), keepdims=True)
        return centre + factor * (draws - centre) + shift

    draws = jax.tree.map(leaf, posterior.family.draws)
    return dataclasses.replace(posterior, family=Samples(draws, posterior.family.fixed))


def prior_of(shift=0.0):
    """Functions from the prior; `shift` moves their targets."""
    model = Model(mlp((4,), activation="tanh"), Rescaled(Gaussian(0.5), shift, 2.0))
    return prior_predictive(model, np.linspace(-1, 1, 7)[:, None], num_draws=50)


def test_a_posterior_is_at_no_distance_from_itself(reference, classes, line):
    for posterior, name in ((reference, "wasserstein"), (classes, "total_variation")):
        found = audit(posterior, posterior, line[0][:ROWS])
        np.testing.assert_array_equal(found.rows[name], np.zeros(ROWS))
        np.testing.assert_allclose(found.ignorance, 1.0)
        assert "as near as they are to each other" in str(found)
        assert "about right" in str(found)


@pytest.mark.long
def test_wasserstein_of_a_shift_is_the_shift_in_standard_deviations():
    found = Referee(prior_of()).at_rows(prior_of(shift=3.0))["wasserstein"]
    np.testing.assert_allclose(found, 3.0 / prior_of().std, rtol=1e-4)
    distances = Referee(prior_of()).distances(prior_of(shift=3.0))
    assert distances == {"wasserstein": metrics.mean_over_rows(found)}


def test_total_variation_and_agreement_are_those_of_the_probabilities(classes, line):
    other = stretched(classes, 3.0)
    found = audit(other, classes, line[0][:ROWS])
    ours, theirs = other.predict(line[0][:ROWS]).probs, classes.predict(line[0][:ROWS]).probs
    np.testing.assert_allclose(found.rows["total_variation"], 0.5 * np.abs(ours - theirs).sum(1), rtol=1e-5)
    assert found.distances["agreement"].value == np.mean(ours.argmax(1) == theirs.argmax(1))
    assert found.worst_inputs(1)[0] == np.argmax(np.abs(ours - theirs).sum(1))


@pytest.mark.parametrize(("factor", "word"), [(0.5, "too sure"), (1.0, "about right"), (2.0, "too unsure")])
def test_ignorance_is_told_in_the_references(reference, line, factor, word):
    """A network linear in its weights: draws pulled in by a factor spread by that factor at every input."""
    found = audit(stretched(reference, factor), reference, line[0][:ROWS])
    np.testing.assert_allclose(found.ignorance, factor, rtol=1e-3)
    assert word in str(found)
    assert f"{factor:.2g} of HMC's at the median input" in str(found)


def test_a_distance_is_read_against_that_of_the_references_own_halves(reference, line):
    """Halves of 80 draws are some sqrt(4 / 160) standard deviations of the mean apart; a shift of two is far more."""
    floor = own_distance(reference, line[0][:ROWS])["wasserstein"].value
    found = audit(stretched(reference, 1.0, shift=2.0), reference, line[0][:ROWS])
    assert found.own["wasserstein"].value == floor
    assert 0 < floor < 0.2
    assert "times as far away" in str(found)


def test_a_reference_that_has_not_converged_is_no_judge(reference, line):
    apart = jax.tree.map(lambda leaf: leaf + 5.0 * np.arange(4).reshape(4, 1, *[1] * (leaf.ndim - 2)), reference.family)
    doubtful = dataclasses.replace(reference, family=apart)
    assert "no judge yet (not converged)" in str(audit(reference, doubtful, line[0][:ROWS]))
    told = str(audit(reference, reference, line[0][:ROWS]))
    assert "HMC is a usable judge" in told
    assert "Too few effective draws to be good" in told
    found = audit(reference, reference, line[0][:ROWS])
    good = dataclasses.replace(found, diagnosis=dataclasses.replace(found.diagnosis, verdict="good", doubts=()))
    assert str(good).endswith("HMC has converged at these inputs.")


@pytest.mark.long
def test_a_row_of_several_targets_counts_their_mean(line):
    x, y = line
    posterior = sampled(Gaussian(0.3, num_outputs=2), np.stack([y, -y], 1))
    other = stretched(posterior, 2.0)
    found = audit(other, posterior, x[:ROWS])
    assert found.distance.shape == (ROWS,)
    levels = (np.arange(20) + 0.5) / 20
    scale = posterior.predict(x[:ROWS]).std[..., None]
    apart = np.abs(other.predict(x[:ROWS]).quantile(levels) - posterior.predict(x[:ROWS]).quantile(levels)) / scale
    np.testing.assert_allclose(found.distance, apart.mean((1, 2)), rtol=1e-4)


def test_temperatures_that_differ_are_told(reference):
    def at(temperature, tempering="posterior"):
        receipt = dataclasses.replace(reference.receipt, temperature=temperature, tempering=tempering)
        return dataclasses.replace(reference, receipt=receipt)

    told = "different temperatures, 0.1 (posterior) and 1, so that they would differ"
    assert told in " ".join(_differences(at(0.1), at(1.0)))
    assert "0.1 (posterior) and 0.1 (likelihood)" in " ".join(_differences(at(0.1), at(0.1, "likelihood")))
    assert _differences(at(1.0), at(1.0, "likelihood")) == ()
    assert _differences(at("not applicable", "not applicable"), at(0.1)) == ()


def test_posteriors_of_different_kinds_are_refused(reference, classes, line):
    with pytest.raises(ValueError, match="predicts classes and the reference continuous"):
        audit(classes, reference, line[0][:ROWS])
    with pytest.raises(TypeError, match="reference is Prediction; expected what fit or load returns"):
        audit(reference, reference.predict(line[0][:ROWS]), line[0][:ROWS])
    with pytest.raises(ValueError, match="give both the same rows"):
        Referee(reference.predict(line[0][:ROWS])).distances(reference.predict(line[0][:5]))


# Beyond chance


def linear_units(seed, factor=1.0, rho=0.3, num_chains=8, num_draws=100):
    """Chains from the exact posterior of a line with noise 1, f = (1, x) w: what they predict at 20 inputs."""
    x = np.linspace(-2, 2, 20)
    design = np.stack([np.ones(20), x], 1)
    root = np.linalg.cholesky(np.linalg.inv(np.eye(2) + design.T @ design))
    mean = autoregressive(rho, (num_chains, num_draws, 2), seed) @ (np.sqrt(factor) * design @ root).T
    return Units(None, np.arange(num_chains * num_draws).reshape(num_chains, -1), {"mean": mean})  # type: ignore[arg-type]


def test_another_seed_is_not_different_and_a_variance_of_seven_tenths_is():
    """The noise is 1, and does not hide what is seen of the mean alone."""
    same = [compare(linear_units(2 * s), linear_units(2 * s + 1))[0].p_value for s in range(100)]
    assert np.mean(np.array(same) > 0.02) >= 0.95
    found = [compare(linear_units(2 * s, 0.7), linear_units(2 * s + 1)) for s in range(20)]
    assert np.mean([one.p_value <= 0.02 for one, _ in found]) >= 0.9
    one, names = found[0]
    assert names == ("mean", "spread")
    assert one.by_quantity[1] < one.by_quantity[0]


def test_the_floor_of_inputs_is_passed_at_any_of_them_in_one_audit_of_twenty():
    found = [epistemic(linear_units(2 * s), linear_units(2 * s + 1)) for s in range(100)]
    assert np.mean([(one.distance > one.floor).any() for one in found]) < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 100)
    wrong = epistemic(linear_units(0, 0.3), linear_units(1))
    assert (wrong.distance > wrong.floor).all()


def test_the_epistemic_distance_of_a_shift_is_the_shift():
    ours, theirs = linear_units(0), linear_units(0)
    scale = theirs.draws["mean"].std((0, 1))
    ours.draws["mean"][:] += 2 * scale
    np.testing.assert_allclose(epistemic(ours, theirs).distance, 2.0, rtol=0.1)


def test_the_words_of_chance(reference, line):
    found = audit(stretched(reference, 0.3), reference, line[0][:ROWS])
    assert found.different
    assert "different beyond chance: p = " in str(found)
    assert set(found.monte_carlo_error) == {"wasserstein", "epistemic_distance"}
    assert all(error > 0 for error in found.monte_carlo_error.values())
    same = audit(reference, reference, line[0][:ROWS])
    assert same.different is False
    assert "not different beyond chance: p = 1 by relabelling 8 + 8 chains" in str(same)
    assert same.inputs_beyond_floor.size == 0


def test_classes_are_tested_too(classes, line):
    found = audit(stretched(classes, 4.0), classes, line[0][:ROWS])
    assert found.different
    assert set(found.monte_carlo_error) == {"total_variation", "agreement", "epistemic_distance"}


def test_other_targets_are_refused(reference, line):
    other = dataclasses.replace(reference, receipt=dataclasses.replace(reference.receipt, targets="another"))
    assert len(reference.receipt.targets) == 16
    with pytest.raises(ValueError, match="fitted to other targets: both to 40 rows"):
        audit(other, reference, line[0][:ROWS])
    old = dataclasses.replace(reference, receipt=dataclasses.replace(reference.receipt, targets=""))
    assert audit(old, reference, line[0][:ROWS]).different is False
