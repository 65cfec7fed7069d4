"""A Flax module, an Equinox module and a plain function through the same call; a trained module as the start."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from posterity import MAP, Fixed, Gaussian, Laplace, Model, Normal, fit, from_equinox, from_function, from_nnx

rng = np.random.default_rng(0)
x = rng.uniform(-2, 2, size=(100, 1))
y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=100)


class FlaxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(1, 16, rngs=rngs)
        self.last = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(jnp.tanh(self.first(x)))


def polynomial(params: dict, x: jax.Array) -> jax.Array:
    return jnp.concatenate([x**k for k in range(6)], 1) @ params["w"]


networks = {
    "flax": from_nnx(lambda key: FlaxNet(nnx.Rngs(key))),
    "equinox": from_equinox(lambda key: eqx.nn.MLP(1, 1, 16, 1, jnp.tanh, key=key)),
    "function": from_function(lambda key, x: {"w": 0.1 * jax.random.normal(key, (6, 1))}, polynomial),
}
for name, network in networks.items():
    model = Model(network, Gaussian(0.1), Normal(0.0, 1.0))
    posterior = fit(model, Laplace(start=MAP(num_steps=2000, learning_rate=1e-2)), (x, y))
    inside, outside = posterior.predict(np.array([[0.5], [4.0]])).epistemic ** 0.5
    print(f"{name:>8}: ignorance {inside:.3f} at 0.5, {outside:.3f} at 4.0")

# A module you have trained yourself, by your own loop: give the instance, and its weights are the start.
trained = FlaxNet(nnx.Rngs(0))
optimizer = nnx.Optimizer(trained, optax.adam(1e-2), wrt=nnx.Param)
batch_x, batch_y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


@nnx.jit
def train_step(module: FlaxNet, optimizer: nnx.Optimizer) -> None:
    gradient = nnx.grad(lambda module: jnp.mean((module(batch_x)[:, 0] - batch_y) ** 2))(module)
    optimizer.update(module, gradient)


for _ in range(1000):
    train_step(trained, optimizer)
network = from_nnx(trained)
weights = network.init(jax.random.key(0), x)
head = Model(network, Gaussian(0.1), {"first/*": Fixed(), "*": Normal(0.0, 1.0)})  # a Bayesian head, a frozen trunk
posterior = fit(head, Laplace(start=weights), (x, y))
print(f" trained: log evidence {posterior.facts['log_evidence']:.1f} with the trunk frozen")
