"""Names as people write and read them: what was meant by one that does not exist, and what a terminal may show."""

import difflib
import re
from collections.abc import Iterable

# C0 and C1 controls but for tab and newline, and marks that reverse the direction of text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text from a file for a terminal, which would obey control characters: each is shown as its escape."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The one of `names` that looks most like `name`."""
    choices = list(names)
    simple = str(name).lower().replace("-", "_").replace(" ", "_")
    return difflib.get_close_matches(simple, choices, n=1, cutoff=0.0)[0]
