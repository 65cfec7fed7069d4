"""What a method is: a record of settings that plans a run, gives the kernel of one step, and names a family."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from posterity.core.types import Family, Kernel, Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.methods.card import Card


class Result(NamedTuple):
    """What a method ends in: weights, and where it changed the model (tuned noise) or learned a fact, those too."""

    family: Family
    model: Any
    facts: dict[str, Any] | None = None


class Method:
    """The contract of a method. Subclasses are records and final; their fields are the settings a user may choose.

    `start` says where chains begin: another method (fitted first), a Posterior, weights, or None for the network's own
    initialisation.
    """

    card: ClassVar[Card] = Card()  # what people need to know of it; a method offered by name has one of its own
    start: Any = None
    default_chains: int = 1
    targets_temperature: bool = True  # False: a point estimate, or another objective than the tempered posterior
    uses_prior: bool = True  # so that tempering the likelihood alone moves its optimum
    told_apart_by_start: bool = False  # chains from the same weights would be copies, but for the order of batches
    anytime: bool = True  # a run cut short by Ctrl-C or a budget still ends in a family

    def __repr__(self) -> str:
        """The settings that are not the default ones; functions by their names, so that it reads the same each time."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        values = {field.name: getattr(self, field.name) for field in fields if field.repr}
        defaults = {field.name: field.default for field in fields}
        shown = {
            name: value for name, value in values.items() if value is not defaults[name] and value != defaults[name]
        }
        parts = [f"{name}={getattr(value, '__name__', None) or repr(value)}" for name, value in shown.items()]
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def num_chains(self) -> int:
        """Chains where `fit` is not told: a member of an ensemble each, or at least as many as the start has."""
        members = getattr(self.start, "num_members", None)
        if members is not None:
            return members
        started = self.start if isinstance(self.start, Method) else getattr(self.start, "family", None)
        return max(self.default_chains, 1 if started is None else started.num_chains)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        """The phases of a run on so many rows."""
        raise NotImplementedError

    def check(self, model: Any, params: Params, data: Dataset) -> None:
        """Refuse, with a remedy, what this method cannot do; called once before anything is compiled."""

    def stuck(self, trace: dict[str, np.ndarray]) -> np.ndarray | None:
        """Which chains [C] the trace of the first phase [C, R] shows to be stuck: they are started afresh.

        None for methods whose chains cannot be.
        """
        del trace
        return None

    def kernel(self, model: Any) -> Kernel:
        """One chain, one step, for a model whose fixed weights are bound."""
        raise NotImplementedError

    def finish(self, model: Any, states: Any, kept: Params, fixed: Params) -> Result:
        """From the last states [C, ...] and the kept draws [C, D, ...] to a family."""
        raise NotImplementedError


def explicit_batch_size(batch_size: int | str | None, num_rows: int, default: int = 128) -> int | None:
    """Rows a step: what the user asked for, 'full' for all (None), or a default that fits."""
    if batch_size == "full":
        return None
    if batch_size is None:
        return min(default, num_rows) if num_rows > default else None
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r} must be a whole number of rows, at least 1, or 'full'.")
    if batch_size > num_rows:
        raise ValueError(f"batch_size={batch_size} is more than the {num_rows} rows there are; try batch_size='full'.")
    return batch_size if batch_size < num_rows else None
