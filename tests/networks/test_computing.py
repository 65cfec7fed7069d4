"""bfloat16 and rematerialisation: the same function and gradient, to rounding; less memory for depth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import MAP, Categorical, Gaussian, Model, evaluate, fit, lenet, mlp
from posterity.networks.computing import in_bfloat16, rematerialised

pytestmark = pytest.mark.filterwarnings("ignore:.* has not converged")  # runs are short

X = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)


def loss(apply, params, x, key=None):
    return jnp.mean(jnp.square(apply(params, x, key)))


@pytest.mark.parametrize("key", [None, 3])
def test_a_rematerialised_network_is_the_same_function(key):
    network = mlp((16, 16, 16), dropout=0.3, num_outputs=2)
    params = network.init(jax.random.key(0), X)
    key = None if key is None else jax.random.key(key)
    plain, again = (
        jax.jit(jax.value_and_grad(lambda p, f=f: loss(f, p, X, key)))(params)
        for f in (network.apply, rematerialised(network.apply))
    )
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_the_gradient_of_a_deep_network_keeps_few_values():
    """What is kept for it; XLA's compiler for CPUs would merge the second evaluation with the first."""
    network = mlp((32,) * 64, num_outputs=1)
    x = np.zeros((500, 5), np.float32)
    params = network.init(jax.random.key(0), x)

    def kept(apply):
        _, pull_back = jax.vjp(lambda p: apply(p, x), params)
        return sum(leaf.nbytes for leaf in jax.tree.leaves(pull_back))

    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert kept(rematerialised(network.apply)) - weights < 0.25 * (kept(network.apply) - weights)


def test_bfloat16_rounds_the_network_and_nothing_else():
    network = mlp((32, 32), num_outputs=1)
    params = network.init(jax.random.key(0), X)
    low = in_bfloat16(network.apply)
    outputs, gradient = low(params, X), jax.grad(lambda p: loss(low, p, X))(params)
    assert outputs.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}
    exact = jax.grad(lambda p: loss(network.apply, p, X))(params)
    size = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(exact))
    for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, atol=0.03 * size)
    assert not np.array_equal(outputs, network.apply(params, X))


def test_models_train_in_bfloat16_and_rematerialised():
    y = X[:, 0] - X[:, 1]
    method = MAP(num_steps=300, batch_size="full")
    found = [
        fit(Model(mlp((16, 16)), Gaussian(0.2), **how), method, (X, y))
        for how in ({}, {"half_precision": True, "rematerialise": True})
    ]
    plain, low = (evaluate(posterior.predict(X), y)["rmse"].value for posterior in found)
    assert low == pytest.approx(plain, abs=0.05)
    assert "bfloat16" in str(found[1].receipt)
    assert {leaf.dtype for leaf in jax.tree.leaves(found[1].weights())} == {jnp.dtype(jnp.float32)}


@pytest.mark.long
def test_convolutions_too():
    x = np.random.default_rng(0).normal(size=(32, 28, 28, 1)).astype(np.float32)
    y = (x.mean((1, 2, 3)) > 0).astype(int)
    model = Model(lenet(), Categorical(2), half_precision=True, rematerialise=True)
    assert np.isfinite(fit(model, MAP(num_steps=5), (x, y)).predict(x).probs).all()
