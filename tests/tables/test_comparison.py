"""Comparisons: the split, the sharing of a budget, and the verdict."""

import dataclasses
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from posterity.data.arrays import evenly_spaced
from posterity.inference import METHODS
from posterity.metrics import Estimate
from posterity.tables import comparison, split
from posterity.tables.baselines import Baseline, baselines
from posterity.tables.comparison import Comparison, Entry, compare
from posterity.tables.split import prepare
from posterity.tables.verdict import paired


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 2))
    y = 100 + 10 * (x[:, 0] - 0.5 * x[:, 1]) + 2 * rng.normal(size=80)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})


def test_a_split_is_a_partition_that_keeps_every_class_in_training():
    y = np.repeat([0, 1, 2, 3], [80, 15, 4, 1])
    train, test, aside = split._split(y, "classification", 0.2, seed=3)
    assert sorted([*train, *test, *aside]) == list(range(100))
    assert len(test) == 20
    assert set(y[train]) == {0, 1, 2, 3}
    shares = np.bincount(y[test], minlength=4)[:2] / [80, 15]
    assert np.allclose(shares, 0.2, atol=0.05)
    again = split._split(y, "classification", 0.2, seed=3)
    other = split._split(y, "classification", 0.2, seed=4)
    assert np.array_equal(test, again[1])
    assert not np.array_equal(test, other[1])


def test_encoders_learn_from_training_rows_alone(frame):
    rows = split._split(frame["y"].to_numpy(), "regression", 0.25, seed=0)
    spoiled = frame.copy()
    spoiled.loc[rows[1], ["a", "y"]] *= 1000.0  # test rows
    clean, changed = (prepare(table, "y", test_share=0.25) for table in (frame, spoiled))
    assert np.array_equal(clean.train[0], changed.train[0])
    assert clean.code.target.shift == changed.code.target.shift
    assert not np.array_equal(clean.test[0], changed.test[0])


def test_rows_without_a_target_are_left_out_aloud(frame):
    frame.loc[[3, 7], "y"] = np.nan
    prepared = prepare(frame, "y")
    assert sum(len(part[1]) for part in (prepared.train, prepared.test)) + prepared.aside.num_rows == 78
    assert any("2 of 80 rows have no target" in remark for remark in prepared.remarks)


@pytest.mark.parametrize(
    ("column", "message"),
    [(np.ones(80), "one value only"), (["yes"] * 80, "one class only"), ([np.nan] * 80, "with a target: 0")],
)
def test_a_target_without_variation_is_refused(frame, column, message):
    frame["y"] = column
    with pytest.raises(ValueError, match=message):
        prepare(frame, "y")


def test_a_text_of_its_own_in_nearly_every_row_is_no_class(frame):
    frame["y"] = [f"{271_902 + row:,} euros" for row in range(80)]
    for task in (None, "classification"):
        with pytest.raises(ValueError, match=r"80 different texts in 80 rows, for instance '271,902 e.*plain numbers"):
            prepare(frame, "y", task=task)
    with pytest.raises(
        ValueError, match=r"'y' must hold numbers: .*'271,902 euros.*write plain numbers such as 1234\.5"
    ):
        prepare(frame, "y", task="regression")
    frame["y"] = [f"{row % 20},000 euros" for row in range(80)]
    assert prepare(frame, "y").code.task == "classification"  # each has four rows
    frame["y"] = [f"€{271_902 + row:,}" for row in range(80)]
    assert prepare(frame, "y").code.target.task == "regression"
    assert prepare(frame, "y").train[1].min() >= 271_902


def test_too_few_rows_are_refused(frame):
    with pytest.raises(ValueError, match="at least 10"):
        prepare(frame[:9], "y")
    with pytest.raises(ValueError, match="to test on"):
        prepare(frame, "y", test_share=0.01)


def test_a_budget_is_shared_and_what_is_left_goes_on():
    assert comparison._share(["map"], 60.0) == 60.0
    assert comparison._share(["map", "hmc"], 55.0) == pytest.approx(15.0)
    assert comparison._share(["map", "hmc"], -5.0) > 0


def test_compiling_does_not_eat_the_budget(monkeypatch):
    """Methods that take no time of their own: each must find the whole budget left, however long compiling takes."""
    shares, said = {}, []

    def fit(self, name, budget):
        shares[name] = budget
        raise RuntimeError("not fitted")

    monkeypatch.setattr(comparison.TableRun, "compile", lambda self, name: time.sleep(0.6))
    monkeypatch.setattr(comparison.TableRun, "fit", fit)
    _, failures = comparison._fit_all(comparison.TableRun(None), ["map", "laplace", "hmc"], 5.0, said.append)
    assert len(failures) == 3
    for number, name in enumerate(shares):
        assert shares[name] == pytest.approx(comparison._share(list(shares)[number:], 5.0), abs=0.2)
    assert said[-1] == "Compiling took 2 s on top of the budget."


def test_rows_are_chosen_evenly():
    np.testing.assert_array_equal(evenly_spaced(10, 2000), np.arange(10))
    many = evenly_spaced(100_000, 2000)
    assert (len(many), many[0], many[-1]) == (2000, 0, 99_999)
    assert np.ptp(np.diff(many)) <= 1


def test_convergence_is_judged_at_rows_that_are_evenly_spaced(frame, monkeypatch):
    asked, prepared, found = [], prepare(frame, "y"), SimpleNamespace(verdict="usable")
    posterior = SimpleNamespace(
        predict=lambda x: None,
        diagnose=lambda x: (asked.append(x), found)[1],
        receipt=SimpleNamespace(seconds=1.0, notes=(), warnings=()),
    )
    monkeypatch.setattr(comparison.metrics, "evaluate", lambda *_: {})
    monkeypatch.setattr(comparison, "DIAGNOSED_ROWS", 4)
    ((entry,), _, _) = comparison._judge(prepared, {"map": posterior})
    np.testing.assert_array_equal(asked[0], prepared.test[0][[0, 5, 10, 15]])
    assert entry.diagnosis is found
    assert entry.convergence == "usable"


@pytest.mark.parametrize("broken", ["map", "hmc"])
def test_a_method_that_cannot_be_judged_fails_alone(frame, broken, monkeypatch):
    """As where a prediction is not finite; without HMC no distance is left, and nothing else is lost."""

    def judged(prediction, y):
        if prediction == broken:
            raise ValueError("mean has 3 values that are not finite.")
        return {}

    monkeypatch.setattr(comparison.metrics, "evaluate", judged)
    monkeypatch.setattr(comparison, "Referee", lambda _: SimpleNamespace(distances=lambda _: {"wasserstein": 0.1}))
    monkeypatch.setattr(comparison, "_trust", lambda *_: {"verdict": "good"})
    found = SimpleNamespace(verdict="good")
    made = {
        name: SimpleNamespace(
            predict=lambda x, name=name: name,
            diagnose=lambda x: found,
            receipt=SimpleNamespace(seconds=1.0, notes=(), warnings=()),
        )
        for name in ("map", "laplace", "hmc")
    }
    entries, reference, failures = comparison._judge(prepare(frame, "y"), made)
    assert [entry.name for entry in entries] == [name for name in made if name != broken]
    assert failures == {
        METHODS[broken].card.label: "It was fitted, and cannot be judged: mean has 3 values that are not finite."
    }
    assert (reference is None) == (broken == "hmc")
    assert bool(entries[-2 if broken == "map" else 0].referee) == (broken == "map")


HARD = np.random.default_rng(0).normal(size=100)  # how hard each test row is, for every method


def _entry(name, nll, seconds, distance=None, coverage=0.9, own=0.0, convergence="good"):
    """`own`: how much the method's scores of single rows differ from those of the others."""
    noise = np.random.default_rng(len(name)).normal(size=100)
    rows = nll + (HARD - HARD.mean()) + own * (noise - noise.mean())
    prediction = SimpleNamespace(log_prob=lambda y: -rows)
    scores = {"nll": Estimate(nll, 0.1), "coverage_90": Estimate(coverage, 0.02)}
    apart = {} if distance is None else {"wasserstein": Estimate(distance, 0.01)}
    nothing, diagnosis = SimpleNamespace(), SimpleNamespace(verdict=convergence)
    return Entry(METHODS[name].card, nothing, prediction, scores, apart, seconds, (), diagnosis)  # type: ignore[arg-type]


def _comparison(entries, num_rows=100, **settings):
    rows = (np.zeros((num_rows, 1)), np.zeros(num_rows))
    return Comparison("t", "regression", "y", ("a",), (), rows, rows, None, tuple(entries), settings=settings)


def test_the_verdict_names_the_nearest_the_best_the_too_sure_and_what_to_use():
    entries = [
        _entry("map", 1.05, 1.0, distance=0.5, coverage=0.7, own=0.8),
        _entry("laplace", 1.08, 2.0, distance=0.2, own=1.0),
        _entry("mile", 1.3, 9.0, distance=0.05),
        _entry("hmc", 1.0, 60.0),
    ]
    trust = {"verdict": "good", "r_hat": 1.004, "own_distance": {"wasserstein": [0.03, 0.001]}}
    text = "\n".join(_comparison(entries, reference=trust).verdict())
    assert "HMC can be trusted" in text
    assert "Nearest to HMC is MILE" in text
    assert "farthest is MAP" in text
    assert "own halves are 0.03 apart" in text
    assert "Best by negative log likelihood is HMC" in text
    assert "within two standard errors of the difference: MAP, Laplace" in text
    assert "70 % (MAP)" in text
    assert "Use Laplace" in text  # quicker than HMC, and unlike MAP it knows its ignorance
    assert _comparison(entries, reference=trust).recommended().name == "laplace"


def test_methods_are_told_apart_row_by_row():
    """Each score has an error of 0.1, nearly all of it from rows that are hard for both; their difference has 0.01."""
    near, top = _entry("laplace", 1.05, 1.0, own=0.1), _entry("hmc", 1.0, 9.0)
    assert "within" not in "\n".join(_comparison([near, top]).verdict())
    assert "Use HMC: nothing else predicts as well here." in _comparison([near, top]).verdict()
    same = _entry("laplace", 1.005, 1.0, own=0.1)
    assert any(line.startswith("Use Laplace") for line in _comparison([same, top]).verdict())


def test_wild_rows_do_not_make_a_tie():
    """Of 100 rows, three at which one method is 2,500 nats off: a mean of 75 +- 43, and no tie."""
    wild = np.zeros(100)
    wild[:3] = -2_500.0
    behind = paired(np.zeros(100), wild)
    assert behind.value == 75.0
    assert behind.value > 2 * behind.standard_error
    assert paired(np.array([1.0, -1.0, np.nan]), np.zeros(3)).value == 0.0


@pytest.mark.parametrize(
    ("shift", "sentence"), [(0.5, "is worth it here"), (-0.5, "is not worth it here"), (0.0, "predicts no better here")]
)
def test_the_verdict_answers_whether_a_network_is_worth_it(shift, sentence):
    rng = np.random.default_rng(0)
    entry = _entry("hmc", 1.0, 9.0)
    log_prob = np.asarray(entry.prediction.log_prob(_comparison([entry]).test[1]))
    rival = Baseline("a random forest", log_prob - shift + 0.01 * rng.standard_normal(len(log_prob)))
    lines = dataclasses.replace(_comparison([entry]), baselines=(rival,)).verdict()
    assert any(sentence in line and "a random forest" in line for line in lines)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_baselines_predict_what_can_be_predicted(task):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((120, 2))
    y = 2 * x[:, 0] if task == "regression" else (x[:, 0] > 0).astype(int)
    guess = -0.5 * np.log(2 * np.pi * np.var(y)) - 0.5 if task == "regression" else np.log(0.5)
    found = baselines(task, (x[:90], y[:90]), (x[90:], y[90:]), seed=0)
    assert len(found) == 3
    for one in found:
        assert one.log_prob.shape == (30,)
        assert one.log_prob.mean() > guess + 0.3


def test_better_needs_two_standard_errors():
    """The difference of the two, 0.015, has a standard error of 0.01."""
    near, top = _entry("laplace", 1.015, 1.0, own=0.1), _entry("hmc", 1.0, 9.0)
    assert "Use Laplace: as good as the best here, in 1.0 s." in _comparison([near, top]).verdict()


@pytest.mark.parametrize("convergence", ["not converged", "undetermined"])
def test_chains_that_do_not_agree_are_not_recommended(convergence):
    top = _entry("hmc", 1.0, 9.0, convergence=convergence)
    alone = _comparison([top, _entry("laplace", 2.0, 1.0)])
    assert alone.recommended() is None
    assert alone.verdict()[0].startswith("HMC predicts best here, but its chains have not been seen to agree")
    assert not any(line.startswith("Use") for line in alone.verdict())
    for name in ("mile", "map"):  # as good as HMC by its scores, and not in doubt
        beside = _comparison([top, _entry(name, 1.0, 60.0)])
        assert beside.recommended().name == name
        assert beside.verdict()[0].startswith(f"Use {METHODS[name].card.label}: as good as the best")


def test_few_test_rows_recommend_nothing():
    small = _comparison([_entry("hmc", 1.0, 9.0), _entry("map", 2.0, 1.0, coverage=0.5)], num_rows=2)
    assert small.recommended() is None
    assert small.verdict()[0].startswith("2 test rows are too few to say which method to use: give at least 20")
    assert not any(line.startswith(("Use", "Too sure")) for line in small.verdict())


def test_the_doubts_about_the_referee_are_told():
    trust = {"verdict": "usable", "doubts": ["Too few effective draws."], "r_hat": 1.0, "own_distance": {}}
    lines = _comparison([_entry("hmc", 1.0, 9.0)], reference=trust).verdict()
    assert any(line.endswith("Too few effective draws.") for line in lines)


def test_the_verdict_warns_of_a_referee_that_has_not_converged_or_is_absent():
    entries = [_entry("map", 1.0, 1.0, distance=0.5), _entry("hmc", 2.0, 9.0)]
    unsure = {"verdict": "not converged", "r_hat": 1.7, "own_distance": {}}
    assert "has not converged" in "\n".join(_comparison(entries, reference=unsure).verdict())
    assert "no referee" in "\n".join(_comparison(entries[:1]).verdict())
    assert "nothing to compare" in _comparison([]).verdict()[0]


@pytest.mark.long
def test_methods_are_compared_kept_and_read_again(frame, tmp_path):
    said = []
    arguments = {
        "methods": ("map", "exact", "hmc"),
        "effort": 0.05,
        "budget": 600.0,
        "folder": tmp_path,
        "progress": False,
    }
    table = prepare(frame, "y", title="line")
    found = compare(table, say=said.append, **arguments)
    point, hmc = found.entries
    assert [point.name, hmc.name] == ["map", "hmc"]
    assert "Exact" in found.failures
    assert any("failed" in line for line in said)
    assert set(point.referee) == {"wasserstein"}
    assert (point.convergence, hmc.convergence) == ("independent", found.settings["reference"]["verdict"])
    assert hmc.referee == {}
    assert 0 < point.referee["wasserstein"].value < 3
    assert {"rmse", "nll", "crps", "calibration_error", "coverage_90"} <= set(hmc.scores)
    assert hmc.scores["rmse"].value < 6  # in the target's units, of which the noise is 2 and the whole spread 11
    assert found.settings["reference"]["own_distance"]["wasserstein"][0] > 0
    assert len(found.frame) == len(found.test[1]) == 16
    assert hmc.prediction.ood.shape == (16,)

    again = compare(table, **arguments)
    assert [entry.scores for entry in again.entries] == [entry.scores for entry in found.entries]
    assert [entry.seconds for entry in again.entries] == [entry.seconds for entry in found.entries]
