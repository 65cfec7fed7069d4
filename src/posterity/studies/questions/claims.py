"""What figures say, in words: a claim holds, does not hold, or stays open, by an estimate and its standard error.

Every conclusion is a function of figures alone. A claim is settled by two standard errors; one whose reference did not
converge is withheld. As a Row it has the number, what is published beside it, and the sentence as its remark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from posterity.metrics import Estimate, mean_over_rows
from posterity.studies.questions.reference import may_judge
from posterity.studies.rows import Row, with_error

CERTAIN = 2.0  # standard errors


class Wording(NamedTuple):
    """The three sentences that a claim may become; {} stands for the estimate.

    Where a claim that something is above zero fails, it stands for how far it is below: "loses, by {}".
    """

    holds: str
    fails: str
    unclear: str


class Published(NamedTuple):
    """A number of a paper: for another network and other data, so it is shown for orientation."""

    value: float
    error: float | None = None


def claim(
    name: str,
    found: Estimate,
    wording: Wording,
    judges: Iterable[dict[str, Any]] = (),
    *,
    least: float = 0.0,
    published: Published | None = None,
) -> Row:
    """That a quantity is above `least`, decided by two standard errors.

    Args:
        name: "subject: quantity".
        found: The quantity.
        wording: What to report where it holds, where it does not, and where it cannot be decided.
        judges: Facts of the references that it rests on.
        least: What it must exceed.
        published: The same quantity of a paper.
    """
    error = found.standard_error if np.isfinite(found.standard_error) else None
    row = Row(
        name,
        found.value,
        error,
        published=None if published is None else published.value,
        published_error=None if published is None else published.error,
        target=f"above {least:g}",
        comparable=False,
    )
    doubted = [facts["verdict"] for facts in judges if not may_judge(facts)]
    if doubted:
        reason = f"{len(doubted)} of the references it rests on may not judge ({doubted[0]})"
        return row._replace(remark=f"No conclusion on {name}: {reason}.")
    if error is None:
        return row._replace(remark=wording.unclear.format(with_error(*found)))
    distance = found.value - least
    holds = None if abs(distance) <= CERTAIN * error else bool(distance > 0)
    chosen = {True: wording.holds, False: wording.fails, None: wording.unclear}[holds]
    value = -found.value if holds is False and least == 0 else found.value
    return row._replace(holds=holds, remark=chosen.format(with_error(value, error)))


def paired(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Estimate:
    """Mean of first - second over test rows of several splits [splits][rows], each row paired with itself.

    The error is the larger of two: over all rows, and over splits where there are several, since rows of one split
    share what was learned from one set of training rows.
    """
    differences = [np.subtract(one, other) for one, other in zip(first, second, strict=True)]
    pooled = mean_over_rows(np.concatenate(differences))
    if len(differences) < 2:
        return pooled
    means = np.array([each.mean() for each in differences])
    between = float(means.std(ddof=1) / np.sqrt(len(means)))
    return Estimate(float(means.mean()), max(pooled.standard_error, between))


def averaged(values: Sequence[Sequence[float]]) -> Estimate:
    """Mean and error of one quantity over the rows of several splits."""
    return paired(values, [np.zeros(len(each)).tolist() for each in values])


def best_of(
    candidates: Mapping[str, Sequence[Sequence[float]]], base: Sequence[Sequence[float]]
) -> tuple[str, Estimate]:
    """The candidate of least loss on even test rows, and on odd ones how much less it loses than the base.

    Judged by the rows it was chosen on, the best of several would always look good.
    """
    best = min(candidates, key=lambda name: np.mean([np.mean(rows[::2]) for rows in candidates[name]]))
    return best, paired([rows[1::2] for rows in base], [rows[1::2] for rows in candidates[best]])
