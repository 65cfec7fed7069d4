"""A number with its standard error, and the checks that arrays go through before they become one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
PROBABILITY_TOLERANCE = 1e-3


class Estimate(NamedTuple):
    """A number and the standard error it has from the choice of rows."""

    value: float
    standard_error: float

    def __str__(self) -> str:
        """The value to as many decimals as show two digits of the error: 0.2773 ± 0.0031."""
        decimals = 4
        if np.isfinite(self.standard_error) and self.standard_error > 0:
            decimals = int(np.clip(1 - np.floor(np.log10(self.standard_error)), 0, 12))
        return f"{self.value:.{decimals}f} ± {self.standard_error:.{decimals}f}"

    def __float__(self) -> float:
        return self.value


def mean_over_rows(rows: NDArray[Any]) -> Estimate:
    """The mean of numbers of single rows [N], with the standard error s / sqrt(N)."""
    rows = rows.astype(np.float64)
    # An infinite row makes the mean infinite, and leaves no error to speak of.
    if len(rows) == 1 or not np.isfinite(rows).all():
        return Estimate(float(rows.mean()), float("nan"))
    return Estimate(float(rows.mean()), float(rows.std(ddof=1) / np.sqrt(len(rows))))


def require(condition: Any, message: str) -> None:
    """Refuse arguments that do not meet a condition, everywhere."""
    if not np.all(condition):
        raise ValueError(message)


def checked(name: str, values: ArrayLike, axes: str = "[N]", infinite: bool = False) -> FloatArray:
    """A float64 array with these axes and no NaN; `infinite`: it may hold infinite values."""
    array = np.asarray(values, dtype=np.float64)
    fits = array.ndim == axes.count(",") + 1 and array.size > 0
    require(fits, f"{name} has shape {array.shape}; expected {axes}, none empty; try .ravel().")
    good = ~np.isnan(array) if infinite else np.isfinite(array)
    got = f"{np.sum(~good)} NaN{'' if infinite else ' or infinite'} of {good.size} values"
    first = f"first at index {np.argwhere(~good)[:1].tolist()}"
    require(good, f"{name} has {got}, {first}; expected none; look for the cause.")
    return array


def check_lengths(**lengths: int) -> None:
    """Refuse arrays of different numbers of rows."""
    got = ", ".join(f"{name} has {length} rows" for name, length in lengths.items())
    require(len(set(lengths.values())) == 1, f"{got}; expected as many in each; align them.")


def matching(infinite: bool = False, **arrays: ArrayLike) -> tuple[FloatArray, ...]:
    """Arrays [N] with as many rows each."""
    found = {name: checked(name, values, infinite=infinite) for name, values in arrays.items()}
    check_lengths(**{name: len(array) for name, array in found.items()})
    return tuple(found.values())


def probabilities(name: str, values: ArrayLike) -> FloatArray:
    """Rows of class probabilities [N, C]."""
    probs = checked(name, values, "[N, C]")
    off = np.abs(probs.sum(1) - 1).max()
    got = f"smallest entry {probs.min():.4g} and row sums up to {off:.4g} away from 1"
    wanted = f"expected none negative and sums within {PROBABILITY_TOLERANCE}"
    valid = probs.min() >= 0 and off <= PROBABILITY_TOLERANCE
    require(valid, f"{name} has {got}; {wanted}; give probabilities, not logits (use softmax).")
    return probs


def matching_probs(probs: ArrayLike, reference: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Probabilities of the same rows and classes."""
    probs, reference = probabilities("probs", probs), probabilities("reference", reference)
    shapes = f"probs has shape {probs.shape} and reference has {reference.shape}"
    require(probs.shape == reference.shape, f"{shapes}; expected the same [N, C]; align them.")
    return probs, reference


def classification(probs: ArrayLike, labels: ArrayLike) -> tuple[FloatArray, NDArray[np.intp]]:
    """Probabilities [N, C] and a class for each row."""
    probs, given = probabilities("probs", probs), np.asarray(labels)
    wanted = f"expected integers 0..{probs.shape[1] - 1}; try np.unique(..., return_inverse=True)"
    require(given.dtype.kind in "biuf", f"labels has dtype {given.dtype}; {wanted}.")
    values = checked("labels", given)
    check_lengths(probs=len(probs), labels=len(values))
    got = f"labels lie in {values.min():g}..{values.max():g}"
    require(np.isin(values, np.arange(probs.shape[1])), f"{got}; {wanted}.")
    return probs, values.astype(np.intp)
