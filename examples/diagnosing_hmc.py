"""Diagnosing HMC: a run that is too short, what its diagnosis says, and a run that goes on until the diagnosis is good.

python examples/diagnosing_hmc.py [FOLDER]     writes diagnosing_hmc.png into the folder
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from posterity import HMC, Gaussian, Model, Normal, fit, mlp, plots

folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
rng = np.random.default_rng(0)
x = np.concatenate([rng.uniform(-2, -0.7, 15), rng.uniform(0.7, 2, 15)])[:, None]  # nothing around 0
y = np.sin(2 * x[:, 0]) + 0.2 * rng.normal(size=30)
grid = np.linspace(-3, 3, 31)[:, None]
model = Model(mlp((5,), activation="tanh"), Gaussian(0.2), Normal(0.0, 1.0))

# Two steps of burn-in: the step size is not adapted yet, and the chains still remember where they started.
short = fit(model, HMC(num_draws=30, num_burn_in=2), (x, y), chains=4)
first = short.diagnose(grid)
print("A short run.", first, sep="\n")

# The diagnosis looks at predictions, not at weights: two networks whose hidden units are exchanged are the same
# function, and chains need not agree on the order. `until` samples in rounds and diagnoses at the inputs `at` after
# each; the budget, in seconds, ends the run with what it has.
longer = fit(model, HMC(num_draws=200, num_burn_in=100), (x, y), chains=4, until="good", at=grid, budget=20)
diagnosis = longer.diagnose(grid)
print("\nA run that may go on.", diagnosis, sep="\n")

# Where more precision is wanted than the verdict asks for, in units of y:
worst = diagnosis.monte_carlo_error.max()
print(f"\nThe predictive mean has a standard error of at most {worst:.3f};", end=" ")
print(f"half of that takes {diagnosis.draws_needed(worst / 2)} more draws of each chain.")

figure = Figure(figsize=(9, 6), layout="constrained")
for column, (posterior, found) in enumerate([(short, first), (longer, diagnosis)]):
    above, below = (figure.add_subplot(2, 2, 2 * row + column + 1) for row in range(2))
    plots.trace(posterior, above)
    plots.band(posterior.predict(grid), grid, (x, y), below)
    above.set_title(f"{found.num_draws} draws of each chain: {found.verdict}")
    below.set_ylim(-3, 3)
figure.savefig(folder / "diagnosing_hmc.png", dpi=150)
print(f"The picture is {folder / 'diagnosing_hmc.png'}")
