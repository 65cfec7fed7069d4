"""Classes with an order, by a cumulative link (McCullagh 1980): P(y <= c) = sigmoid(t_c - f), t_1 < t_2 < ...

Of one class, with a = t_c - f, b = t_(c+1) - f and g = b - a its width,

    P = sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - e^-g)

whose log loses no digits, however far f lies from the class.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity.core import records
from posterity.core.checks import check_positive, check_whole
from posterity.core.types import Array
from posterity.models.likelihoods import Likelihood


@records.record
class Ordinal(Likelihood):
    """y in {0 .. num_classes - 1}, in order: one output f, and thresholds that are inferred with the weights.

    The thresholds begin where f = 0 makes all classes alike. The first one, and the log of each gap between two, have
    a normal prior around that start, with standard deviation `spread`.

    Args:
        num_classes: Classes, at least 3; of two, use Bernoulli.
        spread: How far thresholds may lie from their start, in units of f.
    """

    kind = "classes"
    num_outputs = 1
    num_classes: int = 3
    spread: float = records.traced(default=1.0)

    def __post_init__(self) -> None:
        check_whole("Ordinal", 3, num_classes=self.num_classes)
        check_positive("Ordinal", spread=self.spread)

    def thresholds(self, moved: Array) -> Array:
        """t [..., C - 1] from what `likelihood/thresholds` holds: how far the first, and the logs of gaps, moved."""
        shares = np.arange(1, self.num_classes) / self.num_classes
        start = np.log(shares / (1 - shares))
        steps = jnp.exp(moved[..., 1:] + np.log(np.diff(start)).astype(moved.dtype))
        return jnp.cumsum(jnp.concatenate([moved[..., :1] + start[0].astype(moved.dtype), steps], -1), -1)

    def __call__(self, outputs: Array) -> dist.Distribution:
        above = self.thresholds(outputs[..., 1:]) - outputs[..., :1]
        below_b, above_a = jax.nn.log_sigmoid(above), jax.nn.log_sigmoid(-above)
        widths = jnp.log(-jnp.expm1(-jnp.diff(above, axis=-1)))
        inner = below_b[..., 1:] + above_a[..., :-1] + widths
        return dist.CategoricalLogits(jnp.concatenate([below_b[..., :1], inner, above_a[..., -1:]], -1))

    def init(self) -> dict[str, Array]:
        return {"thresholds": jnp.zeros(self.num_classes - 1)}

    def priors(self) -> dict[str, dist.Distribution]:
        return {"thresholds": dist.Normal(0.0, self.spread)}

    def columns(self, parameters: dict[str, Array]) -> Array:
        return parameters["thresholds"]
