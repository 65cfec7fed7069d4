"""A likelihood of one's own: waiting times, which are positive and skewed, by a gamma distribution in one line.

python examples/own_likelihood.py [FOLDER]     writes own_likelihood.png into the folder
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from matplotlib.figure import Figure

from posterity import MAP, HeteroscedasticGaussian, Laplace, Model, Normal, fit, likelihood, mlp

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
rng = np.random.default_rng(0)


def draw(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Minutes until a bus comes, by the time of the day from midnight (-2) over noon (0) to midnight (2)."""
    x = rng.uniform(-2, 2, size=(num_rows, 1))
    mean = 1 + 2 * x[:, 0] ** 2
    return x, rng.gamma(2.0, mean / 2.0)


# From the outputs of the network, [..., 2], to the distribution of the target. Index the last axis: prediction calls
# this on the outputs of many draws at once. The exponential keeps both numbers positive and the outputs of unit size.
def gamma(outputs: jax.Array) -> dist.Distribution:
    mean, shape = jnp.exp(outputs[..., 0]), jnp.exp(outputs[..., 1])
    return dist.Gamma(shape, shape / mean)


train, test = draw(400), draw(200)
method = Laplace(start=MAP(num_steps=1000, learning_rate=1e-2, batch_size="full"))
likelihoods = {"Gamma": likelihood(gamma, num_outputs=2), "Gaussian": HeteroscedasticGaussian()}
posteriors = {
    name: fit(Model(mlp((20,), activation="tanh"), one, Normal(0.0, 1.0)), method, train)
    for name, one in likelihoods.items()
}

# Everything works on it: intervals, scores, the split of the variance into noise and ignorance. Smaller log scores are
# better: this one is the mean of -log p(y | x).
print("          log score  90 % interval holds  and begins below 0 for")
for name, posterior in posteriors.items():
    prediction = posterior.predict(test[0])
    lower, upper = prediction.interval(0.9)
    holds, below = np.mean((lower <= test[1]) & (test[1] <= upper)), np.mean(lower < 0)
    print(f"{name:>8}  {-np.mean(prediction.log_prob(test[1])):9.3f}  {holds:19.0%}  {below:4.0%} of rows")

# `plots.band` draws the mean and two standard deviations, which may begin below 0; these are quantiles.
grid = np.linspace(-2, 2, 31)[:, None]
figure = Figure(figsize=(9, 3.6), layout="constrained")
for column, (name, posterior) in enumerate(posteriors.items()):
    prediction = posterior.predict(grid)
    axes = figure.add_subplot(1, 2, column + 1)
    axes.fill_between(grid[:, 0], *prediction.interval(0.9), color="tab:blue", alpha=0.3, linewidth=0)
    axes.plot(grid[:, 0], prediction.mean, color="tab:blue")
    axes.plot(*train, ".", color="black", markersize=3)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(title=name, xlabel="time of the day, noon = 0", ylabel="minutes", ylim=(-6, 25))
figure.savefig(folder / "own_likelihood.png", dpi=150)
print(f"The picture is {folder / 'own_likelihood.png'}")
