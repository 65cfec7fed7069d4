"""What of Izmailov et al. 2021 fits on two cores: the toy run, HMC on UCI tables, every method beside HMC on digits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from posterity.studies.published import izmailov2021_digits, izmailov2021_toy, izmailov2021_uci
from posterity.studies.rows import Row
from posterity.studies.study import Size, StudyLog

TITLE = "HMC as the referee, on small problems"
REFERENCE = "Izmailov, Vikram, Hoffman & Wilson 2021, What are Bayesian neural network posteriors really like?"
LEFT_OUT = "CIFAR and its residual network, which took 512 accelerators, and the naval set"
ALL = [
    "mle",
    "map",
    "deep_ensemble",
    "mc_dropout",
    "bayes_by_backprop",
    "laplace",
    "swag",
    "sgld",
    "sghmc",
    "cyclical",
    "mile",
    "nuts",
]
PARTS = {"uci": izmailov2021_uci, "toy": izmailov2021_toy, "digits": izmailov2021_digits}


def settings(size: Size) -> dict[str, Any]:
    """Those of the size, with what all sizes share: seeds, networks, priors, rates."""
    return {name: {**chosen, **PARTS[name].CONSTANTS} for name, chosen in _of_size(size).items()}


def _of_size(size: Size) -> dict[str, dict[str, Any]]:
    uci = {
        "prior_scales": [0.3, 0.5],
        "prior_draws": 50,
        "splits": 5,
        "draws": 120,
        "map_steps": 3000,
        "max_leapfrog": 1000,
    }
    digits = {"rows": 3000, "test_rows": 2000, "draws": 150, "burn_in": 75, "max_leapfrog": 500, "effort": 1.0}
    if size == "full":
        return {
            "toy": {"iterations": 100, "step_size": 1e-5},
            "uci": {"sets": ["concrete", "yacht", "boston", "energy"], **uci},
            "digits": {**digits, "methods": ALL},
        }
    if size == "quick":
        small = uci | {"prior_scales": [0.5], "splits": 2, "draws": 50, "map_steps": 1000, "max_leapfrog": 200}
        few = {"rows": 200, "test_rows": 500, "draws": 40, "burn_in": 30, "max_leapfrog": 200, "effort": 0.1}
        return {
            "uci": {"sets": ["yacht"], **small},
            "digits": {**few, "methods": ["map", "deep_ensemble", "bayes_by_backprop", "sghmc"]},
        }
    few = {"rows": 30, "test_rows": 50, "draws": 8, "burn_in": 20, "max_leapfrog": 20, "effort": 0.01}
    return {"digits": {**few, "methods": ["map"]}}


def run(log: StudyLog) -> Iterator[Row]:
    for name, part in PARTS.items():
        if name in log.settings:
            yield from part.run(log)
