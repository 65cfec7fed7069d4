"""Settings in docstrings: what a class's `Args:` or `Attributes:` section lists, with the entries of its bases."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

SECTION = re.compile(r"^(?:Args|Attributes):\n((?: {4}.+\n|\n(?= {4}))+)", re.M)
ENTRY = re.compile(r"^ {4}(\w+): (.+(?:\n {5,}.+)*)", re.M)


def entries(docstring: str | None) -> dict[str, str]:
    """What a docstring lists, by name, each text on one line."""
    return {name: " ".join(text.split()) for name, text in _listed(docstring).items()}


def with_inherited(cls: type, names: Iterable[str]) -> str:
    """The docstring of a class whose section has an entry for each of these names that it or a base documents.

    An entry of its own for another name stays, behind the others: nothing that was written is dropped unseen.
    """
    text = inspect.cleandoc(cls.__doc__ or "") + "\n"
    known: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        known |= _listed(base.__doc__)
    shown = [name for name in dict.fromkeys((*names, *_listed(text))) if name in known]
    section = "".join(f"    {name}: {known[name]}\n" for name in shown)
    if found := SECTION.search(text):
        text = text[: found.start(1)] + section + text[found.end(1) :]
    elif section:
        text += f"\nArgs:\n{section}"
    return text.strip()


def _listed(docstring: str | None) -> dict[str, str]:
    found = SECTION.search(inspect.cleandoc(docstring or "") + "\n")
    return dict(ENTRY.findall(found[1])) if found else {}
