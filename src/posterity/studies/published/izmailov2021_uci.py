"""Izmailov et al. 2021, UCI regression: full-batch HMC on a 1x50 ReLU network with mean and log variance as outputs.

The prior's standard deviation is chosen for each split alone: by HMC on four fifths of its training rows, scored on the
last fifth. No test row has a say. The log-likelihood is, as theirs, that of the moment-matched Gaussian; log-mean-exp
stands beside it. Two earlier rules, one prior for all splits of a set, by split 0 and by the mean over splits, were
given up after their test scores had been seen.

A whole trajectory, pi/2 prior standard deviations, would take some 10,000 leapfrog steps at the step size that is
accepted; ours end after 1,000. With at most 5,000, half as much burn-in as draws and prior 0.5, split 0 of concrete
took 15 minutes: -2.79, acceptance 0.44, R-hat 2.0, for step sizes were settled before the noise had shrunk. So burn-in
is now as long as the draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from posterity import HMC, MAP, HeteroscedasticGaussian, Model, Normal, fit, mlp
from posterity.posterior.diagnosis import USABLE_SHARE
from posterity.posterior.posterior import Posterior
from posterity.studies.published import uci
from posterity.studies.rows import Row
from posterity.studies.study import StudyLog, mean_and_error

PUBLISHED = {  # log-likelihood and RMSE, each with its standard deviation over splits, read off a figure
    "concrete": ((-2.67, 0.11), (4.46, 0.49)),
    "yacht": ((0.54, 0.24), (0.66, 0.28)),
    "boston": ((-2.39, 0.17), (3.69, 1.12)),
    "energy": ((-1.08, 1.9), (0.36, 0.0)),
}
READING_ERROR = 0.02
OURS = "{} splits of Gal & Ghahramani; theirs are their own"
CHOSEN = ", chosen for each split by held-out rows of its training rows alone, after other rules had been tested"
PUBLISHED_SPLITS = 10  # not stated: as many as in the work they compare themselves with
CONSTANTS = {"hidden": [50], "map_learning_rate": 1e-2, "chains": 4, "seed": "the number of the split"}
AT_LEAST = {"concrete": -2.78, "yacht": 0.30, "boston": -2.56, "energy": -1.2}


def run(log: StudyLog) -> Iterator[Row]:
    for name in log.settings["uci"]["sets"]:
        yield from _set(log, name, log.settings["uci"])


def _set(log: StudyLog, name: str, chosen: dict[str, Any]) -> list[Row]:
    scales = [choose_prior(log, name, number, chosen) for number in range(chosen["splits"])]
    splits = [
        log.once(f"uci/{name}/{number}, prior {scale}", partial(run_split, name, number, scale, chosen))
        for number, scale in enumerate(scales)
    ]
    share = _mean(splits, "share_r_hat_under_1.1")
    verdict = "" if share >= USABLE_SHARE else ": not converged"
    remark = (
        f"function-space R-hat, median over inputs: {_mean(splits, 'r_hat_median'):.2f}, under 1.1 at "
        f"{100 * share:.0f} %{verdict}; at most {chosen['max_leapfrog']} leapfrog steps a trajectory; prior sd "
        + ", ".join(map(str, scales))
    )
    if len(chosen["prior_scales"]) > 1:
        remark += CHOSEN
    published = [
        (value, float(np.hypot(spread / np.sqrt(PUBLISHED_SPLITS), READING_ERROR))) for value, spread in PUBLISHED[name]
    ]
    mean, error = mean_and_error(split["ll_gaussian"] for split in splits)
    whole = log.size == "full"
    return [
        Row(
            f"{name}, HMC: log-likelihood (moment-matched)",
            mean,
            error,
            *published[0],
            target=f"at least {AT_LEAST[name]}" if whole else "",
            holds=bool(mean >= AT_LEAST[name]) if whole else None,
            remark=remark,
        ),
        Row(f"{name}, HMC: log-likelihood (log-mean-exp)", *mean_and_error(split["ll"] for split in splits)),
        Row(
            f"{name}, HMC: RMSE",
            *mean_and_error(split["rmse"] for split in splits),
            *published[1],
            remark=OURS.format(len(splits)),
        ),
    ]


def choose_prior(log: StudyLog, name: str, number: int, chosen: dict[str, Any]) -> float:
    """The width under which held-out training rows of this split are the likeliest."""

    def score(scale: float) -> float:
        key = f"uci/{name}/prior {scale}/{number}"
        return log.once(key, partial(score_prior, name, number, scale, chosen))["ll_gaussian"]

    scales = chosen["prior_scales"]
    return max(scales, key=score) if len(scales) > 1 else scales[0]


def sample(x: np.ndarray, y: np.ndarray, scale: float, num_draws: int, chosen: dict[str, Any], seed: int) -> Posterior:
    model = Model(mlp(chosen["hidden"]), HeteroscedasticGaussian(), Normal(0.0, scale))
    start = MAP(num_steps=chosen["map_steps"], learning_rate=chosen["map_learning_rate"], batch_size="full")
    method = HMC(num_draws=num_draws, num_burn_in=num_draws, max_leapfrog=chosen["max_leapfrog"], start=start)
    return fit(model, method, (x, y), seed=seed, chains=chosen["chains"], progress=False)


def score_prior(name: str, number: int, scale: float, chosen: dict[str, Any]) -> dict[str, Any]:
    """The log-likelihood of a prior on a fifth of the training rows."""
    rows = uci.hold_out(uci.split(uci.read(name), number))
    posterior = sample(rows.x_train, rows.y_train, scale, chosen["prior_draws"], chosen, seed=number)
    return {"ll_gaussian": float(posterior.predict(rows.x_test).log_prob_gaussian(rows.y_test).mean())}


def run_split(name: str, number: int, scale: float, chosen: dict[str, Any]) -> dict[str, Any]:
    rows = uci.split(uci.read(name), number)
    posterior = sample(rows.x_train, rows.y_train, scale, chosen["draws"], chosen, seed=number)
    prediction = posterior.predict(rows.x_test)
    target = (rows.y_test - rows.y_mean) / rows.y_std
    error = prediction.mean * rows.y_std + rows.y_mean - rows.y_test
    r_hat = np.ravel(posterior.diagnose(rows.x_test).r_hat)
    return {
        "rmse": float(np.sqrt(np.mean(error**2))),
        "ll_gaussian": float(prediction.log_prob_gaussian(target).mean() - np.log(rows.y_std)),
        "ll": float(prediction.log_prob(target).mean() - np.log(rows.y_std)),
        "r_hat_median": float(np.median(r_hat)),
        "share_r_hat_under_1.1": float((r_hat < 1.1).mean()),
        "acceptance": float(posterior.trace["acceptance"][:, chosen["draws"] :].mean()),
        "notes": list(posterior.receipt.notes),
    }


def _mean(parts: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([part[key] for part in parts]))
