"""Is a row unlike the training data? A score, and its p-value against rows that were held out.

    p = (1 + #{held-out score >= score}) / (n + 1)

For a row from the distribution of the held-out rows P(p <= a) <= a (conformal; Vovk et al. 2005): flagging at level a
raises false alarms at rate a, whatever the score is. A good score makes p small for strange rows.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees
from posterity.core.types import Params
from posterity.models.model import Model
from posterity.networks.layers import last_features

Score = Literal["epistemic", "total", "features"]
SCORES = ("epistemic", "total", "features")
RIDGE = 1e-3  # share of the mean variance added to every direction: dead units have none


class Scored(Protocol):
    @property
    def epistemic(self) -> np.ndarray: ...
    @property
    def total(self) -> np.ndarray: ...


class FeatureDistance(NamedTuple):
    """Mahalanobis distance of the last hidden features from the training rows', mean over chains (Lee et al. 2018)."""

    model: Model
    params: Params  # [C, ...] complete weights
    mean: np.ndarray  # [C, H]
    whitening: np.ndarray  # [C, H, H]

    def __call__(self, x: Any) -> np.ndarray:
        features = _features(self.model, self.params, x)
        white = np.einsum("cnh,chg->cng", features - self.mean[:, None], self.whitening)
        return np.sqrt(np.square(white).sum(-1)).mean(0)


class Calibration(NamedTuple):
    """Scores of held-out rows, sorted, and how to score a new one."""

    name: Score
    scores: np.ndarray
    distance: FeatureDistance | None

    def score(self, prediction: Scored, x: Any) -> np.ndarray:
        """One number per row, larger for stranger rows; further axes are averaged."""
        if self.distance is not None:
            return self.distance(x)
        values = getattr(prediction, self.name)
        return values.reshape(len(values), -1).mean(-1)

    def p_value(self, score: np.ndarray) -> np.ndarray:
        at_least = len(self.scores) - np.searchsorted(self.scores, score, side="left")
        return (1 + at_least) / (len(self.scores) + 1)


def feature_distance(model: Model, params: Params, x: Any) -> FeatureDistance:
    """The distance from the features of training rows `x`, for complete weights [C, ...]."""
    features = _features(model, params, x)
    mean = features.mean(1)
    whitening = np.stack([_whitening(rows - centre) for rows, centre in zip(features, mean, strict=True)])
    return FeatureDistance(model, params, mean, whitening)


def _features(model: Model, params: Params, x: Any) -> np.ndarray:
    """[C, N, H], a block of rows at a time."""
    rows = pytrees.num_rows(x)
    call = jax.jit(jax.vmap(lambda p, x: last_features(model.network, p["network"], x), (0, None)))
    blocks = [pytrees.take_rows(x, slice(first, first + 4096)) for first in range(0, rows, 4096)]
    return np.concatenate([np.asarray(call(params, jax.tree.map(jnp.asarray, block))) for block in blocks], 1)


def _whitening(centred: np.ndarray) -> np.ndarray:
    covariance = centred.T @ centred / max(len(centred) - 1, 1)
    ridge = RIDGE * max(np.trace(covariance) / len(covariance), np.finfo(float).tiny)
    values, vectors = np.linalg.eigh(covariance + ridge * np.eye(len(covariance)))
    return vectors / np.sqrt(values)
