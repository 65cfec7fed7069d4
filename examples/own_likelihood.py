"""A likelihood of one's own: waiting times, which are positive and skewed, by a gamma distribution in one line.

python examples/own_likelihood.py [FOLDER]     writes own_likelihood.png into the folder
"""

import sys
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist
from matplotlib.figure import Figure

from posterity import MAP, HeteroscedasticGaussian, Laplace, Model, Normal, evaluate, fit, likelihood, mlp, plots

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
rng = np.random.default_rng(0)


def draw(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Minutes until a bus comes, by the hour of the day from midnight (-1) to midnight (1): at noon there are many."""
    x = rng.uniform(-1, 1, size=(num_rows, 1))
    mean = 1 + 8 * x[:, 0] ** 2
    return x, rng.gamma(2.0, mean / 2.0)


# From the outputs of the network, [..., 2], to the distribution of the target. Index the last axis: prediction calls
# this on the outputs of many draws at once. Softplus keeps both numbers positive, and the small constant away from 0.
def gamma(outputs: jax.Array) -> dist.Distribution:
    mean, shape = (jax.nn.softplus(outputs[..., i]) + 1e-3 for i in range(2))
    return dist.Gamma(shape, shape / mean)


train, test = draw(400), draw(2000)
method = Laplace(start=MAP(num_steps=1500, learning_rate=1e-2, batch_size="full"))
likelihoods = {"Gamma": likelihood(gamma, num_outputs=2), "Gaussian": HeteroscedasticGaussian()}
posteriors = {
    name: fit(Model(mlp((20,), activation="tanh"), one, Normal(0.0, 1.0)), method, train)
    for name, one in likelihoods.items()
}

# Everything works on it: intervals, scores, the split of the variance into noise and ignorance.
print("          log score  90 % interval holds  and begins below 0 for")
for name, posterior in posteriors.items():
    prediction = posterior.predict(test[0])
    scores = evaluate(prediction, test[1])
    lower = prediction.interval(0.9)[0]
    print(
        f"{name:>8}  {scores['nll'].value:9.3f}  {scores['coverage_90'].value:19.1%}  "
        f"{np.mean(lower < 0):.0%} of rows, although no bus came before it was waited for"
    )

grid = np.linspace(-1, 1, 81)[:, None]
figure = Figure(figsize=(9, 3.6), layout="constrained")
for column, (name, posterior) in enumerate(posteriors.items()):
    axes = figure.add_subplot(1, 2, column + 1)
    plots.band(posterior.predict(grid), grid, train, axes)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(title=name, xlabel="hour of the day, noon = 0", ylabel="minutes", ylim=(-8, 30))
figure.savefig(folder / "own_likelihood.png", dpi=150)
print(f"The picture is {folder / 'own_likelihood.png'}")
