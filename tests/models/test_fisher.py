"""The Fisher information of every likelihood against sums and integrals of squared scores."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from posterity.models.counts import NegativeBinomial, Poisson
from posterity.models.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    GaussianLearnedNoise,
    HeteroscedasticGaussian,
    NoisyCategorical,
    StudentT,
    likelihood,
)
from posterity.models.ordinal import Ordinal


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


LIKELIHOODS = {
    "Gaussian": Gaussian(0.7, 2),
    "GaussianLearnedNoise": GaussianLearnedNoise(0.5, num_outputs=2),
    "HeteroscedasticGaussian": HeteroscedasticGaussian(0.3),
    "StudentT": StudentT(5.0, 0.8),
    "Bernoulli": Bernoulli(),
    "Categorical": Categorical(3),
    "NoisyCategorical": NoisyCategorical(2),
    "Ordinal": Ordinal(3),
    "Poisson": Poisson(),
    "NegativeBinomial": NegativeBinomial(),
    "Own": likelihood(lambda o: dist.Laplace(o[..., 0], jnp.exp(o[..., 1])), num_outputs=2),
}
SAMPLED = ("NoisyCategorical", "NegativeBinomial", "Own")  # by 512 draws


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_fisher_information(name):
    """sum_y or integral dy of p(y) s s^T, with scores s by automatic differentiation."""
    chosen = LIKELIHOODS[name]
    columns = chosen.columns(chosen.init())
    width = chosen.num_outputs + (0 if columns is None else columns.size)
    outputs = np.random.default_rng(len(name)).normal(0.5, 0.2, width)
    if chosen.kind == "continuous":
        grid = np.linspace(-60, 60, 60_000)
        measure = grid[1] - grid[0]
    else:
        grid, measure = np.arange({"classes": 3, "counts": 400}[chosen.kind]), 1.0
        grid = grid[:2] if name in ("Bernoulli", "NoisyCategorical") else grid
    several = name in ("Gaussian", "GaussianLearnedNoise")
    targets = grid[:, None] * [1.0, 0.0] + [0.0, outputs[1]] if several else grid  # the second at its mean

    @jax.jit
    def scores(outputs):
        log_prob = lambda o, y: chosen(o[None]).log_prob(y[None])[0]  # noqa: E731
        values = jax.vmap(log_prob, (None, 0))(outputs, targets)
        return values, jax.vmap(jax.grad(log_prob), (None, 0))(outputs, targets), chosen.fisher(outputs[None])[0]

    log_probs, score, fisher = map(np.asarray, scores(outputs))
    if several:
        expected = _two_normals(name, np.asarray(outputs))
    else:
        probs = np.exp(log_probs) * measure
        assert probs.sum() == pytest.approx(1, abs=1e-5)
        expected = np.einsum("y,yk,yl->kl", probs, score, score)
    size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    tolerance = 6 / np.sqrt(512) if name in SAMPLED else 1e-5
    np.testing.assert_array_less(np.abs(fisher - expected), tolerance * size + 1e-12)


def _two_normals(name, outputs):
    """By 40-point Gauss-Hermite quadrature over both targets."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    noise = 1e-3 * 0.5 + np.exp(outputs[2]) if name == "GaussianLearnedNoise" else 0.7
    z = np.stack(np.meshgrid(nodes, nodes), -1).reshape(-1, 2)
    probs = np.outer(weights, weights).ravel() / (2 * np.pi)
    score = z / noise
    if name == "GaussianLearnedNoise":
        of_noise = (np.square(z) - 1).sum(1) * np.exp(outputs[2]) / noise
        score = np.concatenate([score, of_noise[:, None]], 1)
    return np.einsum("y,yk,yl->kl", probs, score, score)
