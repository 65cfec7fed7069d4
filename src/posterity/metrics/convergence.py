"""Numbers about Markov chains, [C, D, ...] -> [...], many quantities at a time (Vehtari et al. 2021; Geyer 1992).

W is the mean variance within chains, B / n the variance of the means of chains of n draws, v = W (n - 1) / n + B / n:

    R-hat = sqrt(v / W)                      1 where chains agree; of halves of chains, so that a drift shows too
    ESS   = C n / tau,  tau = -1 + 2 sum_k P_k,  P_k = rho_2k + rho_2k+1,  rho_t = 1 - (W - mean_c acov_ct) / v

with the sum over Geyer's initial sequence: the P_k before the first that is not positive, made monotone. In place of
draws, z = Phi^-1((rank - 3/8) / (S + 1/4)), whose moments exist for any distribution. R-hat is the larger of that of
the draws and of their distances to the median; the tail's ESS the smaller of those of I(draw <= q), q the 5 % and 95 %
quantiles.

The error of a mean from n effective draws is known to n / 3 degrees of freedom or so, and `honest_error` is wider by
t / 2, t the quantile of Student's distribution that leaves as much outside as two standard deviations of a normal one:
the mean and twice that error hold the exact value in 95 % of runs, with few effective draws too.

Nested R-hat (Margossian et al. 2022, arXiv 2110.13017) is for many short chains, K groups of M chains that began at the
same weights: with B the variance of the groups' means (K - 1), and W the mean over groups of the variance of chains'
means (M - 1) plus the mean variance within chains (D - 1), it is sqrt(1 + B / W). Where chains have converged, the mean
of a group has the error of all its chains: nested R-hat falls to 1 with M, however short the chains.

arviz-stats has the same numbers (the tests compare), one quantity at a time and with R-hat for two chains or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special
from scipy.fft import next_fast_len

MIN_DRAWS = 8  # a chain: four in each half; with fewer, a number would say nothing
SHORT = 16  # draws a chain below which autocorrelations are not seen, and errors from them came out half too small
DRAWS_OF_A_DEGREE = 3  # effective draws for a degree of freedom of their error: from autocorrelated normal chains
BLOCK_VALUES = 2**20  # numbers in a block of quantities: 8 MB
TAILS = (0.05, 0.95)
TWO_SIDED = float(special.ndtr(2.0))
RECIPROCALS = np.linspace(0.0, 2.0, 401)  # of degrees of freedom, half of one at the least
T_FACTORS = np.r_[1.0, special.stdtrit(1 / RECIPROCALS[1:], TWO_SIDED) / 2]


class Convergence(NamedTuple):
    """What draws [C, D, ...] say of their chains, [...] each; NaN where a value is not finite."""

    r_hat: np.ndarray  # NaN too where no draw differs from another; inf where draws differ, but only between chains
    ess_bulk: np.ndarray  # all chains together
    ess_tail: np.ndarray
    standard_error: np.ndarray  # of the mean


def convergence(draws: np.ndarray) -> Convergence:
    """R-hat, effective numbers of draws and Monte Carlo error of each quantity."""
    return Convergence(*_in_blocks(_convergence, draws, len(Convergence._fields)))


def r_hat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat alone."""
    return _in_blocks(lambda block: _rank_r_hat(split(block))[:1], draws, 1)[0]


def standard_error(draws: Any, xp: Any = np) -> Any:
    """Monte Carlo standard error of the mean over all draws; `xp` is numpy, or jax.numpy inside a program.

    From the effective number of draws; for chains of fewer than SHORT draws from the spread of the chains' means, and
    NaN for one such chain, which cannot tell.
    """
    num_chains, num_draws = draws.shape[:2]
    if num_draws >= SHORT:
        flat = draws.reshape(num_chains * num_draws, *draws.shape[2:])
        return flat.std(0, ddof=1) / xp.sqrt(effective_draws(split(draws, xp), xp))
    if num_chains == 1:
        return xp.full(draws.shape[2:], xp.nan, dtype=draws.dtype)
    return draws.mean(1).std(0, ddof=1) / num_chains**0.5


def t_factor(degrees: Any, xp: Any = np) -> Any:
    """How much wider an error is that is known to so many degrees of freedom; at most as for half of one."""
    return xp.interp(1 / xp.maximum(degrees, 0.5), xp.asarray(RECIPROCALS), xp.asarray(T_FACTORS))


def honest_error(draws: np.ndarray) -> np.ndarray:
    """The standard error of the mean over all draws, wider where it rests on few effective ones."""
    num_chains, num_draws = draws.shape[:2]
    with np.errstate(divide="ignore", invalid="ignore"):  # not finite in, NaN out; no error of what does not vary
        error = standard_error(draws.astype(float))
        if num_draws < SHORT:
            return error * t_factor(num_chains - 1)
        effective = np.square(draws.std((0, 1), dtype=float) / error)
    return error * t_factor(np.where(error > 0, effective, np.inf) / DRAWS_OF_A_DEGREE)


def nested_r_hat(draws: np.ndarray, num_groups: int) -> np.ndarray:
    """Nested R-hat of chains [C, D, ...], of which chain c began where all c + i * num_groups did."""
    num_chains, num_draws = draws.shape[:2]
    size = num_chains // num_groups
    if num_groups < 2 or num_chains % num_groups or size * num_draws < 2:
        raise ValueError(
            f"{num_chains} chains of {num_draws} draws are no {num_groups} groups of as many chains each, of two "
            "draws or more together: nested R-hat compares two groups or more."
        )
    groups = draws.astype(float).reshape(size, num_groups, *draws.shape[1:])
    means = groups.mean(2)  # [M, K, ...]
    within = means.var(0, ddof=1) if size > 1 else np.zeros(means.shape[1:])
    within += groups.var(2, ddof=1).mean(0) if num_draws > 1 else 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(1 + means.mean(0).var(0, ddof=1) / within.mean(0))


def e_bfmi(energies: np.ndarray) -> np.ndarray:
    """mean (E_t - E_t-1)^2 / var E of each chain, [C, D] -> [C] (Betancourt 2016); NaN for a constant energy."""
    variance = energies.var(1, ddof=1)
    return np.square(np.diff(energies, axis=1)).mean(1) / np.where(variance > 0, variance, np.nan)


def find_odd_chain(draws: np.ndarray, threshold: float, share: float, max_quantities: int = 50) -> int | None:
    """The one chain whose removal brings R-hat below `threshold` for a share of the quantities now above it.

    None where there is no such chain, or more than one.
    """
    flat = draws.reshape(*draws.shape[:2], -1)
    found = r_hat(flat)
    worst = [i for i in np.argsort(-np.nan_to_num(found), kind="stable")[:max_quantities] if found[i] >= threshold]
    if len(draws) < 3 or not worst:
        return None  # of two chains that disagree, either may be the odd one
    without = [np.mean(r_hat(np.delete(flat[:, :, worst], chain, 0)) < threshold) for chain in range(len(draws))]
    alone = np.flatnonzero(np.asarray(without) >= share)
    return int(alone[0]) if len(alone) == 1 else None


def split(draws: Any, xp: Any = np) -> Any:
    """Halves of chains as chains, [2C, D // 2, ...]; the middle draw of an odd number is left out."""
    half = draws.shape[1] // 2
    return xp.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def normal_scores(draws: np.ndarray) -> np.ndarray:
    """Each draw by the normal quantile of its rank among all draws of all chains; ties share their mean rank."""
    rows = _rows(draws)
    size = rows.shape[-1]
    order = np.argsort(rows, -1)
    ranked = np.take_along_axis(rows, order, -1)
    first, last = np.ones(rows.shape, bool), np.ones(rows.shape, bool)  # of a run of equal values
    first[:, 1:] = last[:, :-1] = ranked[:, 1:] != ranked[:, :-1]
    position = np.arange(size)
    begin = np.maximum.accumulate(np.where(first, position, 0), -1)
    end = np.minimum.accumulate(np.where(last, position, size)[:, ::-1], -1)[:, ::-1]
    rank = np.arange(2, 2 * size + 1) / 2  # all there can be: a mean rank is whole or half
    scores = np.empty_like(rows)
    np.put_along_axis(scores, order, special.ndtri((rank - 3 / 8) / (size + 1 / 4))[begin + end], -1)
    return _unrows(scores, draws)


def effective_draws(draws: Any, xp: Any = np) -> Any:
    """ESS of the mean of chains that are not split again; the number of draws where nothing varies."""
    num_chains, length = draws.shape[:2]
    covariance = _autocovariance(draws, xp).mean(0)  # [n, ...] over lags
    within = covariance[0] * length / (length - 1)
    total = covariance[0] + (draws.mean(1).var(0, ddof=1) if num_chains > 1 else 0.0)
    varies = total > 0
    correlation = 1 - (within - covariance) / xp.where(varies, total, 1.0)
    tau = _autocorrelation_time(xp.concatenate([xp.ones_like(correlation[:1]), correlation[1:]]), xp)
    # Chains that alternate can have more effective draws than draws, but a few draws cannot tell how many more.
    tau = xp.maximum(tau, 1 / np.log10(num_chains * length))
    size = num_chains * length
    return xp.where(varies | xp.isnan(total), size / tau, size * 1.0)


def _autocorrelation_time(correlation: Any, xp: Any) -> Any:
    """tau from correlations at all lags, [n, ...]: whole pairs of the initial sequence, then half of the pair after."""
    length = correlation.shape[0]
    last = max(-(-(length - 4) // 2), 0)  # pairs beyond it rest on too few products
    even, odd = correlation[: 2 * last + 1 : 2], correlation[1 : 2 * last + 2 : 2]
    pairs = even + odd  # [last + 1, ...]
    ended = pairs <= 0
    count = xp.where(ended.any(0), ended.argmax(0), last)
    position = xp.arange(last + 1).reshape(-1, *(1,) * (pairs.ndim - 1))
    monotone = _running_minimum(pairs, xp)
    whole = xp.where(position < count, monotone, 0.0).sum(0)
    next_even = xp.take_along_axis(even, count[None], 0)[0]
    next_pair = xp.take_along_axis(pairs, count[None], 0)[0]
    tau = -1 + 2 * whole + xp.where((next_even > 0) | (next_pair >= 0), next_even, 0.0)
    return xp.where(xp.isnan(pairs).any(0), xp.nan, tau)


def _autocovariance(draws: Any, xp: Any) -> Any:
    """[C, n, ...] at lags 0 .. n - 1, each sum of products divided by n."""
    length = draws.shape[1]
    padded = next_fast_len(2 * length, real=True)
    rows = xp.moveaxis(draws - draws.mean(1, keepdims=True), 1, -1)
    spectrum = xp.fft.rfft(rows, padded)
    covariance = xp.fft.irfft(xp.square(spectrum.real) + xp.square(spectrum.imag), padded)[..., :length]
    return xp.moveaxis(covariance, -1, 1) / length


def _running_minimum(values: Any, xp: Any) -> Any:
    return np.minimum.accumulate(values, 0) if xp is np else jax.lax.cummin(values, 0)


def _convergence(draws: np.ndarray) -> tuple[np.ndarray, ...]:
    larger, scores = _rank_r_hat(split(draws))
    return larger, effective_draws(scores), _quantile_ess(draws), standard_error(draws)


def _rank_r_hat(halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R-hat, and the scores of the draws."""
    scores = normal_scores(halves)
    distances = normal_scores(np.abs(halves - np.median(_rows(halves), -1)))
    return np.maximum(_plain_r_hat(scores), _plain_r_hat(distances)), scores


def _plain_r_hat(draws: np.ndarray) -> np.ndarray:
    length = draws.shape[1]
    within, between = draws.var(1, ddof=1).mean(0), draws.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((length - 1) / length + between / within)


def _quantile_ess(draws: np.ndarray) -> np.ndarray:
    rows = _rows(draws)
    sizes = []
    for tail in np.quantile(rows, TAILS, axis=-1):
        below = np.where(np.isnan(tail)[:, None], np.nan, rows <= tail[:, None])
        sizes.append(effective_draws(split(_unrows(below, draws))))
    return np.minimum(*sizes)


def _in_blocks(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], draws: np.ndarray, num_results: int
) -> list[np.ndarray]:
    """The results of function([C, D, m]), a few quantities at a time; NaN for a quantity with a non-finite value."""
    num_chains, num_draws, *shape = draws.shape
    if num_draws < MIN_DRAWS:
        raise ValueError(
            f"{num_draws} draws per chain are too few for R-hat and effective sample sizes, which compare halves of "
            f"chains: at least {MIN_DRAWS} are needed, a hundred are useful."
        )
    flat = draws.reshape(num_chains, num_draws, -1)
    results = np.full((num_results, flat.shape[2]), np.nan)
    width = max(1, BLOCK_VALUES // (num_chains * num_draws))
    for begin in range(0, flat.shape[2], width):
        block = flat[:, :, begin : begin + width].astype(float)
        columns = begin + np.flatnonzero(np.isfinite(block).all((0, 1)))
        if columns.size:
            results[:, columns] = function(block[:, :, columns - begin])
    return [result.reshape(shape) for result in results]


def _rows(draws: np.ndarray) -> np.ndarray:
    """[m, C * D]: what one quantity did, side by side in memory."""
    return np.ascontiguousarray(np.moveaxis(draws, -1, 0).reshape(draws.shape[-1], -1))


def _unrows(rows: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.moveaxis(rows.reshape(like.shape[-1], *like.shape[:2]), 0, -1)
