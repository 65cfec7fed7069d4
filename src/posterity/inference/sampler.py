"""What all samplers share: the family their kept draws become, and the checks of their settings."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from posterity import checks
from posterity.families import Samples
from posterity.inference import step_size as adaptation
from posterity.inference.method import Method, Result
from posterity.model import Model
from posterity.types import Array, Params

DIVERGENCE = 1000.0  # a rise of energy that no accurate trajectory makes


class NoDrawsError(ValueError):
    """A run ended before it kept a draw."""


class Sampler(Method):
    """A method whose posterior is the draws it kept."""

    default_chains = 4

    def finish(self, model: Model, states: Any, kept: Params, fixed: Params) -> Result:
        del states
        return Result(stored_draws(self, kept, fixed), model)


class HamiltonianInfo(NamedTuple):
    """A step of HMC or NUTS."""

    log_joint: Array  # tempered, of the state after the step, as are the likelihood and prior below
    acceptance: Array  # probability; of NUTS the mean over the trajectory
    accepted: Array  # 1 where the proposal was taken; of NUTS where the state moved
    diverged: Array
    step_size: Array
    num_gradients: Array
    log_likelihood: Array  # untempered sum over rows
    log_prior: Array
    energy: Array  # H of the state after the step, with the momentum that led to it


class Hamiltonian(Sampler):
    """A sampler that adapts its step size in a first phase, where the user gives none."""

    step_size: float | None

    def stuck(self, trace: dict[str, np.ndarray]) -> np.ndarray | None:
        return adaptation.stuck_chains(trace) if self.step_size is None else None


def stored_draws(method: Method, kept: Params, fixed: Params) -> Samples:
    """The kept draws as a family."""
    if kept is None:
        raise NoDrawsError(
            f"{type(method).__name__} stopped before its first kept draw: give it more time, or go on with resume(...) "
            "where it has a store."
        )
    return Samples(kept, fixed)


def check_counts(method: Any, **least: int) -> None:
    for name, minimum in least.items():
        checks.check_whole(type(method).__name__, minimum, **{name: getattr(method, name)})


def check_positive(method: Any, *names: str) -> None:
    """Of those that are given; None leaves the choice to the method."""
    given = {name: getattr(method, name) for name in names if getattr(method, name) is not None}
    checks.check_positive(type(method).__name__, **given)


def check_target_acceptance(method: Any) -> None:
    target = method.target_acceptance
    if not 0 < target < 1:
        raise ValueError(f"{type(method).__name__}(target_acceptance={target}) must lie between 0 and 1; try 0.8.")


def check_adaptation(method: Any, warmup: str, remedy: int) -> None:
    """Without a step size there must be steps in which to find one."""
    if method.step_size is None and getattr(method, warmup) == 0:
        raise ValueError(
            f"{type(method).__name__}({warmup}=0) leaves no step in which to adapt the step size: give step_size, or "
            f"{warmup}={remedy}."
        )
