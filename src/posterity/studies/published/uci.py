"""The nine UCI regression sets with the splits of the MC dropout paper, standardised for a network."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np

from posterity.datasets.catalogue import UCI, uci_arrays
from posterity.studies.needs import PER_SPLIT, UCI_NAMES, published_file

NAMES = {short: UCI[name] for short, name in UCI_NAMES.items()}


class Split(NamedTuple):
    """One split, standardised with the training rows' mean and standard deviation; test targets in their own units."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_mean: float
    y_std: float


def read(name: str) -> dict[str, np.ndarray]:
    """X, y, and train, test: a row of indices for each split."""
    return uci_arrays(UCI_NAMES[name])


def split(data: dict[str, np.ndarray], number: int) -> Split:
    train, test = (data[side][number] for side in ("train", "test"))
    x, y = data["X"], data["y"]
    x_mean, x_std = x[train].mean(0), x[train].std(0)
    x_std = np.where(x_std == 0, 1.0, x_std)  # naval has two constant features
    y_mean, y_std = float(y[train].mean()), float(y[train].std())
    return Split(
        (x[train] - x_mean) / x_std, (y[train] - y_mean) / y_std, (x[test] - x_mean) / x_std, y[test], y_mean, y_std
    )


def hold_out(rows: Split) -> Split:
    """Four fifths of the training rows, with the rest as test rows: to choose settings by."""
    order = np.random.default_rng(0).permutation(len(rows.y_train))
    held_out, inner = np.split(order, [len(order) // 5])
    x, y = rows.x_train, rows.y_train
    return Split(x[inner], y[inner], x[held_out], y[held_out], 0.0, 1.0)


def published() -> dict:
    """Per-split results of the published dropout variants."""
    return json.loads(published_file(PER_SPLIT).read_text())
