"""The interpreter of PyTorch's graphs on stored ones, beside what PyTorch computed; needs no PyTorch."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from posterity import Categorical, Model, Normal, prior
from posterity.networks.layers import trace_layers
from posterity.networks.pytorch.graph import Call, Exported, Graph, Value
from posterity.networks.pytorch.module import from_torch, network_of

FOLDER = Path(__file__).with_name("data")
NAMES = ("attention", "convolutions", "perceptron", "recurrent")
LAST = dict.fromkeys(NAMES, "fc.weight") | {"perceptron": "6.weight"}


def stored(name):
    """(graph with weights and constants, inputs, what PyTorch computed)."""
    read = json.loads((FOLDER / f"{name}.json").read_text())
    graph = Graph.from_json(json.dumps(read["graph"]))
    arrays = [{key: np.asarray(value) for key, value in read[part].items()} for part in ("weights", "constants")]
    inputs = tuple(map(np.asarray, read["inputs"]))
    return Exported(graph, *arrays), inputs, np.asarray(read["outputs"]), read["gradient"]


def network(name, **options):
    return network_of(stored(name)[0], "classes" if name == "attention" else None, **options)


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", NAMES)
def test_outputs_and_gradients_are_pytorchs(double, name):
    """For four rows; the graph was written with three."""
    _, x, outputs, gradient = stored(name)
    made = network(name)
    params = made.init(jax.random.key(0), x)

    def loss(params):
        given = made.apply(params, x)
        return jnp.sum(given**2), given

    (_, given), slopes = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(given, outputs, rtol=1e-10)
    assert set(slopes) == set(gradient)
    for parameter, slope in slopes.items():
        wanted = np.asarray(gradient[parameter])
        np.testing.assert_allclose(slope, wanted, rtol=1e-10, atol=1e-10 * np.abs(wanted).max(), err_msg=parameter)


@pytest.mark.parametrize("name", NAMES)
def test_one_row_is_the_same_alone_and_dropout_follows_the_key(name):
    _, x, outputs, _ = stored(name)
    made = network(name)
    params, apply = made.init(jax.random.key(0), x), jax.jit(made.apply)
    alone = apply(params, jax.tree.map(lambda leaf: leaf[2:3], x))
    np.testing.assert_allclose(alone, outputs[2:3], rtol=1e-4, atol=1e-5)
    one, again, other = (apply(params, x, jax.random.key(k)) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_dropout_has_the_rate_and_the_mean_of_its_layer():
    """x -> dropout(x, 0.25): zeros at that rate, and 1 / 0.75 elsewhere."""
    graph = Graph({"x": "float32"}, {"w": "w"}, {}, [], Value("out"))
    calls = [Call("y", "aten.mul.Tensor", [Value("x"), Value("w")], {})]
    calls.append(Call("out", "aten.dropout.default", [Value("y"), 0.25, True], {}))
    made = network_of(Exported(graph._replace(calls=calls), {"w": np.ones(())}, {}))
    drawn = np.asarray(made.apply({"w": jnp.ones(())}, jnp.ones((100, 400)), jax.random.key(0)))
    np.testing.assert_allclose(np.unique(drawn), [0, 1 / 0.75], rtol=1e-6)
    assert abs((drawn == 0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / drawn.size)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_layer_is_found(name):
    _, x, _, _ = stored(name)
    made = network(name)
    program = trace_layers(made, made.init(jax.random.key(0), x), x)
    assert program.ends_in_layer
    layer = program.layers[-1]
    assert (layer.weight, layer.bias, layer.input_axis) == (LAST[name], LAST[name].replace("weight", "bias"), 1)


def test_fan_in_counts_inputs_and_window():
    _, x, _, _ = stored("convolutions")
    made = network("convolutions")
    model = Model(made, Categorical(2), prior(Normal(0.0, 1.0), fan_in=True))
    _, widths = model.full_prior.moments(model.init(jax.random.key(0), x), made.fan_in_axis)
    fans = {name: 1 / float(np.ravel(width)[0]) ** 2 for name, width in widths["network"].items()}
    assert fans["first.weight"] == pytest.approx(2 * 9)
    assert fans["second.weight"] == pytest.approx(2 * 9)  # of a group
    assert fans["series.weight"] == pytest.approx(4 * 3)
    assert fans["fc.weight"] == pytest.approx(15)
    assert fans["first.bias"] == pytest.approx(1)


def test_a_graph_is_the_same_after_json():
    for name in NAMES:
        graph = stored(name)[0].graph
        assert Graph.from_json(graph.to_json()) == graph


def test_an_unknown_operation_is_named_and_can_be_added():
    exported, x, outputs, _ = stored("perceptron")
    calls = [c._replace(operation="aten.tahn.default") if "tanh" in c.operation else c for c in exported.graph.calls]
    unknown = exported._replace(graph=exported.graph._replace(calls=calls))
    with pytest.raises(ValueError, match=r'aten\.tahn\.default.*operations=\{"aten\.tahn\.default": lambda x'):
        network_of(unknown)
    added = network_of(unknown, operations={"aten.tahn.default": jnp.tanh})
    np.testing.assert_allclose(added.apply(added.init(jax.random.key(0), x), x), outputs, rtol=1e-4)


def test_which_output_is_meant_must_be_named():
    exported, x, _, _ = stored("attention")
    both = network_of(exported)
    assert set(both.apply(both.init(jax.random.key(0), x), x)) == {"classes", "hidden"}
    with pytest.raises(ValueError, match=r"2 parts, 'classes', 'hidden'.*output='classes'"):
        network_of(exported, "logits")


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is here")
def test_without_pytorch_the_extra_is_named():
    with pytest.raises(ImportError, match=r"posterity\[torch\]"):
        from_torch(None, np.zeros((2, 3)))
