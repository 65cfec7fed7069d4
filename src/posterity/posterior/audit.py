"""The audit of an approximation: how far its predictions are from those of a reference, usually HMC, at each row.

    classes   total variation, 1/2 sum_c |p_c - q_c|; agreement: is the most probable class the same?
    numbers   Wasserstein distance, int_0^1 |F^-1(u) - G^-1(u)| du, in units of the reference's predictive standard
              deviation, from the quantiles at 20 levels: no draw is made, so two equal predictions are at distance 0

(Izmailov et al. 2021, section 9, for classes). The reference is a sample too: half of its chains are at some distance
from the other half, and an approximation that is no farther away cannot be told from it. Where a prediction has axes
beside rows (pixels, several targets), a row's number is the mean over them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from posterity import metrics
from posterity.data.arrays import check_inputs
from posterity.metrics import SCORES, Estimate
from posterity.metrics.numbers import LEVELS
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import DEFAULT_MEMORY, OutputStream

TOO_SURE, TOO_WIDE = 0.8, 1.25  # of the reference's ignorance


@dataclass(frozen=True)
class Audit:
    """What an audit found; print it for the words. Arrays are over the rows audited, [N]."""

    method: str
    reference: str
    rows: dict[str, np.ndarray] = field(repr=False)  # each distance at each row
    ignorance: np.ndarray = field(repr=False)  # epistemic part over the reference's; of numbers, standard deviations
    own: dict[str, Estimate]  # of one half of the reference's chains from the other; empty where it has one draw
    diagnosis: Diagnosis  # of the reference at the same rows
    differences: tuple[str, ...] = ()  # of models and data, in words

    @property
    def distances(self) -> dict[str, Estimate]:
        """Means over rows, with the standard errors they have from the choice of rows."""
        return {name: metrics.mean_over_rows(values) for name, values in self.rows.items()}

    @property
    def distance(self) -> np.ndarray:
        """Total variation or Wasserstein distance at each row, [N]."""
        return next(iter(self.rows.values()))

    def worst_inputs(self, count: int = 5) -> np.ndarray:
        """Rows of x where the two are farthest apart, farthest first."""
        return np.argsort(-self.distance, kind="stable")[:count]

    def __str__(self) -> str:
        heading = f"{self.method} against {self.reference} at {len(self.distance)} inputs"
        told = [f"  {sentence}" for sentence in self.differences]
        return "\n".join([heading, *told, *_distance_lines(self), *_ignorance_lines(self), *_trust_lines(self)])


def audit(posterior: Posterior, reference: Posterior, x: Any) -> Audit:
    """Hold an approximation against a reference, on your own model: are its predictions at rows x the posterior's?

    Args:
        posterior: What is judged.
        reference: What it is judged by: HMC or NUTS on the same data, or `Exact`.
        x: Inputs to compare at; those you will predict at, and some unlike the training rows, tell most.
    """
    for name, given in {"posterior": posterior, "reference": reference}.items():
        if not isinstance(given, Posterior):
            raise TypeError(f"{name} is {type(given).__name__}; expected what fit or load returns, a Posterior.")
    if posterior.model.likelihood.kind != reference.model.likelihood.kind:
        raise ValueError(
            f"The posterior predicts {posterior.model.likelihood.kind} and the reference "
            f"{reference.model.likelihood.kind}; audit two posteriors of the same data."
        )
    judged, referee = posterior.predict(x), Referee(reference.predict(x))
    power = 1.0 if judged.kind == "classes" else 0.5
    with np.errstate(divide="ignore", invalid="ignore"):  # a reference without ignorance leaves nothing to compare
        ratio = _of_rows(np.asarray(judged.epistemic) / np.asarray(referee.reference.epistemic))
    return Audit(
        type(posterior.method).__name__,
        type(reference.method).__name__,
        referee.at_rows(judged),
        np.where(np.isfinite(ratio), np.abs(ratio), np.nan) ** power,
        own_distance(reference, x),
        reference.diagnose(x),
        _differences(posterior, reference),
    )


def _differences(posterior: Posterior, reference: Posterior) -> tuple[str, ...]:
    """What of model and data is not the same: a distance then says less of the approximation."""
    both = (posterior, reference)
    told = {
        "numbers of rows": [one.receipt.num_data for one in both],
        "priors": [one.receipt.prior for one in both],
        "likelihoods": [repr(one.model.likelihood) for one in both],
        "temperatures": [_temperature(one) for one in both],
    }
    return tuple(
        f"The two have different {name}, {judged} and {referee}, so that they would differ if both were exact."
        for name, (judged, referee) in told.items()
        if judged != referee and None not in (judged, referee)
    )


def _temperature(posterior: Posterior) -> str | None:
    """The one that was aimed at, and what it tempers, which at 1 is the same; None for a method that has none."""
    receipt = posterior.receipt
    if isinstance(receipt.temperature, str):
        return None
    return "1" if receipt.temperature == 1 else f"{receipt.temperature:g} ({receipt.tempering})"


@dataclass(frozen=True)
class Referee:
    """A prediction that others at the same rows are held against."""

    reference: Prediction

    @cached_property
    def quantiles(self) -> np.ndarray:
        return self.reference.quantile(LEVELS)

    def at_rows(self, prediction: Prediction) -> dict[str, np.ndarray]:
        """How far a prediction is from the reference at each row, [N]."""
        shapes = prediction.mean.shape, self.reference.mean.shape
        if shapes[0] != shapes[1]:
            raise ValueError(f"The predictions have shapes {shapes[0]} and {shapes[1]}; give both the same rows.")
        if prediction.kind == "classes":
            both = [_flat(one.probs) for one in (prediction, self.reference)]
            apart = {
                "total_variation": metrics.total_variation_rows(*both),
                "agreement": metrics.agreement_rows(*both),
            }
        else:
            scale = self.reference.std[..., None]
            both = [_flat(values / scale).T for values in (prediction.quantile(LEVELS), self.quantiles)]
            apart = {"wasserstein": metrics.wasserstein_rows(*both)}
        return {name: _of_rows(values.reshape(len(prediction.mean), -1)) for name, values in apart.items()}

    def distances(self, prediction: Prediction) -> dict[str, Estimate]:
        """Means over rows."""
        return {name: metrics.mean_over_rows(values) for name, values in self.at_rows(prediction).items()}


def own_distance(posterior: Posterior, x: Any) -> dict[str, Estimate]:
    """Of one half of a posterior's chains from the other, or of one chain's halves: the floor of what can be seen.

    Empty where a posterior has fewer than two draws, or is no sample at all.
    """
    family, inputs = posterior.family, check_inputs(x)
    draws = np.arange(family.num_draws or 0)
    if len(draws) < 2:
        return {}
    of_chain = draws % family.num_chains < family.num_chains / 2 if family.num_chains > 1 else draws < len(draws) / 2
    halves = [
        Prediction(OutputStream(posterior.model, family, jax.random.key(0), inputs, chosen, False, DEFAULT_MEMORY))
        for chosen in (draws[of_chain], draws[~of_chain])
    ]
    return Referee(halves[1]).distances(halves[0])


def _flat(values: np.ndarray) -> np.ndarray:
    """Rows and all axes but the last as one."""
    return values.reshape(-1, values.shape[-1])


def _of_rows(values: np.ndarray) -> np.ndarray:
    """The mean of each row."""
    return values.reshape(len(values), -1).mean(1)


def _distance_lines(found: Audit) -> list[str]:
    lines = []
    for name, mean in found.distances.items():
        floor = f"; {found.reference}'s own halves: {found.own[name]}" if name in found.own else ""
        score = SCORES[name]
        lines.append(f"  {score.label}: {mean} {score.unit.format(found.reference)}{floor}")
    name, mean = next(iter(found.distances.items()))
    if (floor := found.own.get(name)) is not None:
        error = np.hypot(mean.standard_error, floor.standard_error)
        within = mean.value <= floor.value + 2 * np.nan_to_num(error)
        times = mean.value / floor.value if floor.value > 0 else np.inf
        told = (
            "as near as they are to each other, within two standard errors"
            if within
            else f"{times:.2g} times as far away"
        )
        lines.append(f"  It is {told}. Farthest apart at inputs {', '.join(map(str, found.worst_inputs()))}.")
    return lines


def _ignorance_lines(found: Audit) -> list[str]:
    known = found.ignorance[~np.isnan(found.ignorance)]
    if not known.size:
        return []
    low, middle, high = np.quantile(known, [0.05, 0.5, 0.95])
    word = "too sure" if middle < TOO_SURE else "too unsure" if middle > TOO_WIDE else "about right"
    range_of_ratios = f"between {low:.2g} and {high:.2g} at nine inputs of ten"
    return [f"  Its ignorance is {middle:.2g} of {found.reference}'s at the median input, {range_of_ratios}: {word}."]


def _trust_lines(found: Audit) -> list[str]:
    verdict, doubts = found.diagnosis.verdict, found.diagnosis.doubts
    told = {
        "good": f"{found.reference} has converged at these inputs.",
        "usable": f"{found.reference} is a usable judge: its chains agree at nearly all of these inputs.",
        "independent": f"{found.reference} is no Markov chain: whether it is the truth is for you to know.",
    }
    doubt = f"{found.reference} is no judge yet ({verdict}): run it longer before you believe a distance from it."
    return [f"  {told.get(verdict, doubt)}", *(f"  {sentence}" for sentence in doubts)]
