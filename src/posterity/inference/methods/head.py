"""Linear heads integrated out: a sampler moves all other weights, and draws the head from its exact conditional.

Where the means of a Gaussian likelihood are linear in the weights w of the last layer, and these have a Gaussian prior,
the rest of the weights theta has a density in closed form. With phi_n the last hidden features of row n and a 1 for the
bias, times the prior's standard deviations, so that w ~ N(0, I); v_n the noise variance and s_n the weight of row n:

    q_n = s_n / (T v_n),   Q = diag(q),   A = I / t + Phi' Q Phi = L L',   m = A^-1 Phi' Q y,   r = y - Phi m
    log p(theta | y) = -1/2 sum_n q_n y_n r_n - sum_i log L_ii - 1/(2 T) sum_n s_n log(2 pi v_n) + log prior(theta)
    d / d phi_n = q_n (r_n m - A^-1 phi_n),    d / d q_n = -(r_n^2 + phi_n' A^-1 phi_n) / 2,    d / d y_n = -q_n r_n
    w | theta, y = m + L'^-1 e,    e ~ N(0, I)

up to a constant, t the temperature of the prior: T for tempering "posterior", which divides log prior(theta) by T as
well, 1 for "likelihood". Several targets share A, and each adds its own terms. (For T = 1 this is the marginal
likelihood of Bayesian linear regression, Rasmussen & Williams 2006, sec. 2.1; the head is Rao-Blackwellised.) Where the
scale of the head's prior is learned, its log scales are in theta, w is the standardised head and phi_n has the scales.

A network of 50 tanh units on the yacht table has steps forty times as long on this density: what makes its posterior
stiff is a head that is pinned down by small noise.

Precision: features and the backward pass are those of the network, often float32; A, its Cholesky factor, m, r and the
energies are float64, since A's condition reaches 1e7, where float32 has nothing left. Programs that use this are
traced under `jax.enable_x64(True)`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from posterity.core import pytrees
from posterity.core.types import Array, Batch, Key, Params
from posterity.inference.methods.density import Density, Factors, Report
from posterity.models.model import Model, weighted_sum
from posterity.models.scales import scale_of
from posterity.networks.convolutions import with_fast_gradients
from posterity.networks.layers import LayerProgram, trace_layers

PRECISE = "float64"


class Head(NamedTuple):
    """Which weights of a network make the means: the first columns of the last dense layer."""

    weight: str  # path of its matrix
    bias: str | None
    input_axis: int  # of the matrix
    num_means: int
    program: LayerProgram

    def axis_of(self, name: str) -> int | None:
        """The axis of a leaf that counts outputs; None for leaves of other layers."""
        if name == self.weight:
            return 1 - self.input_axis
        return 0 if name == self.bias else None

    def others(self, params: Params) -> Params:
        """theta: the same tree without the columns of the means."""

        def leaf(name: str, value: Array) -> Array:
            axis = self.axis_of(name)
            return value if axis is None else jnp.split(value, [self.num_means], axis)[1]

        return pytrees.map_with_path(leaf, params)

    def join(self, theta: Params, matrix: Array, bias: Array) -> Params:
        """All weights: theta, with matrix [H, M] and bias [M] as the columns of the means."""

        def leaf(name: str, value: Array) -> Array:
            axis = self.axis_of(name)
            if axis is None:
                return value
            columns = bias if name == self.bias else matrix if axis == 1 else matrix.T
            return jnp.concatenate([columns.astype(value.dtype), value], axis)

        return pytrees.map_with_path(leaf, theta)


def find_head(model: Model, params: Params, x: object) -> Head | str:
    """The head of a model for rows of the shape of x, or why it cannot be integrated out."""
    num_means = model.likelihood.num_means
    if num_means == 0:
        return f"{model.likelihood.describe()} is not Gaussian noise around a mean"
    program = trace_layers(model.network, model.complete(params)["network"], x)
    if not program.ends_in_layer:
        return "the network does not end in a dense layer with one row of outputs for each row of inputs"
    layer = program.layers[-1]
    weight, bias = f"network/{layer.weight}", None if layer.bias is None else f"network/{layer.bias}"
    free = pytrees.leaf_names(params)
    for name in filter(None, (weight, bias)):
        if name not in free:
            return f"{name} is held fixed"
        if not model.full_prior.is_gaussian(name):
            return f"the prior of {name} is not Normal"
        if model.full_prior.differs_within(name):
            return f"the prior of {name} differs from weight to weight"
        learned = model.full_prior.learned(name)
        if num_means > 1 and name == weight and learned is not None and learned.by == "output":
            return f"the scales of {name} differ by target"
    head = Head(weight, bias, layer.input_axis, num_means, program)
    if pytrees.size(jax.eval_shape(head.others, params)) == 0:
        return "nothing else would be left to sample (Exact() gives that posterior in closed form)"
    return head


def integrated(model: Model, head: Head, batch: Batch, factors: Factors | None = None) -> Density:
    """The density of all weights but the head's, given the rows of a batch.

    `factors`: of log-likelihood and log prior, where others are wanted than the model's temperature asks for.
    """
    factors = model.tempering_factors if factors is None else factors
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise RuntimeError("An integrated head is traced where float64 is off: JAX would round it to float32 silently.")

    def log_density(theta: Params) -> Array:
        rows = _rows(model, head, theta, batch, factors)
        noise = batch.weight.astype(PRECISE) @ jnp.log(2 * np.pi * rows.variance)
        likelihood = log_evidence(rows.features, rows.precision, rows.targets, rows.ridge)
        likelihood -= head.num_means / 2 * factors[0] * noise
        prior = model.log_prior(jax.tree.map(lambda leaf: leaf.astype(PRECISE), theta))
        return likelihood + factors[1] * prior

    def complete(key: Key, theta: Params) -> Params:
        rows = _rows(model, head, theta, batch, factors)
        solved = solve_head(rows.features, rows.precision, rows.targets, rows.ridge)
        noise = jax.random.normal(key, solved.mean.shape, PRECISE)
        standard = solved.mean + solve_triangular(solved.root, noise, lower=True, trans=1)
        matrix, bias = _head_prior(model, head, theta)
        inputs = standard[: len(standard) - (head.bias is not None)]
        return head.join(theta, matrix.mean + matrix.deviation * inputs, bias.mean + bias.deviation * standard[-1])

    def report(params: Params, value: Array) -> Report:
        log_likelihood = weighted_sum(model.log_likelihood(params, batch), batch.weight)
        return Report(log_likelihood, model.log_prior(params), value)

    return Density(head.others, jax.grad(log_density), log_density, _difference, complete, report)


class Rows(NamedTuple):
    """What the rows of a batch say of the head."""

    features: Array  # Phi [N, H], in the network's precision
    variance: Array  # v [N]
    precision: Array  # q [N]
    targets: Array  # y [N, M], less what the prior's mean predicts
    ridge: Array  # 1 / t


def _rows(model: Model, head: Head, theta: Params, batch: Batch, factors: Factors) -> Rows:
    matrix, bias = _head_prior(model, head, theta)
    num_inputs = matrix.num_inputs
    zero = jnp.zeros((num_inputs, head.num_means))
    params = model.complete(head.join(theta, zero, zero[0]))

    def run(network: Params, x: object) -> tuple[Array, Array]:
        outputs, inputs = head.program.apply(network, None, x)
        return outputs, inputs[-1]

    outputs, hidden = with_fast_gradients(run, params["network"], batch.x)
    hidden, one = _scaled(head, params, hidden)
    outputs = model.with_columns(outputs, params).astype(PRECISE)
    variance = model.likelihood.noise_variance(outputs)
    features = hidden * matrix.deviation.astype(hidden.dtype)
    targets = batch.y.astype(PRECISE).reshape(len(hidden), head.num_means)
    targets -= (matrix.mean * hidden.sum(1, dtype=PRECISE) + bias.mean * one)[:, None]
    if head.bias is not None:
        ones = jnp.broadcast_to((bias.deviation * one).astype(hidden.dtype), (len(hidden), 1))
        features = jnp.concatenate([features, ones], 1)
    likelihood_factor, prior_factor = factors
    precision = batch.weight.astype(PRECISE) * likelihood_factor / variance
    return Rows(features, variance, precision, targets, jnp.asarray(prior_factor, PRECISE))


def _scaled(head: Head, weights: Params, hidden: Array) -> tuple[Array, Array]:
    """The features, and the 1 of the bias, times the learned scales of the means' columns of complete weights."""
    scale, one = scale_of(weights, head.weight), jnp.ones((), PRECISE)
    if scale is not None:
        hidden = hidden * jnp.take(scale, 0, 1 - head.input_axis).astype(hidden.dtype)
    of_bias = None if head.bias is None else scale_of(weights, head.bias)
    return hidden, one if of_bias is None else of_bias.reshape(()).astype(PRECISE)


class _Normal(NamedTuple):
    """The prior of every weight of a leaf."""

    mean: Array
    deviation: Array
    num_inputs: int


def _head_prior(model: Model, head: Head, theta: Params) -> tuple[_Normal, _Normal]:
    """Of the matrix and of the bias; without a bias the latter is 0."""
    shapes = dict(zip(pytrees.leaf_names(theta), map(jnp.shape, jax.tree.leaves(theta)), strict=True))
    prior = model.full_prior

    def normal(name: str) -> _Normal:
        found, factor = prior.find(name), prior.factor(name, shapes[name], model.network.fan_in_axis)
        mean, deviation = (jnp.asarray(value * factor, PRECISE) for value in (found.loc, found.scale))
        return _Normal(mean, deviation, shapes[head.weight][head.input_axis])

    none = jnp.zeros((), PRECISE)
    return normal(head.weight), _Normal(none, none, 0) if head.bias is None else normal(head.bias)


class Solved(NamedTuple):
    """w | theta, y ~ N(mean, (root root')^-1), the same covariance for each target."""

    root: Array  # L [H, H]
    mean: Array  # m [H, M]


def solve_head(features: Array, precision: Array, targets: Array, ridge: Array) -> Solved:
    rows = features.astype(PRECISE)
    scaled = rows * jnp.sqrt(precision)[:, None]
    root = jnp.linalg.cholesky(scaled.T @ scaled + ridge * jnp.eye(rows.shape[1], dtype=PRECISE))
    right = rows.T @ (precision[:, None] * targets)
    return Solved(root, solve_triangular(root, solve_triangular(root, right, lower=True), lower=True, trans=1))


@jax.custom_vjp
def log_evidence(features: Array, precision: Array, targets: Array, ridge: Array) -> Array:
    """-1/2 sum_n q_n y_n r_n - sum_i log L_ii, summed over targets."""
    return _forward(features, precision, targets, ridge)[0]


def _forward(features: Array, precision: Array, targets: Array, ridge: Array) -> tuple[Array, tuple[Array, ...]]:
    root, mean = solve_head(features, precision, targets, ridge)
    residuals = targets - features.astype(PRECISE) @ mean
    value = -0.5 * jnp.sum(precision @ (targets * residuals)) - targets.shape[1] * jnp.log(jnp.diagonal(root)).sum()
    return value, (features, precision, root, mean, residuals)


def _backward(saved: tuple[Array, ...], slope: Array) -> tuple[Array | None, ...]:
    features, precision, root, mean, residuals = saved
    num_targets, dtype = mean.shape[1], features.dtype
    inverse_root = solve_triangular(root, jnp.eye(len(root), dtype=PRECISE), lower=True)
    # A force of lower precision keeps HMC exact: a leapfrog step is reversible and keeps volume whatever its force.
    reach = features @ (inverse_root.T @ inverse_root).astype(dtype)  # A^-1 phi_n
    pull = residuals.astype(dtype) @ mean.T.astype(dtype) - num_targets * reach
    of_precision = jnp.square(residuals).sum(1) + num_targets * jnp.sum(features * reach, 1)
    of_features = (slope * precision).astype(dtype)[:, None] * pull
    return of_features, -slope / 2 * of_precision, -slope * precision[:, None] * residuals, None


log_evidence.defvjp(_forward, _backward)


def _difference(begin: Params, at_begin: Array, end: Params, at_end: Array) -> list[Array]:
    del begin, end
    return [at_end - at_begin]
