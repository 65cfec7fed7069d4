"""What a person may have meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The one of `names` that looks most like `name`."""
    choices = list(names)
    simple = str(name).lower().replace("-", "_").replace(" ", "_")
    return difflib.get_close_matches(simple, choices, n=1, cutoff=0.0)[0]
