"""What predicts a table without a network: is a Bayesian network worth it here?

A linear model, a random forest and boosting, as scikit-learn has them by default. Those that predict a number get a
Gaussian around it, with the variance of residuals that they were not trained on, by cross-validation.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_predict

from posterity.core.types import Task
from posterity.metrics import gaussian_log_prob

NUM_FOLDS = 5
MAX_ROWS = 5_000  # to train on: what is asked is whether trees predict as well, not by how many digits
SMALLEST_PROBABILITY = 1e-7  # a forest may give a class none


class Baseline(NamedTuple):
    """A model that is not Bayesian, at the test rows."""

    label: str
    log_prob: np.ndarray  # [N]


def baselines(
    task: Task, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int
) -> list[Baseline]:
    """Each of them, fitted to encoded rows."""
    chosen = np.random.default_rng(seed).permutation(len(train[1]))[:MAX_ROWS]
    x, y = (np.asarray(part)[chosen] for part in train)
    made = []
    for label, model in _models(task, seed).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on their convergence, which is not the user's concern
            log_prob = _of_numbers if task == "regression" else _of_classes
            made.append(Baseline(label, log_prob(model, x, y, *test)))
    return made


def _models(task: Task, seed: int) -> dict[str, BaseEstimator]:
    if task == "regression":
        return {
            "a linear model": Ridge(),
            "a random forest": RandomForestRegressor(random_state=seed),
            "gradient boosting": HistGradientBoostingRegressor(random_state=seed),
        }
    return {
        "a linear model": LogisticRegression(max_iter=500),
        "a random forest": RandomForestClassifier(random_state=seed),
        "gradient boosting": HistGradientBoostingClassifier(random_state=seed),
    }


def _of_numbers(model: BaseEstimator, x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray) -> np.ndarray:
    folds = min(NUM_FOLDS, len(y))
    deviation = float(np.std(y - cross_val_predict(model, x, y, cv=folds))) or 1e-12 * float(np.ptp(y))
    predicted = model.fit(x, y).predict(x_new)  # type: ignore[attr-defined]
    return gaussian_log_prob(predicted, np.full(len(y_new), deviation), y_new)


def _of_classes(model: BaseEstimator, x: np.ndarray, y: np.ndarray, x_new: np.ndarray, y_new: np.ndarray) -> np.ndarray:
    fitted = model.fit(x, y)  # type: ignore[attr-defined]
    given = np.zeros((len(x_new), int(max(y.max(), y_new.max())) + 1))
    given[:, fitted.classes_.astype(int)] = fitted.predict_proba(x_new)
    return np.log(np.maximum(given[np.arange(len(y_new)), y_new.astype(int)], SMALLEST_PROBABILITY))
