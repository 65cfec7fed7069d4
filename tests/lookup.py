"""Predictions whose draws are chosen by the test."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from posterity import Model
from posterity.networks import from_function
from posterity.posterior.posterior import DEFAULT_MEMORY
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import OutputStream
from posterity.weights.families import Samples


def predict(made, outputs, memory=DEFAULT_MEMORY, num_chains=1):
    """A prediction whose draws, those of all chains in turn, are exactly `outputs` [S, N, K]: they are looked up."""
    outputs = np.asarray(outputs, np.float32)

    def apply(params, x):
        return params["table"][x]

    network = from_function(lambda key, x: {"table": jnp.zeros(outputs.shape[1:])}, apply)
    chains = outputs.reshape(-1, num_chains, *outputs.shape[1:]).swapaxes(0, 1)
    family = Samples({"network": {"table": jnp.asarray(chains)}}, {"network": {"table": None}})
    stream = OutputStream(
        Model(network, made, dist.Normal(0.0, 1.0)),
        family,
        jax.random.key(0),
        np.arange(outputs.shape[1]),
        np.arange(outputs.shape[0]),
        False,
        memory,
    )
    return Prediction(stream)
