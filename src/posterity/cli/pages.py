"""The tables of methods in the README and the documentation, from the cards: `python -m posterity.cli.pages`.

Each stands between two comments, <!-- methods --> and <!-- end of methods -->, in the folder of a checkout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

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


PAGES: dict[str, Callable[[Methods], str]] = {
    "README.md": lambda methods: _table(methods, "docs/methods/"),
    "docs/methods/index.md": lambda methods: _table(methods, ""),
    "docs/reference/methods.md": _reference,
    "mkdocs.yml": _navigation,
}
BLOCK = re.compile(r"((?:<!--|#) methods(?: -->)?\n)(.*?)(\n *(?:<!--|#) end of methods)", re.S)


def written(name: str, text: str, methods: Methods = METHODS) -> str:
    """The text of a page with what the cards of the methods say."""
    found = BLOCK.search(text)
    if found is None:
        raise ValueError(f"{name} has no place for the methods; write <!-- methods --> and <!-- end of methods -->.")
    return text[: found.start(2)] + PAGES[name](methods) + text[found.end(2) :]


def main(root: Path) -> None:
    for name in PAGES:
        path = root / name
        path.write_text(written(name, path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
