"""What all samplers share: the family their kept draws become, and the checks of their settings."""

from __future__ import annotations

from typing import Any

from posterity.core import checks
from posterity.core.types import Params
from posterity.inference.methods.method import Method, Result
from posterity.models.model import Model
from posterity.weights.families import Samples


class NoDrawsError(ValueError):
    """A run ended before it kept a draw."""


class Sampler(Method):
    """A method whose posterior is the draws it kept."""

    default_chains = 4

    def finish(self, model: Model, states: Any, kept: Params, fixed: Params) -> Result:
        del states
        return Result(stored_draws(self, kept, fixed), model)


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
