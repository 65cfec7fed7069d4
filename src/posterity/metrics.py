"""Numbers about predictions, each with its standard error, in numpy and float64.

Axes: [S] draws, [N] rows, [C] classes. A metric that is a mean over rows has the standard error
s / sqrt(N), s being the rows' standard deviation; other errors are named at the function. They
speak of the choice of test rows, not of training; NaN from one row. Bad input: ValueError.
"""

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr

__all__ = [
    "Estimate", "RiskCoverage", "accuracy", "agreement", "auroc", "brier", "calibration_error",
    "crps_gaussian_mixture", "crps_gaussian_mixture_rows", "crps_samples", "crps_samples_rows",
    "evaluate", "gaussian_log_prob", "interval_coverage", "interval_width", "mean_absolute_error",
    "negative_log_likelihood", "risk_coverage", "rmse", "total_variation", "wasserstein",
]  # fmt: skip

FloatArray = NDArray[np.float64]
BinScheme = Literal["equal_width", "equal_mass", "equal_mass_strict"]

PROBABILITY_TOLERANCE = 1e-3
NUM_RESAMPLES = 200
CROSSED_BOUNDS = "lower exceeds upper in {} rows; expected lower <= upper; swap the arguments?"
CHUNK_ELEMENTS = 2**18  # 2 MB per temporary array: stays in cache


class Estimate(NamedTuple):
    """A number and the standard error it has from the choice of rows."""

    value: float
    standard_error: float

    def __str__(self) -> str:
        """The value to as many decimals as show two digits of the error: 0.2773 ± 0.0031."""
        decimals = 4
        if np.isfinite(self.standard_error) and self.standard_error > 0:
            decimals = int(np.clip(1 - np.floor(np.log10(self.standard_error)), 0, 12))
        return f"{self.value:.{decimals}f} ± {self.standard_error:.{decimals}f}"

    def __float__(self) -> float:
        return self.value


class RiskCoverage(NamedTuple):
    """Mean loss of the k most certain rows (risk) when the share k/N of all is kept (coverage)."""

    coverage: FloatArray  # [N]
    risk: FloatArray  # [N]
    area: Estimate  # mean of risk over coverage; lower is better


def rmse(mean: ArrayLike, y: ArrayLike) -> Estimate:
    """sqrt(mean_n (mean_n - y_n)^2), in [0, inf). Error by the delta method: se(MSE) / (2 RMSE)."""
    mean, y = _matching(mean=mean, y=y)
    square, error = _mean_over_rows((mean - y) ** 2)
    root = float(np.sqrt(square))
    return Estimate(root, error / (2 * root) if root > 0 else error)


def mean_absolute_error(mean: ArrayLike, y: ArrayLike) -> Estimate:
    """mean_n |mean_n - y_n|, in [0, inf)."""
    mean, y = _matching(mean=mean, y=y)
    return _mean_over_rows(np.abs(mean - y))


def gaussian_log_prob(mean: ArrayLike, std: ArrayLike, y: ArrayLike) -> FloatArray:
    """log N(y_n; mean_n, std_n^2) per row [N], of the Gaussian with the predictive's two moments.

    The score of Lakshminarayanan et al. 2017 and Izmailov et al. 2021. It is not the log of the
    mixture's density (Gal and Ghahramani 2016), and the two differ: report which one.
    """
    mean, std, y = _matching(mean=mean, std=std, y=y)
    _require(std > 0, f"std goes down to {std.min():.4g}; expected all above 0; add the noise's.")
    return -0.5 * ((y - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)


def crps_gaussian_mixture(means: ArrayLike, stds: ArrayLike, y: ArrayLike) -> Estimate:
    """Mean over rows of crps_gaussian_mixture_rows, in [0, inf)."""
    return _mean_over_rows(crps_gaussian_mixture_rows(means, stds, y))


def crps_gaussian_mixture_rows(means: ArrayLike, stds: ArrayLike, y: ArrayLike) -> FloatArray:
    """Exact CRPS per row [N] of the equal mixture of N(means_sn, stds_sn^2) (Grimit et al. 2006).

        mean_s A(y - m_s, v_s) - 1/2 mean_st A(m_s - m_t, v_s + v_t),   A(m, v) = E|N(m, v)|.

    means and stds are [S, N]; a std may be 0 (a point mass). S^2 / 2 terms per row.
    """
    means, stds = _array("means", means, "[S, N]"), _array("stds", stds, "[S, N]")
    y = _array("y", y)
    shapes = f"means has shape {means.shape} and stds has {stds.shape}"
    _require(means.shape == stds.shape, f"{shapes}; expected the same; try np.broadcast_to.")
    _check_lengths(means=means.shape[1], y=len(y))
    _require(stds >= 0, f"stds goes down to {stds.min():.4g}; expected none negative; check it.")
    num_chunks = -(-means.size // CHUNK_ELEMENTS)
    chunks = (np.array_split(array, num_chunks, axis=-1) for array in (means, stds**2, y))
    return np.concatenate([_crps_chunk(*chunk) for chunk in zip(*chunks, strict=True)])


def _crps_chunk(means: FloatArray, variances: FloatArray, y: FloatArray) -> FloatArray:
    # s = t once, s < t twice: the half in front of the double sum cancels the second.
    pairs = _mean_absolute_normal(np.zeros_like(means), 2 * variances).sum(0) / 2
    for s in range(len(means) - 1):
        between = means[s] - means[s + 1 :], variances[s] + variances[s + 1 :]
        pairs += _mean_absolute_normal(*between).sum(0)
    return _mean_absolute_normal(y - means, variances).mean(0) - pairs / len(means) ** 2


def _mean_absolute_normal(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """E|N(m, v)| = 2 sqrt(v) phi(m / sqrt(v)) + m (2 Phi(m / sqrt(v)) - 1); |m| for v = 0."""
    std = np.sqrt(variance)
    ratio = mean / np.where(std > 0, std, 1.0)
    density = np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
    return np.where(std > 0, 2 * std * density + mean * (2 * ndtr(ratio) - 1), np.abs(mean))


def crps_samples(samples: ArrayLike, y: ArrayLike) -> Estimate:
    """Mean over rows of crps_samples_rows: the CRPS of the law the draws come from, unbiased."""
    return _mean_over_rows(crps_samples_rows(samples, y))


def crps_samples_rows(samples: ArrayLike, y: ArrayLike) -> FloatArray:
    """Fair CRPS per row [N] from draws [S, N] of the predictive, S >= 2 (Ferro 2014).

        mean_s |x_s - y| - 1 / (2 S (S - 1)) sum_st |x_s - x_t|

    One row's value may be negative: it is an estimate. O(S log S): sorted, the k-th of S draws
    lies above k - 1 others and below S - k, so sum_{s<t} |x_s - x_t| = sum_k (2k - S - 1) x_k.
    """
    samples, y = _array("samples", samples, "[S, N]"), _array("y", y)
    _check_lengths(samples=samples.shape[1], y=len(y))
    num_draws = len(samples)
    _require(num_draws > 1, "samples has S=1 draw; expected 2 or more to see a spread; draw more.")
    # Deviations, not samples: a large common offset would cost digits in the weighted sum.
    deviations = np.sort(samples - y, axis=0)
    weights = 2 * np.arange(1, num_draws + 1) - num_draws - 1
    spread = weights @ deviations / (num_draws * (num_draws - 1))
    return np.abs(deviations).mean(0) - spread


def interval_coverage(lower: ArrayLike, upper: ArrayLike, y: ArrayLike) -> Estimate:
    """Share of rows with lower_n <= y_n <= upper_n, in [0, 1]; bounds may be infinite."""
    lower, upper, y = _matching(infinite=True, lower=lower, upper=upper, y=y)
    _require(lower <= upper, CROSSED_BOUNDS.format(np.sum(lower > upper)))
    return _mean_over_rows((lower <= y) & (y <= upper))


def interval_width(lower: ArrayLike, upper: ArrayLike) -> Estimate:
    """mean_n (upper_n - lower_n), in [0, inf]: sharpness, to be read next to the coverage."""
    lower, upper = _matching(infinite=True, lower=lower, upper=upper)
    _require(lower <= upper, CROSSED_BOUNDS.format(np.sum(lower > upper)))
    return _mean_over_rows(upper - lower)


def negative_log_likelihood(log_prob: ArrayLike) -> Estimate:
    """-mean_n log p(y_n | x_n) in nats, from log_prob [N]; +inf if any row was held impossible."""
    # 0 - x, so that perfect predictions give 0.0 and not -0.0.
    return _mean_over_rows(0.0 - _array("log_prob", log_prob, infinite=True))


def accuracy(probs: ArrayLike, labels: ArrayLike) -> Estimate:
    """Share of rows whose most probable class (first of equals) is the label, in [0, 1]."""
    probs, labels = _classification(probs, labels)
    return _mean_over_rows(probs.argmax(1) == labels)


def brier(probs: ArrayLike, labels: ArrayLike) -> Estimate:
    """mean_n sum_c (p_nc - [c = y_n])^2, summed over classes: in [0, 2] (Brier 1950)."""
    probs, labels = _classification(probs, labels)
    return _mean_over_rows(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(1))


def calibration_error(
    probs: ArrayLike, labels: ArrayLike, num_bins: int = 15, scheme: BinScheme = "equal_width"
) -> Estimate:
    """ECE = sum_b |B_b| / N |accuracy_b - confidence_b|, in [0, 1], confidence = max_c p_c.

    - equal_width: bins (b/B, (b+1)/B] (Guo et al. 2017);
    - equal_mass: bins between the quantiles of the confidence, equal confidences in one bin;
    - equal_mass_strict: as bnn_hmc (Izmailov et al. 2021, there with num_bins=20): open bins
      between every ceil(N/B)-th sorted confidence and the largest one; rows on an edge drop out.

    The value is biased upwards where bins hold few rows. Error: standard deviation over 200
    bootstrap resamples of the rows with the bins held fixed; its seed is fixed.
    """
    probs, labels = _classification(probs, labels)
    wanted = f"expected num_bins >= 1 and scheme in {get_args(BinScheme)}; change what is off"
    got = f"num_bins={num_bins}, scheme={scheme!r}"
    _require(num_bins >= 1 and scheme in get_args(BinScheme), f"{got}; {wanted}.")
    confidence = probs.max(1)
    bins, kept = _assign_bins(confidence, num_bins, scheme)
    gaps = np.where(kept, (probs.argmax(1) == labels) - confidence, 0.0) / len(labels)
    value = float(np.abs(np.bincount(bins, gaps)).sum())
    generator, size = np.random.default_rng(0), len(labels)
    resamples = (generator.integers(0, size, size) for _ in range(NUM_RESAMPLES))
    resampled = [np.abs(np.bincount(bins[rows], gaps[rows])).sum() for rows in resamples]
    return Estimate(value, float(np.std(resampled, ddof=1)) if size > 1 else float("nan"))


def _assign_bins(
    confidence: FloatArray, num_bins: int, scheme: BinScheme
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The bin of each row [N], and whether it counts."""
    kept = np.ones(len(confidence), dtype=bool)
    if scheme == "equal_width":
        inner_edges = np.arange(1, num_bins) / num_bins
        return np.searchsorted(inner_edges, confidence, side="left"), kept
    ordered = np.sort(confidence)
    if scheme == "equal_mass":
        first_of_bin = len(confidence) * np.arange(1, num_bins) // num_bins
        return np.searchsorted(ordered[first_of_bin], confidence, side="right"), kept
    edges = np.append(ordered[:: -(-len(confidence) // num_bins)], ordered[-1])
    return np.searchsorted(edges, confidence, side="left"), ~np.isin(confidence, edges)


def auroc(score: ArrayLike, positive: ArrayLike) -> Estimate:
    """P(score of a positive row > score of a negative one) + P(equal) / 2, in [0, 1].

    From midranks, O(N log N). Error: DeLong et al. 1988, with a = (share of negatives below a
    positive) and b = (share of positives above a negative): sqrt(var(a)/N+ + var(b)/N-); NaN if
    a group has one row. For out-of-distribution detection the score is an uncertainty.
    """
    score, positive = _matching(infinite=True, score=score, positive=positive)
    found, wanted = np.unique(positive), "expected both 0 and 1; without both, report no AUROC"
    _require(np.array_equal(found, [0, 1]), f"positive holds {found[:5]}; {wanted}.")
    yes, no, ranks = positive == 1, positive == 0, _midranks(score)
    # A rank among all minus the rank among its own kind counts the rows of the other kind below.
    below = (ranks[yes] - _midranks(score[yes])) / no.sum()
    above = 1 - (ranks[no] - _midranks(score[no])) / yes.sum()
    errors = _mean_over_rows(below).standard_error, _mean_over_rows(above).standard_error
    return Estimate(float(below.mean()), float(np.hypot(*errors)))


def _midranks(values: FloatArray) -> FloatArray:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def risk_coverage(uncertainty: ArrayLike, loss: ArrayLike) -> RiskCoverage:
    """Risk of keeping the k most certain rows, for all k (Geifman and El-Yaniv 2017).

        risk_k = 1/k sum_{j<=k} loss_(j),   coverage_k = k/N,   area = 1/N sum_k risk_k

    Rows of equal uncertainty count with their mean loss, as if in random order. Error of the
    area: jackknife over rows; where uncertainties tie it is on the safe side.
    """
    uncertainty, loss = _array("uncertainty", uncertainty, infinite=True), _array("loss", loss)
    _check_lengths(uncertainty=len(uncertainty), loss=len(loss))
    order = np.argsort(uncertainty, kind="stable")
    _, group, counts = np.unique(uncertainty, return_inverse=True, return_counts=True)
    group_loss = np.bincount(group, loss) / counts
    kept = np.arange(1, len(loss) + 1)
    risk = np.cumsum(group_loss[group[order]]) / kept
    area = Estimate(float(risk.mean()), _area_error(loss[order]))
    return RiskCoverage(kept / len(loss), risk, area)


def _area_error(loss: FloatArray) -> float:
    """Jackknife error of mean_k risk_k for losses in order of certainty, in O(N)."""
    num_rows = len(loss)
    if num_rows == 1:
        return float("nan")
    total, kept = np.cumsum(loss), np.arange(1, num_rows + 1)
    # Without row r: risks before it stay; each later one loses loss_r and one row.
    before = np.append(0.0, np.cumsum(total / kept)[:-1])
    after = np.append(np.cumsum((total[1:] / kept[:-1])[::-1])[::-1], 0.0)
    weight = np.append(np.cumsum((1 / kept[:-1])[::-1])[::-1], 0.0)
    without = (before + after - loss * weight) / (num_rows - 1)
    return float(np.sqrt((num_rows - 1) * without.var()))


def agreement(probs: ArrayLike, reference: ArrayLike) -> Estimate:
    """Share of rows where both have the same most probable class, in [0, 1]; both [N, C]."""
    probs, reference = _matching_probs(probs, reference)
    return _mean_over_rows(probs.argmax(1) == reference.argmax(1))


def total_variation(probs: ArrayLike, reference: ArrayLike) -> Estimate:
    """mean_n 1/2 sum_c |p_nc - q_nc|, in [0, 1]; both [N, C] (Izmailov et al. 2021)."""
    probs, reference = _matching_probs(probs, reference)
    return _mean_over_rows(np.abs(probs - reference).sum(1) / 2)


def wasserstein(samples: ArrayLike, reference: ArrayLike) -> Estimate:
    """mean_n W1 of draws [S, N] from draws [R, N], in y's unit; exact for any S and R.

    W1 = int |F(y) - G(y)| dy = int_0^1 |F^-1(u) - G^-1(u)| du. Two sets of draws from one law
    have W1 > 0, of order 1 / sqrt(S): compare with the distance of the reference's own halves.
    """
    samples = _array("samples", samples, "[S, N]")
    reference = _array("reference", reference, "[R, N]")
    _check_lengths(samples=samples.shape[1], reference=reference.shape[1])
    points = np.concatenate([samples, reference])
    steps = np.repeat([1 / len(samples), -1 / len(reference)], [len(samples), len(reference)])
    order = np.argsort(points, axis=0)
    difference = np.cumsum(steps[order], axis=0)[:-1]
    lengths = np.diff(np.take_along_axis(points, order, axis=0), axis=0)
    return _mean_over_rows((np.abs(difference) * lengths).sum(0))


def evaluate(prediction: Any, y: ArrayLike) -> dict[str, Estimate]:
    """What to report for a Prediction against the targets y [N], by its kind.

    classes: accuracy, nll, brier, calibration_error, error_auroc (total uncertainty against
    mistakes; NaN without mistakes, or with nothing else). continuous, counts: rmse, mae, nll (of
    the mixture), nll_gaussian (of its two moments), crps, coverage_90, width_90.
    """
    if prediction.kind == "classes":
        probs, labels = _classification(prediction.probs, y)
        mistaken = probs.argmax(1) != labels
        ranked = auroc(prediction.total, mistaken) if 0 < mistaken.mean() < 1 else None
        return {
            "accuracy": accuracy(probs, labels),
            "nll": negative_log_likelihood(prediction.log_prob(labels)),
            "brier": brier(probs, labels),
            "calibration_error": calibration_error(probs, labels),
            "error_auroc": ranked or Estimate(float("nan"), float("nan")),
        }
    lower, upper = prediction.interval(0.9)
    return {
        "rmse": rmse(prediction.mean, y),  # first: it checks y before the prediction sees it
        "mae": mean_absolute_error(prediction.mean, y),
        "nll": negative_log_likelihood(prediction.log_prob(y)),
        "nll_gaussian": negative_log_likelihood(prediction.log_prob_gaussian(y)),
        "crps": _mean_over_rows(_array("crps", prediction.crps(y))),
        "coverage_90": interval_coverage(lower, upper, y),
        "width_90": interval_width(lower, upper),
    }


def _mean_over_rows(rows: NDArray[Any]) -> Estimate:
    rows = rows.astype(np.float64)
    # An infinite row makes the mean infinite, and leaves no error to speak of.
    if len(rows) == 1 or not np.isfinite(rows).all():
        return Estimate(float(rows.mean()), float("nan"))
    return Estimate(float(rows.mean()), float(rows.std(ddof=1) / np.sqrt(len(rows))))


def _require(condition: Any, message: str) -> None:
    if not np.all(condition):
        raise ValueError(message)


def _array(name: str, values: ArrayLike, axes: str = "[N]", infinite: bool = False) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == axes.count(",") + 1 and array.size > 0
    _require(fits, f"{name} has shape {array.shape}; expected {axes}, none empty; try .ravel().")
    good = ~np.isnan(array) if infinite else np.isfinite(array)
    got = f"{np.sum(~good)} NaN{'' if infinite else ' or infinite'} of {good.size} values"
    first = f"first at index {np.argwhere(~good)[:1].tolist()}"
    _require(good, f"{name} has {got}, {first}; expected none; look for the cause.")
    return array


def _check_lengths(**lengths: int) -> None:
    got = ", ".join(f"{name} has {length} rows" for name, length in lengths.items())
    _require(len(set(lengths.values())) == 1, f"{got}; expected as many in each; align them.")


def _matching(infinite: bool = False, **arrays: ArrayLike) -> tuple[FloatArray, ...]:
    checked = {name: _array(name, values, infinite=infinite) for name, values in arrays.items()}
    _check_lengths(**{name: len(array) for name, array in checked.items()})
    return tuple(checked.values())


def _probabilities(name: str, values: ArrayLike) -> FloatArray:
    probs = _array(name, values, "[N, C]")
    off = np.abs(probs.sum(1) - 1).max()
    got = f"smallest entry {probs.min():.4g} and row sums up to {off:.4g} away from 1"
    wanted = f"expected none negative and sums within {PROBABILITY_TOLERANCE}"
    valid = probs.min() >= 0 and off <= PROBABILITY_TOLERANCE
    _require(valid, f"{name} has {got}; {wanted}; give probabilities, not logits (use softmax).")
    return probs


def _matching_probs(probs: ArrayLike, reference: ArrayLike) -> tuple[FloatArray, FloatArray]:
    probs, reference = _probabilities("probs", probs), _probabilities("reference", reference)
    shapes = f"probs has shape {probs.shape} and reference has {reference.shape}"
    _require(probs.shape == reference.shape, f"{shapes}; expected the same [N, C]; align them.")
    return probs, reference


def _classification(probs: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, NDArray[np.intp]]:
    probs, given = _probabilities("probs", probs), np.asarray(labels)
    wanted = f"expected integers 0..{probs.shape[1] - 1}; try np.unique(..., return_inverse=True)"
    _require(given.dtype.kind in "biuf", f"labels has dtype {given.dtype}; {wanted}.")
    values = _array("labels", given)
    _check_lengths(probs=len(probs), labels=len(values))
    got = f"labels lie in {values.min():g}..{values.max():g}"
    _require(np.isin(values, np.arange(probs.shape[1])), f"{got}; {wanted}.")
    return probs, values.astype(np.intp)
