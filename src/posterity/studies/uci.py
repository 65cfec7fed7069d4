"""The nine UCI regression sets with the splits of the MC dropout paper, read from a folder the user names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

NAMES = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}


class Split(NamedTuple):
    """One split, standardised with the training rows' mean and standard deviation; test targets in their own units."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    y_mean: float
    y_std: float


def data_root() -> Path:
    """The folder of the data: POSTERITY_DATA, by default ../shared/data."""
    return Path(os.environ.get("POSTERITY_DATA", "../shared/data"))


def read(name: str) -> dict[str, np.ndarray]:
    """X, y, and train, test: a row of indices for each split."""
    path = data_root() / "uci" / f"{NAMES[name]}.npz"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there; put the UCI sets into a folder and name it with POSTERITY_DATA.")
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def split(data: dict[str, np.ndarray], number: int) -> Split:
    train, test = (data[side][number] for side in ("train", "test"))
    x, y = data["X"], data["y"]
    x_mean, x_std = x[train].mean(0), x[train].std(0)
    x_std = np.where(x_std == 0, 1.0, x_std)  # naval has two constant features
    y_mean, y_std = float(y[train].mean()), float(y[train].std())
    return Split(
        (x[train] - x_mean) / x_std, (y[train] - y_mean) / y_std, (x[test] - x_mean) / x_std, y[test], y_mean, y_std
    )


def published() -> dict:
    """Per-split results of the published dropout variants."""
    return json.loads((data_root() / "uci" / "published_per_split_results.json").read_text())
