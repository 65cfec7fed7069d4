"""Evidence and leave-one-out of linear-Gaussian models against their closed forms, and where the two disagree."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from posterity import MAP, SMC, Exact, Gaussian, Laplace, Model, Normal, compare_models, linear
from posterity.metrics.loo import LeaveOneOut

RNG = np.random.default_rng(0)
X = RNG.normal(size=(25, 2))
Y = X @ np.array([1.0, -0.5]) + 0.3 + 0.4 * RNG.normal(size=25)
DESIGN = np.concatenate([X, np.ones((25, 1))], 1)


def line(width, noise=0.4):
    return Model(linear(), Gaussian(noise), Normal(0.0, width))


def exact(width, noise=0.4):
    """log p(y), and log p(y_n | other rows) of each row, from the joint Gaussian of all targets."""
    joint = width**2 * DESIGN @ DESIGN.T + noise**2 * np.eye(25)
    inverse = np.linalg.inv(joint)
    solved = inverse @ Y
    # A row given the others (Rasmussen & Williams 2006, eq. 5.12).
    mean, variance = Y - solved / np.diag(inverse), 1 / np.diag(inverse)
    return stats.multivariate_normal(np.zeros(25), joint).logpdf(Y), stats.norm.logpdf(Y, mean, np.sqrt(variance))


def test_both_are_the_closed_forms():
    found = compare_models({"wide": line(1.0), "narrow": line(0.2), "vague": line(30.0)}, (X, Y), Exact())
    for name, width in {"wide": 1.0, "narrow": 0.2, "vague": 30.0}.items():
        evidence, rows = exact(width)
        assert found.log_evidence[name].value == pytest.approx(evidence, abs=1e-3)
        assert found.log_evidence[name].standard_error == 0
        assert found.loo[name].num_unreliable == 0
        # 1,000 draws: the error of a log mean is the relative error of its weights, a few per cent
        np.testing.assert_allclose(found.loo[name].log_prob, rows, atol=0.15)
        assert found.loo[name].total.value == pytest.approx(rows.sum(), abs=0.4)
    paired = exact(1.0)[1] - exact(0.2)[1]
    difference = found.loo_difference("wide", "narrow")
    assert difference.value == pytest.approx(paired.sum(), abs=0.4)
    assert difference.standard_error == pytest.approx(np.sqrt(25) * paired.std(ddof=1), rel=0.2)
    bayes_factor = found.evidence_difference("wide", "vague")
    assert bayes_factor.value == pytest.approx(exact(1.0)[0] - exact(30.0)[0], abs=1e-3)
    assert bayes_factor.value > 5  # the evidence minds a vague prior, leave-one-out hardly
    assert abs(found.loo_difference("wide", "vague").value) < 1
    assert "log evidence" in str(found)


def test_a_disagreement_is_reported():
    found = compare_models({"a": line(1.0), "b": line(2.0)}, (X, Y), Exact())
    better = LeaveOneOut(found.loo["a"].log_prob + 0.5 + 0.01 * RNG.normal(size=25), found.loo["a"].pareto_k, 1000)
    evidence = {"a": found.log_evidence["a"]._replace(value=-10.0), "b": found.log_evidence["b"]._replace(value=-30.0)}
    planted = dataclasses.replace(found, loo={**found.loo, "b": better}, log_evidence=evidence)
    assert planted.conflicts == [("b", "a")]
    assert "leave-one-out prefers b to a" in str(planted)
    assert "follow leave-one-out (Lotfi et al. 2022)" in str(planted)
    evidence["a"] = evidence["a"]._replace(value=-29.5)  # half a nat is no disagreement
    assert dataclasses.replace(planted, log_evidence=evidence).conflicts == []


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="at least two by name"):
        compare_models({"one": line(1.0)}, (X, Y))
    with pytest.raises(ValueError, match="MAP gives no log evidence"):
        compare_models({"a": line(1.0), "b": line(2.0)}, (X, Y), MAP(num_steps=10))
    with pytest.raises(ValueError, match="cannot be left out"):
        compare_models({"a": line(1.0), "b": line(2.0)}, (X, Y, np.r_[2.0, np.ones(24)]), Exact())


@pytest.mark.long
@pytest.mark.parametrize("method", [SMC(num_particles=128), Laplace(start=MAP(num_steps=2000, learning_rate=1e-2))])
def test_smc_and_laplace_find_the_same(method):
    found = compare_models({"wide": line(1.0), "narrow": line(0.2)}, (X, Y), method)
    for name, width in {"wide": 1.0, "narrow": 0.2}.items():
        evidence, rows = exact(width)
        error = found.log_evidence[name].standard_error
        assert found.log_evidence[name].value == pytest.approx(evidence, abs=0.05 if np.isnan(error) else 4 * error)
        np.testing.assert_allclose(found.loo[name].log_prob, rows, atol=0.25)
