"""The audit of an approximation: how far its predictions are from those of a reference, usually HMC, at each row.

    classes   total variation, 1/2 sum_c |p_c - q_c|; agreement: is the most probable class the same?
    numbers   Wasserstein distance, int_0^1 |F^-1(u) - G^-1(u)| du, in units of the reference's predictive standard
              deviation, from the quantiles at 20 levels: no draw is made, so two equal predictions are at distance 0

    both      epistemic distance, the Wasserstein distance of what draws predict (means, or probabilities) in units of
              the reference's epistemic standard deviation: much noise hides a wrong ignorance from the distances above

(Izmailov et al. 2021, section 9, for classes). The reference is a sample too: half of its chains are at some distance
from the other half, and an approximation that is no farther away cannot be told from it. Where a prediction has axes
beside rows (pixels, several targets), a row's number is the mean over them.

Whether the two differ beyond chance is a question to chains, which are independent: the means, squared deviations and
noise of single chains are relabelled (permutation.py). So is the epistemic distance, whose floor at a row is what
19 of 20 relabellings do not exceed at any row, in proportion to what is usual at that row. The Monte Carlo error
of each distance is the jackknife's over chains (Efron & Stein 1981).
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
from posterity.metrics.permutation import Comparison
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior
from posterity.posterior.units import chain_units, compare, distance_errors, epistemic
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import DEFAULT_MEMORY, OutputStream

BEYOND_CHANCE = 0.02  # a p-value: at most two false alarms in a hundred audits
TOO_SURE, TOO_WIDE = 0.8, 1.25  # of the reference's ignorance


@dataclass(frozen=True)
class Audit:
    """What an audit found; print it for the words. Arrays are over the rows audited, [N].

    Attributes:
        method: The method that is judged.
        reference: The method it is judged by.
        rows: Each distance at each row, by name.
        ignorance: The epistemic part over the reference's; of numbers, in standard deviations.
        own: Distances of one half of the reference's chains from the other, by name; empty where it has one draw.
        diagnosis: Of the reference, at the same rows.
        differences: Of models and data, in sentences.
        comparison: The permutation of chains. None: one of the two has a single draw, which has no spread to compare.
        quantities: What was permuted, in the order of `comparison.by_quantity`.
        floor: The epistemic distance that chance explains at each row, [N], corrected for the number of rows. None:
            there is no spread to compare.
        monte_carlo_error: Of the mean of each distance, over chains; `distances` has the errors over rows.
    """

    method: str
    reference: str
    rows: dict[str, np.ndarray] = field(repr=False)
    ignorance: np.ndarray = field(repr=False)
    own: dict[str, Estimate]
    diagnosis: Diagnosis
    differences: tuple[str, ...] = ()
    comparison: Comparison | None = field(default=None, repr=False)
    quantities: tuple[str, ...] = ()
    floor: np.ndarray | None = field(default=None, repr=False)
    monte_carlo_error: dict[str, float] = field(default_factory=dict)

    @property
    def different(self) -> bool | None:
        """Whether the two differ beyond chance; None where that cannot be tested."""
        return None if self.comparison is None else self.comparison.p_value <= BEYOND_CHANCE

    @property
    def inputs_beyond_floor(self) -> np.ndarray:
        """Rows where the epistemic distance is more than chance explains at any row in 19 of 20 audits."""
        if self.floor is None:
            return np.zeros(0, int)
        return np.flatnonzero(self.rows["epistemic_distance"] > self.floor)

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
        found = [*_distance_lines(self), *_chance_lines(self), *_ignorance_lines(self), *_trust_lines(self)]
        return "\n".join([heading, *told, *found])


def audit(posterior: Posterior, reference: Posterior, x: Any) -> Audit:
    """Hold an approximation against a reference, on your own model: are its predictions at rows x the posterior's?

    Args:
        posterior: What is judged.
        reference: What it is judged by: HMC or NUTS on the same data, or `Exact`.
        x: Inputs to compare at; those you will predict at, and some unlike the training rows, tell most.

    Examples:
        >>> import numpy as np
        >>> from posterity import MAP, Exact, Gaussian, Laplace, Model, audit, fit, linear
        >>> x = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> model, data = Model(linear(), Gaussian(0.1)), (x, 2.0 * x[:, 0])
        >>> laplace = fit(model, Laplace(start=MAP(num_steps=100)), data)
        >>> bool(audit(laplace, fit(model, Exact(), data), x).distance.max() < 0.01)  # no approximation here
        True
    """
    for name, given in {"posterior": posterior, "reference": reference}.items():
        if not isinstance(given, Posterior):
            raise TypeError(f"{name} is {type(given).__name__}; expected what fit or load returns, a Posterior.")
    if posterior.model.likelihood.kind != reference.model.likelihood.kind:
        raise ValueError(
            f"The posterior predicts {posterior.model.likelihood.kind} and the reference "
            f"{reference.model.likelihood.kind}; audit two posteriors of the same data."
        )
    if posterior.model.likelihood.kind == "heads":
        raise ValueError(
            "An audit is of one target: audit(posterior.head(name), reference.head(name), x) of each head."
        )
    _check_targets(posterior, reference)
    judged, referee = posterior.predict(x), Referee(reference.predict(x))
    power = 1.0 if judged.kind == "classes" else 0.5
    with np.errstate(divide="ignore", invalid="ignore"):  # a reference without ignorance leaves nothing to compare
        ratio = _of_rows(np.asarray(judged.epistemic) / np.asarray(referee.reference.epistemic))
    rows = referee.at_rows(judged)
    inputs = check_inputs(x)
    units = chain_units(posterior, inputs), chain_units(reference, inputs)
    found = epistemic(*units)
    comparison, quantities = compare(*units)
    return Audit(
        type(posterior.method).__name__,
        type(reference.method).__name__,
        rows if found is None else {**rows, "epistemic_distance": found.distance},
        np.where(np.isfinite(ratio), np.abs(ratio), np.nan) ** power,
        own_distance(reference, x),
        reference.diagnose(x),
        _differences(posterior, reference),
        comparison,
        quantities,
        None if found is None else found.floor,
        distance_errors(*units, found),
    )


def _check_targets(posterior: Posterior, reference: Posterior) -> None:
    """Refuse two fits of as many rows with other targets. Stores of earlier versions know no fingerprint."""
    ours, theirs = posterior.receipt, reference.receipt
    known = ours.targets and theirs.targets
    if known and ours.num_data == theirs.num_data and ours.targets != theirs.targets:
        raise ValueError(
            f"The two were fitted to other targets: both to {ours.num_data} rows, with the fingerprints {ours.targets} "
            f"and {theirs.targets}. A distance would say nothing of the approximation: fit both to the same rows, in "
            "the same order."
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
        if name in found.monte_carlo_error:
            floor = f" (Monte Carlo error {found.monte_carlo_error[name]:.2g}){floor}"
        score = SCORES[name]
        lines.append(f"  {score.label}: {mean} {score.unit.format(found.reference)}{floor}")
    name, mean = next(iter(found.distances.items()))
    if (floor := found.own.get(name)) is not None:
        error = np.hypot(mean.standard_error, floor.standard_error)  # over rows: both distances vary with chains
        within = mean.value <= floor.value + 2 * np.nan_to_num(error)
        times = mean.value / floor.value if floor.value > 0 else np.inf
        told = (
            "as near as they are to each other, within two standard errors"
            if within
            else f"{times:.2g} times as far away"
        )
        lines.append(f"  It is {told}. Farthest apart at inputs {', '.join(map(str, found.worst_inputs()))}.")
    return lines


def _chance_lines(found: Audit) -> list[str]:
    """Whether the two differ beyond chance, in what, and where."""
    tested = found.comparison
    if tested is None:
        return ["  One of the two has a single draw: it has no spread, and whether they differ cannot be tested."]
    parts = zip(found.quantities, tested.by_quantity, strict=True)
    apart = ", ".join(f"{name} {p:.2g}" for name, p in parts)
    word = "different beyond chance" if found.different else "not different beyond chance"
    ours, theirs = tested.num_units
    lines = [f"  The two are {word}: p = {tested.p_value:.2g} by relabelling {ours} + {theirs} chains (of {apart})."]
    if found.floor is not None:
        rows = found.inputs_beyond_floor
        count = f"{len(rows)} of {len(found.floor)} inputs"
        lines.append(f"  At {count} the epistemic distance is above the floor of chance, corrected for their number.")
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
