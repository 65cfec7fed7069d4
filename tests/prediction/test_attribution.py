"""Shapley values: against brute force over all orders, sums, errors, and planted truth."""

from itertools import permutations

import numpy as np
import pytest

from posterity.prediction.attribution import shapley

RNG = np.random.default_rng(0)
BACKGROUND = RNG.normal(size=(20, 5))
X = RNG.normal(size=(3, 5))
GROUPS = [np.array([0]), np.array([1, 2]), np.array([3]), np.array([4])]  # four columns, one of two features


def function(rows):
    """Two numbers with interactions of every order."""
    a, b, c, d, e = rows.T
    return np.stack([a * b + np.sin(c * d) + e * a * d, np.exp(0.3 * (a + c)) * (1 + d**2) + e], 1)


def brute_force(row, background):
    """The definition: all orders of the columns, one by one."""
    found, orders = np.zeros((len(GROUPS), 2)), list(permutations(range(len(GROUPS))))
    for order in orders:
        mixed = background.copy()
        for column in order:
            before = function(mixed).mean(0)
            mixed[:, GROUPS[column]] = row[GROUPS[column]]
            found[column] += function(mixed).mean(0) - before
    return found / len(orders)


def test_exact_values_are_those_of_brute_force():
    found = shapley(function, X, BACKGROUND, GROUPS)
    for number, row in enumerate(X):
        np.testing.assert_allclose(found.values[number], brute_force(row, BACKGROUND), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("exact", [True, False])
def test_values_add_up_to_what_is_predicted(exact):
    found = shapley(function, X, BACKGROUND, GROUPS, exact=exact)
    np.testing.assert_allclose(found.base + found.values.sum(1), function(X), rtol=1e-10)
    np.testing.assert_allclose(found.base, function(BACKGROUND).mean(0))
    np.testing.assert_array_equal(found.predicted, function(X))


def test_random_orders_agree_with_all_of_them_within_their_error():
    background = RNG.normal(size=(2000, 5))
    exact, drawn = (shapley(function, X, background, GROUPS, exact=exact, seed=1) for exact in (True, False))
    assert (np.abs(drawn.values - exact.values) < 4.5 * drawn.standard_error).all()
    pairs = [shapley(function, X[:1], BACKGROUND, GROUPS, exact=False, seed=seed).values[0] for seed in range(300)]
    np.testing.assert_allclose(
        np.mean(pairs, 0), brute_force(X[0], BACKGROUND), atol=5 * np.std(pairs, 0).max() / 300**0.5
    )


def test_columns_that_change_nothing_get_nothing():
    def planted(rows):
        return np.stack([rows[:, 0] * rows[:, 1], np.exp(rows[:, 3]), rows[:, 4] ** 2], 1)

    for exact in (True, False):
        values = shapley(planted, X, BACKGROUND, GROUPS, exact=exact).values
        np.testing.assert_allclose(values[:, [2, 3], 0], 0.0, atol=1e-12)
        np.testing.assert_allclose(values[:, [0, 1, 3], 1], 0.0, atol=1e-12)
        np.testing.assert_allclose(values[:, [0, 1, 2], 2], 0.0, atol=1e-12)
        np.testing.assert_allclose(values[:, 2, 1], np.exp(X[:, 3]) - np.exp(BACKGROUND[:, 3]).mean(), rtol=1e-10)


def test_what_cannot_be_shared_out_is_refused():
    with pytest.raises(ValueError, match="at least two"):
        shapley(function, X, BACKGROUND[:1], GROUPS)
    with pytest.raises(ValueError, match="Feature 4 is in no group"):
        shapley(function, X, BACKGROUND, GROUPS[:3])
