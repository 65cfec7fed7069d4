"""Network outputs of many draws at many rows, a block of rows at a time, within a memory budget.

Every quantity of a prediction is a function of one row's draws, so it is computed block by block and never needs all
rows at once. Rows are padded to a few block sizes, so that predicting 1, 7 or 20 rows runs one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import pytrees
from posterity.core.types import Array, Family, Key
from posterity.models.model import Model

BLOCK_ROWS = (32, 256, 1024, 8192)
DRAWS_TOGETHER = (1, 4, 16)  # draws computed side by side, in a loop over all draws of a call
DRAWS_OF_A_CALL = 512
DEFAULT_MEMORY = 512 * 2**20
CACHE_FRIENDLY = 16 * 2**20  # intermediates larger than this leave the processor's caches and run slower


class Components(NamedTuple):
    """What a block of rows knows of its outputs: draws, or for closed forms Gaussians, one per chain."""

    outputs: Array  # [S, n, ..., K]
    covariance: Array | None = None  # [S, n, ..., K, K]

    def conditional(self, model: Model) -> dist.Distribution:
        """The target given the outputs: its spread is noise."""
        return model.distribution(self.outputs)

    def marginal(self, model: Model) -> dist.Distribution:
        """The target with what the closed form says of the outputs integrated out."""
        if self.covariance is None:
            return self.conditional(model)
        return model.likelihood.marginal(self.outputs, self.covariance)


class Sizes(NamedTuple):
    """How a stream is cut up to stay within its memory."""

    width: int  # rows of a block
    draws: int  # of a call
    together: int  # of these, side by side
    num_blocks: int  # computed in one pass over the draws; 1 where draws are at hand
    keep: bool  # whether all blocks fit the budget


@partial(jax.jit, static_argnames="together")
def _draw_outputs(model: Model, family: Family, key: Key, x: Any, draws: Array, together: int = 1) -> Array:
    """[len(draws), n, ..., K], `together` draws at a time; XLA moves what no draw changes out of the loop."""

    def one(index: Array) -> Array:
        return family.outputs(model, key, x, index[None])[0]

    return jax.lax.map(one, draws, batch_size=together)


@jax.jit
def _moments(model: Model, family: Family, x: Any) -> Components:
    return Components(*family.moments(model, x))


@partial(jax.jit, static_argnames="function")
def _evaluate(function: Callable[..., Any], model: Model, block: Components, *arguments: Any) -> Any:
    return function(model, block, *arguments)


class OutputStream:
    """The outputs of draws `draws` at rows `x`, delivered in blocks of rows."""

    def __init__(
        self, model: Model, family: Family, key: Key, x: Any, draws: np.ndarray, closed_form: bool, memory: int
    ) -> None:
        self.family = family
        self.model, self.key, self.x = model, key, x
        self.draws, self.closed_form, self.memory = draws, closed_form, memory
        self.num_rows = pytrees.num_rows(x)
        self._cache: list[Components] = []

    def of_fresh_draws(self, count: int) -> OutputStream:
        """The same rows by draws in place of a closed form."""
        return OutputStream(self.model, self.family, self.key, self.x, np.arange(count), False, self.memory)

    @property
    def num_components(self) -> int:
        return self.family.num_chains if self.closed_form else len(self.draws)

    def map(
        self, function: Callable[..., Any], *per_row: Any, shared: tuple[Any, ...] = (), model: Model | None = None
    ) -> Any:
        """function(model, components, *per_row, *shared) for every row; its results, concatenated over rows (axis 0).

        The function must be defined once, at module level: compiled programs are kept by its identity. `model`: one
        that reads the same outputs by another likelihood.
        """
        model = self.model if model is None else model
        parts = []
        for rows, width, block in self._blocks():
            padded = [jnp.asarray(_pad(values[rows], width)) for values in per_row]
            result = _evaluate(function, model, block, *padded, *shared)
            parts.append(pytrees.take_rows(jax.tree.map(np.asarray, result), slice(0, rows.stop - rows.start)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def outputs(self) -> np.ndarray:
        """All outputs, [S, N, ..., K]."""
        parts = [np.asarray(block.outputs)[:, : rows.stop - rows.start] for rows, _, block in self._blocks()]
        return np.concatenate(parts, axis=1)

    def _blocks(self) -> Iterator[tuple[slice, int, Components]]:
        sizes = self._sizes
        starts = range(0, self.num_rows, sizes.width)
        rows = [slice(start, min(start + sizes.width, self.num_rows)) for start in starts]
        done = 0
        while done < len(rows):
            if done < len(self._cache):
                blocks = [self._cache[done]]
            else:
                blocks = self._compute(rows[done : done + sizes.num_blocks])
                if sizes.keep and done == len(self._cache):
                    self._cache.extend(blocks)
            while blocks:
                yield rows[done], sizes.width, blocks.pop(0)
                done += 1

    def _compute(self, blocks: Sequence[slice]) -> list[Components]:
        """The components of some blocks of rows: draws that must be read or made are, once for all of them."""
        width, count, together, *_ = self._sizes
        inputs = [jax.tree.map(lambda leaf: jnp.asarray(_pad(leaf[rows], width)), self.x) for rows in blocks]  # noqa: B023
        if self.closed_form:
            return [_moments(self.model, self.family, x) for x in inputs]
        parts: list[list[Array]] = [[] for _ in blocks]
        for first in range(0, len(self.draws), count):
            index = self.draws[first : first + count]
            family, local = self.family.at_hand(self.key, _pad(index, count))
            for x, computed in zip(inputs, parts, strict=True):
                outputs = _draw_outputs(self.model, family, self.key, x, jnp.asarray(local), together)
                computed.append(outputs if len(index) == count else outputs[: len(index)])
            if family is not self.family:
                jax.block_until_ready(parts)  # before more is read or made: what waits to be computed holds its draws
                del family
        return [Components(_concatenate(parts.pop(0))) for _ in blocks]

    @cached_property
    def _sizes(self) -> Sizes:
        per_output, per_row, per_draw = self._bytes()
        whole = per_output * self.num_components * self.num_rows
        keep = whole <= self.memory / 2
        fitting = [n for n in BLOCK_ROWS if n * per_output * self.num_components <= self.memory / 4] or [1]
        width = min(_at_least(BLOCK_ROWS, self.num_rows), _at_most(fitting, CACHE_FRIENDLY / per_row))
        together = _at_most(DRAWS_TOGETHER, CACHE_FRIENDLY / (per_draw + per_row * width))
        together = min(together, _at_least(DRAWS_TOGETHER, self.num_components))
        whole_rounds = -(-self.num_components // together) * together
        count, num_blocks = min(whole_rounds, DRAWS_OF_A_CALL), 1
        if self.family.bytes_of_draw and not self.closed_form:
            at_once = int(self.memory / 8 / self.family.bytes_of_draw)
            count = min(count, max(1, at_once // together) * together)
            block = per_output * self.num_components * width
            num_blocks = -(-self.num_rows // width) if keep else max(1, int(self.memory / 4 / block))
        return Sizes(width, count, together, num_blocks, keep)

    def _bytes(self) -> tuple[int, int, int]:
        """Bytes a draw of one row's outputs takes, of its intermediate values, and of what a draw costs at any row."""
        sizes = []
        for rows in (1, 2):
            x = pytrees.take_rows(self.x, np.zeros(rows, int))
            if self.closed_form:
                program = jax.make_jaxpr(lambda family, x: family.moments(self.model, x))(self.family, x)
            else:
                call = lambda family, x: family.outputs(self.model, self.key, x, jnp.zeros(1, int))  # noqa: E731
                # Shapes alone: draws that must be made would be compiled for, one more time.
                one = jax.eval_shape(lambda key: self.family.at_hand(key, self.draws[:1])[0], self.key)
                program = jax.make_jaxpr(call)(one, x)
            values = sum(var.aval.size * 4 for eqn in program.eqns for var in eqn.outvars)
            sizes.append((sum(aval.size * 4 for aval in program.out_avals) // rows, values))
        per_row = max(sizes[1][1] - sizes[0][1], sizes[0][0])
        return sizes[0][0], per_row, max(sizes[0][1] - per_row, 0)


def _concatenate(parts: list[Array]) -> Array:
    return jnp.concatenate(parts) if len(parts) > 1 else parts[0]


def _at_least(choices: Sequence[int], wanted: float) -> int:
    """The smallest choice that reaches `wanted`, or the largest there is."""
    return next((choice for choice in choices if choice >= wanted), choices[-1])


def _at_most(choices: Sequence[int], limit: float) -> int:
    """The largest choice within `limit`, or the smallest there is."""
    return max((choice for choice in choices if choice <= limit), default=choices[0])


def _pad(rows: np.ndarray, width: int) -> np.ndarray:
    """Repeat the last row up to `width`: padding stays inside the data, so nothing in it overflows."""
    return rows if len(rows) == width else rows[np.minimum(np.arange(width), len(rows) - 1)]
