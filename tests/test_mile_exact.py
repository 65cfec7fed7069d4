"""Adjusted MILE through `fit` against exact targets, and the order of the error of the unadjusted variant."""

import pytest
import targets

from posterity.inference.driver import fit
from posterity.inference.mile import MILE

CASES = [(t, tempering, target) for t, tempering in targets.TEMPERED for target in targets.DATA]
QUICK = [  # of one tempering: one program; steps so long that without rejections both would be wrong
    (4.0, "likelihood", "banana", 1.0),
    (0.25, "likelihood", "linear-Gaussian", 0.4),
]


def check_fit(method, temperature, tempering, target):
    """Draws, and what is predicted; returns the trace."""
    data = targets.DATA[target]()
    posterior = fit(targets.model(temperature, tempering), method, data, chains=4, progress=False)
    targets.check_posterior(posterior, targets.reference(data, temperature, tempering))
    return posterior.trace


@pytest.mark.parametrize(("temperature", "tempering", "target", "step_size"), QUICK)
def test_adjusted_is_exact_with_given_settings(temperature, tempering, target, step_size):
    settings = {"step_size": step_size, "length": 2 * step_size, "num_burn_in": 100, "thin": 3}
    method = MILE(num_draws=4000, **settings, adjusted=True, start=None)
    trace = check_fit(method, temperature, tempering, target)
    assert trace["acceptance"].mean() < 0.95  # or exactness shows nothing


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "tempering", "target"), CASES)
def test_adjusted_is_exact_as_it_tunes_itself(temperature, tempering, target):
    method = MILE(num_draws=4000, num_burn_in=1500, adjusted=True, start=None)
    trace = check_fit(method, temperature, tempering, target)
    assert 0.6 < trace["acceptance"][:, 1650:].mean() < 0.98
