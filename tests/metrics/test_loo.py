"""Leave-one-out against arviz-stats, row by row, and against the closed form of a linear-Gaussian model."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

from posterity.metrics.loo import fit_pareto, leave_one_out, smoothed_log_weights

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num_draws", [40, 400, 4000])
@pytest.mark.parametrize("efficiency", [1.0, 0.3])
def test_it_is_that_of_arviz(num_draws, efficiency):
    values = -np.abs(RNG.standard_t(3, size=(num_draws, 6))) * np.array([0.1, 0.5, 1.0, 2.0, 3.0, 5.0])
    found = leave_one_out(values, efficiency)
    for row in range(6):
        log_prob, shape, _ = array_stats.loo(values[None, :, row], r_eff=efficiency)
        assert found.pareto_k[row] == pytest.approx(float(shape), rel=1e-6)
        assert found.log_prob[row] == pytest.approx(float(log_prob), rel=1e-6)


def test_the_shape_of_a_pareto_tail_is_found():
    for shape in (-0.2, 0.3, 0.9):
        values = np.sort(stats.genpareto(shape, scale=2.0).rvs(4000, random_state=1))
        found, scale = fit_pareto(values)
        assert found == pytest.approx(shape, abs=0.08)
        assert scale == pytest.approx(2.0, rel=0.1)


def test_rows_that_all_draws_agree_on_have_no_tail():
    found = leave_one_out(np.full((100, 2), -1.5))
    np.testing.assert_allclose(found.log_prob, -1.5)
    assert (found.pareto_k == -np.inf).all()
    assert found.num_unreliable == 0


def test_given_weights_are_not_changed():
    given = RNG.normal(size=(50, 2))
    before = given.copy()
    smoothed_log_weights(given)
    np.testing.assert_array_equal(given, before)


def test_few_draws_are_refused():
    with pytest.raises(ValueError, match="9 draws are too few"):
        leave_one_out(np.zeros((9, 2)))
