"""Point estimates, and ensembles of them.

MLE            argmax log p(D | w)
MAP            argmax log p(D | w) + log p(w)
DeepEnsemble   M of these from M starts (Lakshminarayanan et al. 2017); anchored: member m's prior is centred at a
               draw a_m from the prior, log p(w - a_m + mean) (Pearce et al. 2020), so that members spread as the
               prior does where the data are silent.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from posterity.core import records
from posterity.core.checks import check_whole
from posterity.core.types import Array, Batch, Clock, Kernel, Key, Params
from posterity.data.arrays import Dataset
from posterity.inference.methods.card import Card
from posterity.inference.methods.descent import Descent, DescentState, descend, loss_parts, mean_negative_log_likelihood
from posterity.inference.methods.method import Result
from posterity.models.model import Model, weighted_sum
from posterity.models.priors import Fixed, Flat
from posterity.weights.families import Samples


class PointEstimate(Descent):
    """A descent whose last weights are the posterior's one draw."""

    targets_temperature = False
    holds_scales = True

    def finish(self, model: Model, states: DescentState, kept: Params, fixed: Params) -> Result:
        del kept
        return Result(Samples(jax.tree.map(lambda leaf: leaf[:, None], states.params), fixed), model)


@records.record
class MAP(PointEstimate):
    """The weights that maximise the tempered joint density."""

    card = Card(
        name="map",
        label="MAP",
        what="The most probable weights.",
        when="A baseline that is regularised; the start of other methods.",
        reference="MacKay 1992",
        ignorance="none",
        cost="1",
        verdict="approximates",
        line="--",
        marker="^",
        settings=lambda size: size.descent(2_000),
        is_point=True,
        compared=True,
    )

    def kernel(self, model: Model) -> Kernel:
        return _map_kernel(self, model)


@records.record
class MLE(PointEstimate):
    """The weights that maximise the likelihood: MAP under a flat prior."""

    card = Card(
        name="mle",
        label="MLE",
        what="The weights that fit the data best.",
        when="A baseline. It overfits, and knows nothing of its ignorance.",
        reference="Fisher 1922",
        ignorance="none",
        cost="1",
        verdict="approximates",
        line=":",
        marker="v",
        settings=lambda size: size.descent(2_000),
        is_point=True,
        compared=True,
    )

    uses_prior = False

    def kernel(self, model: Model) -> Kernel:
        full = model.full_prior  # with the likelihood's own priors
        flat = tuple(d if isinstance(d, Fixed) else Flat() for d in full.distributions)
        return _map_kernel(self, records.replace(model, prior=records.replace(full, distributions=flat)))


@records.record
class DeepEnsemble(PointEstimate):
    """MAP from several starts in one program.

    Args:
        num_members: Networks that are trained, side by side; each is a chain.
        anchored: Whether the prior of each member is centred at a draw of its own from the prior, so that members
            spread as the prior does where there are no data.
    """

    card = Card(
        name="deep_ensemble",
        label="Deep ensemble",
        what="Several networks from several starts.",
        when="Good predictions with little thought.",
        reference="Lakshminarayanan et al. 2017",
        ignorance="as far as its members differ",
        cost="3-4 for ten, in one program",
        verdict="approximates",
        colour="blue",
        line="-",
        marker="o",
        settings=lambda size: {**size.descent(2_000), "num_members": 10},
        compared=True,
    )

    num_members: int = 5  # type: ignore[override]
    _: dataclasses.KW_ONLY
    anchored: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("DeepEnsemble", num_members=self.num_members)

    def check(self, model: Model, params: Params, data: Dataset) -> None:
        del data
        if not self.anchored:
            return
        means, _ = model.full_prior.moments(params, model.network.fan_in_axis)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(means)):
            raise ValueError("DeepEnsemble(anchored=True) needs a prior that has a mean, such as a normal one.")

    @property
    def num_chains(self) -> int:  # type: ignore[override]
        return self.num_members

    @property
    def told_apart_by_start(self) -> bool:  # type: ignore[override]
        return not self.anchored

    def kernel(self, model: Model) -> Kernel:
        return _map_kernel(self, model, self.anchored)


def _map_kernel(method: Descent, model: Model, anchored: bool = False) -> Kernel:
    def prepare(key: Key, params: Params) -> tuple[Params, Params]:
        if not anchored:
            return params, None
        mean, _ = model.full_prior.moments(params, model.network.fan_in_axis)
        anchor = model.sample_prior(key, params)
        return params, jax.tree.map(lambda a, m: a - m, anchor, mean)

    def loss(key: Key, params: Params, shift: Params, batch: Batch, clock: Clock) -> tuple[Array, Any]:
        del key
        log_likelihood = clock.num_batches * weighted_sum(model.log_likelihood(params, batch), batch.weight)
        centred = params if shift is None else jax.tree.map(lambda w, s: w - s, params, shift)
        return loss_parts(model, log_likelihood, model.log_prior(centred), clock)

    def validate(key: Key, state: DescentState, batch: Batch) -> Array:
        del key
        return mean_negative_log_likelihood(model, state.params, batch)

    return descend(method, loss, validate, prepare)
