"""Relabelled chains: exact p-values, power, and false alarms as often as stated."""

import itertools

import numpy as np
import pytest
from scipy import stats
from targets import autoregressive

from posterity.metrics import permutation


def test_the_p_value_is_that_of_all_labellings():
    """Four and three units, one quantity and input: 35 labellings, by hand."""
    values = np.random.default_rng(0).normal(size=7)
    values[:4] += 1.0
    exact = [
        abs(stats.ttest_ind(values[list(chosen)], np.delete(values, chosen), equal_var=False).statistic)
        for chosen in itertools.combinations(range(7), 4)
    ]
    found = permutation.compare_units(values[:4, None, None], values[4:, None, None])
    assert found.p_value == pytest.approx(np.mean(np.array(exact) >= exact[0] - 1e-12))
    np.testing.assert_allclose(found.by_quantity, found.p_value)
    np.testing.assert_allclose(found.by_input, found.p_value)
    assert found.num_units == (4, 3)


def test_labellings_are_all_or_some_at_random():
    labels = permutation.labellings(3, 2)
    assert len({tuple(row) for row in labels}) == 10
    assert labels[0].tolist() == [1, 1, 1, 0, 0]
    many = permutation.labellings(9, 8)
    assert many.shape == (permutation.NUM_LABELLINGS, 17)
    assert many[0].tolist() == [1.0] * 9 + [0.0] * 8
    assert (many.sum(1) == 9).all()


def test_false_alarms_are_as_rare_as_stated_over_quantities_and_inputs():
    """Units of autocorrelated chains at correlated inputs, another number of each."""
    features = np.random.default_rng(9).normal(size=(3, 20))
    alarms = []
    for seed in range(300):
        units = autoregressive(0.9, (13, 40, 3), seed) @ features
        units = np.stack([units.mean(1), np.square(units).mean(1)], 1)
        found = permutation.compare_units(units[:8], units[8:])
        alarms.append([found.p_value <= 0.1, found.by_input.min() <= 0.1])
    assert np.abs(np.mean(alarms, 0) - 0.1).max() < 4 * np.sqrt(0.09 / 300)


def test_the_input_that_differs_is_named():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(size=(2, 8, 2, 50))
    theirs[:, 1, 7] += 6.0
    found = permutation.compare_units(ours, theirs)
    assert np.flatnonzero(found.by_input < 0.05).tolist() == [7]
    same = permutation.compare_units(ours, ours)
    assert same.p_value == 1.0
    assert (same.by_input == 1.0).all()


def test_the_jackknife_error_of_a_difference_of_means_is_the_exact_one():
    rng = np.random.default_rng(2)
    ours, theirs = rng.normal(size=8), rng.normal(size=5)
    without = [np.delete(ours, i).mean() - theirs.mean() for i in range(8)]
    without += [ours.mean() - np.delete(theirs, i).mean() for i in range(5)]
    exact = np.sqrt(ours.var(ddof=1) / 8 + theirs.var(ddof=1) / 5)
    assert permutation.jackknife_error(np.array(without), 8) == pytest.approx(exact)
