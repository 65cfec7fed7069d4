"""Have the chains converged? Asked of the function they sample.

Weights of a network can be swapped without changing the function, so chains that agree on every prediction may disagree
on every weight. R-hat and effective numbers of draws (convergence.py) are therefore those of what is predicted at given
inputs, draw by draw: the target's mean and the log of its standard deviation, or the probabilities of classes; then of
the log joint, likelihood and prior; and, labelled as weight space, of some weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.types import Array, Family
from posterity.data.arrays import evenly_spaced
from posterity.metrics import convergence, missing
from posterity.metrics.convergence import MIN_DRAWS, Convergence
from posterity.models.censored import uncensored
from posterity.models.heads import Heads
from posterity.models.likelihoods import class_probs
from posterity.models.units import without_units
from posterity.posterior.diagnosis import (
    GOOD,
    GOOD_DIVERGENT,
    GOOD_ESS,
    USABLE,
    USABLE_DIVERGENT,
    USABLE_SHARE,
    Diagnosis,
    Part,
    Verdict,
    count_inputs,
    in_words,
    worst_of_inputs,
)
from posterity.posterior.trace import Trace
from posterity.prediction.streaming import DEFAULT_MEMORY, Components, OutputStream
from posterity.prediction.uncertainty import elementwise
from posterity.weights.on_disk import StoredArray

if TYPE_CHECKING:
    from posterity.posterior.posterior import Posterior

STUCK_ACCEPTANCE = 0.01
MAX_WEIGHTS = 100
DENSITIES = ("log_joint", "log_likelihood", "log_prior")


def diagnose(posterior: Posterior, x: Any, *, seed: int = 0, memory: int = DEFAULT_MEMORY) -> Diagnosis:
    """How far the chains of a posterior agree on what they predict at rows x; a few hundred rows tell enough."""
    family = posterior.family
    prediction = posterior.predict(x, seed=seed, memory=memory)
    stream = prediction._stream
    num_chains = family.num_chains
    if stream.closed_form:
        return _without_chains(num_chains, 0, prediction.mean.shape, {})
    num_draws = prediction.num_draws // num_chains
    draws = {name: _by_chain(values, num_chains) for name, values in _predicted(stream).items()}
    if "log_std" in draws and (draws["log_std"] == draws["log_std"][:1, :1]).all():
        del draws["log_std"]  # a known noise
    if family.num_draws is None or (num_draws == 1 and not _is_sampled(posterior)):
        return _without_chains(num_chains, num_draws, next(iter(draws.values())).shape[2:], draws)
    names, weights = _some_weights(family)
    kept, steps = _kept_trace(posterior.trace, num_draws)
    if not posterior.method.adjusted:  # nothing is ever rejected: an acceptance of 1 says nothing
        kept = {name: values for name, values in kept.items() if name not in ("acceptance", "accepted")}
    return _of_chains(draws, kept, steps, weights, names, _num_starts(posterior))


def density_parts(posterior: Posterior) -> dict[str, Part]:
    """The log joint of Markov chains by itself, from what they recorded: nothing is predicted.

    Empty where there are no chains, fewer than 8 draws of each, or only means over several steps.
    """
    family = posterior.family
    if not has_chains(posterior):
        return {}
    kept, steps = _kept_trace(posterior.trace, (family.num_draws or 0) // family.num_chains)
    if steps > 1 or "log_joint" not in kept:
        return {}
    values = kept["log_joint"][:, :, None]
    return {"log_joint": _part(convergence.convergence(values), values, family.num_chains)}


def has_chains(posterior: Posterior) -> bool:
    """Whether there are Markov chains, with draws enough for an R-hat."""
    family = posterior.family
    enough = (family.num_draws or 0) // family.num_chains >= MIN_DRAWS
    return enough and _is_sampled(posterior)


def _is_sampled(posterior: Posterior) -> bool:
    """Whether the draws are of Markov chains: members of an ensemble are the ends of descents instead."""
    if posterior.method is None:
        return False
    return any(phase.keep and not phase.adapt for phase in posterior.method.plan(posterior.receipt.num_data))


def _num_starts(posterior: Posterior) -> int:
    """How many different weights the chains began at, in turn; as many as there are chains where nothing shows it."""
    from posterity.posterior.posterior import Posterior  # which imports this module

    start = None if posterior.method is None else posterior.method.start
    return (start if isinstance(start, Posterior) else posterior).family.num_chains


def _predicted(stream: OutputStream) -> dict[str, np.ndarray]:
    """What each draw predicts at each row, in the units of the target, which float32 may not hold."""
    given = uncensored(stream.model.likelihood)
    likelihood, shift, scale = without_units(given)
    found = stream.map(predicted, model=records.replace(stream.model, likelihood=likelihood))
    if "log_std" not in found:
        return found
    # In this order, which a pytree does not keep: the mean comes first, and errors are those of the first.
    if likelihood is given:
        return {"mean": found["mean"], "log_std": found["log_std"]}
    return {"mean": shift + scale * found["mean"].astype(float), "log_std": np.log(scale) + found["log_std"]}


def predicted(model: Any, block: Components) -> dict[str, Array]:
    """What each draw predicts, [n, S, ...]: probabilities of classes, or mean and log standard deviation."""
    if isinstance(model.likelihood, Heads):
        return {"probability or mean": _of_heads(model, model.likelihood, block)}
    marginal = block.marginal(model)
    if model.likelihood.kind == "classes":
        return {"probability": jnp.moveaxis(class_probs(marginal), 0, 1)}
    single = elementwise(marginal)
    values = {"mean": single.mean, "log_std": jnp.log(single.variance) / 2}
    return {name: jnp.moveaxis(jnp.broadcast_to(v, single.batch_shape), 0, 1) for name, v in values.items()}


def _of_heads(model: Any, heads: Heads, block: Components) -> Array:
    """Probabilities and means of all heads, side by side, [n, S, ..., Q]; each noise is left out."""
    parts = []
    for name in heads.names:
        of_head = records.replace(model, likelihood=uncensored(heads.head(name)))
        found = predicted(of_head, block)
        value = found.get("mean", found.get("probability"))
        assert value is not None
        single = value.ndim == block.outputs.ndim - 1  # one number a place, without an axis of its own
        parts.append(value[..., None] if single else value)
    return jnp.concatenate(parts, -1)


def _by_chain(values: np.ndarray, num_chains: int) -> np.ndarray:
    """[N, S, ...] -> [C, D, N, ...]."""
    num_rows, num_draws, *shape = values.shape
    return np.moveaxis(values.reshape(num_rows, num_draws // num_chains, num_chains, *shape), (2, 1), (0, 1))


def _without_chains(num_chains: int, num_draws: int, shape: tuple[int, ...], draws: dict[str, np.ndarray]) -> Diagnosis:
    """Independent draws, or a closed form, which has no Monte Carlo error."""
    none = np.full(shape, np.nan)
    error = np.zeros(shape)
    if draws:
        flat = next(iter(draws.values())).reshape(num_chains * num_draws, *shape).astype(float)
        with np.errstate(invalid="ignore"):  # not finite in, NaN out
            error = convergence.honest_error(flat[:, None]) if len(flat) > 1 else none
    return Diagnosis("independent", num_chains, num_draws, none, none, none, error, draws=draws)


def _of_chains(
    draws: dict[str, np.ndarray],
    trace: dict[str, np.ndarray],
    steps: int,
    weights: np.ndarray | None,
    names: tuple[str, ...],
    num_starts: int | None = None,
) -> Diagnosis:
    """The diagnosis of Markov chains; `steps` of the sampler make one stride of the trace.

    `num_starts`: how many weights the chains began at, where several began at the same.
    """
    main = next(iter(draws.values()))
    num_chains, num_draws, *shape = main.shape
    if steps > 1:  # strides are then means over steps, which say nothing of the draws' own densities
        trace = {name: values for name, values in trace.items() if name not in (*DENSITIES, "energy")}
    acceptance = trace["acceptance"].mean(1, dtype=float) if "acceptance" in trace else None
    divergences = (trace["diverged"].sum(1) * steps).round().astype(int) if "diverged" in trace else None
    stuck, problems = _find_stuck(main, weights, acceptance)
    problems += _find_non_finite(draws) + _find_divergent(divergences, num_draws * steps)
    odd, densities, weight_space, parts = None, {}, None, {}
    if num_draws < MIN_DRAWS:
        none = np.full(shape, np.nan)
        nested = num_starts is not None and 2 <= num_starts < num_chains and num_chains % num_starts == 0
        r_hats = [convergence.nested_r_hat(v, num_starts) for v in draws.values()] if nested and num_starts else [none]
        found = Convergence(np.fmax.reduce(r_hats), none, none, none)
    else:
        each = {name: convergence.convergence(values) for name, values in draws.items()}
        found = _worst_of([*each.values()])
        odd = None if stuck else convergence.find_odd_chain(main, USABLE, USABLE_SHARE)
        densities = {name: convergence.convergence(trace[name]) for name in DENSITIES if name in trace}
        weight_space = None if weights is None else convergence.convergence(weights)
        joint = {name: trace[name][:, :, None] for name in ("log_joint",) if name in trace}
        every = {**each, **{name: convergence.convergence(values) for name, values in joint.items()}}
        parts = {name: _part(every[name], values, num_chains) for name, values in {**draws, **joint}.items()}
    found = found._replace(standard_error=convergence.honest_error(main))
    divergent = 0.0 if divergences is None else divergences.sum() / (num_chains * num_draws * steps)
    verdict, doubted = _judge(found, draws, stuck, divergent, num_chains)
    if any(part.missing == "burn-in" for part in parts.values()):
        verdict = "not converged"
    return Diagnosis(
        verdict,
        num_chains,
        num_draws,
        *found,
        parts=parts,
        problems=tuple(problems),
        doubts=doubted,
        stuck_chains=tuple(stuck),
        odd_chain=odd,
        acceptance=acceptance,
        num_divergences=divergences,
        e_bfmi=_e_bfmi(trace),
        densities=densities,
        weight_space=weight_space,
        weight_names=names,
        draws=draws,
        trace=trace,
    )


def _part(found: Convergence, draws: np.ndarray, num_chains: int) -> Part:
    """One of the quantities by itself."""
    state = missing.progress(draws)
    verdict, _ = _judge(found, {"": draws}, [], 0.0, num_chains)
    if state.missing == "burn-in":
        verdict = "not converged"
    elif state.missing == "nothing" and verdict != "good" and state.effective > 0:
        # R-hat would do, effective draws would not.
        more = draws.shape[1] * (GOOD_ESS * num_chains / state.effective - 1)
        state = state._replace(missing="draws", needed=GOOD_ESS * num_chains, more_draws=max(1, round(more)))
    return Part(verdict, *found[:3], *state[:1], *state[3:])


def _worst_of(found: Sequence[Convergence]) -> Convergence:
    """The worse of several quantities at an input, where they vary; the error is that of the first, the mean."""
    varies = [np.where(np.isnan(one.r_hat), np.nan, 1.0) for one in found]
    r_hat = np.fmax.reduce([one.r_hat for one in found])
    bulk = np.fmin.reduce([one.ess_bulk * known for one, known in zip(found, varies, strict=True)])
    tail = np.fmin.reduce([one.ess_tail * known for one, known in zip(found, varies, strict=True)])
    return Convergence(r_hat, bulk, tail, found[0].standard_error)


def _judge(
    found: Convergence, draws: dict[str, np.ndarray], stuck: list[int], divergent: float, num_chains: int
) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict, and what beside R-hat stands against a better one."""
    if stuck or not all(np.isfinite(values).all() for values in draws.values()):
        return "not converged", ()
    inputs = worst_of_inputs(found.r_hat)
    if np.isnan(inputs).all():
        return "undetermined", ()
    # Where every draw is the same there is no R-hat to have. Any other input without one does not count as agreement.
    inputs = inputs[~_same_everywhere(draws, len(inputs))]
    doubted = _doubts(found.ess_bulk, found.ess_tail, num_chains, divergent)
    if (inputs < GOOD).all() and not doubted:
        return "good", ()
    usable = np.mean(inputs < USABLE) >= USABLE_SHARE and divergent <= USABLE_DIVERGENT
    return "usable" if usable else "not converged", doubted


def _doubts(ess_bulk: np.ndarray, ess_tail: np.ndarray, num_chains: int, divergent: float) -> tuple[str, ...]:
    """What stands against a good verdict beside R-hat; `divergent` is the share of kept steps that diverged."""
    sentences = []
    bulk, tail = (np.nanmin(values, initial=np.inf) for values in (ess_bulk, ess_tail))
    if not min(bulk, tail) >= GOOD_ESS * num_chains:
        sentences.append(
            f"Too few effective draws to be good: at the worst input {bulk:.0f} for the centre and {tail:.0f} for the "
            f"tails; {GOOD_ESS} per chain, here {GOOD_ESS * num_chains}, are needed."
        )
    if not divergent <= GOOD_DIVERGENT:
        sentences.append(
            f"Too many divergences to be good: {100 * divergent:.0f} % of the kept steps; the sampler avoids some "
            "region. Lower step_size, or raise target_acceptance."
        )
    return tuple(sentences)


def _same_everywhere(draws: dict[str, np.ndarray], num_inputs: int) -> np.ndarray:
    """Inputs [N] at which all draws of all chains predict the same."""
    same = np.full(num_inputs, bool(draws))
    for values in draws.values():
        same &= (values == values[:1, :1]).all((0, 1)).reshape(num_inputs, -1).all(1)
    return same


def _find_stuck(
    main: np.ndarray, weights: np.ndarray | None, acceptance: np.ndarray | None
) -> tuple[list[int], list[str]]:
    """Chains that do not move: no weight changes (or no predicted value, where weights are not at hand)."""
    watched = main if weights is None else weights
    still = (watched == watched[:, :1]).reshape(len(watched), -1).all(1) & (main.shape[1] > 1)
    stuck, sentences = [], []
    for chain, constant in enumerate(still):
        accepted = None if acceptance is None else acceptance[chain]
        if constant:
            also = "" if accepted is None else f" (acceptance {accepted:.2g})"
            sentences.append(f"Chain {chain} is stuck: all its draws are the same{also}.")
        elif accepted is not None and not accepted >= STUCK_ACCEPTANCE:
            sentences.append(f"Chain {chain} is stuck: it accepts {accepted:.2g} of its proposals.")
        else:
            continue
        stuck.append(chain)
    return stuck, sentences


def _find_non_finite(draws: dict[str, np.ndarray]) -> list[str]:
    sentences = []
    for name, values in draws.items():
        bad = np.asarray(~np.isfinite(values).all(1))  # [C, N, ...]
        for chain in np.flatnonzero(bad.reshape(len(bad), -1).any(1)):
            inputs = int(bad[chain].reshape(bad.shape[1], -1).any(1).sum())
            sentences.append(f"Chain {chain} predicts a {in_words(name)} that is not finite at {count_inputs(inputs)}.")
    return sentences


def _find_divergent(divergences: np.ndarray | None, num_steps: int) -> list[str]:
    if divergences is None:
        return []
    return [
        f"Chain {chain} diverged in {count} of its {num_steps} steps: its step size is too large for where it is."
        for chain, count in enumerate(divergences)
        if count > 0
    ]


def _e_bfmi(trace: dict[str, np.ndarray]) -> np.ndarray | None:
    if "energy" not in trace or trace["energy"].shape[1] < MIN_DRAWS:
        return None
    return convergence.e_bfmi(trace["energy"].astype(float))


def _kept_trace(trace: Trace, num_draws: int) -> tuple[dict[str, np.ndarray], int]:
    """The strides of a trace that end in draws, [C, D], and how many steps each stands for."""
    kept = trace.of_draws()
    if kept.num_steps.size != num_draws:
        return {}, 1  # draws that were chosen from those of the run: no stride can be said to be theirs
    return kept.entries, int(kept.num_steps.max())


def _some_weights(family: Family) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Names and draws [C, D, W] of weights spread evenly over the network; None where draws are not at hand."""
    if family.draws is None:
        return (), None
    names, parts = [], []
    leaves = jax.tree.leaves(family.draws)
    sizes = [int(np.prod(leaf.shape[2:])) for leaf in leaves]
    ends = np.cumsum(sizes)
    chosen = evenly_spaced(ends[-1], MAX_WEIGHTS)
    for name, leaf, size, end in zip(pytrees.leaf_names(family.draws), leaves, sizes, ends, strict=True):
        local = chosen[(chosen >= end - size) & (chosen < end)] - (end - size)
        names += [f"{name}[{', '.join(map(str, np.unravel_index(i, leaf.shape[2:])))}]" for i in local]
        stored = isinstance(leaf, StoredArray)
        parts.append(leaf.columns(local) if stored else np.asarray(leaf).reshape(*leaf.shape[:2], -1)[:, :, local])
    return tuple(names), np.concatenate(parts, -1)
