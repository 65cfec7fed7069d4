"""Which rows to ask labels for: those that would tell most about the weights, or about predictions that matter.

With w the weights, p_s the probabilities under draw s of S, and A the rows chosen so far (each score in nats):

    BALD       I[y; w | x] = H[mean_s p_s] - mean_s H[p_s]                          (Houlsby et al. 2011)
    BatchBALD  I[y_1 .. y_k; w], grown greedily: H[y_A, y] - sum_A mean_s H[p_s]    (Kirsch et al. 2019)
    EPIG       mean over targets x* of I[y; y* | x, x*]                             (Bickford Smith et al. 2023)

Rows that are best one by one are often copies of each other; BatchBALD counts what they share once. The joint entropy
is a sum over all labels of the rows in A while these are few, then over labels sampled from p(y_A) (their eq. 12).

A number is taken for Gaussian, with the covariance V of its mean over draws and the noise D of each row:

    BALD       log(1 + V_xx / D_x) / 2          BatchBALD  (log det(V_A + D_A) - log det D_A) / 2
    EPIG       mean over targets of -log(1 - r^2) / 2, r the correlation of y and y*
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from posterity.core.checks import check_whole
from posterity.core.names import nearest_name
from posterity.metrics.estimate import FloatArray
from posterity.posterior.posterior import Posterior
from posterity.prediction.prediction import Prediction

Score = Literal["batchbald", "bald", "epig", "variance", "random"]
SCORES: tuple[Score, ...] = get_args(Score)
BLOCK_VALUES = 2**24  # numbers in a block of candidates: 128 MB


@dataclass(frozen=True)
class Acquired:
    """Rows of the pool to ask for, in the order they were chosen."""

    index: np.ndarray
    """[k]: rows of the pool."""
    score: FloatArray
    """[k]: of each row by itself; for "batchbald", of the rows up to it together."""


def acquire(
    posterior: Posterior,
    pool: Any,
    k: int = 1,
    score: Score = "batchbald",
    *,
    targets: Any = None,
    num_draws: int | None = None,
    num_samples: int = 2_000,
    seed: int = 0,
) -> Acquired:
    """The k rows of a pool whose labels are worth most.

    Args:
        posterior: What is known so far.
        pool: Inputs to choose from.
        k: How many.
        score: "batchbald" counts what rows share once; "bald", "epig" and "variance" (of the mean over draws) score
            each row by itself; "random" is what to compare with.
        targets: Inputs at which predictions matter, for "epig".
        num_draws: Draws of the weights; by default all stored ones, or 100 fresh ones.
        num_samples: Labels of earlier rows that a joint entropy is summed over, where all of them would be more.
        seed: Of fresh draws, of those labels, and of a random choice.

    Examples:
        >>> import numpy as np
        >>> from posterity import Exact, Gaussian, Model, acquire, fit, linear
        >>> x = np.linspace(-1.0, 1.0, 5)[:, None]
        >>> posterior = fit(Model(linear(), Gaussian(0.1)), Exact(), (x, 2.0 * x[:, 0]), progress=False)
        >>> pool = np.array([[0.0], [3.0], [3.0], [-2.9]])  # the second 3 adds less than -2.9
        >>> acquire(posterior, pool, 2).index.tolist(), acquire(posterior, pool, 2, "bald").index.tolist()
        ([1, 3], [1, 2])
    """
    check_whole("acquire", k=k, num_samples=num_samples)
    if score not in SCORES:
        raise ValueError(f"score={score!r} is not known; did you mean {nearest_name(score, SCORES)!r}?")
    if (targets is None) == (score == "epig"):
        remedy = "give the inputs at which predictions matter" if targets is None else "which only 'epig' looks at"
        raise ValueError(f"score={score!r} with targets {'missing' if targets is None else 'given'}: {remedy}.")
    prediction = posterior.predict(pool, num_draws=num_draws, seed=seed, closed_form=False)
    values, noise = _values(prediction)
    if k > values.shape[1]:
        raise ValueError(f"k={k}, and the pool has {values.shape[1]} rows; ask for at most that many.")
    if score == "random":
        chosen = np.random.default_rng(seed).permutation(values.shape[1])[:k]
        return Acquired(chosen, np.zeros(k))
    if len(values) == 1:
        raise ValueError("One draw has nothing to disagree with: give a posterior with several, such as Laplace's.")
    if score == "batchbald":
        if noise is None:
            return batch_bald(values, k, num_samples, seed)
        return gaussian_batch_bald(values, noise, k)
    if score == "epig":
        at = posterior.predict(targets, num_draws=num_draws, seed=seed, closed_form=False)
        found = epig(values, _values(at)[0]) if noise is None else gaussian_epig(values, noise, *_numbers(at))
    elif score == "bald":
        found = bald(values) if noise is None else np.log1p(values.var(0) / noise) / 2
    else:
        found = values.var(0) if noise is not None else values.var(0).sum(-1)
    best = np.argsort(-found, kind="stable")[:k]
    return Acquired(best, found[best])


def _values(prediction: Prediction) -> tuple[FloatArray, FloatArray | None]:
    """Probabilities under each draw [S, N, C] and None, or means [S, N] and the variance of the noise [N]."""
    if prediction.kind != "classes":
        return _numbers(prediction)
    probs = prediction.draw_means.astype(float)
    if probs.ndim != 3:
        raise ValueError(f"The prediction has probabilities of shape {probs.shape[1:]}; expected one class a row.")
    return probs, None


def _numbers(prediction: Prediction) -> tuple[FloatArray, FloatArray]:
    means = prediction.draw_means.astype(float)
    if means.ndim != 2:
        raise ValueError(f"The prediction has targets of shape {means.shape[1:]}; expected one number a row.")
    return means, prediction.aleatoric.astype(float)


def bald(probs: FloatArray) -> FloatArray:
    """I[y; w] of each row, from probabilities [S, N, C]."""
    return _entropy(probs.mean(0)) - _entropy(probs).mean(0)


def batch_bald(probs: FloatArray, k: int, num_samples: int = 2_000, seed: int = 0) -> Acquired:
    """Greedy BatchBALD from probabilities [S, N, C]."""
    rng = np.random.default_rng(seed)
    num_draws, _, num_classes = probs.shape
    conditional = _entropy(probs).mean(0)
    chosen: list[int] = []
    found: list[float] = []
    given = np.ones((1, num_draws))  # [M, S]: p_s of labels of the chosen rows, for M of these
    exact = True
    for _ in range(k):
        entropies = _joint_entropies(given, probs, exact)
        scores = entropies - conditional - conditional[chosen].sum()
        scores[chosen] = -np.inf
        best = int(scores.argmax())
        chosen.append(best)
        found.append(float(scores[best]))
        exact = exact and len(given) * num_classes <= num_samples
        if exact:
            given = (given[:, None] * probs[:, best].T).reshape(-1, num_draws)
        else:
            given = _sampled(rng, probs[:, chosen], num_samples)
    return Acquired(np.asarray(chosen), np.asarray(found))


def _sampled(rng: np.random.Generator, probs: FloatArray, count: int) -> FloatArray:
    """p_s(y_A) of every draw, [M, S], for labels y_A from the mixture over draws; probabilities [S, |A|, C]."""
    draws = rng.integers(len(probs), size=count)
    cumulative = probs.cumsum(-1)[draws]  # [M, |A|, C]
    labels = (rng.uniform(size=cumulative.shape[:2])[..., None] * cumulative[..., -1:] > cumulative).sum(-1)
    given = np.ones((count, len(probs)))
    for row, label in enumerate(labels.T):
        given *= probs[:, row, label].T
    return given


def _joint_entropies(given: FloatArray, probs: FloatArray, exact: bool) -> FloatArray:
    """H[y_A, y] for each row [N]; `given` [M, S] has all labels of A (`exact`), or labels drawn from p(y_A)."""
    before = given.mean(1)
    share = np.ones(len(given)) if exact else 1 / (len(given) * before)
    num_draws, num_rows, num_classes = probs.shape
    size = max(1, BLOCK_VALUES // (len(given) * num_classes))
    entropies = np.empty(num_rows)
    for first in range(0, num_rows, size):
        block = probs[:, first : first + size]
        joint = (given @ block.reshape(num_draws, -1) / num_draws).reshape(len(given), -1, num_classes)
        entropies[first : first + size] = np.einsum("m,mn->n", share, _entropy(joint))
    return entropies


def epig(probs: FloatArray, at_targets: FloatArray) -> FloatArray:
    """Mean over targets of I[y; y*], from probabilities [S, N, C] and [S, T, C]."""
    num_draws, num_rows, num_classes = probs.shape
    targets = at_targets.reshape(num_draws, -1)
    # KL of the joint distribution from independence is H[y] + H[y*] - H[y, y*].
    alone = _entropy(probs.mean(0)) + _entropy(at_targets.mean(0)).mean()
    size = max(1, BLOCK_VALUES // (targets.shape[1] * num_classes))
    joint = np.empty(num_rows)
    for first in range(0, num_rows, size):
        block = probs[:, first : first + size].reshape(num_draws, -1)
        both = (block.T @ targets / num_draws).reshape(-1, num_classes * targets.shape[1])
        joint[first : first + size] = _entropy(both) / at_targets.shape[1]
    return alone - joint


def gaussian_batch_bald(means: FloatArray, noise: FloatArray, k: int) -> Acquired:
    """Greedy BatchBALD of numbers, from means [S, N] and noise [N]: a Cholesky factor of V + D, a row at a time."""
    centred = (means - means.mean(0)) / np.sqrt(len(means))
    left = np.square(centred).sum(0)  # variance of each mean once the chosen rows are observed
    columns = np.zeros((k, means.shape[1]))
    chosen: list[int] = []
    found = np.zeros(k)
    for step in range(k):
        gains = np.log1p(np.maximum(left, 0.0) / noise) / 2
        gains[chosen] = -np.inf
        best = int(gains.argmax())
        found[step] = gains[best] + (found[step - 1] if step else 0.0)
        covariance = centred.T @ centred[:, best] - columns[:step].T @ columns[:step, best]
        columns[step] = covariance / np.sqrt(covariance[best] + noise[best])
        left = left - np.square(columns[step])
        chosen.append(best)
    return Acquired(np.asarray(chosen), found)


def gaussian_epig(
    means: FloatArray, noise: FloatArray, at_targets: FloatArray, noise_at_targets: FloatArray
) -> FloatArray:
    """Mean over targets of -log(1 - r^2) / 2, from means [S, N] and [S, T]."""
    centred, targets = (values - values.mean(0) for values in (means, at_targets))
    covariance = centred.T @ targets / len(means)
    variance = np.square(centred).mean(0) + noise
    at = np.square(targets).mean(0) + noise_at_targets
    return -np.log1p(-np.square(covariance) / (variance[:, None] * at)).mean(1) / 2


def _entropy(probs: FloatArray) -> FloatArray:
    """-sum p log p over the last axis, in numpy; 0 log 0 = 0. The parts need not sum to one."""
    return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(-1)
