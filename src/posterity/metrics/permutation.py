"""Are two groups of chains different beyond chance? Tests that relabel chains, as these are independent of each other.

Each chain is a unit with a number for each quantity and input, x_u. Between groups A and B

    t = (mean_A x - mean_B x) / sqrt(s_A^2 / |A| + s_B^2 / |B|)

and the same for every relabelling of the units that keeps the groups' sizes (all, or 1,999 at random). If both groups
come from one distribution, all labellings are equally probable, and the share whose statistic is at least as large as
the one found is a p-value (Fisher 1935); t makes that hold nearly for groups of unequal variance too (Janssen 1997;
Chung & Romano 2013). The statistic of a quantity is the mean of t^2 over inputs. Over quantities the smallest p-value
is ranked among those of the relabellings, over inputs the largest |t|: this keeps the probability of any false alarm,
however inputs depend on each other (Westfall & Young 1993).
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

NUM_LABELLINGS = 2000


class Comparison(NamedTuple):
    """What a permutation of units says of two groups."""

    p_value: float
    """That chance alone would make groups of one distribution differ as much, in any of the quantities."""
    by_quantity: np.ndarray  # [Q]
    by_input: np.ndarray  # [N], corrected for the number of inputs
    num_units: tuple[int, int]


def compare_units(ours: np.ndarray, theirs: np.ndarray, seed: int = 0) -> Comparison:
    """The test of two groups of units [U, Q, N] with two units or more each."""
    sizes = len(ours), len(theirs)
    values = np.concatenate([ours, theirs]).astype(float)
    values -= values.mean(0)
    scale = values.std(0)
    values /= np.where(scale > 0, scale, 1.0)
    _, num_quantities, num_inputs = values.shape
    flat, labels = values.reshape(len(values), -1), labellings(*sizes, seed)
    parts = []
    for some in np.array_split(labels, -(-len(labels) // 100)):  # all would take gigabytes at a thousand inputs
        squares = _squared_t(some, flat, sizes).reshape(-1, num_quantities, num_inputs)
        parts.append((squares.mean(2), squares.max((1, 2))))
    means, largest = (np.concatenate(each) for each in zip(*parts, strict=True))
    found = _squared_t(labels[:1], flat, sizes).reshape(num_quantities, num_inputs).max(0)
    p_values = _share_as_large(means)  # [R, Q]
    smallest = p_values.min(1)
    by_input = np.mean(largest[:, None] >= found * (1 - 1e-12), 0)
    return Comparison(float(np.mean(smallest <= smallest[0])), p_values[0], by_input, sizes)


def labellings(first: int, second: int, seed: int = 0) -> np.ndarray:
    """Which units are in the first group, [R, U] of 0 and 1: as they are, then all others or some at random."""
    total = first + second
    if math.comb(total, first) <= NUM_LABELLINGS:
        chosen = np.asarray([*itertools.combinations(range(total), first)])  # the first one is as they are
    else:
        order = np.random.default_rng(seed).permuted(np.tile(np.arange(total), (NUM_LABELLINGS, 1)), axis=1)
        order[0] = np.arange(total)
        chosen = order[:, :first]
    labels = np.zeros((len(chosen), total))
    np.put_along_axis(labels, chosen, 1.0, 1)
    return labels


def jackknife_error(distance: np.ndarray, first: int) -> float:
    """Standard error of a number from its values with each unit left out, [U], units of the first group first."""
    parts = (distance[:first], distance[first:])
    return float(np.sqrt(sum((len(p) - 1) * p.var() for p in parts)))


def _squared_t(labels: np.ndarray, values: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """[R, M] of values [U, M]."""
    error, means = 0.0, []
    for inside, size in zip((labels, 1 - labels), sizes, strict=True):
        mean = inside @ values / size
        error = error + np.maximum(inside @ np.square(values) / size - np.square(mean), 0.0) / (size - 1)
        means.append(mean)
    difference = np.square(means[0] - means[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference > 1e-24, difference / error, 0.0)


def _share_as_large(values: np.ndarray) -> np.ndarray:
    """Of each column [R, Q], the share that is at least as large as each of its entries."""
    ordered = np.sort(values, 0)
    below = [np.searchsorted(ordered[:, q], values[:, q] * (1 - 1e-12)) for q in range(values.shape[1])]
    return 1 - np.stack(below, 1) / len(values)
