"""What a prediction says: bands, maps, intervals, and the split into noise and ignorance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb

from posterity.data.arrays import evenly_spaced
from posterity.plots.palette import (
    CYCLE,
    DATA,
    FAINT,
    IGNORANCE,
    INK,
    LINE,
    MARKERS,
    NOISE,
    name_axes,
    new_axes,
    start_at_zero,
)
from posterity.prediction.attribution import BASE
from posterity.prediction.prediction import Prediction


def band(prediction: Prediction, x: Any, data: tuple[Any, Any] | None = None, axes: Any = None) -> Any:
    """A regression in one input: mean, and two standard deviations of ignorance, then of noise on top of it.

    Look for: the inner band (ignorance) widens where there are no points; the outer one covers about 95 % of them.
    """
    if not isinstance(prediction, Prediction):
        raise TypeError(f"band() got {type(prediction).__name__} first; expected band(posterior.predict(x), x).")
    axes = new_axes(axes)
    order = np.argsort(np.ravel(x))
    x, mean = np.ravel(x)[order], prediction.mean[order]
    ignorance = 2 * np.sqrt(prediction.epistemic[order])
    everything = 2 * prediction.std[order]
    axes.fill_between(x, mean - everything, mean + everything, color=NOISE, lw=0, label="noise (aleatoric)")
    axes.fill_between(x, mean - ignorance, mean + ignorance, color=IGNORANCE, lw=0, label="ignorance (epistemic)")
    axes.plot(x, mean, color=LINE, lw=1.5, label="mean")
    if data is not None:
        axes.plot(np.ravel(data[0]), data[1], ".", color=DATA, ms=3.5, label="data")
    return axes


def class_map(
    values: Any,
    grid: tuple[Any, Any],
    data: tuple[Any, Any] | None = None,
    axes: Any = None,
    labels: Sequence[str] = (),
    **style: Any,
) -> Any:
    """A quantity over a grid of two inputs, [rows of grid[1], columns of grid[0]], with the data on top."""
    axes = new_axes(axes)
    picture = axes.pcolormesh(grid[0], grid[1], values, shading="auto", **{"rasterized": True, **style})
    bar = axes.figure.colorbar(picture, ax=axes, shrink=0.85)
    bar.solids.set_rasterized(True)  # hundreds of little rectangles otherwise
    bar.outline.set_visible(False)
    _mark_classes(axes, data, labels)
    return axes


def class_mixture(
    probs: Any,
    grid: tuple[Any, Any],
    data: tuple[Any, Any] | None = None,
    axes: Any = None,
    labels: Sequence[str] = (),
) -> Any:
    """Probabilities [rows of grid[1], columns of grid[0], C] as colours, mixed as the classes are.

    Look for: pure colour is certainty, the mixed tone between two regions is doubt.
    """
    axes = new_axes(axes)
    colours = np.array([to_rgb(CYCLE[(2 + c) % len(CYCLE)]) for c in range(np.shape(probs)[-1])])
    mixed = 0.35 + 0.65 * np.clip(np.asarray(probs) @ colours, 0, 1)  # paler, so that points stand out
    axes.pcolormesh(grid[0], grid[1], mixed, shading="auto", rasterized=True)
    _mark_classes(axes, data, labels)
    return axes


def _mark_classes(axes: Any, data: tuple[Any, Any] | None, labels: Sequence[str]) -> None:
    if data is None:
        return
    rows, classes = np.asarray(data[0]), np.asarray(data[1])
    for number, label in enumerate(np.unique(classes)):
        chosen = rows[classes == label]
        name = str(labels[int(label)]) if len(labels) else str(label)
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(chosen[:, 0], chosen[:, 1], marker, color="white", mec=DATA, ms=3.5, mew=0.6, label=name)


def predicted_against_observed(
    prediction: Prediction, y: Any, axes: Any = None, level: float = 0.9, max_rows: int = 150
) -> Any:
    """Predicted mean and central interval of each row over what was observed.

    Look for: points along the diagonal, and about a share `level` of the bars crossing it.
    """
    axes, rows = new_axes(axes), evenly_spaced(len(y), max_rows)
    lower, upper, mean, y = (np.ravel(v)[rows] for v in (*prediction.interval(level), prediction.mean, y))
    ends = [min(y.min(), lower.min()), max(y.max(), upper.max())]
    axes.plot(ends, ends, color=INK, lw=0.8, ls=":", label="predicted = observed")
    axes.vlines(y, lower, upper, color=NOISE, lw=1.0, label=f"{100 * level:.0f} % interval")
    axes.plot(y, mean, ".", color=LINE, ms=3.5, label="mean")
    name_axes(axes, "observed", "predicted")
    return axes


def sorted_intervals(prediction: Prediction, y: Any, axes: Any = None, level: float = 0.9, max_rows: int = 150) -> Any:
    """The intervals of all rows from the narrowest to the widest, around the mean; misses are crossed.

    Look for: misses spread evenly. Many of them at the left are confident mistakes.
    """
    axes, rows = new_axes(axes), evenly_spaced(len(y), max_rows)
    lower, upper, mean, y = (np.ravel(v)[rows] for v in (*prediction.interval(level), prediction.mean, y))
    order = np.argsort(upper - lower, kind="stable")
    rank = np.arange(1, len(y) + 1)
    missed = ((y < lower) | (y > upper))[order]
    error = (y - mean)[order]
    bounds = (lower - mean)[order], (upper - mean)[order]
    axes.fill_between(rank, *bounds, color=NOISE, lw=0, step="mid", label=f"{100 * level:.0f} % interval")
    axes.axhline(0, color=LINE, lw=0.8)
    axes.plot(rank[~missed], error[~missed], ".", color=DATA, ms=3, label="observed, inside")
    axes.plot(rank[missed], error[missed], "x", color=CYCLE[4], ms=4.5, label="observed, outside")
    name_axes(axes, "rows, narrowest interval first", "observed minus mean")
    return axes


def split_along(prediction: Prediction, x: Any, axes: Any = None, num_bins: int | None = None) -> Any:
    """Noise and ignorance along one input, stacked: together they are the total uncertainty.

    Rows of a grid are drawn as they are; with `num_bins`, rows of data are averaged in bins of equal mass.
    Look for: ignorance grows where data are few, noise where the data themselves scatter.
    """
    axes = new_axes(axes)
    where, (noise, ignorance) = binned(x, (prediction.aleatoric, prediction.epistemic), num_bins)
    axes.fill_between(where, 0, noise, color=NOISE, lw=0, label="noise (aleatoric)")
    axes.fill_between(where, noise, noise + ignorance, color=IGNORANCE, lw=0, label="ignorance (epistemic)")
    axes.set_ylabel("entropy, nats" if prediction.kind == "classes" else "variance")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    return axes


def ignorance_along(prediction: Prediction, x: Any, axes: Any = None, num_bins: int | None = None, **style: Any) -> Any:
    """Ignorance of one method along one input; several methods may be drawn on the same axes."""
    axes = new_axes(axes)
    where, (ignorance,) = binned(x, (prediction.epistemic,), num_bins)
    root = ignorance if prediction.kind == "classes" else np.sqrt(ignorance)
    axes.plot(where, root, **style)
    start_at_zero(axes)
    axes.set_ylabel("ignorance, nats" if prediction.kind == "classes" else "ignorance, standard deviation")
    axes.grid(axis="y", color=FAINT, lw=0.5)
    return axes


def attributions(explained: Any, part: str = "epistemic", axes: Any = None, row: Any = None, most: int = 10) -> Any:
    """What columns add to a part ("mean", "aleatoric", "epistemic") of one row, or of all rows on average, as bars.

    `explained` is what `explain(X)` of an estimator gives; of all rows, the mean size is drawn. The lines are two
    standard errors. Look for: the column that the noise or the ignorance comes from.
    """
    axes = new_axes(axes)
    named = explained["part"].where(~explained["part"].str.startswith("probability"), "mean")
    chosen = explained[(named == part) & (explained["column"] != BASE)]
    if chosen.empty or (row is not None and row not in set(chosen["row"])):
        raise ValueError(f"part={part!r}, row={row!r} is not in what was explained; see its columns part and row.")
    if row is None:
        bars = chosen.assign(value=chosen["value"].abs()).groupby("column", sort=False)[["value", "error"]].mean()
    else:
        bars = chosen[chosen["row"] == row].set_index("column")[["value", "error"]]
    bars = bars.reindex(bars["value"].abs().sort_values(ascending=False).index)[:most]
    colour = {"aleatoric": NOISE, "epistemic": IGNORANCE}.get(part, LINE)
    axes.barh(np.arange(len(bars)), bars["value"], xerr=2 * bars["error"], color=colour, ecolor=INK)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_yticks(range(len(bars)), [str(name) for name in bars.index], parse_math=False)
    axes.invert_yaxis()
    name_axes(axes, f"added to {part}" if row is not None else f"mean size of what is added to {part}", "")
    return axes


def binned(x: Any, values: Sequence[Any], num_bins: int | None) -> tuple[np.ndarray, list[np.ndarray]]:
    """Values in order of x, or their means in bins of equal mass over the mean x; equal x stay together."""
    x = np.ravel(x).astype(float)
    flat = [np.asarray(value, float).reshape(len(x), -1).mean(1) for value in values]
    if num_bins is None:
        order = np.argsort(x, kind="stable")
        return x[order], [value[order] for value in flat]
    distinct = np.unique(x)
    if len(distinct) <= num_bins:
        index = np.searchsorted(distinct, x)
    else:
        edges = np.unique(np.quantile(x, np.linspace(0, 1, num_bins + 1)[1:-1]))
        index = np.searchsorted(edges, x, side="right")
    _, index = np.unique(index, return_inverse=True)  # a bin that ties leave empty is none
    counts = np.bincount(index)
    return np.bincount(index, x) / counts, [np.bincount(index, value) / counts for value in flat]
