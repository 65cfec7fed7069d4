"""A page: one HTML file of sections, words, tables and pictures, which needs no network and follows the theme.

page = Page("What I found")
page.section("Verdict", "All is well.")
page.figure(plots.band(prediction, x), "The curve.", look_for="a band that widens where there are no points.")
page.table(("method", "RMSE"), [("HMC", metrics.rmse(mean, y))], "Errors on test rows.")
page.write("report.html")
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from posterity.metrics import Estimate
from posterity.plots.palette import PALETTE
from posterity.report.svg import inline_svg, legend_of

BEST = '<span class="best" aria-hidden="true">◆</span><span class="unseen"> best</span>'


class Cell(NamedTuple):
    """A value of a table; the best of its column is marked."""

    value: Any
    best: bool = False


class Page:
    """Written from top to bottom; every text is taken literally, and none of it can become markup."""

    def __init__(self, title: str, subtitle: str = "", footer: str = "") -> None:
        self.title, self.subtitle, self.footer = title, subtitle, footer
        self._parts: list[str] = []
        self._headings: list[str] = []
        self._num_pictures = 0

    def section(self, heading: str, *words: str) -> Page:
        """Begin a section; `words` are its first paragraphs."""
        self._headings.append(heading)
        number = len(self._headings)
        self._parts.append(f'<h2 id="section-{number}">{html.escape(heading)}</h2>')
        return self.words(*words)

    def words(self, *paragraphs: str) -> Page:
        self._parts += [f"<p>{html.escape(text)}</p>" for text in paragraphs]
        return self

    def points(self, items: Iterable[str], prominent: bool = False) -> Page:
        """A list of sentences."""
        lines = "".join(f"<li>{html.escape(item)}</li>" for item in items)
        kind = ' class="prominent"' if prominent else ""
        self._parts.append(f"<ul{kind}>{lines}</ul>")
        return self

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Any]], caption: str) -> Page:
        """Rows of texts, numbers, Estimates or Cells; the first cell of each names the row."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
        lines = "".join(f"<tr>{_named_row(row)}</tr>" for row in rows)
        text = html.escape(caption)
        self._parts.append(
            f'<div class="scroll" role="region" aria-label="{text}" tabindex="0"><table>'
            f"<caption>{text}</caption><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>"
        )
        return self

    def figure(self, pictures: Any, caption: str, look_for: str = "", alt: str = "") -> Page:
        """Axes, a figure, or several side by side, with one caption and one key of what their labels name.

        `look_for` tells what to see in it; `alt` says what is drawn to those who cannot see it, as the caption would.
        """
        figures = [_figure_of(picture) for picture in ([pictures] if _is_one(pictures) else pictures)]
        drawn = "".join(f'<div class="panel">{self._picture(figure, alt or caption)}</div>' for figure in figures)
        key = "".join(f"<li>{swatch}{html.escape(label)}</li>" for swatch, label in legend_of(figures))
        key = f'<ul class="key">{key}</ul>' if key else ""
        look = f" <b>Look for:</b> {html.escape(look_for)}" if look_for else ""
        text = f"<figcaption>{html.escape(caption)}{look}</figcaption>"
        kind = ' class="single"' if len(figures) == 1 else ""
        self._parts.append(f'<figure{kind}><div class="panels">{drawn}</div>{key}{text}</figure>')
        return self

    def details(self, summary: str, text: str, plain: bool = True) -> Page:
        """Something to open: text as it stands (`plain`), or lines as paragraphs."""
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in text.splitlines())
        body = f"<pre>{html.escape(text)}</pre>" if plain else lines
        self._parts.append(f"<details><summary>{html.escape(summary)}</summary>{body}</details>")
        return self

    def html(self) -> str:
        """The whole page."""
        title = html.escape(self.title)
        links = "".join(
            f'<li><a href="#section-{number}">{html.escape(heading)}</a></li>'
            for number, heading in enumerate(self._headings, 1)
        )
        contents = f'<nav aria-label="Contents"><ol>{links}</ol></nav>' if len(self._headings) > 2 else ""
        subtitle = f'<p class="subtitle">{html.escape(self.subtitle)}</p>' if self.subtitle else ""
        footer = f"<footer><p>{html.escape(self.footer)}</p></footer>" if self.footer else ""
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
            f"<style>\n{_style()}</style>\n</head>\n<body>\n<header><h1>{title}</h1>{subtitle}{contents}</header>\n"
            f"<main>\n{body}\n</main>\n{footer}\n</body>\n</html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page into one file, whole or not at all; returns its path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(path.name + ".part")
        unfinished.write_text(self.html(), encoding="utf-8")
        os.replace(unfinished, path)
        return path

    def _picture(self, figure: Figure, alt: str) -> str:
        self._num_pictures += 1
        titles = ", ".join(axes.get_title("left") or axes.get_title() for axes in figure.axes).strip(", ")
        return inline_svg(figure, f"p{self._num_pictures}", f"{titles}: {alt}" if titles else alt)


def _is_one(pictures: Any) -> bool:
    return isinstance(pictures, Figure) or hasattr(pictures, "figure")


def _figure_of(picture: Any) -> Figure:
    return picture if isinstance(picture, Figure) else picture.figure


def _named_row(row: Sequence[Any]) -> str:
    first, *others = row
    return f'<th scope="row">{html.escape(str(first))}</th>' + "".join(_cell(value) for value in others)


def _cell(value: Any) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    kind = "words" if isinstance(cell.value, str) else "number"
    mark = BEST if cell.best else ""
    return f'<td class="{kind}{" winner" if cell.best else ""}">{_written(cell.value)}{mark}</td>'


def _written(value: Any) -> str:
    """A value as HTML; numbers with as many digits as their error leaves."""
    if isinstance(value, Estimate):
        if np.isnan(value.value):
            return '<span aria-label="not available">&ndash;</span>'
        if not np.isfinite(value.standard_error):
            return _written(float(value.value))
        if value.standard_error < 1e-4 * abs(value.value):
            return _written(float(value.value))  # an error that small is nothing to read
        number, error = (part.replace("-", "\u2212") for part in str(value).split(" ± "))
        return f'{number} <span class="error">± {error}</span>'
    if isinstance(value, float):
        return "∞" if value == np.inf else f"{value:.4g}".replace("-", "\u2212")
    return html.escape(str(value))


def _style() -> str:
    """The style sheet with the palette's two forms; paper is always light in print."""
    light, dark = ("".join(f"--{name}:{colour[form]};" for name, colour in PALETTE.items()) for form in (0, 1))
    sheet = resources.files("posterity.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f":root{{{light}color-scheme:light dark}}\n"
        f"@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{sheet}"
    )
