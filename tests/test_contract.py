"""The contract: every method with every likelihood it supports, through the same calls, with the same guarantees."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from posterity import METHODS, Model, fit
from posterity.inference.methods.card import TableSize
from posterity.models.censored import Censored
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
from posterity.networks import linear, mlp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 2))
SIGNAL = X[:, 0] - X[:, 1]
NUMBERS, CLASSES, COUNTS = SIGNAL + 0.1 * RNG.normal(size=24), (SIGNAL > 0).astype(int), RNG.poisson(np.exp(SIGNAL / 2))

LIKELIHOODS = {
    "gaussian": (Gaussian(0.2), NUMBERS),
    "learned noise": (GaussianLearnedNoise(0.2), NUMBERS),
    "heteroscedastic": (HeteroscedasticGaussian(), NUMBERS),
    "several targets": (Gaussian(0.2, num_outputs=2), np.stack([NUMBERS, -NUMBERS], 1)),
    "student": (StudentT(5.0, 0.2), NUMBERS),
    "bernoulli": (Bernoulli(), CLASSES),
    "categorical": (Categorical(2), CLASSES),
    "noisy categorical": (NoisyCategorical(2, num_noise_draws=4), CLASSES),
    "ordinal": (Ordinal(3), np.digitize(SIGNAL, [-1.0, 1.0])),
    "censored": (Censored(Gaussian(0.2)), np.stack([NUMBERS, np.where(NUMBERS < 0.5, NUMBERS, np.inf)], 1)),
    "poisson": (Poisson(), COUNTS),
    "negative binomial": (NegativeBinomial(), COUNTS),
    "one's own": (likelihood(lambda o: dist.Laplace(o[..., 0], jnp.exp(o[..., 1])), num_outputs=2), NUMBERS),
}

SMALL = {"num_steps": 20, "batch_size": 8}
SETTINGS = {  # of others: those for a table, with little effort
    "mle": SMALL,
    "map": SMALL,
    "mc_dropout": SMALL,
    "bayes_by_backprop": SMALL,
    "deep_ensemble": {**SMALL, "num_members": 2},
    "laplace": {"start": METHODS["map"](**SMALL)},
    "swag": {**SMALL, "start": METHODS["map"](**SMALL), "rank": 3},
    "exact": {},
    "hmc": {"num_draws": 6, "num_burn_in": 4, "max_leapfrog": 16},
    "nuts": {"num_draws": 6, "num_burn_in": 8, "max_depth": 3},
    "sgld": {"num_draws": 6, "num_burn_in": 20, "thin": 2, "batch_size": 8, "preconditioner": "rmsprop"},
    "sghmc": {"num_draws": 6, "num_burn_in": 20, "thin": 2, "batch_size": 8},
    "cyclical": {"base": "sghmc", "num_cycles": 2, "cycle_length": 20, "draws_per_cycle": 3, "thin": 2},
    "mile": {"num_draws": 6, "num_burn_in": 100, "start": METHODS["deep_ensemble"](**SMALL, num_members=2)},
    "smc": {"num_particles": 8, "num_moves": 1, "num_last_steps": 2, "max_leapfrog": 4},
}


QUICK = ("categorical",)  # for methods that optimise; other pairs are in the long tier
MORE = {"map": ("learned noise", "heteroscedastic", "noisy categorical", "poisson", "one's own")}
ONE = {  # samplers take long to compile: one likelihood each
    "swag": "categorical",
    "hmc": "categorical",
    "nuts": "learned noise",
    "sgld": "poisson",
    "sghmc": "categorical",
    "cyclical": "learned noise",
    "mile": "poisson",
    "smc": "learned noise",
}
PAIRS = [(m, d) for m in METHODS for d in LIKELIHOODS if m != "exact" or d in ("gaussian", "several targets")]


def tier(method, data):
    quick = method == "exact" or data in ((ONE[method],) if method in ONE else (*QUICK, *MORE.get(method, ())))
    return pytest.param(method, data, id=f"{method}-{data}", marks=() if quick else pytest.mark.long)


@pytest.mark.filterwarnings("ignore:chain .* accepted no step")  # in so few: what is tested does not need it
@pytest.mark.parametrize(("method", "data"), [tier(*pair) for pair in PAIRS])
def test_contract(method, data):
    check_contract(method, data)


def check_contract(method, data):
    """What every method guarantees; it is found in METHODS."""
    made, y = LIKELIHOODS[data]
    network = linear() if method == "exact" else mlp((4,), dropout=0.2)
    model = Model(network, made, dist.Normal(0.0, 1.0))
    settings = SETTINGS.get(method) or METHODS[method].card.settings(TableSize(len(X), effort=0.01))
    posterior = fit(model, METHODS[method](**settings), (X, y))
    prediction = posterior.predict(X)

    # the split adds up, every part is finite and none is negative
    np.testing.assert_allclose(prediction.total, prediction.aleatoric + prediction.epistemic, rtol=1e-5, atol=1e-6)
    for part in (prediction.total, prediction.aleatoric, prediction.epistemic):
        assert np.isfinite(part).all()
        assert (part > -1e-5).all()
    assert prediction.log_prob(y).shape == (24,)
    assert np.isfinite(prediction.log_prob(y)).all()

    # a row's draws do not depend on the rows beside it
    few = posterior.predict(X[5:8])
    np.testing.assert_allclose(few.outputs, prediction.outputs[:, 5:8], rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(few.mean, prediction.mean[5:8], rtol=2e-3, atol=2e-4)

    # the receipt says what was done
    assert posterior.receipt.num_data == 24
    assert posterior.receipt.temperature in (1.0, "not applicable")
    assert all(np.isfinite(values).all() for values in posterior.trace.values())
