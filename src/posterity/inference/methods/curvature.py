"""The Gauss-Newton curvature of the log likelihood, summed over batches, in three structures.

    H = sum_n J_n^T F_n J_n,   F_n the Fisher information in the outputs of row n

Full keeps H (perhaps over some weights only), Diagonal its diagonal, and Kronecker for each dense layer s = a W

    H_l  ~  (mean_n a a^T) kron (sum_n g_n^T F_n g_n),   g = d outputs / d s

with the positions a layer is applied at counted as rows (Martens & Grosse 2015; "expand" in Eschenhagen et al. 2023).
`add` runs in a compiled program, for one chain; `covariance` and `log_determinant` on the host in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Params
from posterity.networks.layers import LayerProgram, trace_layers
from posterity.weights.linearized import Diagonal, Full, Kronecker, KroneckerLayer, LayerAddress, gather, named_leaves
from posterity.weights.linearized import row_jacobian as jacobian_of

JACOBIAN_BYTES = 200e6  # of row Jacobians at a time; larger batches are cut up
FLOOR = 1e-10  # share of a layer's mean curvature that a flat prior counts as

Names = tuple[str, ...]


@records.record
class FullCurvature:
    """H over the leaves of `names`."""

    matrix: Array = records.traced()  # [P, P]
    names: Names = ()

    def add(self, model: Any, params: Params, batch: Batch) -> FullCurvature:
        def part(batch: Batch) -> Array:
            rows, weighted = _weighted_jacobian(model, params, batch, self.names)
            return jnp.matmul(rows.T, weighted, precision="highest")

        matrix = self.matrix + _sum_in_chunks(part, batch, _row_bytes(model, params, batch, self.names))
        return records.replace(self, matrix=matrix)

    def log_determinant(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> float:
        return 2 * float(np.log(np.diag(self._cholesky(prior, likelihood_factor, prior_factor))).sum())

    def covariance(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> Full:
        lower = self._cholesky(prior, likelihood_factor, prior_factor)
        factor = scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True, trans=1)
        return Full(factor, 2 * np.log(np.diag(lower)).sum(), self.names)

    def _cholesky(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> np.ndarray:
        added = np.diag(prior_factor * prior)
        matrix = np.asarray(self.matrix, np.float64) * likelihood_factor
        matrix = (matrix + matrix.T) / 2
        try:
            return np.linalg.cholesky(matrix + added)
        except np.linalg.LinAlgError:
            # Rounding in float32 leaves small negative eigenvalues, which J^T F J does not have.
            values, vectors = np.linalg.eigh(matrix)
            matrix = (vectors * np.maximum(values, 0)) @ vectors.T
        try:
            return np.linalg.cholesky(matrix + added)
        except np.linalg.LinAlgError as error:
            raise ValueError(_IMPROPER.format(names=", ".join(self.names))) from error


@records.record
class DiagonalCurvature:
    """The diagonal of H over the leaves of `names`."""

    diagonal: Array = records.traced()  # [P]
    names: Names = ()

    def add(self, model: Any, params: Params, batch: Batch) -> DiagonalCurvature:
        def part(batch: Batch) -> Array:
            rows, weighted = _weighted_jacobian(model, params, batch, self.names)
            return jnp.sum(rows * weighted, 0)

        diagonal = self.diagonal + _sum_in_chunks(part, batch, _row_bytes(model, params, batch, self.names))
        return records.replace(self, diagonal=diagonal)

    def log_determinant(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> float:
        return float(np.log(self._precision(prior, likelihood_factor, prior_factor)).sum())

    def covariance(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> Diagonal:
        precision = self._precision(prior, likelihood_factor, prior_factor)
        return Diagonal(1 / np.sqrt(precision), np.log(precision).sum(), self.names)

    def _precision(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> np.ndarray:
        precision = likelihood_factor * np.asarray(self.diagonal, np.float64) + prior_factor * prior
        if not (precision > 0).all():
            raise ValueError(_IMPROPER.format(names=", ".join(self.names)))
        return precision


@records.record
class LayerCurvature:
    """The two factors of one dense layer; a row and column of ones' products stand for the bias."""

    inputs: Array = records.traced()  # [I, I], sum of a a^T
    outputs: Array = records.traced()  # [O, O], sum of g^T F g
    count: Array = records.traced()  # rows times positions
    address: LayerAddress = LayerAddress(None, None, 0)

    def parts(
        self, prior: np.ndarray, likelihood_factor: float, prior_factor: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """(left, right, values, log determinant) of the precision l A kron G + p D kron 1, D one number an input.

        With M = D^-1/2 A D^-1/2 = U a U^T and G = V g V^T it is (D^1/2 U kron V) (l a g + p) (D^1/2 U kron V)^T.
        """
        inputs = np.asarray(self.inputs, np.float64) / np.asarray(self.count, np.float64)
        outputs = likelihood_factor * np.asarray(self.outputs, np.float64)
        floor = FLOOR * np.trace(inputs) / len(inputs) * np.trace(outputs) / len(outputs)
        own = np.maximum(prior_factor * prior.mean(1), floor)
        if not (own > 0).all():
            raise ValueError(_IMPROPER.format(names=f"{self.address.weight}, {self.address.bias}"))
        root = np.sqrt(own)
        values_in, vectors_in = np.linalg.eigh(inputs / np.outer(root, root))
        values_out, right = np.linalg.eigh(outputs)
        values = np.outer(np.maximum(values_in, 0), np.maximum(values_out, 0)) + 1
        log_determinant = np.log(values).sum() + len(outputs) * np.log(own).sum()
        return vectors_in / root[:, None], right, values, float(log_determinant)


@records.record
class KroneckerCurvature:
    """A pair of factors for each dense layer; the likelihood's own parameters have a diagonal block."""

    layers: tuple[LayerCurvature, ...] = records.traced()
    rest: DiagonalCurvature = records.traced()
    names: Names = ()
    shapes: tuple[tuple[int, ...], ...] = ()  # of those leaves

    def add(self, model: Any, params: Params, batch: Batch) -> KroneckerCurvature:
        addresses = [layer.address for layer in self.layers]
        program = _row_program(model, params, batch.x)
        sizes = sum(probe.size for probe in program.zero_probes()) * _outputs_of_one(model, params, batch.x).size

        def part(batch: Batch) -> list[tuple[Array, Array, Array]]:
            return _factors(model, params, batch, program, addresses)

        parts = _sum_in_chunks(part, batch, 4 * sizes)
        layers = tuple(
            records.replace(layer, inputs=layer.inputs + a, outputs=layer.outputs + g, count=layer.count + n)
            for layer, (a, g, n) in zip(self.layers, parts, strict=True)
        )
        rest = self.rest.add(model, params, batch) if self.rest.names else self.rest
        return records.replace(self, layers=layers, rest=rest)

    def log_determinant(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> float:
        return float(self.covariance(prior, likelihood_factor, prior_factor).log_determinant)

    def covariance(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> Kronecker:
        leaves, first = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = int(np.prod(shape))
            leaves[name] = prior[first : first + size].reshape(shape)
            first += size
        layers, total = [], 0.0
        for layer in self.layers:
            own = layer.address.matrix(leaves)
            left, right, values, log_determinant = layer.parts(own, likelihood_factor, prior_factor)
            layers.append(KroneckerLayer(left, right, values, layer.address))
            total += log_determinant
        rest_prior = np.concatenate([leaves[name].ravel() for name in self.rest.names] or [np.zeros(0)])
        rest = self.rest.covariance(rest_prior, likelihood_factor, prior_factor)
        return Kronecker(tuple(layers), rest, total + float(rest.log_determinant))


Curvature = FullCurvature | DiagonalCurvature | KroneckerCurvature
_IMPROPER = (
    "Neither data nor prior say anything about some direction of the weights {names}: their posterior is improper. "
    "Give them a proper prior, e.g. Normal(0, 1) in place of Flat()."
)


def num_chosen(params: Params, names: Names) -> int:
    return sum(int(np.prod(np.shape(leaf))) for name, leaf in named_leaves(params).items() if name in names)


def empty_full(params: Params, names: Names) -> FullCurvature:
    size = num_chosen(params, names)
    return FullCurvature(jnp.zeros((size, size), jax.tree.leaves(params)[0].dtype), names)


def empty_diagonal(params: Params, names: Names) -> DiagonalCurvature:
    return DiagonalCurvature(jnp.zeros(num_chosen(params, names), jax.tree.leaves(params)[0].dtype), names)


def empty_kronecker(model: Any, params: Params, x: Any, names: Names) -> KroneckerCurvature:
    """Zeros for the dense layers among the free weights `names`; `others_than_dense` says which are in none."""
    leaves, layers = named_leaves(params), []
    for layer in _row_program(model, params, x).layers:
        weight, bias = (
            f"network/{name}" if f"network/{name}" in names else None for name in (layer.weight, layer.bias)
        )
        if weight is None and bias is None:
            continue
        address = LayerAddress(weight, bias, layer.input_axis)
        like = jax.eval_shape(address.matrix, leaves)
        inputs, outputs = (jnp.zeros((size, size), like.dtype) for size in like.shape)
        layers.append(LayerCurvature(inputs, outputs, jnp.zeros((), like.dtype), address))
    rest = tuple(name for name in names if name.startswith("likelihood/"))
    shapes = tuple(leaves[name].shape for name in names)
    return KroneckerCurvature(tuple(layers), empty_diagonal(params, rest), names, shapes)


def others_than_dense(model: Any, params: Params, x: Any, names: Names) -> list[str]:
    """The network's free weights that are in no dense layer."""
    others = {f"network/{name}" for name in _row_program(model, params, x).others}
    return [name for name in names if name in others]


def last_layer(model: Any, params: Params, x: Any) -> Names:
    """The free weights of the last dense layer that has any."""
    free = pytrees.leaf_names(params)
    for layer in reversed(_row_program(model, params, x).layers):
        names = {f"network/{name}" for name in (layer.weight, layer.bias)}
        if names & set(free):
            return tuple(name for name in free if name in names)
    return ()


def _row_program(model: Any, params: Params, x: Any) -> LayerProgram:
    return trace_layers(model.network, model.complete(params)["network"], _first_row(x))


def _first_row(x: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[:1], x)


def _outputs_of_one(model: Any, params: Params, x: Any) -> Any:
    return jax.eval_shape(model.outputs, params, _first_row(x))


def _row_bytes(model: Any, params: Params, batch: Batch, names: Names) -> int:
    return 8 * _outputs_of_one(model, params, batch.x).size * num_chosen(params, names)


def _weighted_jacobian(model: Any, params: Params, batch: Batch, names: Names) -> tuple[Array, Array]:
    """J and w F J, both [N * M * K, P]."""
    rows = gather(jacobian_of(model, params, batch.x, names), names, 3)
    fisher = _fisher(model, params, batch)
    weighted = jnp.einsum("n,nmkl,nmlp->nmkp", batch.weight.astype(rows.dtype), fisher, rows, precision="highest")
    return rows.reshape(-1, rows.shape[-1]), weighted.reshape(-1, rows.shape[-1])


def _fisher(model: Any, params: Params, batch: Batch) -> Array:
    """[N, M, K, K]."""
    outputs = model.outputs(params, batch.x)
    return model.likelihood.fisher(outputs.reshape(outputs.shape[0], -1, outputs.shape[-1]))


def _factors(
    model: Any, params: Params, batch: Batch, program: LayerProgram, addresses: list[LayerAddress]
) -> list[tuple[Array, Array, Array]]:
    """(sum of a a^T, sum of g^T F g, count) of each layer in `addresses`, over the rows of a batch."""
    network = model.complete(params)["network"]
    fisher = _fisher(model, params, batch)
    names = {layer.weight: i for i, layer in enumerate(program.layers)}
    names.update({layer.bias: i for i, layer in enumerate(program.layers) if layer.bias is not None})
    which = [names[str(address.weight or address.bias).removeprefix("network/")] for address in addresses]
    probes = program.zero_probes()

    def one(row: Any, fisher: Array, weight: Array) -> list[tuple[Array, Array, Array]]:
        single = jax.tree.map(lambda leaf: leaf[None], row)
        pull, inputs = _pullback(program, network, probes, single, fisher.shape[-1])
        made = []
        for address, i in zip(addresses, which, strict=True):
            a = inputs[i] if address.weight is not None else inputs[i][:, :0]
            a = a if address.bias is None else jnp.concatenate([a, jnp.ones_like(a, shape=(a.shape[0], 1))], 1)
            g = jnp.einsum("mkpo,mkl,mlpq->oq", pull[i], fisher, pull[i], precision="highest")
            inputs_product = jnp.matmul(a.T, a, precision="highest")
            made.append((weight * inputs_product, weight * g, weight * a.shape[0]))
        return made

    summed = jax.vmap(one)(batch.x, fisher, batch.weight.astype(fisher.dtype))
    return jax.tree.map(lambda leaf: leaf.sum(0), summed)


def _pullback(
    program: LayerProgram, network: Params, probes: tuple[Array, ...], row: Any, columns: int
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """d outputs / d products [M, K, positions, out] of each layer at one row, and the inputs of each layer."""

    def outputs(probes: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        made, inputs = program.apply(network, probes, row)
        made = made.reshape(-1, made.shape[-1])
        # The likelihood's constant columns do not depend on the network.
        return jnp.pad(made, ((0, 0), (0, columns - made.shape[-1]))), inputs

    return jax.jacrev(outputs, has_aux=True)(probes)


def _sum_in_chunks(part: Callable[[Batch], Any], batch: Batch, bytes_per_row: int) -> Any:
    """part(batch), a sum over rows, from chunks of rows whose Jacobians fit."""
    rows = batch.y.shape[0]
    chunk = max(1, int(JACOBIAN_BYTES // max(bytes_per_row, 1)))
    if chunk >= rows:
        return part(batch)
    count = -(-rows // chunk)
    index = jnp.arange(count * chunk)
    padded = pytrees.take_rows(batch, jnp.minimum(index, rows - 1))
    padded = padded._replace(weight=jnp.where(index < rows, padded.weight, 0))
    chunks = jax.tree.map(lambda leaf: leaf.reshape(count, chunk, *leaf.shape[1:]), padded)
    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(part, pytrees.take_rows(chunks, 0))
    )
    add = lambda total, chunk: (jax.tree.map(jnp.add, total, part(chunk)), None)  # noqa: E731
    return jax.lax.scan(add, zero, chunks)[0]
