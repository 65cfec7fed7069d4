"""Two posteriors over two weights whose answers are known, and what each approximation should make of the first.

    f(x) = a x + b,   a, b ~ N(0, 1)      numbers: y ~ N(f, 0.5^2)      classes: y ~ Bernoulli(sigmoid(f))

Numbers: with the design matrix P = [x, 1], precision A = P^T P / 0.25 + I, V = A^-1 and m = V P^T y / 0.25,

    samplers, Laplace, Exact     N(m, V)
    SGLD, SGHMC                  N(m, [A (I - (rate / N) A / (2 (1 + momentum)))]^-1), without a preconditioner
    Bayes by Backprop            N(m, diag(1 / A_ii)), the optimum of the mean-field free energy
    MAP, deep ensembles          the point m;   MLE: the same without I
    MC dropout, inputs kept      the point of A_aa replaced by (sum x^2 / q) / 0.25 + q; a z / q in place of a, z
    with probability q           Bernoulli(q): a variance of a^2 (1 - q) / q

The input x has dropout, which methods that draw no masks do not see. Classes: by quadrature of the model's own density.
Everything is compared in the outputs at two inputs, which determine both weights.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from posterity.data.arrays import Dataset, dataset
from posterity.inference.methods.bayes_by_backprop import BayesByBackprop
from posterity.inference.methods.exact import Exact
from posterity.inference.methods.laplace import Laplace
from posterity.inference.methods.mc_dropout import MCDropout
from posterity.inference.methods.method import Method
from posterity.inference.methods.point import MLE, PointEstimate
from posterity.inference.methods.sgmcmc import SGHMC, Langevin
from posterity.metrics.estimate import FloatArray
from posterity.models.likelihoods import Bernoulli, Gaussian
from posterity.models.model import Model
from posterity.networks import mlp

NOISE = 0.5
DROPPED = 0.2
NETWORK = mlp((), input_dropout=DROPPED)
NUMBERS = Model(NETWORK, Gaussian(NOISE))
CLASSES = Model(NETWORK, Bernoulli())
AT = np.array([[-0.5], [1.0]], np.float32)  # where outputs are compared
DESIGN_AT = np.array([[-0.5, 1.0], [1.0, 1.0]])
GRID = np.linspace(-6.0, 6.0, 401)


class Law(NamedTuple):
    """Mean [2] and covariance [2, 2] of the outputs at AT."""

    mean: FloatArray
    covariance: FloatArray


def numbers() -> Dataset:
    """Rows whose inputs are not centred, so that the two weights are correlated."""
    x = np.linspace(-0.5, 2.0, 12)[:, None]
    return dataset((x, 0.8 * x[:, 0] - 0.4 + NOISE * np.cos(7 * x[:, 0])), NUMBERS.likelihood)


def classes() -> Dataset:
    """Few rows: the posterior is skewed."""
    return dataset((np.array([[-0.2], [0.3], [0.9], [1.4], [2.0]]), np.array([0, 1, 0, 1, 1])), CLASSES.likelihood)


def posterior_of_numbers() -> Law:
    precision, target = _normal_equations()
    covariance = np.linalg.inv(precision)
    return _at(covariance @ target, covariance)


def law_of(method: Method) -> Law | None:
    """What a method's own equations say of the numbers; None: nothing but that it approximates the posterior."""
    precision, target = _normal_equations()
    none = np.zeros((2, 2))
    if isinstance(method, MLE):
        return _at(np.linalg.solve(precision - np.eye(2), target), none)
    if isinstance(method, MCDropout):
        keep = 1 - DROPPED
        precision[0, 0] = (precision[0, 0] - 1) / keep + keep
        mean = np.linalg.solve(precision, target)
        return _at(mean, np.diag([mean[0] ** 2 * DROPPED / keep, 0.0]))
    mean = np.linalg.solve(precision, target)
    if isinstance(method, Exact) or (isinstance(method, Laplace) and _is_plain(method)):
        return posterior_of_numbers()
    if isinstance(method, PointEstimate):
        return _at(mean, none)
    if isinstance(method, BayesByBackprop):
        return _at(mean, np.diag(1 / np.diag(precision)))
    if isinstance(method, Langevin) and method.preconditioner is None and method.schedule == "constant":
        momentum = method.momentum if isinstance(method, SGHMC) else 0.0
        step = method.learning_rate / numbers().num_rows / (2 * (1 + momentum))
        return _at(mean, np.linalg.inv(precision @ (np.eye(2) - step * precision)))
    return None


def posterior_of_classes() -> Law:
    """By the trapezoidal rule on a grid, from the model's own density."""
    rows = classes()
    params, unravel = ravel_pytree(CLASSES.init(jax.random.key(0), jnp.asarray(rows.x)))
    points = jnp.asarray(np.stack(np.meshgrid(GRID, GRID), -1).reshape(-1, params.size), params.dtype)

    def at(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = unravel(point)
        return CLASSES.log_joint(weights, rows.batch()), CLASSES.outputs(weights, jnp.asarray(AT))[:, 0]

    log_density, outputs = (np.asarray(part, float) for part in jax.jit(jax.vmap(at))(points))
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    mean = mass @ outputs
    return Law(mean, (outputs - mean).T @ (mass[:, None] * (outputs - mean)))


def divergence(approximation: Law, exact: Law) -> float:
    """KL(approximation || exact) of Gaussians with these moments, in nats; infinite for a point."""
    ratio = np.linalg.solve(exact.covariance, approximation.covariance)
    sign, log_determinant = np.linalg.slogdet(ratio)
    if sign <= 0:
        return float("inf")
    apart = approximation.mean - exact.mean
    return float((np.trace(ratio) + apart @ np.linalg.solve(exact.covariance, apart) - 2 - log_determinant) / 2)


def _is_plain(method: Laplace) -> bool:
    return not method.tune and method.matrix == "full" and method.weights == "all"


def _normal_equations() -> tuple[FloatArray, FloatArray]:
    """A and P^T y / 0.25."""
    rows = numbers()
    design = np.concatenate([np.asarray(rows.x, float), np.ones((rows.num_rows, 1))], 1)
    return design.T @ design / NOISE**2 + np.eye(2), design.T @ np.asarray(rows.y, float) / NOISE**2


def _at(mean: np.ndarray, covariance: np.ndarray) -> Law:
    """Of weights (a, b), as outputs."""
    return Law(DESIGN_AT @ mean, DESIGN_AT @ covariance @ DESIGN_AT.T)
