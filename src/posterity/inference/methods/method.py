"""What a method is: a record of settings that plans a run, gives the kernel of one step, and names a family."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from posterity.core import records
from posterity.core.types import Array, Family, Kernel, Params, Phase
from posterity.data.arrays import Dataset
from posterity.inference.methods.card import Card
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior


class Result(NamedTuple):
    """What a method ends in: weights, and where it changed the model (tuned noise) or learned a fact, those too."""

    family: Family
    """The weights."""
    model: Model
    """The model they belong to: the one that was given, or the one it became."""
    facts: dict[str, Any] | None = None
    """What was learned beside the weights, by name, for `posterior.facts`; None: nothing."""


class Execution(NamedTuple):
    """How the programs of a run are compiled for one method, model and data."""

    float64: bool = False
    """Whether parts of them compute in float64, also where JAX is set to float32."""
    in_turn: bool = False
    """Whether the chains of a device run one after the other, not side by side."""
    remarks: tuple[str, ...] = ()
    """Lines for the receipt."""


class Method:
    """The contract of a method. Subclasses are records and final; their fields are the settings a user may choose.

    Args:
        start: Where chains begin: another method, which is fitted first, a Posterior, or weights. None: the network's
            own initialisation.
    """

    card: ClassVar[Card] = Card()
    """What people need to know of it; a method offered by name has one of its own."""
    start: Any = None
    default_chains: int = 1
    """Chains where neither `fit` nor the start asks for more."""
    targets_temperature: bool = True
    """False: a point estimate, or another objective than the tempered posterior."""
    uses_prior: bool = True
    """Whether the prior is part of the objective, so that tempering the likelihood alone moves its optimum."""
    told_apart_by_start: bool = False
    """Whether chains from the same weights would be copies, but for the order of batches."""
    holds_scales: bool = False
    """Whether a prior's learned scales stay where they begin: a joint peak says nothing of them."""
    anytime: bool = True
    """Whether a run cut short by Ctrl-C or a budget still ends in a family."""
    num_members: int | None = None
    """Of an ensemble, where each member is a chain; None: any number of chains will do."""
    patience: int = 10
    """Checks on the validation rows without a better loss before a chain stops."""
    step_size: Any = None
    """Of a sampler, where the user gave one."""
    augments: bool = False
    """Whether its steps follow a noisy gradient, so that inputs may change at random from one to the next."""
    adjusted: bool = True
    """Whether steps that fail a test are rejected, so that there is an acceptance rate to judge."""

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
        if isinstance(self.start, Posterior):
            return max(self.default_chains, self.start.family.num_chains)
        if isinstance(self.start, Method):
            return self.start.num_members or max(self.default_chains, self.start.num_chains)
        return self.default_chains

    def stages(self) -> tuple[Method, ...]:
        """What a fit runs, first to last: each begins where the one before ended, the last is this method.

        The stages of a stage are those up to it.
        """
        return (*(self.start.stages() if isinstance(self.start, Method) else ()), self)

    def beginning_at(self, start: Posterior) -> Self:
        """The same method, whose first stage begins at the weights of a posterior."""
        inner = self.start.beginning_at(start) if isinstance(self.start, Method) else start
        return records.replace(self, start=inner)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        """The phases of a run on so many rows."""
        raise NotImplementedError

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        """Refuse, with a remedy, what this method cannot do; called once before anything is compiled."""

    def execution(self, model: Any, params: Params, data: Dataset) -> Execution:
        """How programs for this model are compiled; called once, before anything is."""
        del model, params, data
        return Execution()

    def stuck(self, trace: dict[str, np.ndarray]) -> np.ndarray | None:
        """Which chains [C] the trace of the first phase [C, R] shows to be stuck: they are started afresh.

        None for methods whose chains cannot be.
        """
        del trace
        return None

    def inverse_mass(self, states: Any) -> Array | None:
        """[C, P], the square of how far a step of size 1 moves each weight; None: 1 for all."""
        del states
        return None

    def kernel(self, model: Model) -> Kernel:
        """One chain, one step, for a model whose fixed weights are bound."""
        raise NotImplementedError

    def finish(self, model: Model, states: Any, kept: Params, fixed: Params) -> Result:
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
