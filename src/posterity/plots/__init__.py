"""Pictures: each function draws on matplotlib axes, those given or new ones, and returns them.

None of them draws a legend, as several may share axes: `axes.legend()` does. `axes.figure.savefig(path)` keeps one.
"""

from posterity.plots.chains import r_hat_curve, trace, training
from posterity.plots.curves import (
    against_reference,
    alarm_curve,
    calibration_curve,
    coverage,
    coverage_curve,
    moved_p_values,
    p_value_curve,
    risk_coverage_curve,
    score_dots,
)
from posterity.plots.palette import PALETTE, method_marker, method_style, new_axes, style
from posterity.plots.predictions import (
    attributions,
    band,
    class_map,
    class_mixture,
    ignorance_along,
    predicted_against_observed,
    sorted_intervals,
    split_along,
)

__all__ = [
    "PALETTE",
    "against_reference",
    "alarm_curve",
    "attributions",
    "band",
    "calibration_curve",
    "class_map",
    "class_mixture",
    "coverage",
    "coverage_curve",
    "ignorance_along",
    "method_marker",
    "method_style",
    "moved_p_values",
    "new_axes",
    "p_value_curve",
    "predicted_against_observed",
    "r_hat_curve",
    "risk_coverage_curve",
    "score_dots",
    "sorted_intervals",
    "split_along",
    "style",
    "trace",
    "training",
]
