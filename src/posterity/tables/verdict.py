"""What the numbers of a comparison say, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.metrics import mean_over_rows

if TYPE_CHECKING:
    from posterity.tables.comparison import Comparison, Entry

DISTANCE = {"classification": "total_variation", "regression": "wasserstein"}
MIN_TEST_ROWS = 20  # fewer tell methods apart by chance
POINTS = ("mle", "map")  # they know nothing of their ignorance
TRUSTED = ("good", "usable", "independent")  # of the verdicts on chains
UNIT = {"classification": "of probability in total variation", "regression": "of HMC's predictive standard deviation"}


def verdict(comparison: Comparison) -> list[str]:
    """What the numbers of a comparison say: is HMC to be believed, who is near it, who predicts best, what to use."""
    if not comparison.entries:
        return ["No method came to an end, so there is nothing to compare."]
    top, best = _top(comparison), _best(comparison)
    told = [*_on_hmc(comparison), *_on_scores(top, best)]
    if _has_few_rows(comparison):
        few = f"{len(comparison.test[1])} test rows are too few to say which method to use"
        return [*told, f"{few}: give at least {MIN_TEST_ROWS}, by more rows or a larger --test-share."]
    return [*told, *_on_coverage(comparison), _advice(top, best, recommended(comparison))]


def recommended(comparison: Comparison) -> Entry | None:
    """The quickest of the best that knows its ignorance; a point estimate only where no other can be trusted.

    None where test rows are too few to choose by, or where none of the best has chains that agree.
    """
    if not comparison.entries or _has_few_rows(comparison):
        return None
    trusted = [entry for entry in _best(comparison) if entry.convergence in TRUSTED]
    knowing = [entry for entry in trusted if entry.name not in POINTS]
    return min(knowing or trusted, key=lambda entry: entry.seconds, default=None)


def _has_few_rows(comparison: Comparison) -> bool:
    return len(comparison.test[1]) < MIN_TEST_ROWS


def _top(comparison: Comparison) -> Entry:
    return min(comparison.entries, key=lambda entry: entry.scores["nll"].value)


def _best(comparison: Comparison) -> list[Entry]:
    """The one of the best score, and those that the test rows cannot tell from it."""
    top = _top(comparison)
    return [entry for entry in comparison.entries if entry is top or _ties(entry, top, comparison.test[1])]


def _ties(entry: Entry, top: Entry, y: np.ndarray) -> bool:
    """Whether test rows cannot tell two methods apart: by two standard errors of their difference, row by row.

    Rows that are hard for both make each score uncertain, and say nothing of which is better.
    """
    with np.errstate(invalid="ignore"):  # rows that both hold impossible: no difference to speak of
        behind = mean_over_rows(np.asarray(top.prediction.log_prob(y)) - np.asarray(entry.prediction.log_prob(y)))
    return behind.value <= 2 * behind.standard_error or behind.value <= 0


def _on_hmc(comparison: Comparison) -> list[str]:
    trust = comparison.settings.get("reference")
    if trust is None:
        return ["Without HMC there is no referee: scores tell who predicts well, not who is right."]
    name = DISTANCE[comparison.task]
    others = [entry for entry in comparison.entries if name in entry.referee]
    lines = [_trust_line(trust)]
    if others:
        nearest = min(others, key=lambda entry: entry.referee[name].value)
        farthest = max(others, key=lambda entry: entry.referee[name].value)
        line = f"Nearest to HMC is {nearest.label}, {nearest.referee[name]} {UNIT[comparison.task]} away"
        if farthest is not nearest:
            line += f"; farthest is {farthest.label}, {farthest.referee[name].value:.2g}"
        own = trust["own_distance"].get(name)
        lines.append(f"{line}.")
        if own:
            lines[-1] += f" HMC's own halves are {own[0]:.2g} apart: smaller distances cannot be told from chance."
    return lines


def _trust_line(trust: dict[str, Any]) -> str:
    r_hat = "" if trust["r_hat"] is None else f" (its largest R-hat is {trust['r_hat']:.3g})"
    told = {
        "good": f"HMC can be trusted as the referee: its chains agree at every test row looked at{r_hat}.",
        "usable": f"HMC is usable as the referee: its chains agree at nearly every test row looked at{r_hat}.",
    }.get(
        trust["verdict"],
        f"HMC has not converged{r_hat}: do not take distances from it for errors. Give it time: --budget, or --effort.",
    )
    return " ".join([told, *trust.get("doubts", ())])


def _on_scores(top: Entry, best: list[Entry]) -> list[str]:
    others = [entry.label for entry in best if entry is not top]
    line = f"Best by negative log likelihood is {top.label}, {top.scores['nll']}"
    if others:
        line += f"; within two standard errors of the difference: {', '.join(others)}"
    return [f"{line}."]


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
