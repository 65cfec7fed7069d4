"""Each plot returns axes that hold what it should; what can be known in advance is checked in numbers."""

import types

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from posterity import HMC, METHODS, Categorical, Gaussian, Model, fit, mlp, plots
from posterity.data.arrays import check_inputs
from posterity.metrics import Estimate
from posterity.networks import from_function
from posterity.plots.predictions import binned
from posterity.prediction.prediction import Prediction
from posterity.prediction.streaming import DEFAULT_MEMORY, OutputStream
from posterity.weights.families import Samples

NOISE = 0.3
ROWS = 1000


def stated(model, outputs):
    """A prediction whose draws have these outputs, [S, N, K], at rows 0 .. N-1: a network that looks them up."""
    network = from_function(lambda key, x: {"table": jnp.zeros(outputs.shape[1:])}, lambda p, x: p["table"][x[:, 0]])
    family = Samples({"network": {"table": jnp.asarray(outputs)[None]}}, {"network": {"table": None}})
    rows = check_inputs(np.arange(outputs.shape[1])[:, None])
    model = Model(network, model)
    return Prediction(
        OutputStream(model, family, jax.random.key(0), rows, np.arange(len(outputs)), False, DEFAULT_MEMORY)
    )


@pytest.fixture(scope="module")
def honest():
    """Targets drawn from what two draws predict: a prediction that is calibrated by construction, and the targets."""
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(2, ROWS, 1))
    chosen = outputs[rng.integers(0, 2, ROWS), np.arange(ROWS), 0]
    return stated(Gaussian(NOISE), outputs), chosen + NOISE * rng.normal(size=ROWS)


@pytest.fixture(scope="module")
def classes():
    """The same for three classes."""
    rng = np.random.default_rng(1)
    outputs = 2 * rng.normal(size=(2, ROWS, 3))
    probs = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    chosen = probs[rng.integers(0, 2, ROWS), np.arange(ROWS)]
    return stated(Categorical(3), outputs), (chosen.cumsum(-1) < rng.uniform(size=(ROWS, 1))).sum(-1)


@pytest.fixture(scope="module")
def chains(wave):
    model = Model(mlp((4,), activation="tanh"), Gaussian(0.1))
    return fit(model, HMC(num_draws=20, num_burn_in=20, max_leapfrog=16), wave, chains=2, holdout=0.2)


def line_of(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def labels_of(axes):
    return axes.get_legend_handles_labels()[1]


def test_band_holds_mean_ignorance_noise_and_data(honest):
    prediction, y = honest
    axes = plots.band(prediction, np.arange(ROWS), (np.arange(ROWS), y))
    assert labels_of(axes) == ["noise (aleatoric)", "ignorance (epistemic)", "mean", "data"]
    np.testing.assert_allclose(line_of(axes, "mean").get_ydata(), prediction.mean)
    top = max(path.vertices[:, 1].max() for path in axes.collections[0].get_paths())
    np.testing.assert_allclose(top, (prediction.mean + 2 * prediction.std).max(), rtol=1e-5)


def test_class_maps_mark_every_class_and_cover_the_grid():
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(60, 2)), np.arange(60) % 10  # more classes than there are shapes
    grid = np.linspace(-1, 1, 5), np.linspace(-2, 2, 4)
    axes = plots.class_map(np.arange(20.0).reshape(4, 5), grid, (points, labels), cmap="Oranges")
    assert sum(len(line.get_xdata()) for line in axes.lines) == 60
    np.testing.assert_array_equal(np.ravel(axes.collections[0].get_array()), np.arange(20))
    probs = np.eye(3)[rng.integers(0, 3, (4, 5))]
    axes = plots.class_mixture(probs, grid, (points, labels % 3), labels=("a", "b", "c"))
    assert labels_of(axes) == ["a", "b", "c"]
    assert len(np.unique(np.asarray(axes.collections[0].get_array()).reshape(-1, 3), axis=0)) == 3


def test_intervals_show_their_bounds_and_cross_misses(honest):
    prediction, y = honest
    lower, upper = prediction.interval(0.9)
    axes = plots.predicted_against_observed(prediction, y, max_rows=ROWS)
    drawn = np.array([segment[:, 1] for segment in axes.collections[0].get_segments()])
    np.testing.assert_allclose(drawn, np.stack([lower, upper], 1), rtol=1e-5)
    axes = plots.sorted_intervals(prediction, y, max_rows=ROWS)
    outside = len(line_of(axes, "observed, outside").get_xdata())
    assert outside == np.sum((y < lower) | (y > upper))
    assert abs(outside / ROWS - 0.1) < 4 * np.sqrt(0.09 / ROWS)
    few = plots.sorted_intervals(prediction, y, max_rows=50)
    assert sum(len(line.get_xdata()) for line in few.lines[1:]) == 50


def test_noise_and_ignorance_are_stacked_to_the_total(honest):
    prediction, _ = honest
    axes = plots.split_along(prediction, np.arange(ROWS))
    edge = axes.collections[1].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(edge, prediction.total.max(), rtol=1e-5)
    axes = plots.split_along(prediction, np.arange(ROWS), num_bins=5)
    noise = axes.collections[0].get_paths()[0].vertices[:, 1].max()
    np.testing.assert_allclose(noise, NOISE**2, rtol=1e-4)
    axes = plots.ignorance_along(prediction, np.arange(ROWS), label="m")
    np.testing.assert_allclose(line_of(axes, "m").get_ydata(), np.sqrt(prediction.epistemic), rtol=1e-6)


def test_bins_keep_equal_values_together():
    x = np.repeat([0.0, 1.0, 5.0], [50, 5, 45])
    where, (means,) = binned(x, (2 * x,), 10)
    np.testing.assert_allclose(where, [0, 1, 5])
    np.testing.assert_allclose(means, [0, 2, 10])
    x = np.concatenate([np.zeros(50), np.arange(1.0, 51.0)])  # half the rows tie: fewer bins, none empty
    where, _ = binned(x, (x,), 10)
    assert np.all(np.diff(where) > 0)
    assert where[0] == 0


@pytest.mark.parametrize("kind", ["numbers", "classes"])
def test_a_calibrated_prediction_lies_on_the_diagonal(kind, honest, classes):
    prediction, y = honest if kind == "numbers" else classes
    axes = plots.coverage_curve(prediction, y, label="m")
    levels, shares = line_of(axes, "m").get_data()
    error = 4 * np.sqrt(levels * (1 - levels) / ROWS)
    if kind == "numbers":
        assert np.all(np.abs(shares - levels) < error)
        np.testing.assert_allclose(levels, np.linspace(0.05, 0.95, 19), atol=1e-12)
    else:
        assert np.all(shares > levels - error)  # a set of classes holds at least its share
    axes = plots.calibration_curve(prediction, y, label="m")
    promised, found = line_of(axes, "m").get_data()
    rows = ROWS if kind == "numbers" else ROWS / 10
    assert np.all(np.abs(found - promised) < 4 * np.sqrt(np.maximum(promised * (1 - promised), 0.01) / rows))


def test_an_overconfident_prediction_lies_below_the_diagonal(honest):
    prediction, y = honest
    sure = stated(Gaussian(NOISE / 3), prediction.outputs.mean(0, keepdims=True))
    levels, shares = line_of(plots.coverage_curve(sure, y, label="m"), "m").get_data()
    assert np.all(shares < levels - 0.02)


def test_methods_share_axes_and_one_diagonal(honest):
    prediction, y = honest
    axes = plots.coverage_curve(prediction, y, label="a", **plots.method_style("hmc"))
    plots.coverage_curve(prediction, y, axes, label="b", **plots.method_style("laplace"))
    assert labels_of(axes) == ["a", "b", "chance"] or labels_of(axes) == ["chance", "a", "b"]
    assert len(axes.lines) == 3
    assert len(axes.collections) == 1


def test_risk_rises_with_uncertainty_that_knows_and_ends_at_the_whole(honest, classes):
    rng = np.random.default_rng(2)
    prediction, y = classes
    share, risk = line_of(plots.risk_coverage_curve(prediction, y, label="m"), "m").get_data()
    assert share[-1] == 1
    np.testing.assert_allclose(risk[-1], np.mean(prediction.label != y))
    assert risk[len(risk) // 4] < 0.7 * risk[-1]
    prediction, y = honest
    risk = line_of(plots.risk_coverage_curve(prediction, y, label="m"), "m").get_ydata()
    np.testing.assert_allclose(risk[-1], np.sqrt(np.mean((prediction.mean - y) ** 2)))
    shuffled = rng.permutation(y)
    assert line_of(plots.risk_coverage_curve(prediction, shuffled, label="m"), "m").get_ydata()[-1] > risk[-1]


def test_p_values_step_up_to_one():
    axes = plots.p_value_curve([0.5, 0.25, 1.0, 0.75], label="m")
    where, shares = line_of(axes, "m").get_data()
    np.testing.assert_allclose(where, [0, 0.25, 0.5, 0.75, 1.0])
    np.testing.assert_allclose(shares, [0, 0.25, 0.5, 0.75, 1.0])


@pytest.mark.long
def test_alarms_ring_more_often_far_away(chains, wave):
    factors = (1.0, 8.0)
    p_values = plots.moved_p_values(chains, wave[0], factors)
    np.testing.assert_allclose(p_values[0], chains.predict(wave[0]).ood, atol=1e-6)
    axes = plots.alarm_curve(p_values, factors, level=0.1, label="m")
    near, far = line_of(axes, "m").get_ydata()
    assert near < 0.3
    assert far > near + 0.3


def test_dots_show_two_standard_errors_and_say_what_is_not_finite():
    scores = {"a": Estimate(1.0, 0.1), "b": Estimate(float("inf"), float("nan")), "c": Estimate(2.0, float("nan"))}
    axes = plots.score_dots(scores)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in axes.texts] == ["not finite"]
    np.testing.assert_allclose(axes.collections[0].get_segments()[0][:, 0], [0.8, 1.2])


def test_against_itself_lies_on_the_diagonal(honest, classes):
    for prediction in (honest[0], classes[0]):
        for quantity in ("mean", "epistemic"):
            axes = plots.against_reference(prediction, prediction, quantity, label="m")
            theirs, ours = line_of(axes, "m").get_data()
            np.testing.assert_array_equal(theirs, ours)
            assert len(theirs) == 300
    with pytest.raises(ValueError, match="choose 'mean' or 'epistemic'"):
        plots.against_reference(honest[0], honest[0], "variance")


def test_traces_have_one_line_a_chain(chains):
    axes = plots.trace(chains)
    assert labels_of(axes) == ["chain 0", "chain 1"]
    np.testing.assert_allclose(axes.lines[1].get_ydata(), chains.trace["log_joint"][1])
    with pytest.raises(ValueError, match="recorded log_joint, acceptance"):
        plots.trace(chains, name="loss")


def test_r_hat_is_drawn_as_shares_of_inputs(chains, wave):
    found = chains.diagnose(wave[0])
    axes = plots.r_hat_curve(found, label="m")
    values, shares = line_of(axes, "m").get_data()
    np.testing.assert_allclose(values[1:], np.sort(found.r_hat_of_inputs))
    assert (shares[0], shares[-1]) == (0, 1)
    nothing = types.SimpleNamespace(r_hat_of_inputs=np.full(3, np.nan))
    assert len(plots.r_hat_curve(nothing).lines) == 2


def test_every_method_has_a_look_of_its_own():
    looks = {tuple(plots.method_style(name).values()) for name in METHODS}
    assert len(looks) == len(METHODS)
    lights = [colour.light for colour in plots.PALETTE.values()]
    assert len(set(lights)) == len(lights)  # a page finds the dark form by the light one


def test_pyplot_is_left_alone(honest):
    prediction, y = honest
    before = plt.get_fignums()
    plots.coverage_curve(prediction, y)
    plots.band(prediction, np.arange(ROWS))
    assert plt.get_fignums() == before
