"""Is it right about how right it is? Curves of one method each; several may share axes.

The keywords `**style` go to matplotlib; `label="HMC", **method_style("hmc")` gives a method its own look everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from posterity import metrics
from posterity.data.arrays import evenly_spaced
from posterity.metrics import Estimate
from posterity.plots.palette import FAINT, INK, MUTED, name_axes, new_axes, start_at_zero
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction

LEVELS = np.linspace(0.025, 0.975, 39)
FACTORS = (1.0, 1.5, 2.0, 3.0, 5.0)
FIRST_KEPT = 10  # rows: the mean loss of fewer is mostly chance

_FOUND: WeakKeyDictionary[Prediction, np.ndarray] = WeakKeyDictionary()


def coverage_curve(prediction: Prediction, y: Any, axes: Any = None, **style: Any) -> Any:
    """The share of rows that fall into central intervals (sets of classes) over the share that should.

    Look for: the diagonal. Below it the method is too sure of itself, above it too cautious; the grey band is what
    chance alone does to that many rows. A set of classes holds at least its share, so its curve may lie above.
    """
    axes = _diagonal(new_axes(axes), len(np.ravel(y)))
    levels, shares = coverage(prediction, y)
    axes.plot(levels, shares, **style)
    name_axes(axes, "share promised", "share found inside")
    return axes


def coverage(prediction: Prediction, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Levels of intervals or sets of classes, and the share of rows each holds."""
    y = np.ravel(y)
    levels = LEVELS[1::2]
    if prediction.kind == "classes":
        rows = np.arange(len(y))
        return levels, np.array([prediction.prediction_set(level)[rows, y.astype(int)].mean() for level in levels])
    quantiles = _quantiles(prediction)
    half = len(LEVELS) // 2  # levels that mirror each other about the median bound the central intervals
    inside = (quantiles[:, half - 1 :: -1] <= y[:, None]) & (y[:, None] <= quantiles[:, half + 1 :])
    return LEVELS[half + 1 :] - LEVELS[half - 1 :: -1], inside.mean(0)


def _quantiles(prediction: Prediction) -> np.ndarray:
    """Quantiles [N, Q] at LEVELS. Two curves need them, and finding them is what takes the time."""
    if prediction not in _FOUND:
        _FOUND[prediction] = prediction.quantile(LEVELS).reshape(-1, len(LEVELS))
    return _FOUND[prediction]


def calibration_curve(prediction: Prediction, y: Any, axes: Any = None, num_bins: int = 10, **style: Any) -> Any:
    """Classes: accuracy over confidence, in bins of equal mass. Numbers: share of rows below each quantile.

    Look for: the diagonal. Accuracy below confidence is overconfidence; shares of rows that cross the diagonal like
    an S are intervals too narrow or too wide, and a curve on one side of it is a bias.
    """
    axes, y = new_axes(axes), np.ravel(y)
    if prediction.kind == "classes":
        axes = _diagonal(axes)
        confidence, right = prediction.probs.max(-1), prediction.label == y
        where, shares = _equal_mass(confidence, right, max(2, min(num_bins, len(y) // 15)))
        axes.plot(where, shares, **{"marker": ".", **style})
        axes.set_xlim(left=min(1 / prediction.probs.shape[-1], where.min()))
        name_axes(axes, "confidence", "accuracy")
        return axes
    axes = _diagonal(axes, len(y))
    axes.plot(LEVELS, (y[:, None] <= _quantiles(prediction)).mean(0), **style)
    name_axes(axes, "quantile", "share observed below it")
    return axes


def _equal_mass(order_by: np.ndarray, values: np.ndarray, num_bins: int) -> tuple[np.ndarray, np.ndarray]:
    parts = np.array_split(np.argsort(order_by, kind="stable"), num_bins)
    return np.array([order_by[part].mean() for part in parts]), np.array([values[part].mean() for part in parts])


def risk_coverage_curve(prediction: Prediction, y: Any, axes: Any = None, **style: Any) -> Any:
    """The error of the most certain rows, over the share of rows that is kept.

    Look for: a curve that rises. It does where uncertainty knows which predictions are bad; a flat one does not.
    """
    axes, y = new_axes(axes), np.ravel(y)
    total = np.asarray(prediction.total).reshape(len(y), -1).mean(1)
    if prediction.kind == "classes":
        curve = metrics.risk_coverage(total, prediction.label != y)
        risk, name = curve.risk, "error rate"
    else:
        curve = metrics.risk_coverage(total, np.square(np.ravel(prediction.mean) - y))
        risk, name = np.sqrt(curve.risk), "RMSE"
    first = min(FIRST_KEPT, len(y)) - 1
    axes.plot(curve.coverage[first:], risk[first:], **style)
    start_at_zero(axes)
    axes.grid(axis="y", color=FAINT, lw=0.5)
    name_axes(axes, "share of rows kept, most certain first", f"{name} of those kept")
    return axes


def p_value_curve(p_values: Any, axes: Any = None, **style: Any) -> Any:
    """The share of rows with an out-of-distribution p-value up to each level.

    Look for: the diagonal, on rows like the training data. A curve that leaps up at the left finds the rows strange.
    """
    values = np.sort(np.ravel(p_values))
    axes = _diagonal(new_axes(axes), len(values))
    shares = np.arange(1, len(values) + 1) / len(values)
    axes.step(np.append(0, values), np.append(0, shares), where="post", **style)
    name_axes(axes, "p-value", "share of rows up to it")
    return axes


def moved_p_values(posterior: Posterior, x: Any, factors: Sequence[float] = FACTORS) -> np.ndarray:
    """Out-of-distribution p-values [F, N] of rows moved away from the centre of the training inputs by factors."""
    x, centre = np.asarray(x), np.asarray(posterior.inputs).mean(0)
    moved = np.concatenate([centre + factor * (x - centre) for factor in factors]).astype(x.dtype)
    return posterior.predict(moved).ood.reshape(len(factors), len(x))


def alarm_curve(
    p_values: Any, factors: Sequence[float] = FACTORS, axes: Any = None, level: float = 0.05, **style: Any
) -> Any:
    """The share of rows flagged as unfamiliar, p <= level, over how far they were moved; see `moved_p_values`.

    Look for: a start at `level`, the rate of false alarms that was asked for, and a quick rise.
    """
    axes = new_axes(axes)
    if not axes.lines:
        axes.axhline(level, color=INK, lw=0.8, ls=":")
    axes.plot(factors, (np.asarray(p_values) <= level).mean(1), **{"marker": ".", **style})
    axes.set_ylim(-0.02, 1.02)
    name_axes(axes, "distance from the centre, times the real one", f"share flagged at {100 * level:.0f} %")
    return axes


def score_dots(scores: Mapping[str, Estimate], axes: Any = None, styles: Mapping[str, Mapping[str, Any]] = {}) -> Any:
    """One number of several methods, each with two standard errors.

    `styles` gives colour and marker by label.
    """
    axes = new_axes(axes)
    labels = list(scores)
    for height, (label, score) in enumerate(scores.items()):
        if not np.isfinite(score.value):
            axes.text(0.02, height, "not finite", transform=axes.get_yaxis_transform(), color=MUTED, va="center")
            continue
        error = 2 * score.standard_error if np.isfinite(score.standard_error) else 0.0
        shown = {"color": INK, "marker": "o", **styles.get(label, {})}
        axes.errorbar(score.value, height, xerr=error, ms=4.5, lw=1.2, **shown)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", color=FAINT, lw=0.5)
    axes.tick_params(axis="y", length=0)
    return axes


def against_reference(
    prediction: Prediction,
    reference: Prediction,
    quantity: str = "mean",
    axes: Any = None,
    max_rows: int = 300,
    **style: Any,
) -> Any:
    """What a method says of each row over what the reference, usually HMC, says of it.

    `quantity`: "mean" (probabilities for classes) or "epistemic" (its root, for numbers).
    Look for: the diagonal. Ignorance below it is false confidence.
    """
    axes = new_axes(axes)
    theirs, ours = (_quantity(one, quantity) for one in (reference, prediction))
    rows = evenly_spaced(len(theirs), max_rows)
    theirs, ours = theirs[rows], ours[rows]
    ends = [min(theirs.min(), ours.min()), max(theirs.max(), ours.max())]
    axes.plot(ends, ends, color=INK, lw=0.8, ls=":")
    axes.plot(theirs, ours, **{"ls": "none", "marker": ".", "ms": 3.5, **style})
    name_axes(axes, "reference", "this method")
    return axes


def _quantity(prediction: Prediction, quantity: str) -> np.ndarray:
    if quantity not in ("mean", "epistemic"):
        raise ValueError(f"quantity={quantity!r} is not known; choose 'mean' or 'epistemic'.")
    values = np.asarray(getattr(prediction, quantity), float)
    if quantity == "mean":
        two_classes = prediction.kind == "classes" and values.shape[-1] == 2
        return np.ravel(values[..., 1] if two_classes else values)
    return np.ravel(values if prediction.kind == "classes" else np.sqrt(values))


def _diagonal(axes: Any, num_rows: int | None = None) -> Any:
    """The line of perfect calibration, and what chance does to that many rows: two standard errors."""
    if axes.lines:
        return axes  # another method has been here
    ideal = np.linspace(0, 1, 101)
    if num_rows:
        chance = 2 * np.sqrt(ideal * (1 - ideal) / num_rows)
        axes.fill_between(ideal, ideal - chance, ideal + chance, color=FAINT, lw=0, label="chance")
    axes.plot(ideal, ideal, color=INK, lw=0.8, ls=":")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    return axes
