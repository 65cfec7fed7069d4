"""The trace of a run: what each stride recorded, how many steps it took, and whether its end is a draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posterity.core import records


@records.record
class Trace(Mapping[str, np.ndarray]):
    """A mapping from names to arrays [C, R], one entry a stride."""

    entries: dict[str, np.ndarray] = records.traced()
    """What was recorded, [C, R] by name: the mean over the steps of each stride."""
    is_draw: np.ndarray = records.traced()
    """[R] whether the weights at the end of a stride are a draw of the posterior."""
    num_steps: np.ndarray = records.traced()
    """[R] how many steps a stride took."""

    def __getitem__(self, name: str) -> np.ndarray:
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def empty(cls) -> Trace:
        return cls({}, np.zeros(0, bool), np.zeros(0, int))

    @classmethod
    def join(cls, parts: Sequence[Trace]) -> Trace:
        """Several stretches of a run as one."""
        if not parts:
            return cls.empty()
        entries = {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}
        return cls(
            entries,
            np.concatenate([part.is_draw for part in parts]),
            np.concatenate([part.num_steps for part in parts]),
        )

    def of_chains(self, chains: Any) -> Trace:
        return Trace({name: values[chains] for name, values in self.items()}, self.is_draw, self.num_steps)

    def of_draws(self) -> Trace:
        """The strides that end in draws, [C, D]."""
        kept = self.is_draw
        return Trace({name: values[:, kept] for name, values in self.items()}, kept[kept], self.num_steps[kept])
