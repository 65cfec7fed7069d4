"""Chains as units of comparison: what each of them predicts by itself, so that two posteriors can be relabelled.

A unit is a chain; where there are fewer than eight, stretches of chains, which are nearly independent if they are long.
Fresh draws, which are independent, make eight units. For each unit and number predicted at a row:

    cdf of the target, of what is predicted (mean of the target, probability of a class), at 40 quantiles of both
    posteriors together, by which W1 = int |F - G| dy of any set of units is a sum
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from posterity.core.types import Array
from posterity.metrics import permutation
from posterity.metrics.convergence import SHORT
from posterity.metrics.permutation import Comparison
from posterity.posterior import diagnose
from posterity.posterior.diagnosis import in_words
from posterity.posterior.posterior import Posterior, _draw_key
from posterity.prediction import mixture
from posterity.prediction.streaming import DEFAULT_MEMORY, Components, OutputStream
from posterity.prediction.uncertainty import elementwise

FEWEST = 8  # units: relabelling fewer leaves too few p-values
FRESH_DRAWS = 100  # of each unit, where draws are made for the purpose
NUM_POINTS = 40
NUM_FLOOR = 200  # relabellings for the floors of inputs
FLOOR_LEVEL = 0.95


class Units(NamedTuple):
    """What the units of a posterior predict at N rows."""

    stream: OutputStream
    places: np.ndarray  # [U, L] among the draws of the stream
    draws: dict[str, np.ndarray]  # by name, [U, L, N, ...]


class Epistemic(NamedTuple):
    """The epistemic distance of two posteriors."""

    distance: np.ndarray  # [N]
    floor: np.ndarray  # [N]
    left_out: np.ndarray  # [U], mean over rows without one unit, the first posterior's first


def chain_units(posterior: Posterior, inputs: Any) -> Units:
    family = posterior.family
    if family.num_draws is None:
        places = np.arange(FEWEST * FRESH_DRAWS).reshape(FEWEST, FRESH_DRAWS)
    else:
        places = np.arange(family.num_draws).reshape(-1, family.num_chains).T  # draw s = d * C + c
        pieces = min(-(-FEWEST // len(places)), max(places.shape[1] // SHORT, 1))
        length = places.shape[1] // pieces
        places = places[:, : pieces * length].reshape(-1, length)
    stream = OutputStream(
        posterior.model, family, _draw_key(0), inputs, np.arange(places.max() + 1), False, DEFAULT_MEMORY
    )
    predicted = diagnose._predicted(stream)
    return Units(stream, places, {name: np.moveaxis(v[:, places], 0, 2) for name, v in predicted.items()})


def compare(ours: Units, theirs: Units) -> tuple[Comparison | None, tuple[str, ...]]:
    """The permutation test of what both predict, and the names of what was compared."""
    if min(len(ours.places), len(theirs.places)) < 2:
        return None, ()
    features: dict[str, list[np.ndarray]] = {}
    for name, values in ours.draws.items():
        both = [v.reshape(*v.shape[:2], -1).astype(float) for v in (values, theirs.draws[name])]
        centre = np.concatenate([v.reshape(-1, v.shape[2]) for v in both]).mean(0)
        means = [v.mean(1) for v in both]
        if np.ptp(np.concatenate(means), 0).max() == 0:
            continue  # a known noise
        features[in_words(name)] = means
        if name != "log_std":
            features["spread"] = [np.square(v - centre).mean(1) for v in both]
    if not features:
        return None, ()
    first, second = (np.stack([parts[side] for parts in features.values()], 1) for side in (0, 1))
    return permutation.compare_units(first, second), tuple(features)


def epistemic(ours: Units, theirs: Units) -> Epistemic | None:
    """None where the reference's draws are all the same at some row, and there is no unit to measure in."""
    name = next(iter(ours.draws))
    both = [units.draws[name] for units in (ours, theirs)]
    num_rows = both[0].shape[2]
    flat = [v.reshape(*v.shape[:2], -1).astype(float) for v in both]
    scale = flat[1].reshape(-1, flat[1].shape[2]).std(0)
    if not (scale > 0).all():
        return None
    levels = (np.arange(NUM_POINTS) + 0.5) / NUM_POINTS
    points = np.sort(np.concatenate([np.quantile(v.reshape(-1, v.shape[2]), levels[::2], axis=0) for v in flat]), 0)
    cdfs = np.concatenate([_empirical_cdf(v, points) for v in flat])  # [U, G, M]
    lengths = np.diff(points, axis=0) / scale
    sizes = len(flat[0]), len(flat[1])

    def by_row(labels: np.ndarray) -> np.ndarray:
        return _apart(labels, cdfs, lengths).reshape(len(labels), num_rows, -1).mean(2)

    labels = permutation.labellings(*sizes)
    labels = labels[np.linspace(0, len(labels) - 1, min(NUM_FLOOR, len(labels))).round().astype(int)]
    chance = by_row(labels)
    usual = np.maximum(np.median(chance, 0), np.finfo(float).tiny)
    floor = usual * np.quantile((chance / usual).max(1), FLOOR_LEVEL)
    left_out = by_row(_without_one(*sizes)).mean(1) if min(sizes) > 1 else np.zeros(0)
    return Epistemic(chance[0], floor, left_out)


def distance_errors(ours: Units, theirs: Units, found: Epistemic | None) -> dict[str, float]:
    """The Monte Carlo error of the mean of each distance over rows, by the jackknife over units."""
    sizes = len(ours.places), len(theirs.places)
    if min(sizes) < 2:
        return {}
    errors = {} if found is None else {"epistemic_distance": permutation.jackknife_error(found.left_out, sizes[0])}
    if "probability" in ours.draws:
        probs = np.concatenate([units.draws["probability"].mean(1) for units in (ours, theirs)])  # [U, N, ..., K]
        flat = probs.reshape(len(probs), -1, probs.shape[-1])
        first, second = _group_means(_without_one(*sizes), flat)
        variation = np.abs(first - second).sum(-1).mean(1) / 2
        same = (first.argmax(-1) == second.argmax(-1)).mean(1)
        errors["total_variation"] = permutation.jackknife_error(variation, sizes[0])
        errors["agreement"] = permutation.jackknife_error(same, sizes[0])
        return errors
    apart = _predictive_apart(ours, theirs)
    return errors if apart is None else {"wasserstein": permutation.jackknife_error(apart, sizes[0]), **errors}


def _predictive_apart(ours: Units, theirs: Units) -> np.ndarray | None:
    """Wasserstein distances of targets in predictive standard deviations with each unit left out, [U].

    None for likelihoods without a cumulative distribution function.
    """
    from posterity.prediction.prediction import Prediction

    both = [Prediction(units.stream) for units in (ours, theirs)]
    single = elementwise(both[0]._model.distribution(jnp.asarray(both[0].outputs[:1, :1])))
    if not mixture.has_cdf(single):
        return None
    levels = (np.arange(NUM_POINTS // 2) + 0.5) / (NUM_POINTS // 2)
    quantiles = np.sort(np.concatenate([one.quantile(levels) for one in both], -1), -1)  # [N, ..., G]
    cdfs = []
    for one, units in zip(both, (ours, theirs), strict=True):
        points = (quantiles - one._shift) / one._scale
        found = one._map(unit_cdf, points.astype(np.float32), shared=(jnp.asarray(units.places),))  # [N, U, G, ...]
        cdfs.append(np.moveaxis(found, (1, 2), (0, 1)).reshape(*found.shape[1:3], -1))
    lengths = np.moveaxis(np.diff(quantiles, axis=-1) / both[1].std[..., None], -1, 0).reshape(
        quantiles.shape[-1] - 1, -1
    )
    return _apart(_without_one(len(ours.places), len(theirs.places)), np.concatenate(cdfs), lengths).mean(1)


def unit_cdf(model: Any, block: Components, points: Array, places: Array) -> Array:
    """The cdf of the target under each unit at points [n, ..., G]: [n, U, G, ...]."""
    single = elementwise(block.marginal(model))
    found = mixture.cdf(single, jnp.moveaxis(points, -1, 0)[:, None])  # [G, S, n, ...]
    return jnp.moveaxis(found[:, places].mean(2), 2, 0).swapaxes(1, 2)


def _empirical_cdf(draws: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Shares of draws [U, L, M] at or below points [G, M]: [U, G, M]."""
    return np.stack([(draws <= point).mean(1) for point in points], 1)


def _without_one(first: int, second: int) -> np.ndarray:
    """Labels [U, U] with one unit left out of each: 1 and -1 for the groups, 0 for the one left out."""
    labels = np.tile(np.repeat([1.0, -1.0], [first, second]), (first + second, 1))
    np.fill_diagonal(labels, 0.0)
    return labels


def _group_means(labels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means of values [U, ...] over units with label 1, and over the others that are not left out, [R, ...] each."""
    others = (labels == -1.0) if labels.min() < 0 else (labels == 0.0)
    flat = values.reshape(len(values), -1)
    means = [(inside / inside.sum(1, keepdims=True)) @ flat for inside in (labels == 1.0, others)]
    return means[0].reshape(-1, *values.shape[1:]), means[1].reshape(-1, *values.shape[1:])


def _apart(labels: np.ndarray, cdfs: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """W1 = sum |F - G| dy of labelled groups of units with cdfs [U, G, M] over lengths [G - 1, M], [R, M]."""
    found = []
    for some in np.array_split(labels, -(-len(labels) // 20)):
        first, second = _group_means(some, cdfs)
        found.append((np.abs(first - second)[:, :-1] * lengths).sum(1))
    return np.concatenate(found)
