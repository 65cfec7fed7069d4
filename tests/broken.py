"""Samplers broken on purpose: a test that cannot tell them from the real ones is worth nothing."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import targets

from posterity.core import pytrees, records
from posterity.core.types import Batch, Kernel
from posterity.inference.methods import hmc
from posterity.inference.methods.density import plain
from posterity.inference.methods.hmc import HMC, HMCState


class UnrefreshedState(NamedTuple):
    params: dict
    inner: HMCState
    momentum: jax.Array


@records.record
class Unrefreshed(HMC):
    """Broken on purpose: each trajectory goes on with the momentum of the last."""

    def kernel(self, model):
        whole = super().kernel(model)

        def init(key, params, batch, clock):
            inner = whole.init(key, params, batch, clock)
            return UnrefreshedState(params, inner, pytrees.normal_like(key, inner.gradient))

        def step(key, state, batch, clock):
            inner, info, momentum = hmc.transition(
                self, model, plain(model, batch), (key, key), state.inner, state.momentum, clock
            )
            momentum = jnp.where(info.accepted > 0, momentum, -state.momentum)
            return UnrefreshedState(inner.params, inner, momentum), info

        return Kernel(init, step)


def check_energy(energy, data, temperature, tempering):
    """Mean and variance of the energies [C, D] of the two-dimensional Gaussian, to Monte Carlo error."""
    a, b = targets.gaussian_moments(data, temperature, tempering)[0]
    batch = Batch(*(jnp.asarray(v, float) for v in data), jnp.ones(len(data[1])))
    params = {"network": {"a": jnp.asarray(a, float), "b": jnp.asarray(b, float)}}
    excess = energy.astype(float) + float(targets.model(temperature, tempering).log_joint(params, batch))
    for power, expected in ((1, 2.0), (2, 6.0)):  # moments of Gamma(2, 1)
        batches = (excess**power).reshape(len(excess) * targets.NUM_BATCHES, -1).mean(1)
        error = batches.std(ddof=1) / np.sqrt(len(batches))
        assert error < 0.1 * expected
        assert abs(batches.mean() - expected) < 4 * error
