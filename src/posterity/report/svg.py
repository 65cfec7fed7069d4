"""Matplotlib figures as SVG inside a page: one drawing for light and dark paper, no ids that collide, no addresses."""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Iterable
from typing import Any

import matplotlib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from posterity.plots.palette import PALETTE

HEAVY = 300_000  # bytes: beyond it what is drawn becomes a picture inside the drawing; letters stay letters
RASTER_DPI = 200  # about two points of a screen for each of the page
DASHES = {"-": "", "--": "5 3", ":": "1.5 2.5", "-.": "5 2 1.5 2"}
VARIABLES = {colour.light: f"var(--{name})" for name, colour in PALETTE.items()} | {"#000000": "var(--ink)"}

_REFERENCE = re.compile(r'(?:href="#|url\(#)([^")]+)')
_HEADER = re.compile(r"<svg [^>]*?viewBox=\"([^\"]+)\"[^>]*>")


def inline_svg(figure: Figure, prefix: str, alt: str) -> str:
    """The figure as one svg element. `prefix` keeps its ids apart from those of other figures of a page."""
    text, invert = _save(figure, prefix), False
    if len(text) > HEAVY:
        text, invert = _save_rasterised(figure, prefix), True
    box = _HEADER.search(text)
    assert box is not None, "matplotlib has written an SVG without a viewBox"
    body = text[box.end() :]
    body = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.S)
    body = body.replace("xlink:href", "href")
    body = _themed(_own_ids(body, prefix))
    described = f'role="img" aria-label="{html.escape(alt)}"'
    heavy = ' class="heavy"' if invert else ""
    return f'<svg viewBox="{box.group(1)}" {described}{heavy}>{body.strip()}'


def _save(figure: Figure, salt: str) -> str:
    stream = io.StringIO()
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": salt}
    tight: Any = {} if figure.get_layout_engine() else {"bbox_inches": "tight"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # Letters stay letters, and the reader's browser has fonts of its own for those that ours lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(stream, format="svg", dpi=RASTER_DPI, transparent=True, metadata={"Date": None}, **tight)
    return stream.getvalue()


def _save_rasterised(figure: Figure, salt: str) -> str:
    artists = [artist for axes in figure.axes for artist in (*axes.lines, *axes.collections, *axes.patches)]
    before = [artist.get_rasterized() for artist in artists]
    for artist in artists:
        artist.set_rasterized(True)
    try:
        return _save(figure, salt)
    finally:
        for artist, value in zip(artists, before, strict=True):
            artist.set_rasterized(value)


def _own_ids(text: str, prefix: str) -> str:
    """Prefix the ids that something refers to, and drop the others, which every figure has alike."""
    used = set(_REFERENCE.findall(text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{prefix}-{found[1]}"' if found[1] in used else "", text)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)


def _themed(text: str) -> str:
    """Colours of the palette become variables of the page, and letters take the page's font."""

    def attribute(found: re.Match[str]) -> str:
        style = re.sub(r"#[0-9a-f]{6}", lambda colour: VARIABLES.get(colour[0], colour[0]), found[0])
        return re.sub(r"font-family: [^;\"]*;? ?", "", style)

    return re.sub(r'style="[^"]*"', attribute, text)


def legend_of(figures: Iterable[Figure]) -> list[tuple[str, str]]:
    """(swatch as SVG, label) of what the figures name, each once; axes with a legend of their own are left out."""
    found: dict[str, str] = {}
    for figure in figures:
        for axes in figure.axes:
            if axes.get_legend() is None:
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                    found.setdefault(label, _swatch(handle))
    return [(swatch, label) for label, swatch in found.items()]


def _swatch(handle: Any) -> str:
    if hasattr(handle, "get_linestyle") and hasattr(handle, "get_marker"):
        colour, dash = _variable(handle.get_color()), DASHES.get(handle.get_linestyle())
        line = "" if dash is None else f'<path d="M1 5H25" style="stroke:{colour}" stroke-dasharray="{dash}"/>'
        marker = handle.get_marker() not in ("None", None, "", " ")
        edge = _variable(handle.get_markeredgecolor())
        inside = _variable(handle.get_markerfacecolor())
        shape = _marker(handle.get_marker())
        point = f'<path d="{shape}" class="point" style="stroke:{edge};fill:{inside}"/>' if marker else ""
        drawn = line + point
    else:
        colours = handle.get_facecolor() if hasattr(handle, "get_facecolor") else []
        colours = colours if len(colours) else handle.get_edgecolor()
        drawn = f'<rect x="4" y="1" width="18" height="8" style="fill:{_variable(colours[0])}"/>'
    return f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">{drawn}</svg>'


def _marker(marker: Any) -> str:
    """The outline of a marker, as large as a swatch has room for."""
    shapes = {
        "^": "M13 1.5L16.5 8.5H9.5Z",
        "v": "M13 8.5L16.5 1.5H9.5Z",
        "s": "M10 2H16V8H10Z",
        "D": "M13 1L17 5L13 9L9 5Z",
        "x": "M10 2L16 8M16 2L10 8",
        "P": "M12 2H14V4H16V6H14V8H12V6H10V4H12Z",
    }
    return shapes.get(str(marker), "M10.5 5A2.5 2.5 0 1 0 15.5 5A2.5 2.5 0 1 0 10.5 5Z")


def _variable(colour: Any) -> str:
    if isinstance(colour, str) and colour == "none":
        return "none"
    return VARIABLES.get(to_hex(colour), to_hex(colour))
