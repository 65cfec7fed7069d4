"""Image and sequence networks: what they compute, their weights, dropout, stores, and rows split over cores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from posterity import MAP, Categorical, DeepEnsemble, Model, Normal, cnn_lstm, fit, lenet, load, resnet20, unet
from posterity.core import pytrees
from posterity.core.devices import _mesh_shape
from posterity.data.arrays import dataset
from posterity.inference.engine.job import Job
from posterity.inference.engine.schedule import _mesh
from posterity.networks.built_in import convolve, drop_channels, filter_response, max_pool
from posterity.networks.sequences import convolve_text, last_state

RNG = np.random.default_rng(0)
PHOTOS = RNG.normal(size=(3, 8, 8, 3)).astype(np.float32)
DIGITS = RNG.normal(size=(12, 12, 12)).astype(np.float32)
TEXTS = RNG.integers(0, 30, (4, 14)).astype(np.int32)
LENET = lenet(3, filters=(2, 3), hidden=(5, 4))


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def test_word_vectors_begin_with_unit_length():
    vectors = cnn_lstm(2, vocabulary=500).init(jax.random.key(0), TEXTS)["embedding"]["weight"]
    squares = np.square(vectors).sum(-1)
    assert abs(squares.mean() - 1) < 4 * np.sqrt(2 / 128 / 500)  # chi-squared with 128 degrees, divided by them


@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (1, 0)])
def test_a_convolution_is_that_of_flax(stride, padding):
    layer, x = {"weight": normal(3, 3, 2, 4), "bias": normal(4)}, normal(2, 6, 6, 2)
    module = nnx.Conv(2, 4, (3, 3), stride, padding=padding, rngs=nnx.Rngs(0))
    module.kernel[...], module.bias[...] = layer["weight"], layer["bias"]
    np.testing.assert_allclose(convolve(layer, x, stride, padding), module(x), atol=1e-5)


def test_filter_response_normalisation_is_the_formula_and_knows_one_row_only():
    x = normal(2, 3, 3, 2)
    layer = {"scale": jnp.array([2.0, 0.5]), "shift": jnp.array([0.1, -0.3]), "threshold": jnp.array([-0.2, 0.4])}
    power = np.square(x).mean((1, 2), keepdims=True)
    expected = np.maximum(layer["scale"] * x / np.sqrt(power + 1e-6) + layer["shift"], layer["threshold"])
    np.testing.assert_allclose(filter_response(layer, x), expected, rtol=1e-5)
    np.testing.assert_allclose(filter_response(layer, x[:1]), expected[:1], rtol=1e-5)
    assert np.isnan(filter_response(layer, x.at[0, 0, 0, 0].set(jnp.nan))[0, ..., 0]).all()  # never hidden


def test_max_pool_leaves_out_what_fills_no_square():
    x = jnp.arange(25.0).reshape(1, 5, 5, 1)
    np.testing.assert_array_equal(max_pool(x)[0, ..., 0], [[6, 8], [16, 18]])


def test_the_convolution_of_texts_is_that_of_flax():
    layer, x = {"weight": normal(3, 4, 2), "bias": normal(2)}, normal(2, 7, 4)
    module = nnx.Conv(4, 2, (3,), padding="VALID", rngs=nnx.Rngs(0))
    module.kernel[...], module.bias[...] = layer["weight"], layer["bias"]
    np.testing.assert_allclose(convolve_text(layer, x), module(x), atol=1e-5)


def lstm_by_its_equations(layer, x):
    state = memory = jnp.zeros((len(x), layer["state"]["weight"].shape[0]))
    for time in range(x.shape[1]):
        gates = x[:, time] @ layer["input"]["weight"] + layer["input"]["bias"] + state @ layer["state"]["weight"]
        write, forget, content, read = jnp.split(gates, 4, 1)
        memory = jax.nn.sigmoid(forget + 1) * memory + jax.nn.sigmoid(write) * jnp.tanh(content)
        state = jax.nn.sigmoid(read) * jnp.tanh(memory)
    return state


def test_the_lstm_follows_its_equations_and_so_does_its_gradient():
    with jax.enable_x64(True):
        layer = {"input": {"weight": normal(2, 12), "bias": normal(12)}, "state": {"weight": normal(3, 12)}}
        given = jax.tree.map(lambda leaf: leaf.astype(float), (layer, normal(5, 4, 2)))
        direction = RNG.normal(size=(5, 3))
        expected, pull_expected = jax.vjp(lstm_by_its_equations, *given)
        found, pull_found = jax.vjp(last_state, *given)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        for got, wanted in zip(*map(jax.tree.leaves, (pull_found(direction), pull_expected(direction))), strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-12)


NETWORKS = {
    "lenet": (LENET, DIGITS, (12, 3)),
    "resnet20": (resnet20(5, width=2, blocks=1), PHOTOS, (3, 5)),
    "unet": (unet(2, width=2), PHOTOS, (3, 8, 8, 2)),
    "cnn_lstm": (cnn_lstm(2, vocabulary=30, embedding=3, filters=4, units=5), TEXTS, (4, 2)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_have_the_promised_shape_and_rows_are_independent(name):
    network, x, shape = NETWORKS[name]
    params = network.init(jax.random.key(0), x)
    outputs = jax.jit(network.apply)(params, x)
    assert outputs.shape == shape
    assert float(jnp.std(outputs)) > 1e-3
    np.testing.assert_allclose(jax.jit(network.apply)(params, x[:2]), outputs[:2], atol=1e-5)
    assert network == type(network)(**vars(network))
    assert hash(network) == hash(type(network)(**vars(network)))


def test_sizes_are_those_of_the_papers():
    def size(network, shape):
        return pytrees.size(jax.eval_shape(network.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32)))

    assert size(lenet(10), (1, 28, 28)) == 61_706
    # convolutions with their biases, three vectors of each normalisation, the last layer
    assert size(resnet20(10), (1, 32, 32, 3)) == 271_040 + 2_352 + 650
    assert size(cnn_lstm(2), (1, 100)) == 20_000 * 128 + 5 * 128 * 64 + 64 + 64 * 512 + 512 + 128 * 512 + 128 * 2 + 2


def test_images_may_lack_the_axis_of_channels():
    params = LENET.init(jax.random.key(0), DIGITS)
    np.testing.assert_array_equal(LENET.apply(params, DIGITS), LENET.apply(params, DIGITS[..., None]))
    with pytest.raises(ValueError, match=r"\(12, 144\).*reshape"):
        LENET.apply(params, DIGITS.reshape(12, -1))


@pytest.mark.long
def test_unknown_tokens_are_refused_in_words():
    model = Model(cnn_lstm(vocabulary=30, embedding=3, filters=4, units=5), Categorical(2), Normal(0.0, 1.0))
    labels = np.arange(len(TEXTS)) % 2
    beyond = np.array(TEXTS)
    beyond[0, 0] = 30
    with pytest.raises(ValueError, match=r"token ids from .* to 30; .* 0 to 29. Say cnn_lstm\(vocabulary=31\)"):
        fit(model, MAP(num_steps=2), (beyond, labels), progress=False)
    posterior = fit(model, MAP(num_steps=2), (TEXTS, labels), progress=False)
    with pytest.raises(ValueError, match="this network knows 0 to 29"):
        posterior.predict(beyond)


def test_a_token_beyond_the_vocabulary_is_not_hidden():
    network, x, _ = NETWORKS["cnn_lstm"]
    params = network.init(jax.random.key(0), x)
    assert np.isnan(network.apply(params, np.where(x == x[0, 0], 30, x))[0]).all()


def test_wrong_settings_are_named():
    network = unet(1, levels=3)
    with pytest.raises(ValueError, match="multiples of 8"):
        jax.eval_shape(lambda x: network.apply(network.init(jax.random.key(0), x), x[:, :4]), PHOTOS)
    with pytest.raises(ValueError, match="12 x 12 and larger"):
        lenet(3).init(jax.random.key(0), PHOTOS)
    with pytest.raises(ValueError, match="at least 8"):
        cnn_lstm(2).init(jax.random.key(0), TEXTS[:, :5])
    with pytest.raises(ValueError, match="share of units to DROP"):
        unet(1, dropout=1.0)
    with pytest.raises(ValueError, match="'dense' or 'last'"):
        lenet(3, dropout_before="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="width=0"):
        resnet20(3, width=0)
    with pytest.raises(ValueError, match="no num_outputs"):
        resnet20().init(jax.random.key(0), PHOTOS)


def test_dropped_channels_are_unbiased_and_the_same_everywhere():
    x = jnp.ones((2, 3, 3, 50))
    draws = jax.vmap(lambda key: drop_channels(key, x, 0.2))(jax.random.split(jax.random.key(0), 400))
    assert bool(jnp.all(draws == draws[:, :1, :1, :1]))
    assert abs(float(draws.mean()) - 1) < 4 * np.sqrt(0.25 / 20_000)


@pytest.mark.parametrize(
    ("network", "x", "behind"),
    [
        pytest.param(
            lenet(3, dropout=0.3), DIGITS, {"dense_0": 0.3, "dense_1": 0.3, "dense_2": 0.3}, marks=pytest.mark.long
        ),
        (lenet(3, dropout=0.3, dropout_before="last"), DIGITS, {"dense_2": 0.3}),
        pytest.param(unet(2, width=2, dropout=0.3), PHOTOS, {"head": 0.3, "up_1/conv_0": 0.2}, marks=pytest.mark.long),
        (cnn_lstm(2, vocabulary=30, units=5, dropout=0.3), TEXTS, {"lstm/input": 0.3, "head": 0.3}),
    ],
)
def test_dropout_acts_before_the_layers_that_the_rates_name(network, x, behind):
    params = network.init(jax.random.key(0), x)
    rates = network.dropout_rates(params)
    found = dict(zip(pytrees.leaf_names(rates), jax.tree.leaves(rates), strict=True))
    expected = {f"{path}/weight": rate for path, rate in behind.items()}
    assert {name: rate for name, rate in found.items() if rate > 0} == pytest.approx(expected)
    quiet, one, again, other = (network.apply(params, x, key) for key in (None, *map(jax.random.key, (1, 1, 2))))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, quiet)
    assert not np.allclose(one, other)


def test_devices_left_over_by_chains_split_the_rows_of_networks_that_gain():
    assert _mesh_shape(1, 0.0, 2, splits_rows=True) == (1, 2)
    assert _mesh_shape(2, 0.0, 2, splits_rows=True) == (2, 1)
    assert _mesh_shape(3, 0.0, 8, splits_rows=True) == (3, 2)
    model = Model(LENET, Categorical(3), Normal(0.0, 1.0))
    method = MAP(num_steps=1)
    rows = dataset((DIGITS, np.arange(12) % 3), model.likelihood)
    job = Job(model, method, rows, None, None, 0, 1, None, {})
    assert _mesh(job, method.plan(12), convolving=True).shape["data"] == jax.device_count()


@pytest.mark.skipif(jax.device_count() < 2, reason="one core")
@pytest.mark.long
def test_split_rows_change_nothing_but_rounding_and_the_store_knows_the_network(tmp_path):
    model = Model(LENET, Categorical(3), Normal(0.0, 1.0))
    data = (DIGITS, np.arange(12) % 3)
    method = MAP(num_steps=8, batch_size=5, learning_rate=1e-2)
    split = fit(model, method, data, progress=False)
    whole = fit(model, method, data, mesh=(1, 1), progress=False)
    for one, other in zip(jax.tree.leaves(split.weights(1)), jax.tree.leaves(whole.weights(1)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
    moved = split.weights(1)["network"]["dense_2"]["weight"][0]
    assert np.abs(moved - LENET.init(jax.random.key(1), DIGITS)["dense_2"]["weight"]).max() > 0.05
    split.save(tmp_path / "lenet")
    again = load(tmp_path / "lenet")
    assert again.model.network == LENET
    np.testing.assert_array_equal(again.predict(DIGITS).probs, split.predict(DIGITS).probs)


@pytest.mark.long
def test_an_ensemble_of_convolutional_networks_is_its_members():
    model = Model(LENET, Categorical(3), Normal(0.0, 1.0))
    data = (DIGITS, np.arange(12) % 3)
    steps = {"num_steps": 4, "learning_rate": 1e-2}
    ensemble = fit(model, DeepEnsemble(num_members=3, **steps), data, progress=False)
    alone = fit(model, MAP(**steps), data, progress=False)
    for member, single in zip(jax.tree.leaves(ensemble.weights(3)), jax.tree.leaves(alone.weights(1)), strict=True):
        np.testing.assert_allclose(member[0], single[0], atol=1e-4)
        assert np.ndim(single) < 3 or not np.allclose(member[1], single[0], atol=1e-3)
