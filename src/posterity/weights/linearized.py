"""Gaussians over the weights of a network that is linearised at their mean.

    f_s(x) = f(x, m) + J(x) (w_s - m),   w_s ~ N(m, V),   so   f(x) ~ N(f(x, m), J(x) V J(x)^T)

For a Gaussian likelihood this is exact where the network is affine in its weights; for a Laplace approximation it is
the model whose curvature was taken (Khan et al. 2019; Immer et al. 2021), and predicts better than drawing weights.
The covariance V has one of three structures: Full, Diagonal, Kronecker. Each can do three things for ONE chain:
`sample(key, like)`, a perturbation of the shape of `like`; `output_covariance(jacobian)`, J V J^T for rows of a
Jacobian; and `log_determinant`, of the precision V^-1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from posterity.core import pytrees, records
from posterity.core.types import Array, Key, ModelLike, Params
from posterity.weights.families import WeightFamily


@records.record
class Linearized(WeightFamily):
    """w ~ N(mean, V) and outputs linear in w - mean; with several chains their equal mixture."""

    mean: Params = records.traced()  # [C, ...]
    covariance: Any = records.traced()  # a structure whose arrays have a leading axis [C]
    fixed: Params = records.traced(default=None)

    has_moments = True

    def point(self) -> Params:
        return self.mean

    def draw(self, key: Key, index: Array) -> Params:
        mean, perturbation = self._perturbed(key, index)
        return jax.tree.map(lambda m, d: m + d, mean, perturbation)

    def outputs(self, model: ModelLike, key: Key, x: Any, draws: Array) -> Array:
        """[len(draws), N, ..., K]."""

        def one(index: Array) -> Array:
            bound = model.bind(pytrees.take_rows(self.fixed, self._chain(index)))
            mean, perturbation = self._perturbed(key, index)
            return _first_order(lambda params: bound.outputs(params, x), mean, perturbation)

        return jax.vmap(one)(draws)

    def moments(self, model: ModelLike, x: Any) -> tuple[Array, Array]:
        """Mean [C, N, ..., K] and covariance [C, N, ..., K, K] of the outputs."""

        def one(mean: Params, covariance: Any, fixed: Params) -> tuple[Array, Array]:
            bound = model.bind(fixed)
            outputs = bound.outputs(mean, x)
            covered = covariance.output_covariance(row_jacobian(bound, mean, x))
            return outputs, covered.reshape(*outputs.shape, outputs.shape[-1])

        return jax.vmap(one)(self.mean, self.covariance, self.fixed)

    def _perturbed(self, key: Key, index: Array) -> tuple[Params, Params]:
        mean, covariance = pytrees.take_rows((self.mean, self.covariance), self._chain(index))
        return mean, covariance.sample(jax.random.fold_in(key, index), mean)

    def _chain(self, index: Array) -> Any:
        # A chain chosen while tracing: mapped over draws, one covariance is then not copied for each of them.
        return 0 if self.num_chains == 1 else index % self.num_chains


@records.record
class Full:
    """V = factor factor^T over some leaves of the weights, zero elsewhere."""

    factor: Any = records.traced()  # [P, P]
    log_determinant: Any = records.traced()
    names: tuple[str, ...] = ()  # of the leaves, in the order of the tree

    def sample(self, key: Key, like: Params) -> Params:
        noise = jax.random.normal(key, self.factor.shape[:1], self.factor.dtype)
        return scatter(self.factor @ noise, like, self.names)

    def output_covariance(self, jacobian: Params) -> Array:
        return _outer(gather(jacobian, self.names, 3) @ self.factor)


@records.record
class Diagonal:
    """V = diag(scale^2) over some leaves of the weights, zero elsewhere."""

    scale: Any = records.traced()  # [P]
    log_determinant: Any = records.traced()
    names: tuple[str, ...] = ()

    def sample(self, key: Key, like: Params) -> Params:
        noise = jax.random.normal(key, self.scale.shape, self.scale.dtype)
        return scatter(self.scale * noise, like, self.names)

    def output_covariance(self, jacobian: Params) -> Array:
        return _outer(gather(jacobian, self.names, 3) * self.scale)


class LayerAddress(NamedTuple):
    """Where the matrix of a dense layer, biases as its last row, lies among the weights."""

    weight: str | None  # None: held fixed
    bias: str | None
    input_axis: int

    def matrix(self, leaves: dict[str, Any], lead: int = 0) -> Any:
        """[..., in (+ 1), out] from leaves with `lead` axes in front, of JAX or of numpy."""
        rows = []
        if self.weight is not None:
            weight = leaves[self.weight]
            rows.append(weight.swapaxes(-1, -2) if self.input_axis == 1 else weight)
        if self.bias is not None:
            bias = leaves[self.bias]
            rows.append(bias.reshape(*bias.shape[:lead], 1, -1))
        return (np if isinstance(rows[0], np.ndarray) else jnp).concatenate(rows, -2)

    def leaves(self, matrix: Array, like: dict[str, Array]) -> dict[str, Array]:
        """The leaves of one matrix [in (+ 1), out]."""
        made = {}
        if self.bias is not None:
            made[self.bias] = matrix[-1].reshape(like[self.bias].shape)
        if self.weight is not None:
            rows = matrix if self.bias is None else matrix[:-1]
            made[self.weight] = rows.T if self.input_axis == 1 else rows
        return made


@records.record
class KroneckerLayer:
    """One dense layer's covariance: W = left (E / sqrt(values)) right^T, E standard normal, W [in (+ 1), out].

    The last row of W is the bias where there is one.
    """

    left: Any = records.traced()  # [I, I]
    right: Any = records.traced()  # [O, O]
    values: Any = records.traced()  # [I, O]
    address: LayerAddress = LayerAddress(None, None, 0)

    def sample(self, key: Key) -> Array:
        noise = jax.random.normal(key, self.values.shape, self.values.dtype)
        return self.left @ (noise / jnp.sqrt(self.values)) @ self.right.T

    def output_covariance(self, matrix: Array) -> Array:
        white = jnp.einsum("...io,ij,op->...jp", matrix, self.left, self.right) / jnp.sqrt(self.values)
        return _outer(white.reshape(*white.shape[:-2], -1))


@records.record
class Kronecker:
    """A block for each dense layer, and a Diagonal one for the likelihood's own parameters."""

    layers: tuple[KroneckerLayer, ...] = records.traced()
    rest: Diagonal = records.traced()
    log_determinant: Any = records.traced()

    def sample(self, key: Key, like: Params) -> Params:
        made: dict[str, Array] = {}
        leaves = named_leaves(like)
        key_rest, *keys = jax.random.split(key, len(self.layers) + 1)
        for layer, key_layer in zip(self.layers, keys, strict=True):
            made.update(layer.address.leaves(layer.sample(key_layer), leaves))
        rest = self.rest.sample(key_rest, like)
        return pytrees.map_with_path(lambda name, leaf: made.get(name, leaf), rest)

    def output_covariance(self, jacobian: Params) -> Array:
        leaves = named_leaves(jacobian)
        parts = [layer.output_covariance(layer.address.matrix(leaves, 3)) for layer in self.layers]
        return sum(parts, start=self.rest.output_covariance(jacobian))


def _first_order(function: Callable[[Params], Array], at: Params, step: Params) -> Array:
    """function(at) + J step, by the reverse mode alone: some layers, our convolutions too, have no forward mode."""
    value, pull_back = jax.vjp(function, at)
    _, push_forward = jax.vjp(pull_back, jnp.zeros_like(value))
    return value + push_forward((step,))[0]


def row_jacobian(model: ModelLike, params: Params, x: Any, names: Sequence[str] | None = None) -> Params:
    """d outputs / d weights for each row: leaves [N, M, K, ...], M the axes between N and K; None for other leaves."""
    chosen, others = choose(params, names)

    def one(row: Any) -> Params:
        single = jax.tree.map(lambda leaf: leaf[None], row)

        def outputs(chosen: Params) -> Array:
            made = model.outputs(pytrees.merge(chosen, others), single)
            return made.reshape(-1, made.shape[-1])

        return jax.jacrev(outputs)(chosen)

    return jax.vmap(one)(x)


def choose(params: Params, names: Sequence[str] | None) -> tuple[Params, Params]:
    """(leaves of these names, the other leaves), each None where the other is not."""
    if names is None:
        return params, jax.tree.map(lambda _: None, params)
    chosen = pytrees.map_with_path(lambda name, leaf: leaf if name in names else None, params)
    others = pytrees.map_with_path(lambda name, leaf: None if name in names else leaf, params)
    return chosen, others


def named_leaves(params: Params) -> dict[str, Array]:
    return dict(zip(pytrees.leaf_names(params), jax.tree.leaves(params), strict=True))


def gather(params: Params, names: Sequence[str], lead: int = 0) -> Array:
    """The leaves of these names as one vector, [..., P], behind `lead` axes."""
    leaves = named_leaves(params)
    if not names:
        shape = next(iter(leaves.values())).shape[:lead]
        return jnp.zeros((*shape, 0))
    return jnp.concatenate([leaves[name].reshape(*leaves[name].shape[:lead], -1) for name in names], -1)


def scatter(vector: Array, like: Params, names: Sequence[str]) -> Params:
    """A vector [P] back into leaves of these names; zeros in all others."""
    leaves, made, first = named_leaves(like), {}, 0
    for name in names:
        made[name] = vector[first : first + leaves[name].size].reshape(leaves[name].shape)
        first += leaves[name].size
    return pytrees.map_with_path(lambda name, leaf: made.get(name, jnp.zeros_like(leaf)), like)


def _outer(white: Array) -> Array:
    return jnp.einsum("...kp,...lp->...kl", white, white, precision="highest")
