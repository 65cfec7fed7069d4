"""Which model do the data support? Log evidence and leave-one-out side by side, and where they disagree.

    log evidence    log p(y) = log of the mean likelihood over the prior: how well the model predicts the rows one
                    after the other, beginning from its prior
    leave-one-out   sum_n log p(y_n | all other rows): how well it predicts a row once it has learned from the others

The evidence asks about the prior too, and a vague one costs it much that a trained model never feels; so the two can
disagree, and then leave-one-out is the guide for predictions (Lotfi et al. 2022, arXiv 2202.11678).
Differences of leave-one-out are paired, row by row: their error is sqrt(N) times the standard deviation of the rows'.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from posterity.data.arrays import dataset
from posterity.inference.engine.driver import fit
from posterity.inference.methods.exact import Exact
from posterity.inference.methods.method import Method
from posterity.inference.methods.smc import SMC
from posterity.metrics import Estimate
from posterity.metrics.loo import LeaveOneOut, leave_one_out, sum_over_rows
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior

NUM_DRAWS = 1_000  # where draws are made afresh
SMALLEST = 1.0  # nats: a smaller difference of log evidence is not worth more than a bare mention (Kass & Raftery 1995)


@dataclass(frozen=True)
class ModelComparison:
    """Models by name, best leave-one-out first; print it."""

    log_evidence: dict[str, Estimate]
    """In nats, with the Monte Carlo error of the method; NaN where it knows none, as Laplace, an approximation."""
    loo: dict[str, LeaveOneOut]
    """Leave-one-out log probabilities of the rows."""
    posteriors: dict[str, Posterior]
    """The fits."""

    @property
    def names(self) -> list[str]:
        return list(self.loo)

    def evidence_difference(self, first: str, second: str) -> Estimate:
        """log evidence of the first less that of the second: the log Bayes factor."""
        one, other = self.log_evidence[first], self.log_evidence[second]
        return Estimate(one.value - other.value, float(np.hypot(one.standard_error, other.standard_error)))

    def loo_difference(self, first: str, second: str) -> Estimate:
        """Leave-one-out of the first less that of the second, over the same rows."""
        return sum_over_rows(self.loo[first].log_prob - self.loo[second].log_prob)

    @property
    def conflicts(self) -> list[tuple[str, str]]:
        """Pairs of which leave-one-out prefers the first and the evidence the second, both beyond their errors."""
        return [pair for pair in itertools.permutations(self.names, 2) if self._disagree(*pair)]

    def _disagree(self, by_loo: str, by_evidence: str) -> bool:
        left, right = self.loo_difference(by_loo, by_evidence), self.evidence_difference(by_evidence, by_loo)
        known = 0.0 if np.isnan(right.standard_error) else right.standard_error
        return left.value > 2 * left.standard_error and right.value > max(2 * known, SMALLEST)

    def __str__(self) -> str:
        best, width = self.names[0], max(map(len, self.names))
        lines = [f"{'':{width}}  leave-one-out        less the best        log evidence         rows of high Pareto k"]
        for name, one in self.loo.items():
            cells = str(one.total), str(self.loo_difference(name, best)), str(self.log_evidence[name])
            shown = "  ".join(f"{cell:19}" for cell in cells)
            lines.append(f"{name:{width}}  {shown}  {one.num_unreliable} of {len(one.log_prob)}")
        for by_loo, by_evidence in self.conflicts:
            lines.append(
                f"They disagree: leave-one-out prefers {by_loo} to {by_evidence} by "
                f"{self.loo_difference(by_loo, by_evidence)} nats, the evidence {by_evidence} to {by_loo} by "
                f"{self.evidence_difference(by_evidence, by_loo)}. The evidence also judges the prior; for predictions "
                "follow leave-one-out (Lotfi et al. 2022)."
            )
        if any(one.num_unreliable for one in self.loo.values()):
            lines.append("Rows of high Pareto k decide too much: their leave-one-out is not to be believed.")
        return "\n".join(lines)


def compare_models(
    models: Mapping[str, Model], data: Any, method: Method | None = None, *, seed: int = 0, chains: int | None = None
) -> ModelComparison:
    """Fit several models to the same rows, and compare their log evidence and leave-one-out log probabilities.

    Args:
        models: By name: other widths, depths, priors, likelihoods of the same target.
        data: `(x, y)`.
        method: One that gives a log evidence: `SMC()`, by default; `Laplace()`, a quicker approximation; `Exact()`.
        seed: Of all fits.
        chains: As of `fit`: islands of SMC, whose spread gives the error of the evidence.

    Examples:
        >>> import numpy as np
        >>> from posterity import Exact, Gaussian, Model, Normal, compare_models, linear
        >>> x = np.linspace(-1.0, 1.0, 30)[:, None]
        >>> y = 0.3 * x[:, 0] + 0.1 * np.cos(40 * x[:, 0])
        >>> noise = {f"noise {scale}": Model(linear(), Gaussian(scale)) for scale in (0.07, 0.7)}
        >>> found = compare_models(noise, (x, y), Exact())
        >>> found.names, found.conflicts
        (['noise 0.07', 'noise 0.7'], [])
    """
    if len(models) < 2:
        raise ValueError(f"There is {len(models)} model; give at least two by name, as {{'narrow': ..., 'wide': ...}}.")
    chosen = SMC() if method is None else method
    evidence, loo, posteriors = {}, {}, {}
    for name, model in models.items():
        rows = dataset(data, model.likelihood)
        if (rows.weight != 1).any():
            raise ValueError("Rows with weights cannot be left out one by one; give (x, y) alone.")
        posterior = fit(model, chosen, rows, seed=seed, chains=chains, progress=False)
        if "log_evidence" not in posterior.facts:
            raise ValueError(f"{type(chosen).__name__} gives no log evidence; use SMC(), Laplace() or Exact().")
        evidence[name] = _evidence(posterior)
        loo[name] = _leave_one_out(posterior, rows.x, rows.y, seed)
        posteriors[name] = posterior
    order = sorted(loo, key=lambda name: -loo[name].total.value)
    return ModelComparison(*({name: part[name] for name in order} for part in (evidence, loo, posteriors)))


def _evidence(posterior: Posterior) -> Estimate:
    half = posterior.facts.get("log_evidence_error")  # of a 95 % interval
    unknown = 0.0 if isinstance(posterior.method, Exact) else float("nan")
    return Estimate(posterior.facts["log_evidence"], unknown if half is None else half / 2)


def _leave_one_out(posterior: Posterior, x: Any, y: np.ndarray, seed: int) -> LeaveOneOut:
    count = NUM_DRAWS if posterior.family.num_draws is None else None
    prediction = posterior.predict(x, num_draws=count, seed=seed, closed_form=False)
    log_likelihood = prediction.draw_log_probs(y).astype(float)
    error = prediction.error_over_draws(log_likelihood)
    spread = log_likelihood.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        effective = np.nanmedian(np.square(spread / error)) if (error > 0).any() else len(log_likelihood)
    return leave_one_out(log_likelihood, float(min(effective / len(log_likelihood), 1.0)))
