"""Networks: shapes, dropout, and that adapters compute what the modules they wrap compute."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx

from posterity import MAP, Exact, Model, fit, prior
from posterity.core import pytrees
from posterity.models.likelihoods import Gaussian, HeteroscedasticGaussian
from posterity.networks import from_equinox, from_function, from_nnx, linear, mlp
from posterity.networks.dropout import apply_per_row, apply_shared, row_keys

X = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)


def test_mlp_computes_the_formula():
    network = mlp((4,), 2, activation="tanh")
    params = network.init(jax.random.key(0), X)
    first, last = params["layer_0"], params["layer_1"]
    expected = np.tanh(X @ first["weight"] + first["bias"]) @ last["weight"] + last["bias"]
    np.testing.assert_allclose(network.apply(params, X), expected, rtol=1e-5)


def test_linear_has_one_weight_matrix():
    assert pytrees.leaf_names(linear(2).init(jax.random.key(0), X)) == ["layer_0/bias", "layer_0/weight"]
    assert pytrees.leaf_names(linear(2, bias=False).init(jax.random.key(0), X)) == ["layer_0/weight"]


def test_equal_settings_are_equal_networks():
    assert mlp((4,), 1) == mlp([4], 1)
    assert hash(mlp((4,), 1)) == hash(mlp((4,), 1))


def test_the_model_fills_in_the_number_of_outputs():
    model = Model(mlp((4,)), HeteroscedasticGaussian())
    assert model.network.num_outputs == 2


def test_dropout_masks_are_unbiased_and_shared_by_rows():
    network = mlp((), 1, input_dropout=0.25)
    params = {"layer_0": {"weight": jnp.ones((3, 1)), "bias": jnp.zeros(1)}}
    ones = jnp.ones((2, 3))
    outputs = jax.vmap(lambda key: network.apply(params, ones, key))(jax.random.split(jax.random.key(0), 4000))
    assert bool(jnp.all(outputs[:, 0] == outputs[:, 1]))  # one mask for all rows
    standard_error = np.sqrt(3 * 0.25 / 0.75 / 4000)
    assert abs(float(outputs[:, 0].mean()) - 3.0) < 4 * standard_error
    np.testing.assert_allclose(float(outputs[:, 0].var()), 3 * 0.25 / 0.75, rtol=0.1)


def test_relaxed_masks_drop_at_the_learned_rate():
    network = mlp((), 1, input_dropout=0.3, learn_dropout=True)
    params = network.init(jax.random.key(0), X)["layer_0"]
    masks = jax.vmap(lambda key: network._mask(key, params, 0))(jax.random.split(jax.random.key(1), 4000))
    dropped = float((masks * 0.7 < 0.5).mean())
    assert abs(dropped - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 12000)


def test_per_row_masks_depend_on_the_row_alone():
    network = mlp((8,), 1, dropout=0.5)
    params = network.init(jax.random.key(0), X)
    keys = row_keys(jax.random.key(1), X)
    together = apply_per_row(network.apply, params, X, keys)
    backwards = apply_per_row(network.apply, params, X[::-1], row_keys(jax.random.key(1), X[::-1]))
    np.testing.assert_allclose(together, backwards[::-1], rtol=1e-6)
    shared = apply_shared(network.apply, params, X, jax.random.key(1))
    np.testing.assert_allclose(shared, network.apply(params, X, jax.random.key(1)), rtol=1e-5)
    assert len({bytes(np.asarray(k)) for k in jax.random.key_data(keys)}) == len(X)


class NnxNet(nnx.Module):
    def __init__(self, rngs, norm=False):
        self.first = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs) if norm else None
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        hidden = self.first(x)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return self.last(self.dropout(jax.nn.relu(hidden)))


def test_from_nnx_computes_the_module_and_starts_from_an_instance():
    module = NnxNet(nnx.Rngs(0))
    network = from_nnx(module)
    params = network.init(jax.random.key(5), X)
    module.eval()
    np.testing.assert_allclose(network.apply(params, X), module(X), rtol=1e-6)
    np.testing.assert_array_equal(params["first"]["kernel"], module.first.kernel[...])


@pytest.mark.parametrize("rngs", [lambda key: nnx.Rngs(key), lambda key: nnx.Rngs(params=key, dropout=key)])
def test_from_nnx_dropout_follows_the_key_however_the_streams_were_named(rngs):
    network = from_nnx(lambda key: NnxNet(rngs(key)))
    params = network.init(jax.random.key(0), X)
    one, again, other = (network.apply(params, X, jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    different = network.init(jax.random.key(1), X)
    assert not np.array_equal(params["first"]["kernel"], different["first"]["kernel"])


def test_moving_batch_norm_is_refused_and_frozen_is_a_constant():
    with pytest.raises(ValueError, match=r"LayerNorm.*module.eval"):
        from_nnx(lambda key: NnxNet(nnx.Rngs(key), norm=True))
    module = NnxNet(nnx.Rngs(0), norm=True)
    module.eval()
    network = from_nnx(module)
    params = network.init(jax.random.key(0), X)
    np.testing.assert_allclose(network.apply(params, X)[:2], network.apply(params, X[:2]), rtol=1e-5)


class EquinoxNet(eqx.Module):
    first: eqx.nn.Linear
    dropout: eqx.nn.Dropout
    last: eqx.nn.Linear

    def __init__(self, key):
        key_first, key_last = jax.random.split(key)
        self.first = eqx.nn.Linear(3, 4, key=key_first)
        self.dropout = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(4, 1, key=key_last)

    def __call__(self, x, key=None):
        return self.last(self.dropout(jax.nn.relu(self.first(x)), key=key))


def test_from_equinox_computes_the_module():
    module = EquinoxNet(jax.random.key(0))
    network = from_equinox(module)
    params = network.init(jax.random.key(5), X)
    assert sorted(params) == ["first/bias", "first/weight", "last/bias", "last/weight"]
    expected = jax.vmap(eqx.nn.inference_mode(module))(X)
    np.testing.assert_allclose(network.apply(params, X), expected, rtol=1e-6)
    one, other = (network.apply(params, X, jax.random.key(k)) for k in (1, 2))
    assert not np.array_equal(one, other)
    assert network.fan_in_axis == -1


def test_from_equinox_refuses_batch_norm():
    class WithNorm(eqx.Module):
        norm: eqx.nn.BatchNorm

        def __call__(self, x):
            return x

    with pytest.raises(ValueError, match="LayerNorm"):
        from_equinox(WithNorm(eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")))


def test_an_equinox_sequential_is_no_batch_norm():
    key_first, key_last = jax.random.split(jax.random.key(0))
    parts = [eqx.nn.Linear(3, 4, key=key_first), eqx.nn.Lambda(jnp.tanh), eqx.nn.Dropout(0.5)]
    module = eqx.nn.Sequential([*parts, eqx.nn.Linear(4, 1, key=key_last)])
    network = from_equinox(module)
    params = network.init(jax.random.key(0), X)
    np.testing.assert_allclose(network.apply(params, X), jax.vmap(eqx.nn.inference_mode(module))(X), rtol=1e-6)
    assert not np.array_equal(network.apply(params, X, jax.random.key(1)), network.apply(params, X, jax.random.key(2)))
    norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
    with pytest.raises(ValueError, match="LayerNorm"):
        from_equinox(eqx.nn.Sequential([parts[0], norm]))


class EquinoxTransformer(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        key_attention, key_last = jax.random.split(key)
        self.attention = eqx.nn.MultiheadAttention(2, 4, dropout_p=0.5, key=key_attention)
        self.norm, self.last = eqx.nn.LayerNorm(4), eqx.nn.Linear(4, 1, key=key_last)

    def __call__(self, x, mask, key=None):
        hidden = jax.vmap(self.norm)(x + self.attention(x, x, x, mask[None, :].repeat(len(x), 0) > 0, key=key))
        return self.last(hidden.mean(0))


class FlaxTransformer(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x, mask):
        attended = self.attention(x, mask=mask[:, None, None, :] > 0)
        return self.last(self.norm(x + self.dropout(attended)).mean(1))


@pytest.mark.parametrize(
    "made",
    [
        lambda: from_equinox(lambda key: EquinoxTransformer(key)),
        lambda: from_nnx(lambda key: FlaxTransformer(nnx.Rngs(key))),
    ],
    ids=["equinox", "flax"],
)
def test_attention_works_and_the_parts_of_x_are_its_arguments(made):
    rng = np.random.default_rng(0)
    x, mask = rng.normal(size=(8, 5, 4)), np.ones((8, 5))
    network = made()
    params = network.init(jax.random.key(0), (x, mask))
    alone = network.apply(params, (x[:1], mask[:1]))
    np.testing.assert_allclose(network.apply(params, (x, mask))[:1], alone, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(network.apply(params, {"x": x, "mask": mask}), network.apply(params, (x, mask)))
    masked = np.concatenate([mask[:, :4], np.zeros((8, 1))], 1)
    assert not np.allclose(network.apply(params, (x, masked)), network.apply(params, (x, mask)))
    posterior = fit(Model(network, Gaussian(0.1)), MAP(num_steps=2), ((x, mask), x[:, 0, 0]), progress=False)
    assert posterior.predict((x, mask)).mean.shape == (8,)
    key = jax.random.key(1)
    assert not np.array_equal(network.apply(params, (x, mask), key), network.apply(params, (x, mask)))


def test_a_dictionary_of_outputs_is_refused_with_the_remedy(line):
    network = mlp((4,), 1)

    def two(params, x, key=None):
        outputs = network.apply(params, x, key)
        return {"mean": outputs, "other": 2 * outputs}

    both = from_function(network.init, two)
    with pytest.raises(ValueError, match=r"a dictionary with 'mean', 'other'.*Choose one.*\['mean'\]"):
        fit(Model(both, Gaussian(0.1)), MAP(num_steps=1), line, progress=False)
    one = from_function(network.init, lambda params, x, key=None: both.apply(params, x, key)["mean"])
    fit(Model(one, Gaussian(0.1)), MAP(num_steps=1), line, progress=False)


def test_functions_name_the_axis_of_their_inputs():
    def widths(**options):
        made = from_function(lambda key, x: {"w": jnp.ones((1, 3))}, lambda params, x: x @ params["w"].T, **options)
        model = Model(made, Gaussian(0.1), prior(dist.Normal(0.0, 1.0), fan_in=True))
        return model.full_prior.moments(model.init(jax.random.key(0), X), made.fan_in_axis)[1]["network"]["w"][0, 0]

    np.testing.assert_allclose(widths(fan_in_axis=-1), 1 / np.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(widths(), 1.0, rtol=1e-6)
    with pytest.raises(ValueError, match=r"fan_in_axis=0.*\[out, in"):
        widths(fan_in_axis=0)


def test_adapters_refuse_what_is_no_module():
    with pytest.raises(TypeError, match=r"nnx\.Module"):
        from_nnx(lambda key: 3)
    with pytest.raises(TypeError, match=r"eqx\.Module"):
        from_equinox(lambda key: 3)
    with pytest.raises(TypeError, match=r"called MLP with a random key.*from_equinox\(lambda key: Net\(key\)\)"):
        from_equinox(eqx.nn.MLP)


def test_from_function_takes_functions_with_and_without_a_key():
    def init(key, x):
        return {"w": jnp.ones(x.shape[1])}

    plain = from_function(init, lambda params, x: x @ params["w"][:, None])
    model = Model(plain, Gaussian(0.1), dist.Normal(0.0, 1.0))
    assert model.outputs(model.init(jax.random.key(0), X), X, jax.random.key(1)).shape == (6, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 1.0}, r"outside \[0, 1\)"),
        ({"input_dropout": -0.1}, r"outside \[0, 1\)"),
        ({"activation": "rellu"}, "choose from relu"),
        ({"hidden": (4, 0)}, "at least 1"),
        ({"learn_dropout": True}, "rates to start from"),
    ],
)
def test_bad_settings_name_the_remedy(settings, message):
    with pytest.raises(ValueError, match=message):
        mlp(**settings)


def test_a_flax_linen_module_is_told_what_to_do_and_that_works(line):
    linen = pytest.importorskip("flax.linen")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(1)(x)

    module = Net()
    with pytest.raises(TypeError, match=r"Net, a Flax Linen module; give its functions: from_function\(module\.init"):
        Model(module, Gaussian(0.3))
    model = Model(from_function(module.init, lambda params, x: module.apply(params, x)), Gaussian(0.3))
    ours = fit(Model(linear(), Gaussian(0.3)), Exact(), line).predict(line[0])
    np.testing.assert_allclose(fit(model, Exact(), line).predict(line[0]).mean, ours.mean, atol=1e-5)


def test_what_only_looks_like_a_network_is_refused():
    class Lookalike:
        def init(self, key, x): ...

        def apply(self, params, x): ...

    with pytest.raises(TypeError, match="network is Lookalike; expected mlp"):
        Model(Lookalike(), Gaussian(0.3))
