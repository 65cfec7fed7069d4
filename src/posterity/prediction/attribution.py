"""Shapley values: what each column of a row adds to what is predicted of it.

Columns S of a row x, with the others those of a background row b, are predicted as f(x_S, b). The share of column j,

    phi_j = mean over orders of the columns of   f(x_S + j, b) - f(x_S, b),   S the columns before j,

averaged over background rows, is the one way to share out f(x) - mean f(b) that is additive, treats columns alike, and
gives nothing to a column that changes nothing (Shapley 1953; with columns set by intervention, Janzing et al. 2020).
With few columns all 2^F sets are computed. Otherwise every background row gets a random order and its reverse, of which
the first's errors partly cancel (antithetic pairs; Mitchell et al. 2022); shares then still add up exactly. The
standard error is over background rows, and so counts their choice and that of the orders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import factorial
from typing import NamedTuple

import numpy as np

EXACT_COLUMNS = 6  # up to so many, all sets of columns are computed: 64 predictions a background row
ROWS_OF_A_CALL = 8192
BASE = "(all rows)"  # in tables stands for a column: what is predicted of background rows on average


class Attribution(NamedTuple):
    """What columns add to each of P predicted numbers."""

    values: np.ndarray  # [N, F, P]
    standard_error: np.ndarray  # [N, F, P]
    base: np.ndarray  # [P], the mean over background rows; base + values.sum(1) is what is predicted
    predicted: np.ndarray  # [N, P]


def shapley(
    function: Callable[[np.ndarray], np.ndarray],
    x: np.ndarray,
    background: np.ndarray,
    groups: Sequence[np.ndarray],
    *,
    exact: bool | None = None,
    seed: int = 0,
) -> Attribution:
    """Share out what a function predicts among groups of features.

    Args:
        function: Rows [R, E] to numbers [R, P].
        x: The rows to explain, [N, E].
        background: Rows that the others are compared with, [B, E], at least two.
        groups: The features of each column, F arrays of places among E.
        exact: Compute all sets of columns; None: with at most 6 columns.
        seed: Of the orders.
    """
    if len(background) < 2:
        raise ValueError(f"background has {len(background)} row(s); give at least two, better thirty.")
    num_columns, num_background = len(groups), len(background)
    column_of = np.full(x.shape[1], -1)
    for number, group in enumerate(groups):
        column_of[group] = number
    if (column_of < 0).any():
        raise ValueError(f"Feature {int(np.argmin(column_of))} is in no group; each feature must be in one.")
    exact = num_columns <= EXACT_COLUMNS if exact is None else exact
    masks, share = _all_sets(num_columns) if exact else (None, None)
    rng = np.random.default_rng(seed)
    values, errors, base = [], [], _in_parts(function, background).mean(0)
    for row in x:
        if masks is not None and share is not None:
            found = _evaluate(function, row, background, np.repeat(masks[None], num_background, 0), column_of)
            each = np.einsum("fm,bmp->bfp", share, found)
        else:
            orders = np.array([rng.permutation(num_columns) for _ in range(num_background)])
            pair = [_along(function, row, background, one, column_of) for one in (orders, orders[:, ::-1])]
            each = (pair[0] + pair[1]) / 2
        values.append(each.mean(0))
        errors.append(each.std(0, ddof=1) / np.sqrt(num_background))
    return Attribution(np.stack(values), np.stack(errors), base, _in_parts(function, x))


def _all_sets(num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """All sets of columns as booleans [M, F], and what each set's prediction counts for each column, [F, M]."""
    masks = (np.arange(2**num_columns)[:, None] >> np.arange(num_columns)) & 1 == 1
    size = masks.sum(1)
    # A set of s columns stands before column j in s! (F - 1 - s)! of the F! orders.
    orders = [factorial(s) * factorial(num_columns - 1 - s) for s in range(num_columns)]
    padded = np.array([*orders, 0]) / factorial(num_columns)
    return masks, np.where(masks, padded[size - 1][:, None], -padded[size][:, None]).T


def _along(
    function: Callable[[np.ndarray], np.ndarray],
    row: np.ndarray,
    background: np.ndarray,
    orders: np.ndarray,
    column_of: np.ndarray,
) -> np.ndarray:
    """[B, F, P]: what each column adds where the columns of the row come in one by one, in an order for each b."""
    num_background, num_columns = orders.shape
    place = np.argsort(orders, 1)
    masks = place[:, None, :] < np.arange(num_columns + 1)[None, :, None]  # [B, F + 1, F]
    steps = np.diff(_evaluate(function, row, background, masks, column_of), axis=1)
    return steps[np.arange(num_background)[:, None], place]


def _evaluate(
    function: Callable[[np.ndarray], np.ndarray],
    row: np.ndarray,
    background: np.ndarray,
    masks: np.ndarray,
    column_of: np.ndarray,
) -> np.ndarray:
    """The function at columns of the row where masks [B, M, F] are true, and of the background elsewhere: [B, M, P]."""
    rows = np.where(masks[:, :, column_of], row, background[:, None])
    found = _in_parts(function, rows.reshape(-1, rows.shape[-1]))
    return found.reshape(*masks.shape[:2], -1)


def _in_parts(function: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    parts = [function(rows[first : first + ROWS_OF_A_CALL]) for first in range(0, len(rows), ROWS_OF_A_CALL)]
    return np.concatenate(parts).astype(float)
