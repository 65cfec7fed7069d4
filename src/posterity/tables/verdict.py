"""What the numbers of a comparison say, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from posterity.metrics import SCORES, Estimate, mean_over_rows

if TYPE_CHECKING:
    from posterity.tables.comparison import Comparison, Entry

MIN_TEST_ROWS = 20  # fewer tell methods apart by chance
WILD = 3.0  # nats between two methods at one row
TRUSTED = ("good", "usable", "independent")  # of the verdicts on chains


class Ruling(NamedTuple):
    """What the numbers say, in sentences, and the entry to use, if they say so."""

    sentences: tuple[str, ...]
    recommended: Entry | None


def rule(comparison: Comparison, reference: str) -> Ruling:
    """Is the reference, called so, to be believed; who is near it, who predicts best, what to use."""
    if not comparison.entries:
        return Ruling(("No method came to an end, so there is nothing to compare.",), None)
    top = min(comparison.entries, key=lambda entry: entry.scores["nll"].value)
    best = _best(comparison, top)
    lines = [*_on_scores(top, best), *_on_baselines(comparison, top), *_on_reference(comparison, reference)]
    if (num_rows := len(comparison.test[1])) < MIN_TEST_ROWS:
        few = f"{num_rows} test rows are too few to say which method to use"
        return Ruling((f"{few}: give at least {MIN_TEST_ROWS}, by more rows or a larger --test-share.", *lines), None)
    chosen = _recommended(best)
    return Ruling((_advice(top, best, chosen), *lines, *_on_coverage(comparison)), chosen)


def _recommended(best: list[Entry]) -> Entry | None:
    """The quickest of the best that knows its ignorance; a point estimate only where no other can be trusted.

    None where none of the best has chains that agree.
    """
    trusted = [entry for entry in best if entry.convergence in TRUSTED]
    knowing = [entry for entry in trusted if not entry.card.is_point]
    return min(knowing or trusted, key=lambda entry: entry.seconds, default=None)


def _best(comparison: Comparison, top: Entry) -> list[Entry]:
    """The one of the best score, and those that the test rows cannot tell from it."""
    return [entry for entry in comparison.entries if entry is top or _ties(entry, top, comparison.test[1])]


def _ties(entry: Entry, top: Entry, y: np.ndarray) -> bool:
    """Whether test rows cannot tell two methods apart: by two standard errors of their difference, row by row."""
    behind = paired(np.asarray(top.prediction.log_prob(y)), np.asarray(entry.prediction.log_prob(y)))
    return behind.value <= 2 * behind.standard_error or behind.value <= 0


def paired(one: np.ndarray, other: np.ndarray) -> Estimate:
    """How much higher the first log densities [N] are on average, with an error that a few wild rows cannot inflate.

    Rows that are hard for both make each score uncertain, and say nothing of which is better: only their difference
    counts. The error is that of differences clipped to WILD around their median: a method that is hundreds of nats off
    at a few rows is behind, and not "within two standard errors" because of them.
    """
    with np.errstate(invalid="ignore"):
        differences = one - other
    differences = differences[~np.isnan(differences)]  # rows that both hold impossible: no difference to speak of
    if not len(differences):
        return Estimate(0.0, float("nan"))
    middle = np.median(differences)
    return Estimate(
        float(np.mean(differences)), mean_over_rows(np.clip(differences, middle - WILD, middle + WILD)).standard_error
    )


def _on_reference(comparison: Comparison, reference: str) -> list[str]:
    trust = comparison.settings.get("reference")
    if trust is None:
        return [f"Without {reference} there is no referee: scores tell who predicts well, not who is right."]
    lines = [_trust_line(trust, reference)]
    others = [entry for entry in comparison.entries if entry.referee]
    if others:
        score = next(SCORES[name] for name in others[0].referee if SCORES[name].best == "low")
        apart = [(entry.label, entry.referee[score.name]) for entry in others]
        nearest, farthest = min(apart, key=lambda one: one[1].value), max(apart, key=lambda one: one[1].value)
        how_far = f"{nearest[1]} {score.unit.format(reference)} away in {score.label}"
        line = f"Nearest to {reference} is {nearest[0]}, {how_far}"
        if farthest is not nearest:
            line += f"; farthest is {farthest[0]}, {farthest[1].value:.2g}"
        own = trust["own_distance"].get(score.name)
        halves = f"{reference}'s own halves are"
        told = f" {halves} {own[0]:.2g} apart: smaller distances cannot be told from chance." if own else ""
        lines.append(f"{line}.{told}")
    return lines


def _trust_line(trust: dict[str, Any], reference: str) -> str:
    r_hat = "" if trust["r_hat"] is None else f" (its largest R-hat is {trust['r_hat']:.3g})"
    seen = f"test row looked at{r_hat}."
    told = {
        "good": f"{reference} can be trusted as the referee: its chains agree at every {seen}",
        "usable": f"{reference} is usable as the referee: its chains agree at nearly every {seen}",
    }.get(
        trust["verdict"],
        f"{reference} has not converged{r_hat}: do not take distances from it for errors. Give it time: --budget, or "
        "--effort.",
    )
    return " ".join([told, *trust.get("doubts", ())])


def _on_scores(top: Entry, best: list[Entry]) -> list[str]:
    others = [entry.label for entry in best if entry is not top]
    line = f"Best by negative log likelihood is {top.label}, {top.scores['nll']}"
    if others:
        line += f"; within two standard errors of the difference: {', '.join(others)}"
    return [f"{line}."]


def _on_baselines(comparison: Comparison, top: Entry) -> list[str]:
    """Is a Bayesian network worth it here?"""
    if not comparison.baselines:
        return []
    rival = max(comparison.baselines, key=lambda one: one.log_prob.mean())
    ahead = paired(np.asarray(top.prediction.log_prob(comparison.test[1])), rival.log_prob)
    by = f"{Estimate(abs(ahead.value), ahead.standard_error)} nats a row"
    if ahead.value > 2 * ahead.standard_error:
        return [f"A Bayesian network is worth it here: {top.label} is ahead of {rival.label} by {by}."]
    if ahead.value < -2 * ahead.standard_error:
        return [f"A Bayesian network is not worth it here for its density: {rival.label} is ahead by {by}."]
    return [f"A Bayesian network predicts no better here than {rival.label}: the difference is {by}."]


def _on_coverage(comparison: Comparison) -> list[str]:
    """Methods that are too sure, beyond twice the standard error."""
    covered = {entry.label: entry.scores["coverage_90"] for entry in comparison.entries}
    short = {label: one.value for label, one in covered.items() if one.value + 2 * one.standard_error < 0.9}
    if not short:
        return []
    what = "intervals hold" if comparison.task == "regression" else "sets of classes hold"
    shown = ", ".join(f"{100 * share:.0f} % ({label})" for label, share in short.items())
    return [f"Too sure of themselves: 90 % {what} only {shown} of the test targets."]


def _advice(top: Entry, best: list[Entry], chosen: Entry | None) -> str:
    if chosen is None:
        return (
            f"{top.label} predicts best here, but its chains have not been seen to agree: with more time it may "
            "predict otherwise. Give it some, by --budget or --effort, before you use it."
        )
    if len(best) == 1:
        return f"Use {chosen.label}: nothing else predicts as well here."
    return f"Use {chosen.label}: as good as the best here, in {chosen.seconds:.1f} s."
