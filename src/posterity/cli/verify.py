"""`posterity verify`: whether a method does what it claims."""

from __future__ import annotations

from posterity.cli.cache import keep_compiled_programs
from posterity.cli.catalogue import check_method
from posterity.cli.errors import FailedError
from posterity.cli.output import print_json, results
from posterity.uses.verify import WORDS, verify


def run_verify(method: str, seed: int, as_json: bool) -> None:
    method = check_method(method, for_tables=False)
    keep_compiled_programs()
    found = verify(method, seed=seed)
    if as_json:
        checks = {name: {"passed": one.passed, "words": one.words} for name, one in found.checks.items()}
        print_json({"method": found.method, "verdict": found.verdict, "expected": found.expected, "checks": checks})
    else:
        results().print(str(found), markup=False)
    if found.verdict == "fails":
        raise FailedError(f"{method} {WORDS[found.verdict]}.")
