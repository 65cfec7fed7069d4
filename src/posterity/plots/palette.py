"""Colours and line styles: few, and the same for a method in every picture.

Every colour has a light and a dark form. Pictures are drawn in the light form; a page that follows the reader's theme
replaces each by its dark form.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from posterity.inference import METHODS
from posterity.inference.methods.card import Card

PANEL = (3.6, 2.7)  # inches: three side by side on a desk, one on a phone, with letters that stay readable


class Colour(NamedTuple):
    """One colour on light and on dark paper."""

    light: str
    dark: str


PALETTE = {
    "paper": Colour("#ffffff", "#17181b"),
    "ink": Colour("#1f2328", "#e4e2dd"),
    "muted": Colour("#6a7079", "#9da3ac"),
    "faint": Colour("#d8dbe0", "#3a3d44"),
    "noise": Colour("#9ecae1", "#2f6285"),
    "ignorance": Colour("#fdae6b", "#b9732c"),
    "line": Colour("#08306b", "#cfe2f6"),
    "data": Colour("#333333", "#cfcfcf"),
    "blue": Colour("#2f6fb0", "#7ab2e8"),
    "orange": Colour("#c2651a", "#efa25c"),
    "green": Colour("#1f8a6d", "#5fcbb0"),
    "purple": Colour("#7b4fa3", "#bd9be0"),
    "red": Colour("#b8435c", "#ef8fa4"),
    "gold": Colour("#8f7a10", "#d7c250"),
    "brown": Colour("#7a5540", "#c79d83"),
}
INK, MUTED, FAINT = (PALETTE[name].light for name in ("ink", "muted", "faint"))
NOISE, IGNORANCE, LINE, DATA = (PALETTE[name].light for name in ("noise", "ignorance", "line", "data"))
CYCLE = tuple(PALETTE[name].light for name in ("blue", "orange", "green", "purple", "red", "gold", "brown", "muted"))
MARKERS = "o^sDvP*X"

SETTINGS: Any = {
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "text.parse_math": False,  # a column may be called "$"
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.formatter.use_mathtext": False,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
}


def style() -> AbstractContextManager[None]:
    """`with style():` gives pictures drawn within it the look of the report."""
    return matplotlib.rc_context(SETTINGS)


def method_style(name: str) -> dict[str, Any]:
    """Colour and line of a method, by its key in METHODS: keywords for the curves below."""
    card = _card(name)
    return {"color": PALETTE[card.colour].light, "linestyle": card.line}


def method_marker(name: str) -> str:
    return _card(name).marker


def _card(name: str) -> Card:
    return METHODS[name].card if name in METHODS else Card()


def new_axes(axes: Any = None, size: tuple[float, float] = PANEL) -> Any:
    """The axes that were given, or those of a new figure, which pyplot does not know of and nobody has to close."""
    if axes is not None:
        return axes
    with style():
        return Figure(figsize=size, layout="constrained").add_subplot()


def name_axes(axes: Any, x: str, y: str) -> None:
    """Names of the two axes, taken literally."""
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel(y, parse_math=False)


def log_axes(axes: Any, which: str = "x") -> None:
    """Logarithmic axes, "x", "y" or "xy", with plain numbers at their ticks: powers would need mathematical text."""
    for one in which:
        {"x": axes.set_xscale, "y": axes.set_yscale}[one]("log")
        axis = {"x": axes.xaxis, "y": axes.yaxis}[one]
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def start_at_zero(axes: Any) -> None:
    """Let the height begin at zero and end above the highest point of all lines so far."""
    heights = [np.asarray(line.get_ydata(), float) for line in axes.lines]
    highest = max((float(height[np.isfinite(height)].max(initial=0.0)) for height in heights), default=0.0)
    axes.set_ylim(0, 1.05 * highest or 1.0)
