"""Pictures of predictions; each function draws on matplotlib axes and returns them."""

from __future__ import annotations

from typing import Any

import numpy as np

from posterity.prediction import Prediction

NOISE, IGNORANCE, LINE, DATA = "#9ecae1", "#fdae6b", "#08306b", "#333333"


def _axes(axes: Any) -> Any:
    if axes is not None:
        return axes
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6, 4), layout="constrained")[1]


def band(prediction: Prediction, x: Any, data: tuple[Any, Any] | None = None, axes: Any = None) -> Any:
    """A regression in one input: mean, and two standard deviations of ignorance, then of noise on top of it.

    Look for: the inner band (ignorance) widens where there are no points; the outer one covers about 95 % of them.
    """
    axes = _axes(axes)
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
    values: Any, grid: tuple[Any, Any], data: tuple[Any, Any] | None = None, axes: Any = None, **style: Any
) -> Any:
    """A quantity over a grid of two inputs, [rows of grid[1], columns of grid[0]], with the data on top."""
    axes = _axes(axes)
    picture = axes.pcolormesh(grid[0], grid[1], values, shading="auto", **style)
    axes.figure.colorbar(picture, ax=axes, shrink=0.85)
    if data is not None:
        for label, marker in zip(np.unique(data[1]), "o^sDv", strict=False):
            rows = data[0][data[1] == label]
            axes.plot(rows[:, 0], rows[:, 1], marker, color="white", mec=DATA, ms=3.5, mew=0.6)
    return axes
