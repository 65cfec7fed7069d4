"""What was found out about the chains of a posterior, and how to say it. The verdicts:

good            R-hat under 1.01 and, for the centre and for the tails, at least 100 effective draws per chain, at every
                input (Vehtari et al. 2021); at most 1 % of steps diverged
usable          R-hat under 1.1 at 95 % of inputs; at most 10 % of steps diverged
not converged   otherwise, and where a chain is stuck or predicts values that are not finite, or where chains still
                drift in what they predict or in the log joint, whatever R-hat is
undetermined    too few draws, or nothing varies: no number
independent     not a Markov chain: only the Monte Carlo error is left to tell

The mean, the noise and the log joint converge at different speeds and are judged apart too (`parts`), each with what
it misses for a good verdict (missing.py). The verdict on the whole is that on the predictions.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from posterity.metrics import convergence
from posterity.metrics.convergence import MIN_DRAWS, Convergence
from posterity.metrics.missing import Missing

Verdict = Literal["good", "usable", "not converged", "undetermined", "independent"]
GOOD, USABLE, USABLE_SHARE = 1.01, 1.1, 0.95
GOOD_ESS = 100  # effective draws per chain
GOOD_DIVERGENT, USABLE_DIVERGENT = 0.01, 0.1  # shares of the kept steps
LOW_E_BFMI = 0.3
FEW = 100  # effective draws in all
MOST_SHOWN = 16  # chains whose halves are shown one by one
SAMPLE_STATS = {  # what ArviZ calls the numbers a sampler records
    "log_joint": "lp",
    "acceptance": "acceptance_rate",
    "diverged": "diverging",
    "num_gradients": "n_steps",
    "log_likelihood": "total_log_likelihood",  # its log_likelihood is that of each row
}
RESTART = "Restart from other weights, with more burn-in or a smaller step size, before anything is averaged."


@dataclass(frozen=True)
class Part:
    """One of the quantities that chains are judged by: the mean or class probabilities, the noise, the log joint."""

    verdict: Verdict
    """By the rule of the whole, but for divergences, of which no quantity is to blame."""
    r_hat: np.ndarray = field(repr=False)
    """At each input, shaped as `prediction.mean`; one number for the log joint."""
    ess_bulk: np.ndarray = field(repr=False)
    """Effective draws for the centre, in the same shape."""
    ess_tail: np.ndarray = field(repr=False)
    """Effective draws for the tails, in the same shape."""
    missing: Missing = "nothing"
    """What a good verdict lacks: draws, mixing, or burn-in."""
    draws_for_good: float = float("nan")
    """Effective draws at the worst input for an R-hat under 1.01 there, if chains mix."""
    more_draws: int = 0
    """Of each chain, where draws are what is missing; about."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found; print it for the words. Arrays over inputs are shaped as `prediction.mean`, [N, ...].

    Attributes:
        verdict: "good", "usable", "not converged", "undetermined" or "independent".
        num_chains: Chains.
        num_draws: Draws of each chain.
        r_hat: At each input, the larger of that of the mean and of the spread.
        ess_bulk: Effective draws for the centre at each input, of all chains together: the smaller of the two.
        ess_tail: Effective draws for the tails, in the same way.
        monte_carlo_error: Standard error of the predictive mean at each input.
        parts: Verdicts on single quantities, by name: "mean" or "probability", "log_std" (the noise), "log_joint";
            empty with fewer than 8 draws a chain.
        problems: Sentences that name chains.
        doubts: Why it is not good where R-hat alone would let it pass.
        stuck_chains: Chains that do not move.
        odd_chain: The one chain that disagrees with the others. None: there is no such chain.
        acceptance: Mean acceptance probability of each chain, [C]. None: the method has none.
        num_divergences: Divergent steps of each chain, [C]. None: the method records none.
        e_bfmi: Energy's Bayesian fraction of missing information of each chain, [C]. None: no energy is recorded.
        densities: Convergence of the log joint, likelihood and prior, by name.
        weight_space: Convergence of some weights, [W]. None: no draws of weights are stored.
        weight_names: Which weights these are.
        draws: What draws predict, by name, [C, D, N, ...].
        trace: What the sampler recorded at the kept draws, by name, [C, D].
    """

    verdict: Verdict
    num_chains: int
    num_draws: int
    r_hat: np.ndarray = field(repr=False)
    ess_bulk: np.ndarray = field(repr=False)
    ess_tail: np.ndarray = field(repr=False)
    monte_carlo_error: np.ndarray = field(repr=False)
    parts: dict[str, Part] = field(default_factory=dict, repr=False)
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    stuck_chains: tuple[int, ...] = ()
    odd_chain: int | None = None
    acceptance: np.ndarray | None = None
    num_divergences: np.ndarray | None = None
    e_bfmi: np.ndarray | None = None
    densities: dict[str, Convergence] = field(default_factory=dict, repr=False)
    weight_space: Convergence | None = field(default=None, repr=False)
    weight_names: tuple[str, ...] = field(default=(), repr=False)
    draws: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    trace: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def r_hat_of_inputs(self) -> np.ndarray:
        """The largest R-hat at each input, [N]; NaN where every draw gives the same value."""
        return worst_of_inputs(self.r_hat)

    @property
    def missing(self) -> Missing:
        """What a good verdict lacks: burn-in before mixing, mixing before draws, of the worst of the parts."""
        order: tuple[Missing, ...] = ("nothing", "draws", "mixing", "burn-in")
        return order[max((order.index(part.missing) for part in self.parts.values()), default=0)]

    @property
    def halves(self) -> dict[str, np.ndarray]:
        """Means over the first and second half of each chain, [C, 2]: of the log joint, and of the log standard
        deviation of the noise over all inputs. Chains that drift, or are in a region of their own, show here at once.
        """
        watched = {name: self.trace[name] for name in ("log_joint",) if name in self.trace}
        watched |= {name: self.draws[name] for name in ("log_std",) if name in self.draws}
        half = self.num_draws // 2
        cut = (slice(0, half), slice(self.num_draws - half, None))
        return {
            name: np.stack([v[:, part].reshape(len(v), -1).mean(1, dtype=float) for part in cut], 1)
            for name, v in watched.items()
            if half > 0
        }

    def share_under(self, threshold: float) -> float:
        """The share of inputs whose R-hat is under a threshold, of those that have one."""
        return share_under(self.r_hat_of_inputs, threshold)

    def worst_inputs(self, count: int = 5) -> np.ndarray:
        """Rows of x with the largest R-hat, or Monte Carlo error where there is no R-hat; worst first."""
        ranked = self.r_hat_of_inputs
        if np.isnan(ranked).all():
            ranked = worst_of_inputs(self.monte_carlo_error)
        order = np.argsort(-np.where(np.isnan(ranked), -np.inf, ranked), kind="stable")
        return order[: min(count, np.sum(~np.isnan(ranked)))]

    def draws_needed(self, standard_error: float) -> int:
        """How many more draws of each chain would bring the worst standard error of the predictive mean under a value.

        In units of the target, or of probability. The error falls with the square root of the number of draws; of
        chains that have not converged this is a guess.
        """
        if not standard_error > 0:
            raise ValueError(f"standard_error={standard_error} must be above 0, in units of the predictive mean.")
        if self.stuck_chains:
            raise ValueError(f"{_name_chains(self.stuck_chains)} stuck: more draws do not help. {RESTART}")
        if not _means_are_finite(self):
            raise ValueError(
                "Draws that predict values that are not finite cannot tell their own Monte Carlo error: more draws do "
                f"not help. {RESTART}"
            )
        if not np.isfinite(self.monte_carlo_error).all():
            raise ValueError(
                f"{self.num_chains} x {self.num_draws} draws cannot tell their own Monte Carlo error, so it cannot be "
                f"said how many more are needed: run at least {convergence.SHORT} draws per chain."
            )
        ratio = np.square(self.monte_carlo_error.max() / standard_error)
        return max(0, int(np.ceil(self.num_draws * (ratio - 1))))

    def to_dict(self) -> dict[str, dict[str, np.ndarray]]:
        """Plain arrays [C, D, ...] in ArviZ's groups: predicted values under "posterior", the trace as sample_stats."""
        stats = {SAMPLE_STATS.get(name, name): values for name, values in self.trace.items()}
        if "diverging" in stats:
            stats["diverging"] = stats["diverging"] > 0
        return {"posterior": dict(self.draws), "sample_stats": stats}

    def to_arviz(self) -> Any:
        """`to_dict` as ArviZ's own object."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # ArviZ announces its next version when imported
                import arviz  # type: ignore[import-not-found]
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install arviz. The plain arrays are in to_dict().") from error
        groups: dict[str, Any] = {name: values for name, values in self.to_dict().items() if values}
        if hasattr(arviz, "InferenceData"):  # before version 1
            return arviz.from_dict(**groups)
        return arviz.from_dict(groups)

    def __str__(self) -> str:
        return "\n".join(
            [
                _verdict_line(self),
                *self.doubts,
                *_part_lines(self),
                *self.problems,
                *_detail_lines(self),
                *_advice_lines(self),
            ]
        )


def worst_of_inputs(values: np.ndarray) -> np.ndarray:
    """The largest of the values at each input, [N, ...] -> [N]; NaN where there is none."""
    return np.fmax.reduce(values.reshape(len(values), -1), axis=1)


def share_under(values: np.ndarray, threshold: float) -> float:
    """The share of values under a threshold, of those that are known."""
    known = values[~np.isnan(values)]
    return float(np.mean(known < threshold)) if known.size else float("nan")


def _verdict_line(found: Diagnosis) -> str:
    inputs = count_inputs(len(found.r_hat))
    if found.verdict == "independent":
        return "Not a Markov chain: its draws are independent; nothing to diagnose."
    if found.num_draws < MIN_DRAWS and not np.isnan(found.r_hat).all():
        largest = np.nanmax(found.r_hat_of_inputs)
        return (
            f"{found.verdict.capitalize()}: nested R-hat, of groups of short chains that began at the same weights, is "
            f"{largest:.3f} at most."
        )
    if found.num_draws < MIN_DRAWS:
        return (
            f"{found.verdict.capitalize()}: {_count_draws(found.num_draws)} too few for R-hat, which compares "
            f"halves of chains; at least {MIN_DRAWS} are needed, a hundred are useful."
        )
    if np.isnan(found.r_hat_of_inputs).all():
        return f"{found.verdict.capitalize()}: at {inputs} no R-hat exists, {_why_none(found)}."
    largest = np.nanmax(found.r_hat_of_inputs)
    if found.verdict == "good":
        return (
            f"Good: R-hat is under {GOOD} at {inputs}, {largest:.3f} at most, and at least {GOOD_ESS} draws per chain "
            "are effective."
        )
    shares = [f"under {limit} at {100 * found.share_under(limit):.0f} %" for limit in (USABLE, GOOD)]
    return f"{found.verdict.capitalize()}: of {inputs}, R-hat is {' and '.join(shares)}; the largest is {largest:.3g}."


def _part_lines(found: Diagnosis) -> list[str]:
    """Each part by itself, and where it is not good what it misses; then halves of chains, where one is not good."""
    lines = []
    for name, part in found.parts.items():
        if np.isnan(part.r_hat).all():
            continue
        line = f"{in_words(name).capitalize()}: {part.verdict}, R-hat {np.nanmax(part.r_hat):.3f} at most"
        lines.append(f"{line}; {_lack(part)}." if part.missing != "nothing" else f"{line}.")
    if lines and any(part.verdict != "good" for part in found.parts.values()) and found.num_chains <= MOST_SHOWN:
        for name, halves in found.halves.items():
            shown = ", ".join(f"{first:.4g} / {second:.4g}" for first, second in halves)
            lines.append(f"{in_words(name).capitalize()} by chain, first / second half: {shown}.")
    return lines


def _lack(part: Part) -> str:
    if part.missing == "burn-in":
        return "chains still drift: burn-in is missing"
    if part.missing == "mixing":
        return "chains differ by more than draws would mend: mixing is missing"
    return (
        f"draws are missing: about {part.draws_for_good:.0f} effective ones at the worst input, however well chains "
        f"mix, which takes about {part.more_draws} more a chain"
    )


def _why_none(found: Diagnosis) -> str:
    num_bad = int(_non_finite_inputs(found).sum())
    if num_bad == 0:
        return "as every draw predicts the same"
    if num_bad == len(found.r_hat):
        return "as what is predicted is not finite"
    return f"as what is predicted is not finite at {num_bad} of them, and the same in every draw at the others"


def _non_finite_inputs(found: Diagnosis) -> np.ndarray:
    """Inputs [N] at which some draw predicts a value that is not finite."""
    bad = np.zeros(len(found.r_hat), bool)
    for values in found.draws.values():
        bad |= ~np.isfinite(values).all((0, 1)).reshape(len(bad), -1).all(1)
    return bad


def _means_are_finite(found: Diagnosis) -> bool:
    """Of what the Monte Carlo error is: the first of the predicted values."""
    return all(bool(np.isfinite(values).all()) for values in [*found.draws.values()][:1])


def _detail_lines(found: Diagnosis) -> list[str]:
    """Worst inputs, effective draws and error, then what the sampler recorded, then weight space."""
    lines = []
    worst = found.worst_inputs()
    if found.odd_chain is not None:
        lines.append(f"Chain {found.odd_chain} disagrees with the others; without it they agree.")
    if worst.size and not np.isnan(found.r_hat_of_inputs).all():
        shown = ", ".join(f"{row} ({found.r_hat_of_inputs[row]:.3g})" for row in worst)
        lines.append(f"Worst inputs, by row of x (R-hat): {shown}.")
    num_same = int(np.isnan(found.r_hat_of_inputs).sum())
    if 0 < num_same < len(found.r_hat) and not found.problems:
        lines.append(f"At {count_inputs(num_same)} every draw predicts the same; they are left out.")
    if np.isfinite(found.ess_bulk).any():
        lines.append(
            f"Of {found.num_chains} x {found.num_draws} draws, at the worst input {np.nanmin(found.ess_bulk):.0f} "
            f"effective ones for the centre and {np.nanmin(found.ess_tail):.0f} for the tails."
            + (" R-hat itself is uncertain with so few." if np.nanmin(found.ess_bulk) < FEW else "")
        )
    lines += [_error_line(found), *_sampler_lines(found)]
    if found.weight_space is not None:
        lines.append(
            f"Weight space, which says little as weights can be swapped: R-hat under {USABLE} for "
            f"{100 * share_under(found.weight_space.r_hat, USABLE):.0f} % of {len(found.weight_names)} weights."
        )
    return lines


def _error_line(found: Diagnosis) -> str:
    if found.num_draws == 0:
        return "The prediction is a closed form: it has no Monte Carlo error."
    if np.isnan(found.monte_carlo_error).all() and not _means_are_finite(found):
        return "Monte Carlo error of the predictive mean: not known, as what is predicted is not finite."
    if np.isnan(found.monte_carlo_error).all():
        size = "one draw" if found.num_draws == 1 else f"one chain of {found.num_draws} draws"
        return f"Monte Carlo error of the predictive mean: {size} cannot tell."
    flat = worst_of_inputs(found.monte_carlo_error)
    line = (
        f"Monte Carlo error of the predictive mean: {np.nanmax(flat):.2g} at most (row {np.nanargmax(flat)}), "
        f"{np.nanmedian(flat):.2g} at a typical row."
    )
    if found.stuck_chains or not np.isfinite(found.monte_carlo_error).all():
        return line
    more = found.draws_needed(np.max(flat) / 2) if flat.any() else 0
    return (
        f"{line} Halving it takes {more} more draws per chain; draws_needed(standard_error) tells for any other value."
    )


def _sampler_lines(found: Diagnosis) -> list[str]:
    lines = []
    if found.acceptance is not None:
        lines.append(f"Acceptance by chain: {', '.join(f'{value:.2f}' for value in found.acceptance)}.")
    if found.num_divergences is not None and not found.num_divergences.any():
        lines.append("No divergences.")
    for name, one in found.densities.items():
        lines.append(f"{in_words(name).capitalize()}: R-hat {one.r_hat:.3g}, {one.ess_bulk:.0f} effective draws.")
    if found.e_bfmi is not None:
        lines.append(f"E-BFMI of the energy by chain: {', '.join(f'{value:.2f}' for value in found.e_bfmi)}.")
        slow = [chain for chain, value in enumerate(found.e_bfmi) if value < LOW_E_BFMI]
        if slow:
            lines.append(
                f"{_name_chains(slow)} slow to change energy (E-BFMI under {LOW_E_BFMI}): tails are explored poorly; "
                "more draws, or a narrower prior, help."
            )
    return lines


def _advice_lines(found: Diagnosis) -> list[str]:
    lines = []
    if found.verdict == "independent":
        return ["More independent draws are cheap: predict(x, num_draws=...)."] if found.num_draws > 1 else []
    if found.num_chains == 1 and found.num_draws >= MIN_DRAWS:
        lines.append(
            "One chain alone: R-hat compares its two halves. That is weaker: what the chain never visited cannot be "
            "seen; run chains=4."
        )
    if found.stuck_chains:
        lines.append(f"What to do: do not use this average. {RESTART}")
    elif found.verdict == "not converged":
        lines.append(
            "What to do: do not average yet. Run more burn-in and more draws; restart any chain that stays apart from "
            "the others."
        )
    elif found.verdict == "usable" and np.nanmin(found.ess_tail, initial=np.inf) < FEW:
        lines.append("What to do: run more draws; with so few effective ones R-hat and intervals are rough.")
    elif found.verdict == "usable":
        lines.append("What to do: fine for means and intervals; as a reference for other methods, run more draws.")
    elif found.verdict == "undetermined":
        lines.append("What to do: run more draws, or give other inputs.")
    return lines


def _count_draws(count: int) -> str:
    return "1 draw per chain is" if count == 1 else f"{count} draws per chain are"


def _name_chains(chosen: Sequence[int]) -> str:
    shown = ", ".join(map(str, chosen))
    return f"Chain {shown} is" if len(chosen) == 1 else f"Chains {shown} are"


def in_words(name: str) -> str:
    return {"log_std": "log standard deviation"}.get(name, name.replace("_", " "))


def count_inputs(count: int) -> str:
    return "1 input" if count == 1 else f"{count} inputs"
