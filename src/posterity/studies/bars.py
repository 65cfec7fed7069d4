"""Bars of several quantities for several methods, ours beside the published ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from posterity.plots.palette import FAINT, LINE, MUTED, style
from posterity.studies.rows import Row

HEIGHT = 0.38  # of a bar; two of them and a gap are one line
BESIDE = {"ours": (-HEIGHT / 2, LINE), "published": (HEIGHT / 2, FAINT)}  # where it is drawn, and its colour


def bars(rows: Sequence[Row]) -> Figure:
    """A panel for each quantity and in it a line for each subject, with standard errors.

    The name of a row is "subject: quantity". Where all numbers of a quantity are so near each other that bars from zero
    would look alike, the axis begins further on, and its name says so.
    """
    if not rows:
        raise ValueError("There are no rows to draw bars of; give at least one.")
    subjects = list(dict.fromkeys(row.subject for row in rows))
    quantities = list(dict.fromkeys(row.quantity for row in rows))
    with style():
        figure = Figure(figsize=(1.6 + 2.6 * len(quantities), 0.8 + 0.36 * len(subjects)), layout="constrained")
        panels = figure.subplots(1, len(quantities), sharey=True, squeeze=False)[0]
        for axes, quantity in zip(panels, quantities, strict=True):
            _panel(axes, quantity, {row.subject: row for row in rows if row.quantity == quantity}, subjects)
        panels[0].set_yticks(range(len(subjects)), subjects)
        panels[0].invert_yaxis()  # the first subject on top; shared by all panels
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
    return figure


def _panel(axes: Any, quantity: str, found: dict[str, Row], subjects: list[str]) -> None:
    shown = {
        "ours": {name: (row.ours, row.standard_error) for name, row in found.items()},
        "published": {
            name: (row.published, row.published_error) for name, row in found.items() if row.published is not None
        },
    }
    values = [value for side in shown.values() for value, _ in side.values()]
    begin = _begin(values)
    for side, numbers in shown.items():
        offset, colour = BESIDE[side]
        places = [subjects.index(name) + offset for name in numbers]
        lengths = [value - begin for value, _ in numbers.values()]
        errors = [error or 0.0 for _, error in numbers.values()]
        how: dict[str, Any] = {"height": HEIGHT, "left": begin, "color": colour, "label": side, "ecolor": MUTED}
        axes.barh(places, lengths, xerr=errors, error_kw={"elinewidth": 0.8}, **how)
    axes.axvline(begin, color=MUTED, lw=0.7)
    axes.set_xlabel(quantity if begin == 0 else f"{quantity} (axis from {begin:g})", parse_math=False)
    axes.tick_params(axis="y", length=0)


def _begin(values: Sequence[float]) -> float:
    """Zero; or, for numbers of one sign that all exceed half of the largest, a round number before them."""
    sizes = np.abs(values)
    if np.ptp(np.sign(values)) > 0 or sizes.min() < sizes.max() / 2 or np.ptp(sizes) == 0:
        return 0.0
    step = 10.0 ** math.floor(math.log10(np.ptp(sizes)))
    return float(np.sign(values[0]) * round(step * max(0, math.floor(sizes.min() / step) - 1), 12))
