"""Convolutions with gradients of our own: those that JAX derives, in an order of axes that is fast in a loop."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posterity import Categorical, DeepEnsemble, MCDropout, Model, fit, from_equinox, from_function, from_nnx, mlp
from posterity.core.types import Batch
from posterity.data.arrays import dataset
from posterity.inference.engine.job import Job
from posterity.inference.engine.schedule import _convolves
from posterity.networks import lenet, unet
from posterity.networks.convolutions import with_fast_gradients
from posterity.weights.linearized import _first_order

RNG = np.random.default_rng(0)
FAST = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
PLAIN = {"window_strides": (1, 1), "padding": [(1, 1), (1, 1)]}


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def gradients_agree(asked, x, weight):
    def convolution(x, weight):
        return jax.lax.conv_general_dilated(x, weight, **asked)

    def loss(function):
        return lambda x, weight: jnp.sin(function(x, weight)).sum()

    ours = lambda x, weight: with_fast_gradients(convolution, x, weight)  # noqa: E731
    np.testing.assert_allclose(ours(x, weight), convolution(x, weight), rtol=1e-4, atol=1e-4)
    expected = jax.grad(loss(convolution), (0, 1))(x, weight)
    for got, wanted in zip(jax.grad(loss(ours), (0, 1))(x, weight), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IHWO", "CNWH")])
@pytest.mark.parametrize(
    ("shape", "window", "stride", "padding"),
    [
        ((8, 8), (3, 3), 1, [(1, 1), (1, 1)]),
        ((9, 7), (3, 3), 2, [(1, 1), (1, 1)]),
        ((8, 8), (1, 1), 2, [(0, 0), (0, 0)]),
        ((10, 11), (5, 2), 2, [(1, 2), (0, 1)]),
        ((8, 9), (2, 3), 1, [(-1, 0), (2, 0)]),
    ],
)
def test_gradients_are_those_that_jax_derives(shape, window, stride, padding, order):
    lengths = {"N": 3, "C": 2, "H": shape[0], "W": shape[1]}
    sizes = {"I": 2, "O": 4, "H": window[0], "W": window[1]}
    x, weight = normal(*(lengths[axis] for axis in order[0])), normal(*(sizes[axis] for axis in order[1]))
    asked = {"window_strides": (stride, stride), "padding": padding, "dimension_numbers": order}
    gradients_agree(asked, x, weight)


@pytest.mark.parametrize(
    "special",
    [
        {"feature_group_count": 2},
        {"rhs_dilation": (2, 1)},
        {"lhs_dilation": (1, 2)},
        {"window_strides": (1, 2)},
        {"precision": jax.lax.Precision.HIGHEST},
    ],
    ids=str,
)
def test_what_ours_cannot_do_is_left_as_it_was(special):
    channels = 2 if "feature_group_count" in special else 4
    gradients_agree({**PLAIN, **special}, normal(3, 4, 8, 8), normal(4, channels, 3, 3))


class FlaxNet(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Conv(1, 2, (3, 3), rngs=rngs), nnx.Conv(2, 3, (2, 2), strides=2, rngs=rngs)
        self.dropout, self.last = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        hidden = jax.jit(lambda x: self.second(nnx.relu(self.first(x))))(x[..., None])
        return self.last(self.dropout(hidden.mean((1, 2))))


class EquinoxNet(eqx.Module):
    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d

    def __init__(self, key):
        self.first = eqx.nn.Conv2d(1, 2, 3, key=key)
        self.second = eqx.nn.Conv2d(2, 2, 3, stride=2, padding=1, key=key)

    def __call__(self, x):
        return self.second(jax.nn.relu(self.first(x[None]))).mean((1, 2))


NETWORKS = {
    "lenet": lenet(2, filters=(2, 3), hidden=(5,), dropout=0.5),
    "unet": unet(2, width=2, levels=1, dropout=0.5),
    "flax": from_nnx(lambda key: FlaxNet(nnx.Rngs(key))),
    "equinox": from_equinox(EquinoxNet),
}


def orders(model, outputs):
    """The order of axes of every convolution in a training, and into how many groups it is cut."""
    x = normal(4, 12, 12)
    params = model.init(jax.random.key(0), x)

    def training(params):
        gradient = jax.grad(lambda params: jnp.square(outputs(params, x)).mean())
        return jax.lax.fori_loop(0, 3, lambda _, p: jax.tree.map(lambda a, b: a - 0.1 * b, p, gradient(p)), params)

    program = jax.jit(training).lower(params).as_text()
    found = re.findall(r"dim_numbers = (\S.*?), window.*?feature_group_count = (\d+)", program)
    assert len(found) >= 5  # two forward, two of the weights, one of what is between
    return set(found)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_convolution_of_a_training_is_one_that_is_fast(name):
    """In a loop XLA leaves other orders as they are, and computes them 10 to 20 times slower."""
    model = Model(NETWORKS[name], Categorical(2))
    assert orders(model, model.outputs) == {(FAST, "1")}


@pytest.mark.parametrize("name", ["lenet", "unet", "flax"])
def test_masks_of_rows_leave_one_gradient_for_all_rows(name):
    """Not one for each row, which takes as many groups."""
    model, method = Model(NETWORKS[name], Categorical(2)), MCDropout(rates={"*": 0.1})
    y = jnp.zeros((4, 12, 12) if name == "unet" else 4, int)

    def outputs(params, x):
        return method._log_likelihood(jax.random.key(1), model, params, Batch(x, y, jnp.ones(4)))

    assert orders(model, outputs) == {(FAST, "1")}


@pytest.mark.long
def test_a_linearised_convolution_is_its_outputs_and_its_jacobian_times_the_step():
    """Our gradients have no forward mode to take the product from."""
    model, x = Model(NETWORKS["lenet"], Categorical(2)), normal(3, 12, 12)
    params = model.init(jax.random.key(0), x)
    step = jax.tree.map(lambda leaf: 0.1 * normal(*leaf.shape), params)
    jacobian = jax.jacrev(lambda weights: model.plain_outputs(weights, x))(params)
    products = jax.tree.map(lambda j, d: jnp.tensordot(j, d, d.ndim), jacobian, step)
    expected = model.plain_outputs(params, x) + sum(jax.tree.leaves(products))
    got = _first_order(lambda weights: model.outputs(weights, x), params, step)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_networks_that_convolve_are_known():
    x, y = np.asarray(normal(6, 12, 12)), np.arange(6) % 2

    def found(network, x=x):
        model = Model(network, Categorical(2))
        return _convolves(Job(model, MCDropout(), dataset((x, y), model.likelihood), None, None, 0, 1, None, {}))

    assert all(map(found, NETWORKS.values()))
    assert not found(mlp((3,)), x.reshape(6, -1))
    assert not found(
        from_function(lambda key, x: {"w": jnp.ones((12, 2))}, lambda params, x: (x @ params["w"]).mean(1))
    )


@pytest.mark.long
def test_members_that_run_in_turn_are_those_that_run_alone():
    """Three members on two cores: one device has two of them."""
    x, y = np.asarray(normal(8, 12, 12)), np.arange(8) % 2
    model = Model(NETWORKS["flax"], Categorical(2))
    steps = {"num_steps": 5, "batch_size": 4}
    together = fit(model, DeepEnsemble(num_members=3, **steps), (x, y), seed=0, progress=False)
    split = fit(model, DeepEnsemble(num_members=3, **steps), (x, y), seed=0, progress=False, mesh=(1, 1))
    for one, other in zip(jax.tree.leaves(together.weights(3)), jax.tree.leaves(split.weights(3)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
