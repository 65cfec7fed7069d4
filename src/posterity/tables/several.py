"""Several targets at once: a network for each, fitted to the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.multioutput import MultiOutputRegressor

from posterity.tables.estimators import BayesianRegressor


class BayesianMultiRegressor(MultiOutputRegressor):
    """Bayesian networks that predict several numbers, one for each column of y, with their uncertainty.

    Noise and ignorance of different targets are taken to be independent. Each target has its own learned scales, noise
    and diagnosis: `estimators_` holds a `BayesianRegressor` for each.

    Args:
        estimator: The regressor that is fitted to every target. None: `BayesianRegressor()`.
        n_jobs: Targets to fit at the same time. None: one after the other, which suits a fit that uses all cores.
    """

    estimators_: list[BayesianRegressor]

    def __init__(self, estimator: BayesianRegressor | None = None, *, n_jobs: int | None = None) -> None:
        super().__init__(estimator, n_jobs=n_jobs)

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Learn from rows X and targets y, [N, T]."""
        given = self.estimator
        self.estimator = BayesianRegressor() if given is None else given
        try:
            super().fit(X, y, sample_weight, **fit_params)
        finally:
            self.estimator = given  # settings stay as they were given
        named = isinstance(y, pd.DataFrame)
        self.target_names_ = [str(name) for name in y.columns] if named else [f"y{i}" for i in range(np.shape(y)[1])]
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The expected targets, [N, T]; with `return_std` also their standard deviations."""
        found = [estimator.predict(X, return_std=True) for estimator in self.estimators_]
        mean, std = (np.stack(part, 1) for part in zip(*found, strict=True))
        return (mean, std) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.9, calibrated: bool = False) -> np.ndarray:
        """[N, T, 2]: an interval for each target by itself, as that of `BayesianRegressor`."""
        return np.stack([each.predict_interval(X, level, calibrated) for each in self.estimators_], 1)

    def predict_quantile(self, X: Any, quantiles: Any = (0.05, 0.5, 0.95)) -> np.ndarray:
        """[N, T, Q], or [N, T] for a single quantile."""
        return np.stack([each.predict_quantile(X, quantiles) for each in self.estimators_], 1)

    def uncertainty(self, X: Any) -> pd.DataFrame:
        """total, aleatoric, epistemic and ood of every target; columns are pairs of a target and one of these."""
        found = {name: each.uncertainty(X) for name, each in zip(self.target_names_, self.estimators_, strict=True)}
        return pd.concat(found, axis=1)

    def log_prob(self, X: Any, y: Any) -> np.ndarray:
        """log p(y) of each row, [N], all targets together."""
        columns = np.asarray(y, float).T
        return np.sum([each.log_prob(X, one) for each, one in zip(self.estimators_, columns, strict=True)], 0)

    def save(self, path: str | Path) -> None:
        """A folder for every target, in their order."""
        for number, each in enumerate(self.estimators_):
            each.save(Path(path) / f"target_{number}")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The targets that `save` wrote."""
        folders = sorted(Path(path).glob("target_*"), key=lambda folder: int(folder.name.removeprefix("target_")))
        if not folders:
            raise ValueError(f"{path} holds no folders target_0, target_1, ...; save() writes them.")
        made = cls()
        made.estimators_ = [BayesianRegressor.load(folder) for folder in folders]
        made.target_names_ = [str(each.posterior_.metadata["table_code"]["target_name"]) for each in made.estimators_]
        made.n_features_in_ = made.estimators_[0].n_features_in_
        return made
