"""What the benchmarks share: ratios within a turn, and the bars that they are held to."""

from __future__ import annotations

import statistics
from typing import Any

Numbers = dict[str, Any]
Reports = dict[str, list[dict[str, Any]]]
JUDGED = ("ratio", "gain")  # what a bar is for: the first of these that a part has


def ratios(reports: Reports, ours: str, theirs: str, key: str) -> Numbers:
    """The median of the ratios within a turn, and their quartiles: how far it may be trusted."""
    each = [a[key] / b[key] for a, b in zip(reports[ours], reports[theirs], strict=True)]
    low, _, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    return {"ratio": statistics.median(each), "ratio_quartiles": [low, high]}


def medians(reports: Reports, key: str) -> Numbers:
    return {f"{name} {key}": statistics.median(report[key] for report in each) for name, each in reports.items()}


def show(part: str, numbers: Numbers) -> None:
    """One line, to four digits; the results file has all of them."""
    print(part, {key: _brief(value) for key, value in numbers.items()}, flush=True)


def judged(numbers: Numbers) -> str | None:
    """The name of the number that a bar is for."""
    return next((name for name in JUDGED if name in numbers), None)


def missed(results: dict[str, Numbers]) -> list[str]:
    """In words, each part that is on the wrong side of its bar. Numbers are compared as they are, not as they print."""
    found = []
    for part, numbers in results.items():
        name = judged(numbers)
        if name is None:
            continue
        value = numbers[name]
        if "at_least" in numbers and not value >= numbers["at_least"]:
            found.append(f"{part}: {name} {value:.6g}, at least {numbers['at_least']:g} was asked")
        if "at_most" in numbers and not value <= numbers["at_most"]:
            found.append(f"{part}: {name} {value:.6g}, at most {numbers['at_most']:g} was asked")
    return found


def end(results: dict[str, Numbers]) -> None:
    """Exit with code 1 and a sentence if a bar was missed."""
    if told := missed(results):
        raise SystemExit(f"Missed: {'; '.join(told)}.")


def _brief(value: Any) -> Any:
    if isinstance(value, list):
        return [_brief(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
