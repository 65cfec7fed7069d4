"""The tables of methods and of their settings in the README and the documentation: `python -m posterity.cli.pages`.

Methods are listed by their cards, between <!-- methods --> and <!-- end of methods -->. Settings are listed by the
docstring of the method, between <!-- settings --> and <!-- end of settings -->.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from posterity.core import docstrings
from posterity.inference import METHODS, Method

Methods = Mapping[str, type[Method]]


def _table(methods: Methods, folder: str) -> str:
    """A line for each method; `folder` leads from the page to those of the methods."""
    lines = ["| name | class | what it is | its epistemic uncertainty | cost (trainings) |", "|---|---|---|---|---|"]
    for name, method in methods.items():
        card, page = method.card, f"[`{name}`]({folder}{name}.md)"
        what = f"{card.what.removesuffix('.')} ({card.reference})"
        lines.append(f"| {page} | `{method.__name__}` | {what} | {card.ignorance} | {card.cost} |")
    return "\n" + "\n".join(lines) + "\n"


def _reference(methods: Methods) -> str:
    """Where the docstrings go."""
    return "\n" + "".join(f"::: posterity.{method.__name__}\n\n" for method in methods.values())[:-1]


def _navigation(methods: Methods) -> str:
    return "\n".join(f"      - {method.card.label}: methods/{name}.md" for name, method in methods.items())


def _settings(methods: Methods, name: str) -> str:
    """A line for each setting of a method."""
    fields = dataclasses.fields(methods[name])  # type: ignore[arg-type]
    meanings = docstrings.entries(methods[name].__doc__)
    lines = [f"| `{field.name}` | {shown(field.default)} | {meanings[field.name]} |" for field in fields]
    return "\n" + "\n".join(["| setting | default | meaning |", "|---|---|---|", *lines]) + "\n"


def shown(value: object) -> str:
    """A default as a page writes it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:g}"
    return value.__name__ if inspect.isfunction(value) else repr(value)


PAGES: dict[str, Callable[[Methods], str]] = {
    "README.md": lambda methods: _table(methods, "docs/methods/"),
    "docs/methods/index.md": lambda methods: _table(methods, ""),
    "docs/reference/methods.md": _reference,
    "mkdocs.yml": _navigation,
    **{f"docs/methods/{name}.md": partial(_settings, name=name) for name in METHODS},
}
BLOCK = re.compile(r"(?:<!--|#) (methods|settings)(?: -->)?\n(.*?)\n *(?:<!--|#) end of \1", re.S)


def written(name: str, text: str, methods: Methods = METHODS) -> str:
    """The text of a page with what the classes of the methods document."""
    found = BLOCK.search(text)
    if found is None:
        what = "settings" if name.removeprefix("docs/methods/").removesuffix(".md") in METHODS else "methods"
        raise ValueError(f"{name} has no place for the {what}; write <!-- {what} --> and <!-- end of {what} -->.")
    return text[: found.start(2)] + PAGES[name](methods) + text[found.end(2) :]


def main(root: Path) -> None:
    for name in PAGES:
        path = root / name
        path.write_text(written(name, path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
