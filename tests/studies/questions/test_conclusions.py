"""Conclusions are functions of figures: planted figures give the sentence, and the opposite ones its opposite."""

import copy

import numpy as np
import pytest

from posterity.metrics import Estimate
from posterity.studies.questions import (
    bma,
    contraction,
    methods,
    mixing,
    priors,
    shift,
    tempering,
    variational,
    width,
)
from posterity.studies.questions.claims import Wording, best_of, claim, paired

GOOD = {"verdict": "good", "r_hat": 1.005, "effective_draws": 500.0, "num_chains": 4, "num_draws": 200}
GOOD |= {"num_inputs": 100, "seconds": 9.0}
BAD = {**GOOD, "verdict": "not converged", "r_hat": 1.4}
ROWS = 400
WORDS = Wording("yes {}", "no {}", "perhaps {}")


def rows(mean, seed=0, splits=2):
    """Values of test rows around a mean, the same noise for the same seed: differences are exact in the mean."""
    rng = np.random.default_rng(seed)
    return [(mean + 0.01 * rng.normal(size=ROWS)).tolist() for _ in range(splits)]


def outcomes(found):
    return {row.name: row.holds for row in found}


def every_outcome(found, holds):
    assert found
    assert {row.name: row.holds for row in found} == {row.name: holds for row in found}


def bma_figures(better):
    """HMC better than all others by all scores, or worse."""
    sign = -1 if better else 1
    scores = {
        name: {
            "nll": rows(1.0 + offset, i),
            "error": rows(0.1 + offset / 2, 10 + i),
            "calibration": [[0.2 + offset / 2, 0.001]] * 2,
        }
        for i, (name, offset) in enumerate(
            {bma.AVERAGE: sign * 0.2, bma.ENSEMBLE: 0.0, bma.POINT: 0.05, bma.DRAW: 0.1}.items()
        )
    }
    return {"is_classes": True, "scores": scores, "growth": {}, "references": {"split 0": GOOD}}


def tempering_figures(cold_gain, augmented_gain):
    def curve(gain):
        return {"0.3": rows(1.0 - gain, 1), "1": rows(1.0, 2), "3": rows(1.2, 3)}

    names = ["tempered posterior, split 0", "tempered likelihood, split 0", *tempering.KINDS.values()]
    return {
        "curves": {"posterior": curve(cold_gain), "likelihood": curve(cold_gain)},
        "near": [],
        "augmented": {kind: curve(augmented_gain) for kind in tempering.KINDS},
        "references": {f"T = {t}, {name}": GOOD for t in ("0.3", "1", "3") for name in names},
    }


def methods_figures(near, floor):
    """Ensemble and SGHMC nearer to HMC than variational inference, or farther; and HMC's own halves."""
    by_name = {"bayes_by_backprop": 0.15, "deep_ensemble": 0.1 if near else 0.2, "sghmc": 0.12 if near else 0.25}
    found = {
        name: {"distance": rows(value, i), "agreement": [0.9, 0.9], "nll": [0.3, 0.3], "time": [1.0, 1.0]}
        for i, (name, value) in enumerate(by_name.items())
    }
    return {
        "is_classes": True,
        "methods": found,
        "floor": [[floor, 0.001]] * 2,
        "two_modes": {},
        "references": {"split 0": GOOD},
    }


def mixing_figures(holds):
    rng = np.random.default_rng(0)
    good, bad = (1.002 + 0.001 * rng.random(300)).tolist(), (1.3 + 0.1 * rng.random(300)).tolist()
    high, low = (0.8 + 0.01 * rng.random(100)).tolist(), (0.2 + 0.01 * rng.random(100)).tolist()
    first, second = (high, low) if holds else (low, high)
    deep, shallow = ({"depths": (100 * np.array(each)).tolist(), "path": [0.0]} for each in (first, second))
    return {
        "chains": {
            "function": good if holds else bad,
            "weights": bad if holds else good,
            "long": rows(1.1 if holds else 1.0, 1, 1)[0],
            "short": rows(1.0 if holds else 1.1, 2, 1)[0],
            "burn_in": [[0], [1.0]],
            "reference": GOOD,
        },
        "lengths": {"by_length": [[0.25, second], [1.0, first]]},
        "heads": {"by_head": {"integrated": {"per_gradient": first}, "sampled": {"per_gradient": second}}},
        "activations": {"silu": first, "relu": second},
        "barriers": {
            "by_path": {
                "two chains, straight": deep,
                "two chains, curved": shallow,
                "one chain, straight": shallow,
                "one chain, curved": shallow,
            }
        },
        "minibatches": {
            "log_joint": [0.0, 1.0],
            "all rows": {"acceptance": first},
            "minibatches": {"acceptance": second},
            "minibatches, every proposal taken": {"log_joint": [-50.0 if holds else 50.0] * 40},
        },
        "references": {"split 0": GOOD},
    }


def priors_figures(spread, other_gain, family_gain):
    def table(nll, error, seed):
        return {"nll": rows(nll, seed), "error": rows(error, seed + 50)}

    return {
        "is_classes": True,
        "scales": {
            "0.35": table(1.0 + spread, 0.1 + spread, 1),
            "1": table(1.0, 0.1, 2),
            "10": table(1.0 - other_gain, 0.1, 3),
        },
        "points": {},
        "families": {"Gaussian": table(1.0, 0.1, 4), "Laplace": table(1.0 - family_gain, 0.1, 5)},
        "references": dict.fromkeys(
            ("scale 0.35, split 0", "scale 1, split 0", "scale 10, split 0", "Laplace, split 0"), GOOD
        ),
    }


def shift_figures(loses):
    places = ["0", "noise/4", "noise/5", "shift/5"]
    values = {"HMC": 0.4, "HMC, EmpCov": 0.2, "one network": 0.3, "ensemble": 0.25}
    if not loses:
        values |= {"HMC": 0.1}
    scores = {
        name: {place: {"nll": rows(value, i), "error": rows(value, 9 + i)} for place in places}
        for i, (name, value) in enumerate(values.items())
    }
    kept = 1.0 if loses else 0.3
    return {
        "is_classes": True,
        "scores": scores,
        "directions": {
            "variance": [1e-4, 2e-4, 3e-4, 1.0, 2.0],
            "posterior": [kept, kept + 0.01, kept - 0.01, 0.5, 0.4],
            "point": [0.1] * 5,
        },
        "references": {"usual prior, split 0": GOOD, "EmpCov, split 0": GOOD},
    }


def contraction_figures(holds):
    problems = {}
    for name in ("line", "curve", "classes"):
        sizes = {}
        for size in (3, 30, 300):
            gain = (3.0 / size if holds else size / 300 - 2.0) if size != 30 else 0.5
            power = -0.5 if holds else -0.2
            sizes[str(size)] = {
                "mle": rows(1.0 + gain, 1),
                "map": rows(1.0, 2),
                "hmc": rows(1.0, 3),
                "spread": [float(size) ** power] * 2,
                "exact_spread": [float(size) ** power * (1.0 if holds else 2.0)] * 2,
                "far": [{"mle": 0.99, "map": 0.9, "hmc": 0.6 if holds else 1.2}] * 2,
            }
        problems[name] = sizes
    references = {f"{name}, {size} rows, seed 0": GOOD for name in problems for size in (3, 30, 300)}
    return {"problems": problems, "references": references}


def variational_figures(holds):
    wide, narrow = (2.0, 0.6) if holds else (0.6, 2.0)
    many, few = ([10.0, 0.1], [1.0, 0.1]) if holds else ([1.0, 0.1], [10.0, 0.1])
    noise = (1.0 + 0.1 * np.random.default_rng(0).random(100)).tolist()
    large = (100 * np.array(noise)).tolist()
    return {
        "directions": {"by_direction": {"KL(q, p)": {"scale": narrow}, "KL(p, q)": {"scale": wide}}},
        "free_energy": {"ends": {"0.1": {"complexity": many}, "1": {"complexity": few}, "10": {"complexity": few}}}
        if holds
        else {"ends": {"0.1": {"complexity": many}, "10": {"complexity": few}}},
        "gradients": {"path": noise if holds else large, "score": large if holds else noise},
        "dropout_kl": {"by_scale": [[0.01, 1.001 if holds else 1.5, 0.001]]},
        "masks": {"by_masks": [[1, 8.0 if holds else 1.0, 0.1], [8, 1.0 if holds else 8.0, 0.1]]},
    }


def width_figures(holds):
    process = {"mean": [0.0] * 41, "sd": [1.0] * 41}
    near = {"mean": [0.0] * 41, "sd": [1.01] * 41, "effective": 5000.0}
    far = {"mean": [0.5] * 41, "sd": [1.5] * 41, "effective": 5000.0}
    thin, spread = rows(0.3, 1, 1)[0][:41], rows(3.0, 2, 1)[0][:41]
    narrow = {**(far if holds else near), "kurtosis": [1.5 if holds else 0.0, 0.1], "dropout_sd": spread}
    wide = {
        **(near if holds else far),
        "kurtosis": [0.0 if holds else 1.5, 0.1],
        "dropout_sd": thin if holds else spread,
    }
    return {"widths": {"10": narrow, "1000": wide}, "process": process, "prior_sd": 1.0}


PLANTED = {  # study, figures of which every claim holds, figures of which none does
    "bma": (bma, bma_figures(True), bma_figures(False)),
    "mixing": (mixing, mixing_figures(True), mixing_figures(False)),
    "contraction": (contraction, contraction_figures(True), contraction_figures(False)),
    "variational": (variational, variational_figures(True), variational_figures(False)),
    "width": (width, width_figures(True), width_figures(False)),
}


@pytest.mark.parametrize("name", PLANTED)
def test_the_opposite_figures_give_the_opposite_sentences(name):
    study, holds, fails = PLANTED[name]
    before, after = study.conclude(holds), study.conclude(fails)
    every_outcome(before, True)
    every_outcome(after, False)
    assert [row.name for row in before] == [row.name for row in after]
    assert not {row.remark for row in before} & {row.remark for row in after}
    assert all("±" in row.remark for row in [*before, *after])  # every claim has its error bar


def test_a_cold_posterior_effect_is_found_where_it_is_planted():
    none, cold = (tempering.conclude(tempering_figures(gain, gain)) for gain in (-0.1, 0.1))
    assert [row.holds for row in none] == [True, True, False, False, False]
    assert [row.holds for row in cold] == [False, False, True, True, True]
    assert none[0].remark.startswith("no cold posterior effect")
    assert cold[0].remark.startswith("a cold posterior effect")


def test_the_nearer_method_is_named_the_nearer_one():
    near, far = (methods.conclude(methods_figures(which, 0.05)) for which in (True, False))
    assert [row.holds for row in near] == [True, True, True]
    assert [row.holds for row in far] == [False, False, True]
    assert "the nearest, Deep ensemble" in near[-1].remark
    assert "the nearest, Bayes by Backprop" in far[-1].remark
    assert methods.conclude(methods_figures(True, 0.2))[-1].holds is False  # nearer than HMC's own halves


def test_two_modes_are_counted():
    one, both = {"b": [1.0] * 200}, {"b": [1.0, -1.0] * 100}
    tight, wide = {"b": [1.0, 1.001, -1.0] * 5}, {"b": (3 * np.random.default_rng(0).normal(size=30)).tolist()}
    figures = methods_figures(True, 0.05)
    for variational_draws, ensemble, holds in ((one, tight, True), (both, wide, False)):
        planted = {**figures, "two_modes": {"bayes_by_backprop": variational_draws, "deep_ensemble": ensemble}}
        assert [row.holds for row in methods.conclude(planted)[-2:]] == [holds, holds]


def test_a_prior_that_matters_is_told_from_one_that_does_not():
    robust, fragile = (priors.conclude(priors_figures(*gains)) for gains in ((0.005, -0.1, -0.1), (0.3, 0.1, 0.1)))
    assert [row.holds for row in robust] == [True, True, False, False]
    assert [row.holds for row in fragile] == [False, False, True, True]


def test_a_loss_under_shift_is_found_where_it_is_planted():
    every_outcome(shift.conclude(shift_figures(True)), True)
    every_outcome(shift.conclude(shift_figures(False)), False)


@pytest.mark.parametrize(
    ("study", "figures"),
    [(bma, bma_figures(True)), (tempering, tempering_figures(-0.1, 0.1)), (shift, shift_figures(True))],
)
def test_a_reference_that_has_not_converged_may_not_judge(study, figures):
    planted = copy.deepcopy(figures)
    planted["references"] = dict.fromkeys(planted["references"], BAD)
    found = study.conclude(planted)
    every_outcome(found, None)
    assert all(row.remark.startswith("No conclusion") and "not converged" in row.remark for row in found)


@pytest.mark.parametrize(("value", "holds"), [(0.3, True), (-0.3, False), (0.1, None), (-0.1, None)])
def test_a_claim_is_decided_by_two_standard_errors(value, holds):
    row = claim("a: b", Estimate(value, 0.1), WORDS)
    assert row.holds is holds
    assert row.remark.split()[0] == {True: "yes", False: "no", None: "perhaps"}[holds]
    assert claim("a: b", Estimate(value, float("nan")), WORDS).holds is None  # no error, no decision


def test_paired_errors_know_of_splits_that_differ():
    first, second = [[1.0] * 100, [3.0] * 100], [[0.0] * 100, [0.0] * 100]
    assert paired(first, second) == (2.0, pytest.approx(1.0))  # over rows it would be 0.07
    assert paired(first[:1], second[:1]).standard_error == 0.0


def test_the_best_of_several_is_judged_by_other_rows_than_those_it_was_chosen_by():
    lucky = [[0.0, 2.0] * 50]  # best by the even rows alone
    name, gain = best_of({"lucky": lucky, "plain": [[1.0] * 100]}, [[1.0] * 100])
    assert name == "lucky"
    assert gain.value == -1.0


def test_pareto_k_is_that_of_known_tails():
    rng = np.random.default_rng(0)
    for shape in (0.3, 0.7, 1.5):
        weights = rng.random(20_000) ** -shape  # a Pareto tail of this shape
        error = (1 + shape) / np.sqrt(3 * np.sqrt(len(weights)))  # of the shape, from as many values as the tail has
        assert tempering.pareto_k(np.log(weights)) == pytest.approx(shape, abs=3 * error)
    assert tempering.pareto_k(np.zeros(500)) == 0.0


def test_the_arc_cosine_kernel_is_that_of_wide_features():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 2))
    weights = rng.normal(size=(3, 400_000))
    features = np.maximum(np.concatenate([x, np.ones((5, 1))], 1) @ weights, 0)
    measured = 2 * features @ features.T / weights.shape[1]
    np.testing.assert_allclose(width.arc_cosine(x, x), measured, rtol=0.02)


def test_conditioning_is_gaussian_conditioning():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(6, 6))
    kernel, y = root @ root.T, np.array([0.3, -0.2])
    noisy = kernel[4:, 4:] + width.NOISE**2 * np.eye(2)
    mean, variance, evidence = width.conditioned(kernel, y)
    np.testing.assert_allclose(mean, kernel[:4, 4:] @ np.linalg.solve(noisy, y))
    np.testing.assert_allclose(
        variance, np.diag(kernel[:4, :4] - kernel[:4, 4:] @ np.linalg.solve(noisy, kernel[4:, :4]))
    )
    expected = -0.5 * (y @ np.linalg.solve(noisy, y) + np.linalg.slogdet(2 * np.pi * noisy)[1])
    assert evidence == pytest.approx(expected)


def test_copies_are_the_image_and_its_shifts():
    image = np.arange(9.0).reshape(1, 3, 3)
    found = tempering.copies(image).reshape(5, 3, 3)
    np.testing.assert_array_equal(found[0], image[0])
    np.testing.assert_array_equal(found[1][1:], image[0][:-1])
    assert (found[1][0] == -1).all()
    assert len(np.unique(found.reshape(5, -1), axis=0)) == 5
