"""What people need to know of a method: one card beside each class. Command, estimators, reports and pages read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Expectation = Literal["samples", "approximates"]
FULL_BATCH_ROWS = 4_000  # up to here a step on all rows costs little more than one on a batch
BATCH_ROWS = 512


@dataclass(frozen=True)
class TableSize:
    """What the settings of a method depend on when it is fitted to a table."""

    num_rows: int
    """Rows to train on."""
    effort: float = 1.0
    """Multiplies the number of steps or draws."""

    def count(self, usual: int, least: int = 1) -> int:
        """So many steps or draws at an effort of one."""
        return max(least, round(usual * self.effort))

    @property
    def batch_size(self) -> int | str:
        return "full" if self.num_rows <= FULL_BATCH_ROWS else BATCH_ROWS

    def descent(self, num_steps: int) -> dict[str, Any]:
        """Settings of a method that follows a gradient, for features of about unit size."""
        return {"num_steps": self.count(num_steps), "batch_size": self.batch_size, "learning_rate": 1e-2}


@dataclass(frozen=True)
class Card:
    """The facts about a method that are not its mathematics; the defaults suit a method that is offered to nobody."""

    name: str = ""
    """What the command and the estimators call it, its key in METHODS and the name of its page."""
    label: str = ""
    """Its name in tables and pictures: "Bayes by Backprop"."""
    what: str = ""
    """What it is, in a sentence."""
    when: str = ""
    """When to use it, in a sentence or two."""
    reference: str = ""
    """Who it is from, and when, for the tables of the documentation."""
    ignorance: str = ""
    """What to expect of its epistemic uncertainty, for the same tables."""
    cost: str = ""
    """In trainings of one network, for the same tables."""
    colour: str = "muted"
    """A name of `plots.PALETTE`. Relatives share it and differ by the line; the reference samplers have "ink"."""
    line: str = "-."
    """Its line style in matplotlib."""
    marker: str = "."
    """Its marker in matplotlib."""
    settings: Callable[[TableSize], dict[str, Any]] = lambda size: {}  # noqa: ARG005
    """Settings that suit a table of a given size."""
    chains: int | None = None
    """Chains of a fit to a table by name; None: the method's own number."""
    learns_scales: bool = False
    """Whether a table's prior has scales that are learned with the weights, where the user gives no prior."""
    dropout: float = 0.0
    """Share of hidden units that the network made for a table drops."""
    share: int = 3
    """Parts of a budget that several methods share."""
    gradients: Callable[[Any], float] = lambda method: 1.0  # noqa: ARG005
    """Gradients that a step of the method takes at most."""
    verdict: Expectation | None = None
    """What `verify` should find: that it samples the posterior, or approximates it. None: nothing is claimed."""
    verified_with: Callable[[], dict[str, Any]] = dict
    """Settings that `verify` changes of those for a table, where these end before its few weights are known well."""
    is_point: bool = False
    """Whether it ends in one weight vector, which has no epistemic uncertainty."""
    is_sampler: bool = False
    """Whether its chains are Markov chains, whose convergence is to be judged."""
    for_tables: bool = True
    """Whether it can fit the networks made for tables."""
    until: Literal["good", "usable"] | None = None
    """The verdict it samples for, within its budget, when it is fitted to a table by name."""
    compared: bool = False
    """Whether `compare` runs it when no methods are named."""
