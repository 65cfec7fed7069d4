"""From raw rows to a posterior, one way for the estimators and for the command: encoders, model, method, metadata.

What is learned of a table is kept with the posterior, so a folder that one of the two has written is read by the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posterity.core.types import Task
from posterity.inference import Method, fit
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.tables.defaults import DEFAULT_HIDDEN, table_method, table_model
from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.reading import Reading

STORED = "table_code"  # the entry of a posterior's metadata


@dataclass(frozen=True)
class TableCode:
    """How rows of one table become numbers, and the model that suits them."""

    inputs: TableEncoder
    target: TargetEncoder
    target_name: str = "y"
    title: str = "table"  # what the table is called in reports
    named: bool = True  # False: columns came without names, and are known by their place
    settings: dict[str, Any] = field(default_factory=dict)  # of an estimator; where one is missing, its default holds
    reading: Reading = field(default_factory=Reading)  # options on the columns of a file

    @property
    def task(self) -> Task:
        assert self.target.task is not None
        return self.target.task

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, self.target.labels))

    def model(
        self,
        method: Method | None = None,
        *,
        hidden: Sequence[int] = DEFAULT_HIDDEN,
        prior: Any = None,
        temperature: float = 1.0,
    ) -> Model:
        """The network for this table and method; a target in numbers is predicted in its own units."""
        return table_model(
            self.task,
            len(self.target.labels) or None,
            hidden=hidden,
            prior=prior,
            temperature=temperature,
            dropout=0.0 if method is None else method.card.dropout,
            shift=self.target.shift,
            scale=self.target.scale,
            resolution=self.target.resolution,
            learns_scales=method is not None and method.card.learns_scales,
        )

    def fit(
        self,
        method: str | Method,
        rows: tuple[np.ndarray, ...],
        *,
        effort: float = 1.0,
        model: dict[str, Any] | None = None,
        **options: Any,
    ) -> Posterior:
        """The posterior given encoded rows; `model` are settings of `model` above, `options` are those of `fit`.

        A sampler that is named uses the budget it has, until its diagnosis is good.
        """
        chosen = method if isinstance(method, Method) else table_method(method, len(rows[1]), effort=effort)
        if isinstance(method, str):
            if options.get("budget") is not None:
                options.setdefault("until", chosen.card.until)
            if chosen.card.chains is not None:
                options.setdefault("chains", chosen.card.chains)
        return fit(self.model(chosen, **model or {}), chosen, rows, metadata=self.metadata(), **options)

    def metadata(self) -> dict[str, Any]:
        """What a store keeps beside the posterior: plain numbers and names."""
        return {
            STORED: {
                "title": self.title,
                "target_name": self.target_name,
                "named": self.named,
                "settings": self.settings,
                "reading": self.reading.to_json(),
                "inputs": self.inputs.to_json(),
                "target": self.target.to_json(),
            }
        }

    @classmethod
    def of(cls, posterior: Posterior) -> TableCode | None:
        """That of a posterior, None where it was not fitted to a table."""
        stored = posterior.metadata.get(STORED)
        if stored is None:
            return None
        encoders = TableEncoder.from_json(stored["inputs"]), TargetEncoder.from_json(stored["target"])
        reading = Reading.from_json(stored.get("reading", {}))
        return cls(*encoders, stored["target_name"], stored["title"], stored["named"], stored["settings"], reading)
