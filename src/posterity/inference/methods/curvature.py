"""The Gauss-Newton curvature of the log likelihood, summed over batches, in three structures.

    H = sum_n J_n^T F_n J_n,   F_n the Fisher information in the outputs of row n

Full keeps H (perhaps over some weights only), Diagonal its diagonal, and Kronecker for each dense layer s = a W

    H_l  ~  (mean_n a a^T) kron (sum_n g_n^T F_n g_n),   g = d outputs / d s

with the positions a layer is applied at counted as rows (Martens & Grosse 2015; "expand" in Eschenhagen et al. 2023).
`add` and `solve` run in a compiled program, for one chain; `covariance` and `log_determinant` on the host. Derivatives
have the precision of the network; all sums and factorisations are in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from posterity.core import pytrees, records
from posterity.core.types import Array, Batch, Params
from posterity.inference.methods import wide
from posterity.models.scales import scale_of
from posterity.networks.layers import LayerProgram, trace_layers
from posterity.weights.linearized import (
    Diagonal,
    Full,
    Kronecker,
    KroneckerLayer,
    LayerAddress,
    gather,
    named_leaves,
    scatter,
)
from posterity.weights.linearized import row_jacobian as jacobian_of

JACOBIAN_BYTES = 200e6  # of row Jacobians at a time; larger batches are cut up
NUMBER_BYTES = 20  # of one derivative: itself, in float64, and there multiplied by F
FLOOR = 1e-10  # share of a layer's mean curvature that a flat prior counts as

Names = tuple[str, ...]


@records.record
class FullCurvature:
    """H over the leaves of `names`."""

    matrix: Any = records.traced()  # [P, P], a Sum in a program
    names: Names = ()

    def add(self, model: Any, params: Params, batch: Batch) -> FullCurvature:
        def part(batch: Batch) -> Array:
            return wide.matmul(*_weighted_jacobian(model, params, batch, self.names))

        matrix = _add_in_chunks(self.matrix, part, batch, _row_bytes(model, params, batch, self.names))
        return records.replace(self, matrix=matrix)

    def solve(self, gradient: Array, prior: Array, likelihood_factor: Any, prior_factor: Any) -> Array:
        """V gradient."""
        added = jnp.where(wide.identity(len(prior)), prior_factor * prior, 0.0)
        lower = jax.lax.linalg.cholesky(likelihood_factor * _exact(self.matrix) + added, symmetrize_input=False)
        solve = partial(jax.lax.linalg.triangular_solve, lower, left_side=True, lower=True)
        return solve(solve(gradient[:, None]), transpose_a=True)[:, 0]

    def log_determinant(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> float:
        return 2 * float(np.log(np.diag(self._cholesky(prior, likelihood_factor, prior_factor))).sum())

    def covariance(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> Full:
        lower = self._cholesky(prior, likelihood_factor, prior_factor)
        (invert,) = scipy.linalg.get_lapack_funcs(("trtri",), (lower,))
        inverse, _ = invert(lower, lower=1)
        return Full(inverse.T, 2 * np.log(np.diag(lower)).sum(), self.names)

    def _cholesky(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> np.ndarray:
        added = np.diag(prior_factor * prior)
        matrix = self.matrix * likelihood_factor
        matrix = (matrix + matrix.T) / 2
        try:
            return np.linalg.cholesky(matrix + added)
        except np.linalg.LinAlgError:
            # Rounding leaves small negative eigenvalues, which J^T F J does not have.
            values, vectors = np.linalg.eigh(matrix)
            matrix = (vectors * np.maximum(values, 0)) @ vectors.T
        try:
            return np.linalg.cholesky(matrix + added)
        except np.linalg.LinAlgError as error:
            raise ValueError(_IMPROPER.format(names=", ".join(self.names))) from error


@records.record
class DiagonalCurvature:
    """The diagonal of H over the leaves of `names`."""

    diagonal: Any = records.traced()  # [P], a Sum in a program
    names: Names = ()

    def add(self, model: Any, params: Params, batch: Batch) -> DiagonalCurvature:
        def part(batch: Batch) -> Array:
            rows, weighted = _weighted_jacobian(model, params, batch, self.names)
            with jax.enable_x64(True):
                return jnp.sum(wide.wide(rows) * weighted, 0)

        diagonal = _add_in_chunks(self.diagonal, part, batch, _row_bytes(model, params, batch, self.names))
        return records.replace(self, diagonal=diagonal)

    def solve(self, gradient: Array, prior: Array, likelihood_factor: Any, prior_factor: Any) -> Array:
        """V gradient."""
        return gradient / (likelihood_factor * _exact(self.diagonal) + prior_factor * prior)

    def log_determinant(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> float:
        return float(np.log(self._precision(prior, likelihood_factor, prior_factor)).sum())

    def covariance(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> Diagonal:
        precision = self._precision(prior, likelihood_factor, prior_factor)
        return Diagonal(1 / np.sqrt(precision), np.log(precision).sum(), self.names)

    def _precision(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> np.ndarray:
        precision = likelihood_factor * self.diagonal + prior_factor * prior
        if not (precision > 0).all():
            raise ValueError(_IMPROPER.format(names=", ".join(self.names)))
        return precision


@records.record
class LayerCurvature:
    """The two factors of one dense layer; a row and column of ones' products stand for the bias."""

    inputs: Any = records.traced()  # [I, I], sum of a a^T, as those below a Sum in a program
    outputs: Any = records.traced()  # [O, O], sum of g^T F g
    count: Any = records.traced()  # rows times positions
    address: LayerAddress = LayerAddress(None, None, 0)

    def parts(self, prior: Array, likelihood_factor: Any, prior_factor: Any) -> tuple[Array, Array, Array, Array]:
        """(left, right, values, log determinant) of the precision l A kron G + p D kron 1, D one number an input.

        With M = D^-1/2 A D^-1/2 = U a U^T and G = V g V^T it is (D^1/2 U kron V) (l a g + p) (D^1/2 U kron V)^T.
        """
        inputs = _exact(self.inputs) / _exact(self.count)
        outputs = likelihood_factor * _exact(self.outputs)
        traces = [jnp.sum(jnp.where(wide.identity(len(matrix)), matrix, 0.0)) for matrix in (inputs, outputs)]
        floor = FLOOR * traces[0] / len(inputs) * traces[1] / len(outputs)
        own = jnp.maximum(prior_factor * prior.mean(1), floor)
        root = jnp.sqrt(own)
        values_in, vectors_in = jnp.linalg.eigh(inputs / jnp.outer(root, root))
        values_out, right = jnp.linalg.eigh(outputs)
        values = jnp.outer(jnp.maximum(values_in, 0), jnp.maximum(values_out, 0)) + 1
        log_determinant = jnp.log(values).sum() + len(outputs) * jnp.log(own).sum()
        return vectors_in / root[:, None], right, values, log_determinant


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

        totals = [(layer.inputs, layer.outputs, layer.count) for layer in self.layers]
        totals = _add_in_chunks(totals, part, batch, NUMBER_BYTES * sizes)
        layers = tuple(
            records.replace(layer, inputs=a, outputs=g, count=n)
            for layer, (a, g, n) in zip(self.layers, totals, strict=True)
        )
        rest = self.rest.add(model, params, batch) if self.rest.names else self.rest
        return records.replace(self, layers=layers, rest=rest)

    def solve(self, gradient: Array, prior: Array, likelihood_factor: Any, prior_factor: Any) -> Array:
        """V gradient."""
        gradients, priors, made = self._leaves(gradient), self._leaves(prior), {}
        for layer in self.layers:
            left, right, values, _ = layer.parts(layer.address.matrix(priors), likelihood_factor, prior_factor)
            white = wide.matmul(wide.matmul(layer.address.matrix(gradients), left), right) / values
            step = wide.matmul(wide.matmul(white, left.T), right.T)
            made.update(layer.address.leaves(step, gradients))
        names = self.rest.names
        rest = self.rest.solve(gather(gradients, names), gather(priors, names), likelihood_factor, prior_factor)
        made.update(scatter(rest, {name: gradients[name] for name in names}, names))
        return gather(made, self.names)

    def log_determinant(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> float:
        return float(self.covariance(prior, likelihood_factor, prior_factor).log_determinant)

    def covariance(self, prior: np.ndarray, likelihood_factor: float, prior_factor: float) -> Kronecker:
        leaves = self._leaves(prior)
        layers, total = [], 0.0
        for layer in self.layers:
            parts = layer.parts(layer.address.matrix(leaves), likelihood_factor, prior_factor)
            left, right, values, log_determinant = map(np.asarray, parts)
            if not np.isfinite(log_determinant):
                raise ValueError(_IMPROPER.format(names=f"{layer.address.weight}, {layer.address.bias}"))
            layers.append(KroneckerLayer(left, right, values, layer.address))
            total += float(log_determinant)
        rest = self.rest.covariance(np.asarray(gather(leaves, self.rest.names)), likelihood_factor, prior_factor)
        return Kronecker(tuple(layers), rest, total + float(rest.log_determinant))

    def _leaves(self, vector: Any) -> dict[str, Any]:
        return scatter(vector, dict(zip(self.names, map(np.zeros, self.shapes), strict=True)), self.names)


Curvature = FullCurvature | DiagonalCurvature | KroneckerCurvature
_IMPROPER = (
    "Neither data nor prior say anything about some direction of the weights {names}: their posterior is improper. "
    "Give them a proper prior, e.g. Normal(0, 1) in place of Flat()."
)


def num_chosen(params: Params, names: Names) -> int:
    return sum(int(np.prod(np.shape(leaf))) for name, leaf in named_leaves(params).items() if name in names)


def empty_full(params: Params, names: Names) -> FullCurvature:
    size = num_chosen(params, names)
    return FullCurvature(wide.Sum.zeros((size, size), jax.tree.leaves(params)[0].dtype), names)


def empty_diagonal(params: Params, names: Names) -> DiagonalCurvature:
    return DiagonalCurvature(wide.Sum.zeros((num_chosen(params, names),), jax.tree.leaves(params)[0].dtype), names)


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
        inputs, outputs = (wide.Sum.zeros((size, size), like.dtype) for size in like.shape)
        layers.append(LayerCurvature(inputs, outputs, wide.Sum.zeros((), like.dtype), address))
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
    return NUMBER_BYTES * _outputs_of_one(model, params, batch.x).size * num_chosen(params, names)


def _weighted_jacobian(model: Any, params: Params, batch: Batch, names: Names) -> tuple[Array, Array]:
    """J and w F J, both [N * M * K, P], the second in float64."""
    rows = gather(jacobian_of(model, params, batch.x, names), names, 3)
    weighted = wide.weigh(batch.weight, _fisher(model, params, batch), rows)
    return rows.reshape(-1, rows.shape[-1]), weighted.reshape(-1, rows.shape[-1])


def _fisher(model: Any, params: Params, batch: Batch) -> Array:
    """[N, M, K, K]."""
    outputs = model.outputs(params, batch.x)
    y = batch.y.reshape(outputs.shape[0], -1, *batch.y.shape[outputs.ndim - 1 :])
    return model.likelihood.information(outputs.reshape(outputs.shape[0], -1, outputs.shape[-1]), y)


def _factors(
    model: Any, params: Params, batch: Batch, program: LayerProgram, addresses: list[LayerAddress]
) -> list[tuple[Array, Array, Array]]:
    """(sum of a a^T, sum of g^T F g, count) of each layer in `addresses`, over the rows of a batch."""
    complete = model.complete(params)
    network = complete["network"]
    fisher = _fisher(model, params, batch)
    names = {layer.weight: i for i, layer in enumerate(program.layers)}
    names.update({layer.bias: i for i, layer in enumerate(program.layers) if layer.bias is not None})
    which = [names[str(address.weight or address.bias).removeprefix("network/")] for address in addresses]
    probes = program.zero_probes()

    def one(row: Any) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        single = jax.tree.map(lambda leaf: leaf[None], row)
        return _pullback(program, network, probes, single, fisher.shape[-1])

    pull, inputs = jax.vmap(one)(batch.x)  # [N, M, K, positions, out] and [N, positions, in] of each layer
    made = []
    for address, i in zip(addresses, which, strict=True):
        a = inputs[i] if address.weight is not None else inputs[i][..., :0]
        a = _scaled(complete, address.weight, a, 1 - address.input_axis)
        if address.bias is not None:
            ones = _scaled(complete, address.bias, jnp.ones_like(a, shape=(*a.shape[:2], 1)), None)
            a = jnp.concatenate([a, ones], 2)
        weighted = wide.weigh(batch.weight, fisher, pull[i])
        with jax.enable_x64(True):
            weight = wide.wide(batch.weight)
            flat, scaled = a.reshape(-1, a.shape[-1]), (wide.wide(a) * weight[:, None, None]).reshape(-1, a.shape[-1])
            columns = [rows.reshape(-1, rows.shape[-1]) for rows in (pull[i], weighted)]
            made.append((wide.matmul(flat, scaled), wide.matmul(*columns), weight.sum() * a.shape[1]))
    return made


def _scaled(weights: Params, name: str | None, inputs: Array, output_axis: int | None) -> Array:
    """Inputs [..., in] times the learned scales of the leaf they are multiplied with, which are the same for all
    outputs: curvature is that in the standardised weights."""
    scale = None if name is None else scale_of(weights, name)
    if scale is None:
        return inputs
    each = scale if output_axis is None else jnp.take(scale, 0, output_axis)
    return inputs * each.astype(inputs.dtype).reshape(*(1,) * (inputs.ndim - 1), -1)


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


def _exact(total: Any) -> Any:
    """In float64: a sum of a program, or what it came to on the host."""
    return total.exact() if wide.is_sum(total) else total


def _add_in_chunks(totals: Any, part: Callable[[Batch], Any], batch: Batch, bytes_per_row: int) -> Any:
    """totals + part(batch), a sum over rows, from chunks of rows whose Jacobians fit."""
    rows = batch.y.shape[0]
    chunk = max(1, int(JACOBIAN_BYTES // max(bytes_per_row, 1)))
    if chunk >= rows:
        return wide.add(totals, part(batch))
    count = -(-rows // chunk)
    index = jnp.arange(count * chunk)
    padded = pytrees.take_rows(batch, jnp.minimum(index, rows - 1))
    padded = padded._replace(weight=jnp.where(index < rows, padded.weight, 0))
    chunks = jax.tree.map(lambda leaf: leaf.reshape(count, chunk, *leaf.shape[1:]), padded)
    return jax.lax.scan(lambda totals, chunk: (wide.add(totals, part(chunk)), None), totals, chunks)[0]
