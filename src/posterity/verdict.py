"""What the numbers of a comparison say, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posterity.metrics import mean_over_rows

if TYPE_CHECKING:
    from posterity.comparison import Comparison, Entry

DISTANCE = {"classification": "total_variation", "regression": "wasserstein"}
UNIT = {"classification": "of probability in total variation", "regression": "of HMC's predictive standard deviation"}


def verdict(comparison: Comparison) -> list[str]:
    """What the numbers of a comparison say: is HMC to be believed, who is near it, who predicts best, what to use."""
    if not comparison.entries:
        return ["No method came to an end, so there is nothing to compare."]
    top = min(comparison.entries, key=lambda entry: entry.scores["nll"].value)
    best = [entry for entry in comparison.entries if entry is top or _ties(entry, top, comparison.test[1])]
    return [*_on_hmc(comparison), *_on_scores(top, best), *_on_coverage(comparison), _advice(best)]


def _ties(entry: Entry, top: Entry, y: np.ndarray) -> bool:
    """Whether the test rows cannot tell two methods apart: by the standard error of their difference, row by row.

    Rows that are hard for both make each score uncertain, and say nothing of which is better.
    """
    with np.errstate(invalid="ignore"):  # rows that both hold impossible: no difference to speak of
        behind = mean_over_rows(np.asarray(top.prediction.log_prob(y)) - np.asarray(entry.prediction.log_prob(y)))
    return behind.value <= behind.standard_error or behind.value <= 0


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
        lines.append(f"{line}." + (f" HMC's own halves are {own[0]:.2g} apart: less cannot be seen." if own else ""))
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
        line += f"; within the standard error of the difference: {', '.join(others)}"
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


def _advice(best: list[Entry]) -> str:
    """The quickest of the best that knows its ignorance; a point estimate only where nothing else is as good."""
    knowing = [entry for entry in best if entry.name not in ("mle", "map")] or best
    quickest = min(knowing, key=lambda entry: entry.seconds)
    if len(best) == 1:
        return f"Use {quickest.label}: nothing else predicts as well here."
    return f"Use {quickest.label}: as good as the best here, in {quickest.seconds:.1f} s."
