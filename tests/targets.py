"""Posteriors and chains whose answer is known, and the check that draws agree with it.

One network of two weights serves both targets, so that they share compiled programs:

    f(x) = a + b x_1 + b^2 x_2,   y ~ N(f(x), 0.5^2),   a ~ N(0, 0.8^2),   b ~ N(0, 1.2^2)

With x_2 = 0 the posterior is Gaussian; otherwise a + b^2 x_2 bends it into a banana.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.signal import lfilter

from posterity.core.types import Batch
from posterity.data.batches import clock
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model, Tempering
from posterity.networks import from_function

NOISE = 0.5
WIDTHS = {"a": 0.8, "b": 1.2}
TEMPERATURES = (1.0, 0.25, 4.0)
TEMPERED = [(t, tempering) for tempering in ("posterior", "likelihood") for t in TEMPERATURES]
PREDICT_AT = np.array([[0.7, 0.0], [0.3, 1.0]])  # for the Gaussian target the first row alone stays linear in b
OBSERVED = 0.4  # a target at those rows, whose predictive density is compared
NUM_BATCHES = 25


def _init(key, x):
    return {"a": jnp.zeros(()), "b": jnp.zeros(()) + 0.1}


def _apply(params, x):
    return (params["a"] + params["b"] * x[:, 0] + params["b"] ** 2 * x[:, 1])[:, None]


NETWORK = from_function(_init, _apply)


@dataclass(frozen=True)
class Reference:
    """Exact expectations of the quantities in `quantities`, and the standard deviation of each."""

    mean: dict[str, float]
    centre: dict[str, float]  # what the squares are taken about
    std: dict[str, float]


def linear_gaussian():
    """(x, y) whose posterior is Gaussian."""
    x = np.array([[-1.0, 0.0], [0.2, 0.0], [0.8, 0.0], [1.5, 0.0]])
    return x, np.array([-0.6, 0.5, 0.9, 1.6])


def banana():
    """(x, y) whose posterior is bent and skewed, with one mode."""
    x = np.array([[0.3, 0.8], [0.3, 1.0], [0.4, 1.2], [0.2, 0.7]])
    return x, np.array([0.1, 0.4, 0.2, 0.0])


DATA = {"linear-Gaussian": linear_gaussian, "banana": banana}


def model(temperature: float = 1.0, tempering: Tempering = "posterior") -> Model:
    prior = {name: dist.Normal(0.0, width) for name, width in WIDTHS.items()}
    return Model(NETWORK, Gaussian(NOISE), prior, temperature, tempering)


def quantities(a: np.ndarray, b: np.ndarray, centre: dict[str, float] | None = None) -> dict[str, np.ndarray]:
    """Weights, outputs and a predictive density; with `centre`, the squared deviations from it too."""
    values = {"a": a, "b": b}
    for i, (x1, x2) in enumerate(PREDICT_AT):
        f = a + b * x1 + b**2 * x2
        values[f"output {i}"] = f
        values[f"density {i}"] = np.exp(-((OBSERVED - f) ** 2) / (2 * NOISE**2)) / (NOISE * np.sqrt(2 * np.pi))
    if centre is not None:
        values |= {f"variance of {name}": (values[name] - middle) ** 2 for name, middle in centre.items()}
    return values


def reference(data, temperature: float, tempering: Tempering) -> Reference:
    """By quadrature: the trapezoidal rule on a fine grid, whose error is far below rounding for smooth densities."""
    x, y = data
    a, b = np.meshgrid(np.linspace(-12, 12, 601), np.linspace(-12, 12, 601), indexing="ij")
    outputs = a[..., None] + b[..., None] * x[:, 0] + b[..., None] ** 2 * x[:, 1]
    log_likelihood = -((y - outputs) ** 2).sum(-1) / (2 * NOISE**2)
    log_prior = -((a / WIDTHS["a"]) ** 2 + (b / WIDTHS["b"]) ** 2) / 2
    prior_power = 1 / temperature if tempering == "posterior" else 1.0
    log_density = log_likelihood / temperature + prior_power * log_prior
    mass = np.exp(log_density - log_density.max())
    mass /= mass.sum()
    mean = {name: float((mass * v).sum()) for name, v in quantities(a, b).items()}
    centre = {name: mean[name] for name in ("a", "b", "output 0", "output 1")}
    every = quantities(a, b, centre)
    mean = {name: float((mass * v).sum()) for name, v in every.items()}
    std = {name: float(np.sqrt((mass * (v - mean[name]) ** 2).sum())) for name, v in every.items()}
    return Reference(mean, centre, std)


def gaussian_moments(data, temperature: float, tempering: Tempering) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (a, b) in closed form, for data with x_2 = 0."""
    x, y = data
    design = np.stack([np.ones(len(x)), x[:, 0]], 1)
    prior_power = 1 / temperature if tempering == "posterior" else 1.0
    precision = design.T @ design / NOISE**2 / temperature
    precision += prior_power * np.diag([1 / WIDTHS["a"] ** 2, 1 / WIDTHS["b"] ** 2])
    covariance = np.linalg.inv(precision)
    return covariance @ design.T @ y / NOISE**2 / temperature, covariance


def batch_means(values: np.ndarray) -> tuple[float, float]:
    """The mean of draws [C, D] and its Monte Carlo standard error.

    The error comes from the means of batches of draws, which knows of any correlation shorter than a batch.
    """
    chains, length = values.shape
    size = length // NUM_BATCHES
    batches = values[:, : size * NUM_BATCHES].reshape(chains * NUM_BATCHES, size).mean(1)
    return batches.mean(), batches.std(ddof=1) / np.sqrt(len(batches))


def check_draws(draws, expected: Reference, largest_error: float = 0.05) -> dict[str, float]:
    """Assert that means over draws {a, b: [C, D]} are within four Monte Carlo standard errors of the truth.

    The error must itself be below `largest_error` standard deviations: a sampler that hardly moves must not pass for
    want of power. Returns the deviations in standard errors.
    """
    values = quantities(np.asarray(draws["a"], float), np.asarray(draws["b"], float), expected.centre)
    scores = {}
    for name, value in values.items():
        mean, error = batch_means(value)
        assert error < largest_error * expected.std[name], f"{name}: standard error {error:.3g} is too large to judge"
        scores[name] = (mean - expected.mean[name]) / error
    check_scores(scores)
    return scores


def check_scores(scores: dict[str, float]) -> None:
    """Assert that deviations are below four standard errors."""
    wrong = {name: round(float(score), 1) for name, score in scores.items() if not abs(score) < 4}
    assert not wrong, f"standard errors from the truth: {wrong}"


def check_order(estimates, order: int) -> None:
    """Assert that errors at steps h, h/2, h/4, of a number whose truth is 1, fall at this order and extrapolate to 0.

    `estimates`: three pairs (error, its Monte Carlo standard error). The order between two steps may be off by 0.3 for
    terms of higher order, besides four Monte Carlo errors, which must themselves be below 0.6: no other order fits.
    """
    values, errors = np.array(estimates).T
    told = ", ".join(f"{value:.4f} +- {error:.4f}" for value, error in estimates)
    rise = np.log2(values[0] / values[1])  # NaN where the sign changes, which no order fits
    noise = np.hypot(*errors[:2] / values[:2]) / np.log(2)
    assert 4 * noise < 0.6, f"errors {told} are too uncertain to judge their order"
    assert abs(rise - order) < 0.3 + 4 * noise, f"errors {told} are of order {rise:.2f}, not {order}"
    weights = np.array([1, -6, 8] if order == 1 else [0, -1, 4]) / 3  # remove the orders 1 and 2, or 2
    value, error = weights @ values, np.sqrt(weights**2 @ errors**2)
    assert 4 * error < abs(values[1]), f"errors {told} are too uncertain to extrapolate"
    assert abs(value) < 4 * error, f"errors {told} extrapolate to {value:.4f} +- {error:.4f}"


def relative_error(draws, expected: Reference, name: str) -> tuple[float, float]:
    """One expectation over its true value, less one, and the Monte Carlo standard error."""
    values = quantities(np.asarray(draws["a"], float), np.asarray(draws["b"], float), expected.centre)[name]
    mean, error = batch_means(values)
    return mean / expected.mean[name] - 1, error / expected.mean[name]


def check_posterior(posterior, expected: Reference) -> None:
    """Assert that draws and predictions of a fitted posterior agree with the truth.

    What `predict` says: its mean, the parts of its variance and log p(y) = log E[p(y | w)], where noise is never
    tempered. Errors are those of the same averages over draws, which `predict` must give up to rounding.
    """
    draws = posterior.family.draws["network"]
    check_draws(draws, expected)
    values = quantities(np.asarray(draws["a"], float), np.asarray(draws["b"], float), expected.centre)
    predicted = posterior.predict(PREDICT_AT)
    log_prob = predicted.log_prob(np.full(len(PREDICT_AT), OBSERVED))
    np.testing.assert_allclose(predicted.aleatoric, NOISE**2, rtol=1e-5)
    scores = {}
    for row in range(len(PREDICT_AT)):
        error = {name: batch_means(values[f"{name} {row}"])[1] for name in ("output", "density", "variance of output")}
        truth = {name: expected.mean[f"{name} {row}"] for name in error}
        scores[f"mean {row}"] = (predicted.mean[row] - truth["output"]) / error["output"]
        total = predicted.total[row] - truth["variance of output"] - NOISE**2
        scores[f"total {row}"] = total / error["variance of output"]
        scores[f"density {row}"] = (np.exp(log_prob[row]) - truth["density"]) / error["density"]
        assert abs(predicted.mean[row] - values[f"output {row}"].mean()) < 1e-2 * error["output"]
        assert abs(predicted.epistemic[row] - values[f"output {row}"].var()) < 1e-2 * error["variance of output"]
        assert abs(np.exp(log_prob[row]) - values[f"density {row}"].mean()) < 1e-2 * error["density"]
    check_scores(scores)


@partial(jax.jit, static_argnames=("num_burn_in", "num_draws", "thin"))
def run(method, model: Model, batch: Batch, params, keys, *, num_burn_in: int, num_draws: int, thin: int = 1):
    """Kept weights and Infos, [B, D, ...], of B chains, each with a model, data, start and key of its own.

    The driver's loop in short, as one program: what tests of kernels need, where `fit` would compile three.
    """

    def chain(model, batch, params, key):
        kernel = method.kernel(model)
        key_init, key_steps = jax.random.split(key)

        def now(index):
            phase = (index >= num_burn_in).astype(int)
            length = jnp.where(phase == 0, num_burn_in, num_draws * thin)
            return clock(index - phase * num_burn_in, length, phase, 1, batch.y.shape[0])

        def step(index, carry):
            state, kept = carry
            state, info = kernel.step(jax.random.fold_in(key_steps, index), state, batch, now(index))
            slot = jnp.where(index < num_burn_in, num_draws, (index - num_burn_in) // thin)
            put = lambda buffer, value: buffer.at[slot].set(value, mode="drop")  # noqa: E731
            return state, jax.tree.map(put, kept, (state.params, info))

        state = kernel.init(key_init, params, batch, now(jnp.zeros((), int)))
        _, info = jax.eval_shape(kernel.step, key, state, batch, now(jnp.zeros((), int)))
        kept = jax.tree.map(lambda leaf: jnp.zeros((num_draws, *leaf.shape), leaf.dtype), (state.params, info))
        return jax.lax.fori_loop(0, num_burn_in + num_draws * thin, step, (state, kept))[1]

    return jax.vmap(chain)(model, batch, params, keys)


def run_cases(method, cases, num_chains: int = 4, seed: int = 0, **counts):
    """Draws {a, b: [C, D]} and Infos [C, D] of each case (model, data), all in one program."""
    models, data = zip(*cases, strict=True)
    stack = lambda *leaves: jnp.repeat(jnp.stack([jnp.asarray(x, float) for x in leaves]), num_chains, 0)  # noqa: E731
    batches = [Batch(x, y, np.ones(len(y))) for x, y in data]
    params = [{"network": _init(None, None)} for _ in cases]
    keys = jax.random.split(jax.random.key(seed), len(cases) * num_chains)
    model, batch, start = (jax.tree.map(stack, *trees) for trees in (models, batches, params))
    draws, info = jax.tree.map(np.asarray, run(method, model, batch, start, keys, **counts))
    groups = [slice(i * num_chains, (i + 1) * num_chains) for i in range(len(cases))]
    take = lambda tree, group: jax.tree.map(lambda leaf: leaf[group], tree)  # noqa: E731
    return [(take(draws["network"], group), take(info, group)) for group in groups]


def autoregressive(rho, shape, seed=0):
    """Stationary chains [C, D, ...] of variance 1 whose draws t apart have correlation rho^t."""
    noise = np.random.default_rng(seed).normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)
