# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What a network knows, and what it does not
# A notebook as a plain script: `pip install jupytext`, then open it in Jupyter as a notebook, or convert it by
# `jupytext --to notebook examples/what_a_network_knows.py`. `python examples/what_a_network_knows.py` runs it, too.
#
# The temperature of a machine was logged for some hours, but for a gap in the middle, and the sensor was noisier late
# than early. What can be predicted within the log, in the gap, and after it?

# %%
import matplotlib.pyplot as plt
import numpy as np

from posterity import HMC, MAP, HeteroscedasticGaussian, Laplace, Model, Normal, audit, evaluate, fit, mlp, plots

rng = np.random.default_rng(3)


def measure(x):
    """A slow wave with noise that grows from 0.05 to 0.35 over the log."""
    return np.sin(2 * x[:, 0]) + (0.05 + 0.3 * (x[:, 0] + 2) / 4) * rng.normal(size=len(x))


x = np.sort(np.concatenate([rng.uniform(-2, -0.4, 45), rng.uniform(0.6, 2, 45)]))[:, None]
y = measure(x)
grid = np.linspace(-3.5, 3.5, 71)[:, None]

# %% [markdown]
# ## A model
# The network has two outputs, the mean and the spread of the noise at each time. The prior says that weights are of the
# size one: together they say which curves are plausible before the first measurement.

# %%
model = Model(mlp((8,), activation="tanh"), HeteroscedasticGaussian(), Normal(0.0, 1.0))

# %% [markdown]
# ## Three posteriors
# MAP keeps one set of weights, Laplace a Gaussian around it, and HMC draws from the posterior itself: slow, but right
# up to its Monte Carlo error, which the diagnosis reports.

# %%
start = MAP(num_steps=1000, learning_rate=1e-2, batch_size="full")
methods = {"MAP": start, "Laplace": Laplace(start=start), "HMC": HMC(num_draws=100, num_burn_in=60)}
posteriors = {name: fit(model, method, (x, y), holdout=0.1) for name, method in methods.items()}
print(posteriors["HMC"].diagnose(x))

# %%
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), sharey=True, layout="constrained")
for one, (name, posterior) in zip(axes, posteriors.items(), strict=True):
    plots.band(posterior.predict(grid), grid, (x, y), one)
    one.set(title=name, ylim=(-4, 4), xlabel="time")

# %% [markdown]
# The noise (aleatoric) is where the sensor is noisy, and more data would leave it as it is. The ignorance (epistemic)
# is where there are no data, and more data would remove it. One set of weights has none of it: MAP is as sure in the
# gap as beside it.

# %%
places = {"within the log": -1.2, "in the gap": 0.1, "after it": 3.2}
inputs = np.array(list(places.values()))[:, None]
print("standard deviations".rjust(26), *(f"{name:>16}" for name in places))
for name, posterior in posteriors.items():
    prediction = posterior.predict(inputs)
    for kind in ("aleatoric", "epistemic"):
        print(f"{name:>14}: {kind:>10}", *(f"{np.sqrt(v):16.2f}" for v in getattr(prediction, kind)))

# %% [markdown]
# ## Which one to trust
# Scores on new measurements judge the predictions where there are data. The audit compares with HMC wherever it is
# asked, also where nobody has measured: here on the whole picture above.

# %%
x_new = np.concatenate([rng.uniform(-2, -0.4, 100), rng.uniform(0.6, 2, 100)])[:, None]
y_new = measure(x_new)
for name, posterior in posteriors.items():
    scores = evaluate(posterior.predict(x_new), y_new)
    print(f"{name:>8}: log score {scores['nll'].value:.3f}, in the 90 % interval {scores['coverage_90'].value:.0%}")
print(audit(posteriors["Laplace"], posteriors["HMC"], grid))
