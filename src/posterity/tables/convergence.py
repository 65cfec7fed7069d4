"""Warnings of a fit as scikit-learn's users filter and catch them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning

from posterity.core.concern import ConvergenceWarning


class EstimatorConvergenceWarning(ConvergenceWarning, SklearnConvergenceWarning):
    """A fit of an estimator that has not converged: a `ConvergenceWarning` of Posterity's and of scikit-learn's."""


@contextmanager
def as_of_scikit_learn() -> Iterator[None]:
    """Warnings of convergence from within are scikit-learn's too; others stay as they are."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for one in caught:
        ours = issubclass(one.category, ConvergenceWarning)
        warnings.warn(str(one.message), EstimatorConvergenceWarning if ours else one.category, stacklevel=4)
