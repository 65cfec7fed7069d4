"""metrics.py against the published HMC predictions, closed forms, brute force and bootstraps."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, wasserstein_distance

from posterity import metrics
from posterity.metrics import information, numbers
from posterity.metrics.numbers import LEVELS

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("POSTERITY_DATA", REPOSITORY.parent / "shared" / "data"))

ONE = {"heads": (), "is_censored": False}  # of a prediction of one target that is known
# Computed from the published predictions, to the printed digits.
REFERENCE = {
    "cifar10": {
        "accuracy": 0.9144,
        "log_likelihood": -0.2773,
        "equal_mass_strict": 0.0520,
        "equal_width": 0.0520,
        "equal_mass": 0.0522,
        "brier": 0.1339,
        "entropy": 0.4022,
        "auroc_entropy": 0.8922,
        "auroc_maximum": 0.9101,
    },
    "imdb": {
        "accuracy": 0.8756,
        "log_likelihood": -0.2950,
        "equal_mass_strict": 0.0306,
        "equal_width": 0.0305,
        "equal_mass": 0.0306,
        "brier": 0.1812,
        "entropy": 0.3440,
        "auroc_entropy": 0.8371,
        "auroc_maximum": 0.8371,
    },
}
SCHEMES = ("equal_width", "equal_mass", "equal_mass_strict")

# Four rows, worked by hand: the third is wrong.
PROBS = np.array([[0.7, 0.2, 0.1], [0.1, 0.9, 0.0], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]])
LABELS = np.array([0, 1, 1, 2])


def reference_predictions(name: str) -> tuple[np.ndarray, np.ndarray]:
    path = DATA / "hmc_reference" / "hmc_reference.npz"
    if not path.exists():
        pytest.skip(f"{path} is absent; set POSTERITY_DATA to the folder that holds hmc_reference/")
    with np.load(path, allow_pickle=False) as arrays:
        probs, labels = arrays[f"{name}_probs"], arrays[f"{name}_labels"]
    if name == "cifar10":
        labels = np.load(DATA / "cifar10" / "test_labels.npy", allow_pickle=False)
    return probs, labels


@pytest.mark.parametrize("name", REFERENCE)
def test_hmc_reference(name: str):
    probs, labels = reference_predictions(name)
    entropy = np.asarray(information.entropy(probs))
    mistaken = probs.argmax(1) != labels
    log_prob = np.log(probs[np.arange(len(labels)), labels])
    got = {
        "accuracy": metrics.accuracy(probs, labels),
        "log_likelihood": -metrics.negative_log_likelihood(log_prob).value,
        **{scheme: metrics.calibration_error(probs, labels, 20, scheme) for scheme in SCHEMES},
        "brier": metrics.brier(probs, labels),
        "entropy": entropy.mean(),
        "auroc_entropy": metrics.auroc(entropy, mistaken),
        "auroc_maximum": metrics.auroc(-probs.max(1), mistaken),
    }
    rounded = {key: round(float(value), 4) for key, value in got.items()}
    assert rounded == REFERENCE[name]


def test_classification_by_hand():
    assert metrics.accuracy(PROBS, LABELS).value == 0.75
    assert metrics.accuracy(PROBS, LABELS).standard_error == pytest.approx(0.25)
    rows = [0.09 + 0.04 + 0.01, 0.01 + 0.01, 0.36 + 0.64 + 0.04, 0.09 + 0.09 + 0.36]
    score = metrics.brier(PROBS, LABELS)
    assert score.value == pytest.approx(np.mean(rows))
    assert score.standard_error == pytest.approx(np.std(rows, ddof=1) / 2)
    # Two bins of width 1/2: {0.4} is right, {0.6, 0.7, 0.9} holds one mistake.
    error = metrics.calibration_error(PROBS, LABELS, num_bins=2)
    assert error.value == pytest.approx((abs(1 - 0.4) + abs(2 - 0.6 - 0.7 - 0.9)) / 4)
    # Two bins of two: {0.4, 0.6} and {0.7, 0.9}.
    error = metrics.calibration_error(PROBS, LABELS, 2, "equal_mass")
    assert error.value == pytest.approx((abs(1 - 0.4 - 0.6) + abs(2 - 0.7 - 0.9)) / 4)
    # With the row at 0.7 mistaken too, its gap must be netted against that of 0.9, not of 0.6.
    error = metrics.calibration_error(PROBS, [1, 1, 1, 2], 2, "equal_mass")
    assert error.value == pytest.approx((abs(1 - 0.4 - 0.6) + abs(1 - 0.7 - 0.9)) / 4)
    # Edges 0.4, 0.7, 0.9 drop out: what remains is the mistaken row at 0.6.
    error = metrics.calibration_error(PROBS, LABELS, 2, "equal_mass_strict")
    assert error.value == pytest.approx(0.6 / 4)


def test_equal_width_bins_are_closed_above():
    # 0.5 belongs to (0, 0.5], so its gap is not netted against that of 1.0.
    error = metrics.calibration_error([[0.5, 0.5], [1.0, 0.0]], [0, 1], num_bins=2)
    assert error.value == pytest.approx((0.5 + 1.0) / 2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_calibration_error_ignores_row_order_and_has_an_honest_error(scheme: str):
    generator = np.random.default_rng(0)

    def error_of_new_rows(size: int = 500) -> metrics.Estimate:
        confidence = np.round(0.5 + generator.beta(4, 2, size) / 2, 2)  # many ties
        labels = (generator.random(size) > confidence - 0.15).astype(int)
        probs = np.stack([confidence, 1 - confidence], 1)
        estimate = metrics.calibration_error(probs, labels, 10, scheme)
        order = generator.permutation(size)
        shuffled = metrics.calibration_error(probs[order], labels[order], 10, scheme)
        assert shuffled.value == pytest.approx(estimate.value)
        return estimate

    estimates = np.array([error_of_new_rows() for _ in range(60)])
    spread = estimates[:, 0].std(ddof=1)
    # The spread of 60 values is known to 9 %.
    assert estimates[:, 1].mean() == pytest.approx(spread, rel=0.36)


def test_regression_by_hand():
    mean, y = [1.0, 2.0, 3.0], [1.0, 4.0, 2.0]
    assert metrics.rmse(mean, y).value == pytest.approx(np.sqrt(5 / 3))
    assert metrics.mean_absolute_error(mean, y).value == pytest.approx(1.0)
    assert metrics.mean_absolute_error(mean, y).standard_error == pytest.approx(np.sqrt(1 / 3))
    assert metrics.rmse(y, y) == (0.0, 0.0)
    log_prob = metrics.gaussian_log_prob(mean, [1.0, 2.0, 0.5], y)
    np.testing.assert_allclose(log_prob, norm.logpdf(y, mean, [1.0, 2.0, 0.5]))
    assert metrics.negative_log_likelihood([-1.0, -3.0]).value == 2
    assert metrics.negative_log_likelihood([-1.0, -np.inf]).value == np.inf
    lower, upper = [0.0, 3.0, 2.5], [1.0, 5.0, 3.0]
    assert metrics.interval_coverage(lower, upper, y).value == pytest.approx(2 / 3)
    assert metrics.interval_width(lower, upper).value == pytest.approx(3.5 / 3)
    assert metrics.interval_width([-np.inf, 0.0], [1.0, 1.0]).value == np.inf
    assert metrics.interval_coverage([-np.inf], [np.inf], [3.0]).value == 1


def test_rmse_error_is_the_spread_over_samples():
    errors = np.random.default_rng(0).normal(size=(2000, 200))
    estimates = np.array([metrics.rmse(row, np.zeros(200)) for row in errors])
    # 1 / sqrt(2 N) for Gaussian errors; the mean of 2000 is known far better than 3 %.
    assert estimates[:, 1].mean() == pytest.approx(1 / np.sqrt(400), rel=0.03)
    assert estimates[:, 0].std() == pytest.approx(1 / np.sqrt(400), rel=4 / np.sqrt(4000))


def test_crps_of_one_gaussian():
    mean, std, y = np.array([0.0, 1.0, -2.0]), np.array([1.0, 0.5, 3.0]), np.array([0.3, 1.0, 4.0])
    z = (y - mean) / std
    exact = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(metrics.crps_gaussian_mixture_rows(mean[None], std[None], y), exact)
    average = metrics.crps_gaussian_mixture(mean[None], std[None], y)
    assert average.value == pytest.approx(exact.mean())


def test_crps_of_a_mixture_by_integration(monkeypatch: pytest.MonkeyPatch):
    generator = np.random.default_rng(1)
    means, stds = generator.normal(size=(5, 4)), generator.uniform(0.2, 1.0, (5, 4))
    y = generator.normal(size=4)

    def integral(row: int) -> float:
        def cdf(x: float) -> float:
            return norm.cdf(x, means[:, row], stds[:, row]).mean()

        below = quad(lambda x: cdf(x) ** 2, -12, y[row], limit=200)[0]
        return below + quad(lambda x: (1 - cdf(x)) ** 2, y[row], 12, limit=200)[0]

    exact = [integral(row) for row in range(4)]
    whole = metrics.crps_gaussian_mixture_rows(means, stds, y)
    np.testing.assert_allclose(whole, exact, atol=1e-7)
    monkeypatch.setattr(numbers, "CHUNK_ELEMENTS", 7)
    np.testing.assert_allclose(metrics.crps_gaussian_mixture_rows(means, stds, y), whole)


def test_crps_of_point_masses():
    points, y = np.array([[0.0], [2.0], [5.0]]), [1.0]
    pairs = np.abs(points - points.T).mean()
    mixture = metrics.crps_gaussian_mixture_rows(points, np.zeros((3, 1)), y)
    assert mixture[0] == pytest.approx(np.abs(points - 1).mean() - pairs / 2)
    # The fair estimator leaves the zero pairs i = j out of the average.
    fair = metrics.crps_samples_rows(points, y)
    assert fair[0] == pytest.approx(np.abs(points - 1).mean() - pairs * 3 / 2 / 2)


def test_fair_crps_is_unbiased():
    repeats, y = 40_000, 0.7
    samples = np.random.default_rng(2).normal(size=(3, repeats))
    exact = metrics.crps_gaussian_mixture([[0.0]], [[1.0]], [y]).value
    estimate = metrics.crps_samples(samples, np.full(repeats, y))
    assert abs(estimate.value - exact) < 4 * estimate.standard_error
    assert estimate.standard_error < 0.01 * exact
    shifted = metrics.crps_samples(samples + 1e6, np.full(repeats, y + 1e6))
    assert shifted.value == pytest.approx(estimate.value, abs=1e-8)


def test_auroc_by_brute_force_with_ties():
    generator = np.random.default_rng(3)
    score, positive = generator.integers(0, 6, 80), generator.random(80) < 0.3
    pairs = score[positive][:, None] - score[~positive][None]
    wins = (pairs > 0) + 0.5 * (pairs == 0)
    estimate = metrics.auroc(score, positive)
    assert estimate.value == pytest.approx(wins.mean())
    delong = wins.mean(1).var(ddof=1) / positive.sum()
    delong += wins.mean(0).var(ddof=1) / (~positive).sum()
    assert estimate.standard_error == pytest.approx(np.sqrt(delong))
    assert metrics.auroc(-score, positive).value == pytest.approx(1 - wins.mean())
    assert metrics.auroc(np.zeros(80), positive).value == 0.5


def test_delong_agrees_with_a_bootstrap():
    generator = np.random.default_rng(4)
    positive = np.arange(600) < 200
    score = generator.normal(size=600) + positive
    estimate = metrics.auroc(score, positive)

    def resampled() -> float:
        rows = np.append(generator.integers(0, 200, 200), generator.integers(200, 600, 400))
        return metrics.auroc(score[rows], positive[rows]).value

    spread = np.std([resampled() for _ in range(1000)], ddof=1)
    # A standard deviation of 1000 values is known to 2.2 %.
    assert estimate.standard_error == pytest.approx(spread, rel=0.09)


def test_risk_coverage():
    curve = metrics.risk_coverage([0.3, 0.1, 0.2, 0.9], [1.0, 0.0, 0.0, 1.0])
    np.testing.assert_allclose(curve.coverage, [0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(curve.risk, [0, 0, 1 / 3, 1 / 2])
    assert curve.area.value == pytest.approx((1 / 3 + 1 / 2) / 4)
    # Nothing to go by: every selection has the mean loss.
    np.testing.assert_allclose(metrics.risk_coverage(np.zeros(3), [0.0, 1.0, 2.0]).risk, 1)


def test_risk_coverage_error_is_the_jackknife():
    generator = np.random.default_rng(5)
    uncertainty, loss = generator.random(40), generator.exponential(size=40)
    rows = np.arange(40)
    without = [metrics.risk_coverage(uncertainty[rows != i], loss[rows != i]).area for i in rows]
    deviations = np.array([area.value for area in without])
    jackknife = np.sqrt(39 * deviations.var())
    assert metrics.risk_coverage(uncertainty, loss).area.standard_error == pytest.approx(jackknife)


def test_agreement_and_total_variation_by_hand():
    other = np.array([[0.5, 0.4, 0.1], [0.8, 0.2, 0.0], [0.6, 0.2, 0.2], [0.1, 0.1, 0.8]])
    assert metrics.agreement(PROBS, other).value == 0.75
    assert metrics.total_variation(PROBS, other).value == pytest.approx((0.2 + 0.7 + 0 + 0.4) / 4)
    assert metrics.total_variation([[1.0, 0.0]], [[0.0, 1.0]]).value == 1


@pytest.mark.parametrize("num_reference", [30, 17])
def test_wasserstein_matches_scipy_and_sorted_quantiles(num_reference: int):
    generator = np.random.default_rng(6)
    samples = np.round(generator.normal(size=(30, 5)), 1)  # ties
    reference = np.round(generator.normal(1, 2, (num_reference, 5)), 1)
    rows = [wasserstein_distance(samples[:, n], reference[:, n]) for n in range(5)]
    estimate = metrics.wasserstein(samples, reference)
    assert estimate.value == pytest.approx(np.mean(rows))
    assert estimate.standard_error == pytest.approx(np.std(rows, ddof=1) / np.sqrt(5))
    if num_reference == 30:
        quantiles = np.abs(np.sort(samples, 0) - np.sort(reference, 0)).mean()
        assert estimate.value == pytest.approx(quantiles)


def test_estimate_prints_two_digits_of_its_error():
    assert str(metrics.Estimate(0.27731, 0.00312)) == "0.2773 ± 0.0031"
    assert str(metrics.Estimate(1234.5, 56.7)) == "1234 ± 57"
    assert str(metrics.Estimate(0.5, 0.0)) == "0.5000 ± 0.0000"
    assert str(metrics.Estimate(0.5, float("nan"))) == "0.5000 ± nan"
    assert float(metrics.Estimate(0.25, 0.1)) == 0.25


def test_one_row_has_no_standard_error():
    assert np.isnan(metrics.rmse([1.0], [2.0]).standard_error)
    assert np.isnan(metrics.calibration_error(PROBS[:1], LABELS[:1]).standard_error)
    assert np.isnan(metrics.risk_coverage([1.0], [2.0]).area.standard_error)
    assert np.isnan(metrics.auroc([1.0, 2.0, 3.0], [0, 0, 1]).standard_error)


def test_quantile_calibration_knows_good_from_bad():
    rng = np.random.default_rng(0)
    y = rng.normal(size=4000)
    true = np.quantile(rng.normal(size=200_000), LEVELS)
    quantiles = np.tile(true, (len(y), 1))
    good = metrics.quantile_calibration(quantiles, y)
    narrow = metrics.quantile_calibration(0.5 * quantiles, y)
    assert good.value < 0.02
    assert narrow.value > good.value + 10 * narrow.standard_error
    assert metrics.quantile_calibration(quantiles + 100.0, y).value == pytest.approx(0.5)  # all levels missed by 1 - u


def test_evaluate_classes():
    total = np.asarray(information.entropy(PROBS))

    def predicted(rows=slice(None)):
        """With a density of its own, which counts, and not the probabilities that rounding may have made 0."""
        probs = PROBS[rows]
        log_prob = lambda y: np.log(probs[np.arange(len(y)), y]) - 1  # noqa: E731
        sets = lambda level: probs >= 0.5  # noqa: E731
        return SimpleNamespace(
            **ONE, kind="classes", probs=probs, total=total[rows], log_prob=log_prob, prediction_set=sets
        )

    result = metrics.evaluate(predicted(), LABELS)
    assert set(result) <= set(metrics.SCORES)
    assert list(result) == ["accuracy", "nll", "brier", "calibration_error", "coverage_90", "error_auroc"]
    assert result["nll"].value == pytest.approx(1 - np.log([0.7, 0.9, 0.2, 0.4]).mean())
    assert result["coverage_90"].value == 0.5  # rows 0 and 1 alone give their label half of all probability
    # The mistake (row 2) is more uncertain than rows 0 and 1, less than row 3.
    assert result["error_auroc"].value == pytest.approx(2 / 3)
    assert np.isnan(metrics.evaluate(predicted(slice(2)), LABELS[:2])["error_auroc"].value)


def test_evaluate_continuous():
    mean, std, y = np.zeros(3), np.ones(3), np.array([0.0, 1.0, 2.0])
    prediction = SimpleNamespace(
        **ONE,
        kind="continuous",
        mean=mean,
        std=std,
        interval=lambda level: norm.interval(level, mean, std),
        quantile=lambda levels: np.tile(norm.ppf(levels), (3, 1)),
        log_prob=lambda y: norm.logpdf(y) - 1,
        log_prob_gaussian=lambda y: metrics.gaussian_log_prob(mean, std, y),
        crps=lambda y: metrics.crps_gaussian_mixture_rows(mean[None], std[None], y),
    )
    assert metrics.evaluate(prediction, y[:, None]) == metrics.evaluate(prediction, y)
    result = {key: estimate.value for key, estimate in metrics.evaluate(prediction, y).items()}
    assert set(result) <= set(metrics.SCORES)
    gaussian = 0.5 * np.log(2 * np.pi) + 5 / 6
    expected = {"rmse": np.sqrt(5 / 3), "mae": 1.0, "nll": gaussian + 1, "nll_gaussian": gaussian}
    expected |= {"crps": metrics.crps_gaussian_mixture(mean[None], std[None], y).value}
    expected |= {"calibration_error": np.abs((y[:, None] <= norm.ppf(LEVELS)).mean(0) - LEVELS).mean()}
    assert result == pytest.approx(expected | {"coverage_90": 2 / 3, "width_90": 2 * 1.6448536})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: metrics.rmse([1.0, 2.0], [1.0]),
            "mean has 2 rows, y has 1 rows; expected as many",
        ),
        (lambda: metrics.rmse([[1.0], [2.0]], [1.0, 2.0]), r"mean has shape \(2, 1\); .*ravel"),
        (lambda: metrics.rmse([], []), r"mean has shape \(0,\)"),
        (lambda: metrics.rmse([np.nan, 1.0], [1.0, 2.0]), r"mean has 1 NaN .* index \[\[0\]\]"),
        (lambda: metrics.rmse([np.inf], [1.0]), "infinite"),
        (lambda: metrics.negative_log_likelihood([np.nan]), "log_prob has 1 NaN of 1"),
        (lambda: metrics.accuracy(PROBS * 1.01, LABELS), "0.01 away from 1; .* not logits"),
        (lambda: metrics.accuracy([[1.2, -0.2]], [0]), "smallest entry -0.2"),
        (lambda: metrics.accuracy(PROBS, LABELS + 1), r"labels lie in 1\.\.3; expected .* 0\.\.2"),
        (lambda: metrics.accuracy(PROBS, LABELS - 1), r"labels lie in -1\.\.1"),
        (lambda: metrics.accuracy(PROBS, LABELS + 0.5), "expected integers"),
        (lambda: metrics.accuracy(PROBS, list("abca")), "labels has dtype <U1; .* return_inverse"),
        (lambda: metrics.brier(PROBS, LABELS[:3]), "probs has 4 rows, labels has 3 rows"),
        (lambda: metrics.calibration_error(PROBS, LABELS, 0), "num_bins=0"),
        (lambda: metrics.calibration_error(PROBS, LABELS, scheme="odd"), "'odd'; .*'equal_mass'"),
        (lambda: metrics.auroc([0.1, 0.2], [1, 1]), r"holds \[1\.\]; expected both"),
        (lambda: metrics.auroc([0.1, 0.2], [0, 2]), "expected both 0 and 1"),
        (lambda: metrics.agreement(PROBS, PROBS[:, :1] * 0 + 1), r"reference has \(4, 1\)"),
        (lambda: metrics.gaussian_log_prob([0.0], [0.0], [0.0]), "std goes down to 0"),
        (lambda: metrics.crps_gaussian_mixture([[0.0]], [[-1.0]], [0.0]), "none negative"),
        (lambda: metrics.crps_gaussian_mixture([[0.0]], [[1.0], [1.0]], [0.0]), "broadcast_to"),
        (lambda: metrics.crps_samples([[1.0, 2.0]], [1.0, 2.0]), "S=1 draw"),
        (lambda: metrics.interval_coverage([1.0], [0.0], [0.5]), "lower exceeds upper in 1 rows"),
        (lambda: metrics.wasserstein([[1.0, 2.0]], [[1.0]]), "samples has 2 rows, reference has 1"),
        (lambda: metrics.risk_coverage([1.0, 2.0], [1.0]), "loss has 1 rows"),
    ],
)
def test_errors_say_what_was_got_and_what_to_do(call, message: str):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert len(caught.value.args) == 1
    assert "expected" in caught.value.args[0]


def best_of(name, *values):
    return metrics.SCORES[name].winners([None if value is None else metrics.Estimate(value, 0.1) for value in values])


def test_a_score_knows_its_best_values():
    assert best_of("nll", 2.0, None, -1.0, np.nan, -1.0) == {2, 4}
    assert best_of("accuracy", 0.3, 0.5) == {1}
    assert best_of("coverage_90", 1.0, 0.86, 0.5) == {1}
    assert best_of("width_90", 1.0, 2.0) == set()  # alone it says nothing
    assert best_of("nll", 1.0, 1.0, np.inf) == set()  # all alike
    assert metrics.SCORES["brier"].hint == " (lower is better)"
    assert metrics.SCORES["coverage_90"].hint == ""


def test_import_starts_no_backend():
    script = (
        "import sys, posterity.metrics\n"
        "bridge = sys.modules.get('jax._src.xla_bridge')\n"
        "sys.exit(bool(bridge and bridge.backends_are_initialized()))"
    )
    source = str(Path(metrics.__file__).parents[2])
    environment = os.environ | {"PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


@pytest.mark.parametrize(
    ("kind", "shape", "told"),
    [
        ("continuous", (5, 2), r"has \(2,\) of them in each.*metrics\.rmse"),
        ("counts", (5, 3, 3), r"has \(3, 3\) of them"),
        ("classes", (5, 3, 3, 4), r"has \(3, 3\) of them in each.*metrics\.accuracy"),
    ],
)
def test_several_targets_a_row_are_scored_one_by_one(kind, shape, told):
    prediction = SimpleNamespace(**ONE, kind=kind, mean=np.zeros(shape), probs=np.zeros(shape))
    with pytest.raises(ValueError, match=told):
        metrics.evaluate(prediction, np.zeros(5))
