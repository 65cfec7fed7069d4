"""networks/layers.py: what it finds in networks of every make, and that inputs times gradients are weight gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posterity.networks import from_equinox, from_function, from_nnx, mlp
from posterity.networks.layers import last_features, trace_layers
from posterity.weights.linearized import named_leaves

X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


class Flax(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.second = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


class Convolution(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.windows = nnx.Conv(1, 2, (2,), rngs=rngs)
        self.head = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.tanh(self.windows(x[..., None])).reshape(x.shape[0], -1))


class Norm(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(3, rngs=rngs)
        self.head = nnx.Linear(3, 1, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


def weights(**shapes):
    def init(key, x):
        rng = np.random.default_rng(2)
        return {name: jnp.asarray(rng.normal(0, 0.5, shape), jnp.float32) for name, shape in shapes.items()}

    return init


@jax.custom_jvp
def affine(w, b, x):
    return x @ w + b


affine.defjvp(lambda primals, tangents: jax.jvp(lambda w, b, x: x @ w + b, primals, tangents))


def hidden(p, x):
    return jnp.tanh(x @ p["a"] + p["c"])


def scanned(p, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ p["a"]), None), x, None, length=2)[0] @ p["b"]


def feature_major(p, x):
    hidden = jnp.tanh(p["a"] @ x.T + p["c"][:, None])
    return (p["b"] @ hidden).T + p["d"]


SQUARE = weights(a=(3, 3), b=(3, 3), c=(3,), d=(1, 3))
NETWORKS = {
    "mlp": (
        mlp((4,), 2, activation="tanh"),
        [("layer_0/weight", "layer_0/bias", 0), ("layer_1/weight", "layer_1/bias", 0)],
    ),
    "one_output": (mlp((), 1), [("layer_0/weight", "layer_0/bias", 0)]),
    "nnx": (
        from_nnx(lambda key: Flax(nnx.Rngs(key))),
        [("first/kernel", "first/bias", 0), ("second/kernel", "second/bias", 0)],
    ),
    "equinox": (
        from_equinox(lambda key: eqx.nn.MLP(3, 2, 4, 1, jax.nn.softplus, key=key)),
        [("layers/0/weight", "layers/0/bias", 1), ("layers/1/weight", "layers/1/bias", 1)],
    ),
    "feature_major": (from_function(SQUARE, feature_major), [("a", "c", 1), ("b", "d", 1)]),
    "transposed": (
        from_function(weights(a=(3, 3), b=(2, 3)), lambda p, x: jnp.tanh(x @ p["a"].T) @ p["b"].T),
        [("a", None, 1), ("b", None, 1)],
    ),
    "calls": (
        from_function(
            weights(a=(3, 4), b=(4, 2), c=(4,), d=(2,)),
            lambda p, x: jax.jit(affine)(p["b"], p["d"], jax.checkpoint(hidden)(p, x)),
        ),
        [("a", "c", 0), ("b", "d", 0)],
    ),
    "row_by_row": (
        from_function(weights(a=(3, 2), c=(2,)), lambda p, x: jax.vmap(lambda row: row @ p["a"] + p["c"])(x)),
        [("a", "c", 0)],
    ),
    "positions": (
        from_function(weights(a=(1, 4), b=(4, 2), c=(4,)), lambda p, x: hidden(p, x[..., None]).mean(1) @ p["b"]),
        [("a", "c", 0), ("b", None, 0)],
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_found_and_their_factors_give_the_weight_gradients(name):
    network, expected = NETWORKS[name]
    params = network.init(jax.random.key(0), X)
    program = trace_layers(network, params, X)
    assert [tuple(layer) for layer in program.layers] == expected
    assert program.others == ()
    shape = jax.eval_shape(network.apply, params, X).shape
    direction = np.random.default_rng(1).normal(size=shape).astype(np.float32)

    @jax.jit
    def both(params):
        probed, pull, inputs = jax.vjp(
            lambda probes: program.apply(params, probes, X), program.zero_probes(), has_aux=True
        )
        outputs, pull_weights = jax.vjp(lambda p: network.apply(p, X), params)
        return probed, inputs, pull(jnp.asarray(direction))[0], outputs, pull_weights(direction)[0]

    probed, inputs, gradients, outputs, wanted = jax.tree.map(np.asarray, both(params))
    np.testing.assert_allclose(probed, outputs, rtol=1e-5, atol=1e-6)
    wanted = named_leaves(wanted)
    for layer, a, g in zip(program.layers, inputs, gradients, strict=True):
        product = g.T @ a if layer.input_axis else a.T @ g
        np.testing.assert_allclose(product, wanted[layer.weight], rtol=1e-4, atol=1e-5)
        if layer.bias is not None:
            np.testing.assert_allclose(g.sum(0), wanted[layer.bias].ravel(), rtol=1e-4, atol=1e-5)


OTHERS = {
    "scan": (from_function(weights(a=(3, 3), b=(3, 1)), scanned), ("a",)),
    "convolution": (from_nnx(lambda key: Convolution(nnx.Rngs(key))), ("windows/bias", "windows/kernel")),
    "norm": (from_nnx(lambda key: Norm(nnx.Rngs(key))), ("norm/bias", "norm/scale")),
    "twice": (from_function(weights(a=(3, 3), b=(3, 1)), lambda p, x: jnp.tanh(x @ p["a"]) @ p["a"] @ p["b"]), ("a",)),
    "penalised": (from_function(weights(a=(3, 1)), lambda p, x: x @ p["a"] + jnp.sum(p["a"] ** 2)), ("a",)),
    "product_of_weights": (from_function(weights(a=(3, 3), b=(3, 1)), lambda p, x: x @ (p["a"] @ p["b"])), ("a", "b")),
    "bias_after_use": (
        from_function(weights(a=(3, 2), c=(2,)), lambda p, x: (lambda s: (s + p["c"]) * s)(x @ p["a"])),
        ("c",),
    ),
    "shared_bias": (
        from_function(weights(a=(3, 2), b=(2, 2), c=(2,)), lambda p, x: hidden(p, x) @ p["b"] + p["c"]),
        ("c",),
    ),
    "bias_of_rows": (from_function(weights(a=(3, 2), c=(5, 1)), lambda p, x: x @ p["a"] + p["c"]), ("c",)),
    "lookup": (from_function(weights(a=(9, 2)), lambda p, x: p["a"][jnp.clip(x[:, 0].astype(int), 0, 8)]), ("a",)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_weights_are_named(name):
    network, others = OTHERS[name]
    params = network.init(jax.random.key(0), X)
    program = trace_layers(network, params, X)
    assert program.others == others
    both = jax.jit(lambda p: (program.apply(p, program.zero_probes(), X)[0], network.apply(p, X)))
    np.testing.assert_allclose(*both(params), rtol=1e-5, atol=1e-6)


def test_the_derivative_of_an_activation_is_its_own():
    # relu at 0: the custom rule says 0, the maximum it is made of says 1/2.
    network = from_function(weights(a=(3, 2)), lambda p, x: jax.nn.relu(x @ p["a"]))
    params = {"a": jnp.zeros((3, 2))}
    program = trace_layers(network, params, X)
    gradient = jax.grad(lambda probes: program.apply(params, probes, X)[0].sum())(program.zero_probes())
    np.testing.assert_array_equal(gradient[0], 0)


def test_last_features():
    network = NETWORKS["nnx"][0]
    params = network.init(jax.random.key(0), X)
    expected = np.tanh(X @ params["first"]["kernel"] + params["first"]["bias"])
    np.testing.assert_allclose(
        jax.jit(lambda p, x: last_features(network, p, x))(params, X), expected, rtol=1e-5, atol=1e-6
    )
    dense = mlp((4,), 2)
    params = dense.init(jax.random.key(0), X)
    assert last_features(dense, params, X).shape == (5, 4)
    without = from_function(weights(a=(3,)), lambda p, x: (x * p["a"]).sum(-1, keepdims=True))
    np.testing.assert_array_equal(last_features(without, without.init(jax.random.key(0), X), X), X)
