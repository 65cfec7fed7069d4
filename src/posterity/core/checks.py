"""Checks of what a user sets, at the call: an error says what was got, what was expected and what to do."""

from __future__ import annotations

import numbers
from typing import Any, TypeGuard

import numpy as np


def is_whole(value: Any) -> TypeGuard[int]:
    """A whole number of Python or numpy; a truth value is none."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """One real number of Python, numpy or JAX; a truth value is none."""
    if getattr(value, "shape", None) == ():
        return value.dtype.kind in "iuf"
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_whole(owner: str, least: int = 1, **values: Any) -> None:
    """Refuse what is not a whole number, or a tuple of them, of at least `least`."""
    for name, value in values.items():
        for one in value if isinstance(value, tuple) else (value,):
            if not is_whole(one) or one < least:
                what = "whole numbers, each" if isinstance(value, tuple) else "a whole number,"
                raise ValueError(f"{owner}({name}={value!r}): expected {what} at least {least}.")


def check_positive(owner: str, **values: Any) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in values.items():
        if np.ndim(value) > 0:
            raise ValueError(
                f"{owner}({name}=...) is an array of shape {np.shape(value)}; expected one number above 0, common to "
                "all targets: divide the targets by their scales first."
            )
        if not (is_number(value) and value > 0 and np.isfinite(value)):
            raise ValueError(f"{owner}({name}={value!r}) must be a number above 0.")


def check_budget(budget: Any) -> None:
    """Refuse what is neither None nor a number of seconds above 0."""
    if budget is not None and not (is_number(budget) and budget > 0):
        raise ValueError(f"budget={budget!r} must be a number of seconds above 0.")


def check_rate(name: str, rate: float) -> float:
    """Refuse a rate of dropout that is none."""
    if not 0 <= rate < 1:
        raise ValueError(f"{name}={rate} is outside [0, 1): it is the share of units to DROP; try {name}=0.1.")
    return float(rate)
