"""Callbacks, the log as CSV, validation losses in the trace, accumulated gradients."""

import csv

import jax
import numpy as np
import optax
import pytest

from posterity import HMC, MAP, CSVLog, Gaussian, Model, fit, linear, mlp, plots, resume

pytestmark = pytest.mark.filterwarnings("ignore:.* has not converged")  # runs are short

MODEL = Model(mlp((8,)), Gaussian(0.3))


class Heard:
    def __init__(self):
        self.calls = []

    def __call__(self, step, metrics, posterior):
        self.calls.append((step, metrics, posterior))


def test_callbacks_hear_steps_metrics_and_the_posterior_so_far(line):
    x, y = line
    heard = Heard()
    posterior = fit(MODEL, MAP(num_steps=2000), (x, y), callbacks=[heard])
    steps = [step for step, *_ in heard.calls]
    assert steps == sorted(steps)
    assert steps[-1] == 2000
    _, metrics, so_far = heard.calls[-1]
    assert set(metrics) == set(posterior.trace)
    assert all(type(value) is float for value in metrics.values())
    np.testing.assert_array_equal(so_far().predict(x).mean, posterior.predict(x).mean)
    # all that was recorded is heard, once
    told = sum(m["loss"] * (b - a) for (b, m, _), a in zip(heard.calls, [0, *steps], strict=False)) / 2000
    assert told == pytest.approx(
        np.average(posterior.trace["loss"].mean(0), weights=posterior.trace.num_steps), rel=1e-5
    )


def test_what_a_callback_raises_ends_a_run_that_a_store_has_kept(line, tmp_path):
    method, calls = MAP(num_steps=3000), []

    def fails(step, metrics, posterior):
        calls.append(step)
        if len(calls) == 3:
            raise RuntimeError("the log is full")

    with pytest.raises(RuntimeError, match="the log is full"):
        fit(MODEL, method, line, store=tmp_path / "run", callbacks=[fails])
    heard = Heard()
    resumed = resume(tmp_path / "run", callbacks=[heard])
    assert heard.calls[-1][0] == 3000
    whole = fit(MODEL, method, line)
    for a, b in zip(jax.tree.leaves(resumed.weights()), jax.tree.leaves(whole.weights()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_log_has_a_line_a_call_and_columns_for_every_stage(line, tmp_path):
    path = tmp_path / "log.csv"
    heard = Heard()
    fit(MODEL, MAP(num_steps=500), line, validation=0.2, callbacks=[CSVLog(path), heard])
    fit(MODEL, HMC(num_draws=2, num_burn_in=2, max_leapfrog=4), line, chains=1, callbacks=[CSVLog(path), heard])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(heard.calls)
    for row, (step, metrics, _) in zip(rows, heard.calls, strict=True):
        assert int(row["step"]) == step
        for name, value in metrics.items():
            assert float(row[name]) == pytest.approx(value, rel=1e-6)
    assert rows[0]["validation_loss"] != "" and rows[-1]["validation_loss"] == ""  # noqa: PT018


def test_the_validation_loss_is_in_the_trace_and_drawn(line):
    x, y = line
    held = (x[30:], y[30:])
    posterior = fit(MODEL, MAP(num_steps=400, patience=100), (x[:30], y[:30]), validation=held)
    recorded = posterior.trace["validation_loss"]
    assert recorded.shape == posterior.trace["loss"].shape
    # the weights kept are those of the best look, whose loss is the least in the trace
    assert -posterior.predict(x[30:]).log_prob(y[30:]).mean() == pytest.approx(recorded.min(), rel=1e-4)
    axes = plots.training(posterior)
    assert [line.get_label() for line in axes.get_lines()] == ["training rows", "validation rows"]
    assert axes.get_lines()[1].get_ydata()[-1] == pytest.approx(recorded[0, -1])


def test_accumulated_gradients_are_those_of_a_larger_batch(line):
    """Four batches in the order of the rows and one step of SGD, against all rows at once."""
    x, y = line
    model = Model(linear(), Gaussian(0.3))
    every = MAP(num_steps=50, batch_size="full", optimizer=optax.sgd(1e-2))
    fourth = MAP(num_steps=200, batch_size=10, optimizer=optax.MultiSteps(optax.sgd(1e-2), 4))
    whole, parts = fit(model, every, (x, y)), fit(model, fourth, (x, y))
    for a, b in zip(jax.tree.leaves(whole.weights()), jax.tree.leaves(parts.weights()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)
