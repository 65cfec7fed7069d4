"""What chains [C, D, N] still miss on the way to an R-hat under a limit: nothing, draws, mixing, or burn-in.

Halves of C chains that mix, with ESS effective draws together, have means of the variance 2 C / ESS of a draw, so that

    R-hat^2 - 1  ~  (2 C / ESS) chi^2_2C-1 / (2C - 1)                           (split R-hat of many draws)

and the largest of N inputs, of the draws and of their distances to the median, is at the quantile 2^(-1 / 2N) of chi^2
every other time. For 8 chains and 300 inputs an R-hat under 1.01 at all of them therefore takes about 2,000 effective
draws, however well chains mix: `draws_for`. Where R-hat is too large,

    burn-in   chains move the same way: with d_c the difference of the means of a chain's halves, in standard deviations
              of a draw, |sum_c d_c|^2 over inputs is larger than for (nearly) all other signs of the d_c, or
              larger at some input than its effective draws allow, and the shift there is no trifle;
              or a chain accepts far less than its step size was adapted for
    mixing    chains differ more than their own autocorrelation explains, or are only a few autocorrelation times long
    draws     none of these: R-hat is what so few effective draws give; more of the same will do

Every number is rank-based at the inputs where plain moments are worst, as ranking all would take seconds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from posterity.metrics import convergence

Missing = Literal["nothing", "draws", "mixing", "burn-in"]
GOOD_R_HAT = 1.01
EXAMINED = 48  # inputs
SHIFT = 0.3  # standard deviations of a draw between halves of chains: less is no drift that would matter
CHANCE = 0.01  # of an alarm without cause
SIGNS = 512  # patterns of signs, all of them for up to ten chains
TOO_LOW = 0.3  # below the acceptance that was aimed at; above it steps are small, and right
SHORT_HALF = 4  # effective draws of a half chain: fewer do not show how long it takes to forget


class Progress(NamedTuple):
    """How far chains have come."""

    missing: Missing
    r_hat: float
    """The largest over inputs, or the one that the share asked for is under."""
    effective: float
    """Effective draws of all chains at the worst input."""
    needed: float
    """Effective draws there that would bring R-hat under the limit if chains mix."""
    more_draws: int
    """Of each chain, where draws are what is missing."""


def draws_for(r_hat: float, num_chains: int, num_inputs: int) -> float:
    """Effective draws for an R-hat under a limit at the worst of so many inputs, every other time, if chains mix."""
    degrees = 2 * num_chains - 1
    worst = special.chdtri(degrees, -np.expm1(np.log(0.5) / (2 * num_inputs)))
    return float(2 * num_chains * worst / degrees / (r_hat**2 - 1))


def progress(
    draws: np.ndarray,
    *,
    acceptance: np.ndarray | None = None,
    target_acceptance: float | None = None,
    r_hat: float = GOOD_R_HAT,
    share: float = 1.0,
) -> Progress:
    """What draws [C, D, N] miss for an R-hat under a limit at a share of inputs.

    `acceptance` [C] of each chain after its step size was fixed, and `target_acceptance` what that was adapted for.
    Eight chains of 2,000 draws at 1,000 inputs take less than a second.
    """
    flat = draws.reshape(*draws.shape[:2], -1)
    num_chains, num_draws, _ = flat.shape
    if num_draws < convergence.MIN_DRAWS:
        return Progress("draws", np.nan, np.nan, np.nan, convergence.MIN_DRAWS - num_draws)
    if not np.isfinite(flat).all():
        return Progress("burn-in", np.inf, 0.0, np.inf, 0)
    moments = _Moments.of(flat)
    varies = moments.squares.max((0, 1)) > 0
    if not varies.any():
        return Progress("nothing", np.nan, np.nan, 0.0, 0)
    plain, distances = moments.r_hat(moments.means), moments.r_hat(moments.distances)
    order = np.argsort(-np.where(varies, np.fmax(plain, distances), -np.inf), kind="stable")[: int(varies.sum())]
    skipped = int((1 - share) * len(order))  # inputs that may be worse
    chosen = order[skipped : skipped + EXAMINED]
    examined = np.ascontiguousarray(flat[:, :, chosen]).astype(float)
    found = convergence.convergence(examined)
    largest, effective = float(found.r_hat.max()), float(min(found.ess_bulk.min(), found.ess_tail.min()))
    needed = draws_for(r_hat, num_chains, len(order) - skipped)
    more = 0
    if _accepts_too_little(acceptance, target_acceptance) or _drifts(flat, moments.shifts, order[skipped:]):
        missing: Missing = "burn-in"
    elif largest < r_hat:
        missing = "nothing"
    elif (found.r_hat > _explained(examined, len(order))).any():
        missing = "mixing"
    else:
        missing = "draws"
        more = int(np.ceil(num_draws * max(needed / float(found.ess_bulk.min()) - 1, 0.1)))
    return Progress(missing, largest, effective, needed, more)


def drifts(draws: np.ndarray) -> bool:
    """Whether chains [C, D, N] move the same way at some inputs, from their first halves to their second ones."""
    return _drifts(draws, _Moments.of(draws).shifts, np.arange(draws.shape[2]))


def _drifts(draws: np.ndarray, shifts: np.ndarray, inputs: np.ndarray) -> bool:
    shifts = shifts[:, inputs]
    together = np.abs(shifts.mean(0))
    if together.max(initial=0.0) < SHIFT:
        return False
    sums = np.square(_sign_patterns(len(shifts)) @ shifts).sum(1)  # the first pattern: all signs as they are
    as_large = sums >= sums[0] * (1 - 1e-12)
    if as_large.mean() <= CHANCE:
        return True
    if as_large.sum() > 1:
        return False
    # Too few chains for signs alone: is the shift more than the effective draws of the halves, each by itself, explain?
    worst = np.argsort(-together, kind="stable")[:EXAMINED]
    halves = convergence.split(draws[:, :, inputs[worst]].astype(float))
    within = len(halves) * _within_draws(halves)  # of all halves
    error = 2 / np.sqrt(np.maximum(within, 1.0))
    factor = convergence.t_factor(within / convergence.DRAWS_OF_A_DEGREE)
    return bool((together[worst] > -special.ndtri(CHANCE / (2 * len(inputs))) * factor * error).any())


class _Moments(NamedTuple):
    """Of both halves of each chain, [2, C, N], about the mean of all draws."""

    means: np.ndarray
    distances: np.ndarray  # means of absolute values
    squares: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray) -> _Moments:
        half = draws.shape[1] // 2
        centred = draws - draws.mean((0, 1), dtype=float).astype(draws.dtype)
        halves = centred[:, :half], centred[:, draws.shape[1] - half :]
        means = np.stack([part.mean(1) for part in halves])
        squares = np.stack([np.einsum("cdn,cdn->cn", part, part) / half for part in halves])
        np.abs(centred, out=centred)
        distances = np.stack([part.mean(1) for part in halves])
        return cls(means.astype(float), distances.astype(float), squares.astype(float))

    def r_hat(self, means: np.ndarray) -> np.ndarray:
        """Split R-hat of values or distances with such means, [N], without ranks."""
        within = np.maximum(self.squares - np.square(means), 0.0).mean((0, 1))
        between = means.reshape(-1, means.shape[2]).var(0, ddof=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(1 + between / within)

    @property
    def shifts(self) -> np.ndarray:
        """Mean of the second half of each chain less that of its first, in standard deviations of a draw, [C, N]."""
        within = np.maximum(self.squares - np.square(self.means), 0.0).mean((0, 1))
        return (self.means[1] - self.means[0]) / np.sqrt(np.where(within > 0, within, np.inf))


def _sign_patterns(num_chains: int) -> np.ndarray:
    """[P, C]; the sign of the first chain stays, as all signs turned change nothing."""
    if 2 ** (num_chains - 1) <= SIGNS:
        bits = np.arange(2 ** (num_chains - 1))[:, None] >> np.arange(num_chains - 1) & 1
    else:
        bits = np.random.default_rng(0).integers(0, 2, (SIGNS, num_chains - 1))
        bits[0] = 0
    return np.concatenate([np.ones((len(bits), 1)), 1.0 - 2 * bits], 1)


def _accepts_too_little(acceptance: np.ndarray | None, target: float | None) -> bool:
    if acceptance is None or target is None:
        return False
    return bool((~(np.asarray(acceptance) >= target - TOO_LOW)).any())


def _within_draws(halves: np.ndarray) -> np.ndarray:
    """Effective draws of one half chain by its own autocorrelation, whatever the means of the others are, [N].

    Autocovariances about a half's own mean are too small by the variance of that mean, which is added again.
    """
    effective = convergence.effective_draws(halves - halves.mean(1, keepdims=True)) / len(halves)
    return effective / (1 + 2 / np.maximum(effective, 1.0))


def _explained(draws: np.ndarray, num_inputs: int) -> np.ndarray:
    """The R-hat that autocorrelation within chains explains at each input; 1 where chains are too short to tell."""
    halves = convergence.split(convergence.normal_scores(draws))
    within, degrees = _within_draws(halves), len(halves) - 1
    own = np.maximum(within * len(halves) / convergence.DRAWS_OF_A_DEGREE, 1.0)
    limit = special.fdtri(degrees, own, 1 - CHANCE / num_inputs)  # F: both variances are estimates
    explained = np.sqrt(1 + limit / np.maximum(within, 1e-9))
    return np.where(within < SHORT_HALF, 1.0, explained)
