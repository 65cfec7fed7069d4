"""Bars of a study: their lengths are the numbers, ours beside the published, and a shortened axis says so."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from posterity.studies.bars import BESIDE, bars
from posterity.studies.rows import Row

ROWS = [
    Row("HMC: accuracy", 0.8756, 0.002, 0.868, 0.003),
    Row("HMC: log-likelihood", -0.295, 0.003, -0.308, 0.01),
    Row("MAP (SGD there): accuracy", 0.8265, 0.002, 0.83, 0.003),
    Row("MAP (SGD there): log-likelihood", -0.74, 0.01, -0.753, 0.01),
    Row("SGHMC: accuracy", 0.8431, 0.002),
    Row("SGHMC: log-likelihood", -0.3579),
]


def ends(axes, side):
    """Where the bars of a side end, by the line that they stand on."""
    offset, colour = BESIDE[side]
    found = [patch for patch in axes.patches if to_hex(patch.get_facecolor()) == colour]
    return {
        round(patch.get_y() + patch.get_height() / 2 - offset): patch.get_x() + patch.get_width() for patch in found
    }


def test_bars_end_at_the_numbers_and_stand_by_their_names():
    figure = bars(ROWS)
    accuracy, likelihood = figure.axes
    assert [label.get_text() for label in accuracy.get_yticklabels()] == ["HMC", "MAP (SGD there)", "SGHMC"]
    assert ends(accuracy, "ours") == pytest.approx({0: 0.8756, 1: 0.8265, 2: 0.8431})
    assert ends(accuracy, "published") == pytest.approx({0: 0.868, 1: 0.83})  # none of SGHMC
    assert ends(likelihood, "ours") == pytest.approx({0: -0.295, 1: -0.74, 2: -0.3579})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours", "published"]
    assert accuracy.get_ylim()[0] > accuracy.get_ylim()[1]  # the first on top


def test_an_axis_that_does_not_begin_at_zero_says_so():
    accuracy, likelihood = bars(ROWS).axes
    assert accuracy.get_xlabel() == "accuracy (axis from 0.81)"
    assert likelihood.get_xlabel() == "log-likelihood"
    (negative,) = bars([Row("a: x", -10.4), Row("b: x", -11.0)]).axes
    assert negative.get_xlabel() == "x (axis from -10.3)"
    assert ends(negative, "ours") == pytest.approx({0: -10.4, 1: -11.0})
    for several in ([1.0, -1.0], [0.0, 3.0], [2.0, 2.0], [1.0, 3.0]):
        (axes,) = bars([Row(f"{i}: x", value) for i, value in enumerate(several)]).axes
        assert axes.get_xlabel() == "x"


def test_errors_are_drawn_where_they_are_known(tmp_path):
    figure = bars(ROWS)
    ours = figure.axes[0].containers[1]
    widths = [np.ptp(segment[:, 0]) / 2 for segment in ours.errorbar.lines[2][0].get_segments()]
    np.testing.assert_allclose(widths, 0.002, rtol=1e-6)
    figure.savefig(tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="no rows to draw bars of"):
        bars([])
