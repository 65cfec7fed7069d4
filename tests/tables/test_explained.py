"""Why an estimator is unsure: by columns of the table, which add up to each part, in frames and pictures."""

import numpy as np
import pandas as pd
import pytest

from posterity import HMC, MAP, BayesianClassifier, BayesianRegressor, DeepEnsemble, plots
from posterity.prediction.attribution import BASE
from posterity.tables.explained import importance

QUICK = DeepEnsemble(num_members=3, num_steps=100, learning_rate=0.05, batch_size="full")
RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "size": np.where(np.arange(120) % 7, RNG.normal(size=120), np.nan),
        "town": RNG.choice(["north", "south", "west"], 120),
        "empty": None,
        "age": RNG.normal(size=120),
    },
    index=[f"house {i}" for i in range(120)],
)
PRICE = 1000 + 50 * TABLE["age"] + 30 * (TABLE["town"] == "south") + 5 * RNG.normal(size=120)


@pytest.fixture(scope="module")
def regressor():
    return BayesianRegressor(QUICK, hidden=(4,), holdout=0.2).fit(TABLE, PRICE)


def test_parts_add_up_by_columns_of_the_table(regressor):
    rows = TABLE[:3]
    found = regressor.explain(rows)
    assert list(found) == ["row", "column", "part", "value", "error"]
    assert set(found["column"]) == {BASE, "size", "town", "age"}  # an empty column is not learned from
    assert list(found["row"].unique()) == list(rows.index)
    sums = found.groupby(["part", "row"], sort=False)["value"].sum()
    expected = regressor.uncertainty(rows).assign(mean=regressor.predict(rows))
    for part in ("mean", "aleatoric", "epistemic"):
        np.testing.assert_allclose(sums[part], expected[part], rtol=1e-4)
    shown = importance(found)
    assert shown["epistemic"].is_monotonic_decreasing
    sizes = found[(found["part"] == "mean") & (found["column"] == "age")]["value"].abs()
    assert shown.loc["age", "mean"] == pytest.approx(sizes.mean())


def test_the_background_may_be_given(regressor):
    found = regressor.explain(TABLE[:1], background=TABLE[:10], num_background=10)
    base = found[(found["column"] == BASE) & (found["part"] == "mean")]["value"].item()
    assert base == pytest.approx(regressor.predict(TABLE[:10]).mean(), rel=1e-5)


def test_classes_are_explained_by_the_probability_of_the_most_probable():
    labels = np.where(PRICE > 1000, "dear", "cheap")
    model = BayesianClassifier(MAP(num_steps=100, learning_rate=0.05), hidden=()).fit(TABLE, labels)
    found = model.explain(TABLE[:2])
    best = model.predict(TABLE[:2])
    first = found[found["row"] == TABLE.index[0]]
    assert list(first["part"].unique()) == [f"probability of {best[0]}", "aleatoric", "epistemic"]
    total = first[first["part"] == f"probability of {best[0]}"]["value"].sum()
    assert total == pytest.approx(model.predict_proba(TABLE[:1]).max(), rel=1e-4)
    assert importance(model.explain(TABLE[:15]))["mean"].idxmax() == "age"


def test_attributions_are_drawn(regressor):
    found = regressor.explain(TABLE[:15])
    axes = plots.attributions(found, "mean")
    assert next(label.get_text() for label in axes.get_yticklabels()) == "age"
    np.testing.assert_allclose(next(bar.get_width() for bar in axes.patches), importance(found)["mean"].max())
    one = plots.attributions(found, "aleatoric", row=TABLE.index[0], most=2)
    assert len(one.patches) == 2
    with pytest.raises(ValueError, match="is not in what was explained"):
        plots.attributions(found, "noise")


@pytest.mark.long
def test_planted_noise_and_a_planted_gap_are_found():
    """Noise follows one column, and no row has another column between -0.5 and 1.5."""
    rng = np.random.default_rng(1)
    x = pd.DataFrame(rng.uniform(-2, 2, size=(600, 4)), columns=["signal", "noise", "gap", "nothing"])
    x = x[~x["gap"].between(-0.5, 1.5)].reset_index(drop=True)
    y = x["signal"] + np.sin(2 * x["gap"]) + np.exp(x["noise"] - 2) * rng.normal(size=len(x))
    method = HMC(num_draws=60, num_burn_in=150)
    model = BayesianRegressor(method, hidden=(20,), holdout=0.1).fit(x, y)
    asked = pd.DataFrame({"signal": 0.0, "noise": [-1.5, 1.9], "gap": [0.5, 0.5], "nothing": 0.0})
    found = model.explain(asked)
    by_part = found.pivot_table("value", "column", ["part", "row"]).drop(index=BASE)
    assert by_part["aleatoric", 1].idxmax() == "noise"
    assert by_part["epistemic", 0].idxmax() == "gap"
    assert importance(found)["mean"].idxmin() == "nothing"
