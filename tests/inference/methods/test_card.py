"""A method that only this file knows: its class and its card are all that the tools need to take it."""

import json
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest
from test_contract import check_contract
from typer.testing import CliRunner

from posterity import METHODS, BayesianClassifier, BayesianRegressor, fit, mlp, plots
from posterity.cli import app, pages
from posterity.core import pytrees, records
from posterity.core.types import Kernel, Phase
from posterity.inference.methods.card import Card, TableSize
from posterity.inference.methods.method import Method, Result
from posterity.models.likelihoods import Gaussian
from posterity.models.model import Model
from posterity.report import write_report
from posterity.tables.comparison import compare
from posterity.tables.defaults import table_method
from posterity.tables.split import prepare
from posterity.weights.families import Samples


class WanderState(NamedTuple):
    params: Any


class WanderInfo(NamedTuple):
    log_joint: jax.Array


@records.record
class Wander(Method):
    """Gradient ascent with noise, which nobody should use: w <- w + rate * gradient + rate * N(0, I)."""

    card = Card(
        name="wander",
        label="Wandering",
        what="Noisy ascent.",
        when="In tests.",
        reference="nobody 2000",
        ignorance="some",
        cost="1",
        colour="red",
        line="--",
        marker="x",
        settings=lambda size: {"num_draws": size.count(200, 5)},
        share=2,
        compared=True,
    )

    num_draws: int = records.host(default=10)
    rate: float = records.traced(default=1e-3)
    start: Any = records.host(default=None)

    def plan(self, num_rows: int) -> tuple[Phase, ...]:
        del num_rows
        return (Phase(self.num_draws, keep=True),)

    def kernel(self, model: Any) -> Kernel:
        def init(key, params, batch, clock):
            return WanderState(params)

        def step(key, state, batch, clock):
            objective = lambda params: model.log_joint(params, batch, clock.num_batches)  # noqa: E731
            value, gradient = jax.value_and_grad(objective)(state.params)
            noise = pytrees.normal_like(key, state.params)
            moved = jax.tree.map(lambda w, g, n: w + self.rate * (g + n), state.params, gradient, noise)
            return WanderState(moved), WanderInfo(value)

        return Kernel(init, step)

    def finish(self, model: Any, states: Any, kept: Any, fixed: Any) -> Result:
        del states
        return Result(Samples(kept, fixed), model)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(METHODS, Wander.card.name, Wander)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": 50 + 10 * x[:, 0] + rng.normal(size=80)})


def test_the_contract_and_fit_take_it(frame):
    check_contract("wander", "categorical")
    x, y = frame[["a", "b"]].to_numpy(), frame["y"].to_numpy()
    posterior = fit(Model(mlp((3,)), Gaussian(10.0)), Wander(), (x, y), progress=False)
    assert posterior.predict(x).outputs.shape == (10, 80, 1)


def test_estimators_comparison_and_report_take_it(frame, tmp_path):
    assert table_method("wander", 80, effort=0.5) == Wander(num_draws=100)
    found = compare(prepare(frame, "y"), ["map", "wander"], effort=0.05, progress=False)
    assert [(entry.name, entry.label) for entry in found.entries] == [("map", "MAP"), ("wander", "Wandering")]
    text = write_report(found, tmp_path / "report.html").read_text("utf-8")
    assert '<th scope="row">Wandering</th>' in text
    assert plots.method_style("wander") == {"color": plots.PALETTE["red"].light, "linestyle": "--"}
    assert plots.method_marker("wander") == "x"


def test_the_command_and_the_lists_of_the_documentation_take_it():
    listed = {row["name"]: row for row in json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)}
    assert listed["wander"]["what it is"] == "Noisy ascent."
    assert listed["wander"]["compared"] is True
    line = "| [`wander`](wander.md) | `Wander` | Noisy ascent (nobody 2000) | some | 1 |"
    assert line in pages.written("docs/methods/index.md", "<!-- methods -->\n\n<!-- end of methods -->\n")
    assert "- Wandering: methods/wander.md" in pages.written("mkdocs.yml", "# methods\n\n# end of methods\n")


def test_a_page_without_a_place_for_the_methods_is_refused():
    with pytest.raises(ValueError, match="no place for the methods; write <!-- methods -->"):
        pages.written("README.md", "nothing")


def test_settings_for_a_table_scale_with_rows_and_effort():
    assert TableSize(4_000).batch_size == "full"
    assert TableSize(4_001).batch_size == 512
    assert TableSize(30, effort=0.1).descent(2_000) == {"num_steps": 200, "batch_size": "full", "learning_rate": 1e-2}
    assert TableSize(30, effort=0.001).count(1_000, least=40) == 40


def test_a_method_without_a_card_is_fitted_by_the_estimators(frame):
    """Of one's own: nothing asks for a card until it is to be offered by name."""

    @records.record
    class Unnamed(Wander):
        card = Card()

    for estimator, y in ((BayesianRegressor, frame["y"]), (BayesianClassifier, frame["y"] > 50)):
        model = estimator(Unnamed(num_draws=5), hidden=(3,)).fit(frame[["a", "b"]], y)
        assert model.posterior_.method.card.label == ""
        assert len(model.predict(frame[["a", "b"]])) == 80
