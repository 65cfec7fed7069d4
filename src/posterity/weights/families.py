"""Distributions over weights, one set of arrays a chain: what a method ends in.

Each holds arrays with a leading chain axis [C, ...] and gives network outputs for draws. Draw s belongs to chain
s % C and depends on (key, s) alone; with several chains a family is the equal mixture of its chains.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.types import Array, Family, Key, ModelLike, Params
from posterity.networks.dropout import apply_per_row, apply_shared, row_keys


class WeightFamily:
    """A family whose draws are weights. Subclasses are records and say how draw s is made from its chain's arrays."""

    fixed: Params = None
    draws: Params = None
    num_draws: int | None = None
    bytes_of_draw: int = 0
    has_moments: bool = False

    @property
    def num_chains(self) -> int:
        return pytrees.num_rows(self.point())

    def point(self) -> Params:
        raise NotImplementedError

    def draw(self, key: Key, index: Array) -> Params:
        """The free weights of draw `index`."""
        raise NotImplementedError

    def weights(self, model: ModelLike, key: Key, index: Array) -> Params:
        """All weights of draw `index`, fixed ones included."""
        return self.bound(model, index).complete(self.draw(key, index))

    def bound(self, model: ModelLike, index: Array) -> ModelLike:
        """The model with the fixed weights of the draw's chain."""
        return model.bind(pytrees.take_rows(self.fixed, index % self.num_chains))

    def outputs(self, model: ModelLike, key: Key, x: Any, draws: Array) -> Array:
        """[len(draws), N, ..., K]."""
        return jax.vmap(lambda index: self.bound(model, index).outputs(self.draw(key, index), x))(draws)

    def moments(self, model: ModelLike, x: Any) -> tuple[Array, Array]:
        raise NotImplementedError(f"The outputs of {type(self).__name__} have no moments in closed form.")

    def at_hand(self, key: Key, draws: np.ndarray) -> tuple[Family, np.ndarray]:
        """A family for compiled programs that has these draws in memory, and their numbers there."""
        del key
        return self, draws


@records.record
class Samples(WeightFamily):
    """Stored draws, [C, D, ...]: samplers, and with D = 1 point estimates and ensembles."""

    draws: Params = records.traced()
    fixed: Params = records.traced(default=None)

    @property
    def num_draws(self) -> int:  # type: ignore[override]
        chains, draws = jax.tree.leaves(self.draws)[0].shape[:2]
        return chains * draws

    def point(self) -> Params:
        return pytrees.take_rows(self.draws, (slice(None), -1))

    def draw(self, key: Key, index: Array) -> Params:
        del key
        return pytrees.take_rows(self.draws, (index % self.num_chains, index // self.num_chains))


@records.record
class DrawsAtHand(WeightFamily):
    """Some draws in memory, [n, ...]: each a chain of its own, with the fixed weights of the chain it came from."""

    draws: Params = records.traced()
    chains: Array = records.traced()  # [n]
    fixed: Params = records.traced(default=None)

    @property
    def num_draws(self) -> int:  # type: ignore[override]
        return self.num_chains

    def point(self) -> Params:
        return self.draws

    def draw(self, key: Key, index: Array) -> Params:
        del key
        return pytrees.take_rows(self.draws, index)

    def bound(self, model: ModelLike, index: Array) -> ModelLike:
        return model.bind(pytrees.take_rows(self.fixed, self.chains[index]))


class FreshDraws(WeightFamily):
    """A family whose draws take time to make: made once, they serve all blocks of rows."""

    @property
    def bytes_of_draw(self) -> int:  # type: ignore[override]
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.point())) // self.num_chains

    def at_hand(self, key: Key, draws: np.ndarray) -> tuple[Family, np.ndarray]:
        made = _made(self, key, jnp.asarray(draws))
        return DrawsAtHand(made, jnp.asarray(draws % self.num_chains), self.fixed), np.arange(len(draws))


@jax.jit
def _made(family: FreshDraws, key: Key, draws: Array) -> Params:
    """The free weights of these draws, [len(draws), ...]."""
    return jax.vmap(lambda index: family.draw(key, index))(draws)


@records.record
class DiagonalGaussian(FreshDraws):
    """w ~ N(mean, diag(scale^2))."""

    mean: Params = records.traced()
    scale: Params = records.traced()
    fixed: Params = records.traced(default=None)

    def point(self) -> Params:
        return self.mean

    def draw(self, key: Key, index: Array) -> Params:
        chain = index % self.num_chains
        mean, scale = pytrees.take_rows((self.mean, self.scale), chain)
        noise = pytrees.normal_like(jax.random.fold_in(key, index), mean)
        return jax.tree.map(lambda m, s, e: m + s * e, mean, scale, noise)


@records.record
class LowRankGaussian(FreshDraws):
    """w ~ N(mean, (diag(scale^2) + D D^T / (R - 1)) / 2), D the deviations [C, R, ...] (Maddox et al. 2019, eq. 1)."""

    mean: Params = records.traced()
    scale: Params = records.traced()
    deviations: Params = records.traced()
    fixed: Params = records.traced(default=None)

    def point(self) -> Params:
        return self.mean

    def draw(self, key: Key, index: Array) -> Params:
        chain = index % self.num_chains
        mean, scale = pytrees.take_rows((self.mean, self.scale), chain)
        key_diagonal, key_rank = jax.random.split(jax.random.fold_in(key, index))
        noise = pytrees.normal_like(key_diagonal, mean)
        rank = jax.tree.leaves(self.deviations)[0].shape[1]
        along = jax.random.normal(key_rank, (rank,)) / jnp.sqrt(max(rank - 1, 1))
        # Zero for other chains: mapped over draws this is one product of matrices. Taken from its chain for each draw,
        # the deviations would be copied for each.
        along = jnp.zeros((self.num_chains, rank), along.dtype).at[chain].set(along)

        def leaf(m: Array, s: Array, d: Array, e: Array) -> Array:
            return m + (s * e + jnp.tensordot(along.astype(d.dtype), d, 2)) / jnp.sqrt(2.0).astype(m.dtype)

        return jax.tree.map(leaf, mean, scale, self.deviations, noise)


@records.record
class DropoutMasks(WeightFamily):
    """One weight vector per chain, and a random mask on its units per draw (Gal & Ghahramani 2016).

    `per_row`: each row has masks of its own, made from its values, so that a row's draws do not depend on the others.
    """

    params: Params = records.traced()
    fixed: Params = records.traced(default=None)
    per_row: bool = False

    def point(self) -> Params:
        return self.params

    def outputs(self, model: ModelLike, key: Key, x: Any, draws: Array) -> Array:
        def one(index: Array) -> Array:
            bound = self.bound(model, index)
            params = pytrees.take_rows(self.params, index % self.num_chains)
            key_draw = jax.random.fold_in(key, index)
            if self.per_row:
                return apply_per_row(bound.plain_outputs, params, x, row_keys(key_draw, x))
            if model.network.shares_masks:
                return bound.outputs(params, x, key_draw)
            return apply_shared(bound.plain_outputs, params, x, key_draw)

        return jax.vmap(one)(draws)
