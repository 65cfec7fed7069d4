"""HMC audited by HMC with another seed: a run of the sampler itself."""

import numpy as np
import pytest
from targets import linear_gaussian, model

from posterity import HMC, audit, fit


@pytest.mark.long
def test_hmc_with_another_seed_is_not_different():
    pair = [fit(model(), HMC(num_draws=200), linear_gaussian(), seed=s, chains=8, progress=False) for s in (0, 1)]
    x = np.stack([np.linspace(-2, 2, 20), np.zeros(20)], 1)
    found = audit(*pair, x)
    assert found.different is False
    assert found.inputs_beyond_floor.size == 0
    np.testing.assert_allclose(found.ignorance, 1.0, atol=0.15)
