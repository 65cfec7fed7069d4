"""What estimators make of further rows: what was learned before is the prior now."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import _check_sample_weight

from posterity.inference import Method
from posterity.posterior.posterior import Posterior
from posterity.tables.checks import name_of
from posterity.tables.convergence import as_of_scikit_learn
from posterity.tables.defaults import table_method
from posterity.tables.encoders import TargetEncoder


class Continued:
    """An estimator that can learn on."""

    method: str | Method
    posterior_: Posterior
    target_: TargetEncoder

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        raise NotImplementedError

    def _encoded_inputs(self, X: Any) -> np.ndarray:
        raise NotImplementedError

    def _checked_target(self, y: Any) -> pd.Series:
        raise NotImplementedError

    def _class_weights(self, target: pd.Series) -> np.ndarray:
        raise NotImplementedError

    def _infer(
        self, target_name: str, rows: tuple[np.ndarray, ...], method: Method | None = None, prior: Any = None
    ) -> Posterior:
        raise NotImplementedError

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn on from further rows: what was learned before is the prior now (`Posterior.as_prior`).

        Columns, units and labels stay those of the first rows, which must have every class, also those that `classes`
        lists. For methods of one mode, such as "laplace" or "bayes_by_backprop": Gaussians around the modes of several
        chains describe none of them.
        """
        if "posterior_" not in vars(self):
            if classes is not None and (missing := set(np.unique(classes)) - set(np.unique(y))):
                raise ValueError(f"The first rows lack the classes {sorted(missing)}; fit first on rows that have all.")
            return self.fit(X, y, sample_weight)
        inputs, target = self._encoded_inputs(X), self._checked_target(y)
        if len(inputs) != len(target):
            raise ValueError(f"X has {len(inputs)} rows and y has {len(target)}; they must match row by row.")
        weight = _check_sample_weight(sample_weight, inputs, dtype=np.float64, ensure_non_negative=True)
        rows = (inputs, self.target_.transform(target), weight * self._class_weights(target))
        before = self.posterior_
        method = self.method if isinstance(self.method, Method) else table_method(self.method, len(inputs))
        with as_of_scikit_learn():
            self.posterior_ = self._infer(name_of(y), rows, method.beginning_at(before), before.as_prior())
        return self
