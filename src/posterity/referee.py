"""How far a prediction is from HMC's, and how far HMC is from itself.

classes     agreement: the share of rows with the same most probable class; total variation: 1/2 sum_c |p_c - q_c|
numbers     wasserstein: int_0^1 |F^-1(u) - G^-1(u)| du, in units of HMC's predictive standard deviation at the row,
            from the quantiles at 20 levels: no draw is made, so two equal predictions are at distance 0

Both are means over rows with the standard error of that mean (Izmailov et al. 2021, section 9, for classes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from posterity import metrics
from posterity.metrics import Estimate
from posterity.posterior import Posterior
from posterity.prediction import Prediction
from posterity.streaming import DEFAULT_MEMORY, OutputStream

if TYPE_CHECKING:
    from posterity.comparison import Comparison, Entry

LEVELS = (np.arange(20) + 0.5) / 20
MAX_ROWS = 2000  # more rows would not change the mean by what its standard error already allows
NUM_RESAMPLES = 200
DISTANCE = {"classification": "total_variation", "regression": "wasserstein"}
UNIT = {"classification": "of probability in total variation", "regression": "of HMC's predictive standard deviation"}


@dataclass(frozen=True)
class Referee:
    """A prediction that others at the same rows are held against."""

    reference: Prediction

    @cached_property
    def quantiles(self) -> np.ndarray:
        return quantiles(self.reference)

    def distances(self, prediction: Prediction) -> dict[str, Estimate]:
        """How far a prediction is from the reference."""
        if prediction.kind == "classes":
            return {
                "agreement": metrics.agreement(prediction.probs, self.reference.probs),
                "total_variation": metrics.total_variation(prediction.probs, self.reference.probs),
            }
        scale = self.reference.std
        both = (quantiles(prediction) / scale[:, None], self.quantiles / scale[:, None])
        return {"wasserstein": metrics.wasserstein(*(values.T for values in both))}


def quantiles(prediction: Prediction) -> np.ndarray:
    """Quantiles at LEVELS, [N, Q]; two at a time, which is the program that intervals have compiled already."""
    return np.concatenate([prediction.quantile(pair) for pair in LEVELS.reshape(-1, 2)], -1)


def own_distance(posterior: Posterior, x: Any) -> dict[str, Estimate]:
    """Of one half of a posterior's chains from the other, or of one chain's halves: the floor of what can be seen.

    Empty where a posterior has fewer than two draws.
    """
    family = posterior.family
    draws = np.arange(family.num_draws or 0)
    if len(draws) < 2:
        return {}
    of_chain = draws % family.num_chains < family.num_chains / 2 if family.num_chains > 1 else draws < len(draws) / 2
    halves = [
        Prediction(OutputStream(posterior.model, family, jax.random.key(0), x, chosen, False, DEFAULT_MEMORY))
        for chosen in (draws[of_chain], draws[~of_chain])
    ]
    return Referee(halves[1]).distances(halves[0])


def some_rows(num_rows: int) -> np.ndarray:
    """At most MAX_ROWS rows, evenly spaced."""
    return np.unique(np.linspace(0, num_rows - 1, min(num_rows, MAX_ROWS)).round().astype(int))


def scores(prediction: Prediction, y: np.ndarray) -> dict[str, Estimate]:
    """metrics.evaluate, and with it coverage for classes and calibration for numbers."""
    found = metrics.evaluate(prediction, y)
    if prediction.kind == "classes":
        inside = prediction.prediction_set(0.9)[np.arange(len(y)), y]
        share = float(inside.mean())
        return {**found, "coverage_90": Estimate(share, float(inside.std(ddof=1) / np.sqrt(len(y))))}
    return {**found, "calibration_error": quantile_calibration(quantiles(prediction), y)}


def quantile_calibration(predicted: np.ndarray, y: np.ndarray) -> Estimate:
    """mean_q |share of y under the quantile of level u_q - u_q|, in [0, 1/2] (Kuleshov et al. 2018, absolute).

    `predicted` [N, Q] are the quantiles at LEVELS. Error: standard deviation over 200 bootstrap resamples of the rows.
    """
    below = (y[:, None] <= predicted).astype(float)
    generator, size = np.random.default_rng(0), len(y)
    weights = generator.multinomial(size, np.full(size, 1 / size), NUM_RESAMPLES) / size
    resampled = np.abs(weights @ below - LEVELS).mean(1)
    return Estimate(float(np.abs(below.mean(0) - LEVELS).mean()), float(resampled.std(ddof=1)))


def verdict(comparison: Comparison) -> list[str]:
    """What the numbers of a comparison say: is HMC to be believed, who is near it, who predicts best, what to use."""
    if not comparison.entries:
        return ["No method came to an end, so there is nothing to compare."]
    best = [entry for entry in comparison.entries if _ties_with_best(entry, comparison)]
    return [*_on_hmc(comparison), *_on_scores(comparison, best), *_on_coverage(comparison), _advice(best)]


def _ties_with_best(entry: Entry, comparison: Comparison) -> bool:
    top = min((e.scores["nll"] for e in comparison.entries), key=lambda nll: nll.value)
    return entry.scores["nll"].value <= top.value + (top.standard_error if np.isfinite(top.standard_error) else 0.0)


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
    return {
        "good": f"HMC can be trusted as the referee: its chains agree at every test row looked at{r_hat}.",
        "usable": f"HMC is usable as the referee: its chains agree at nearly every test row looked at{r_hat}.",
    }.get(
        trust["verdict"],
        f"HMC has not converged{r_hat}: do not take distances from it for errors. Give it time: --budget, or --effort.",
    )


def _on_scores(comparison: Comparison, best: list[Entry]) -> list[str]:
    top = min(comparison.entries, key=lambda entry: entry.scores["nll"].value)
    others = [entry.label for entry in best if entry is not top]
    line = f"Best by negative log likelihood is {top.label}, {top.scores['nll']}"
    if others:
        line += f"; within its standard error: {', '.join(others)}"
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
