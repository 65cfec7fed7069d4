"""Tables to numbers: each kind of column, gaps, categories not seen before, what is dropped, JSON, weights."""

import json
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.split import prepare

RNG = np.random.default_rng(0)
ROWS = 60


def frame():
    return pd.DataFrame(
        {
            "size": RNG.normal(170, 10, ROWS),
            "gaps": np.where(np.arange(ROWS) % 6 == 0, np.nan, np.arange(ROWS, dtype=float)),
            "colour": RNG.choice(["red", "green", "blue"], ROWS),
            "smoker": RNG.random(ROWS) < 0.5,
            "kind": pd.Categorical(["a"] * 30 + ["b"] * 28 + ["c", "d"]),
            "when": pd.date_range("2021-01-30", periods=ROWS, freq="D"),
            "written": [f"2020-{1 + i % 12:02d}-15" for i in range(ROWS)],
            "digits": [f"{i / 2}" for i in range(ROWS)],
            "constant": 3.0,
            "name": [f"person {i}" for i in range(ROWS)],
            "empty": [None] * ROWS,
        }
    )


TABLE = frame()
ENCODER = TableEncoder().fit(TABLE)
FEATURES = pd.DataFrame(ENCODER.transform(TABLE), columns=ENCODER.features)


def test_numbers_are_standardised_and_gaps_are_filled_and_marked():
    for name in ("size", "gaps", "digits", "when"):
        assert abs(FEATURES[name].mean()) < 1e-12
        assert FEATURES[name].std(ddof=0) == pytest.approx(1.0)
    missing = TABLE["gaps"].isna()
    np.testing.assert_array_equal(FEATURES["gaps missing"], missing.astype(float))
    median = TABLE["gaps"].median()
    filled = TABLE["gaps"].fillna(median)
    np.testing.assert_allclose(FEATURES["gaps"], (filled - filled.mean()) / filled.std(ddof=0))
    assert "size missing" not in FEATURES


def test_a_category_has_a_column_and_rare_ones_share_one():
    for colour in ("red", "green", "blue"):
        np.testing.assert_array_equal(FEATURES[f"colour={colour}"], (TABLE["colour"] == colour).astype(float))
    assert [name for name in FEATURES if name.startswith("kind=")] == ["kind=a", "kind=b", "kind=other"]
    assert FEATURES["kind=other"].sum() == 2
    assert {"smoker=True", "smoker=False"} <= set(FEATURES)


def test_a_category_not_seen_before_is_other_or_nothing():
    new = TABLE.head(2).assign(colour=["violet", "red"], kind=["z", None])
    made = pd.DataFrame(ENCODER.transform(new), columns=ENCODER.features)
    np.testing.assert_array_equal(made.filter(like="colour=").sum(axis=1), [0, 1])
    np.testing.assert_array_equal(made["kind=other"], [1, 1])


def test_dates_become_days_and_waves():
    steps = np.diff(FEATURES["when"])
    np.testing.assert_allclose(steps, steps[0])
    angle = 2 * np.pi * TABLE["when"].dt.day_of_week / 7
    np.testing.assert_allclose(FEATURES["when day_of_week sin"], np.sin(angle), atol=1e-12)
    assert "when hour sin" not in FEATURES  # no times of day
    assert {"written", "written month sin", "written month cos"} <= set(FEATURES)
    later = ENCODER.transform(TABLE.head(1).assign(when=pd.Timestamp("2021-03-31", tz="UTC")))
    assert later[0, ENCODER.features.index("when")] == pytest.approx(FEATURES["when"].iloc[-1] + steps[0])


def test_what_is_left_out_is_said():
    for name, why in (("constant", "one value only"), ("name", "identifier"), ("empty", "is empty")):
        assert not [feature for feature in ENCODER.features if feature.startswith(name)]
        assert any(repr(name) in remark and why in remark for remark in ENCODER.remarks)
    assert any("'digits' holds numbers as text" in remark for remark in ENCODER.remarks)
    with pytest.raises(ValueError, match="No column"):
        TableEncoder().fit(TABLE[["constant", "name"]])


def test_json_and_back():
    again = TableEncoder.from_json(json.loads(json.dumps(ENCODER.to_json())))
    np.testing.assert_array_equal(again.transform(TABLE), FEATURES)
    assert again.remarks == ENCODER.remarks


def test_columns_are_found_by_name():
    np.testing.assert_array_equal(ENCODER.transform(TABLE[TABLE.columns[::-1]]), FEATURES)
    with pytest.raises(ValueError, match=r"lacks the column.*'size'"):
        ENCODER.transform(TABLE.drop(columns="size"))
    with pytest.raises(ValueError, match=r"in addition.*'more'"):
        ENCODER.transform(TABLE.assign(more=1))
    with pytest.raises(ValueError, match="'size' must hold numbers"):
        ENCODER.transform(TABLE.assign(size="large"))
    with pytest.raises(ValueError, match="several columns called 'a'"):
        TableEncoder().fit(pd.DataFrame(np.eye(3), columns=["a", "a", "b"]))


def test_arrays():
    values = RNG.normal(5, 3, size=(20, 3))
    made = TableEncoder().fit(values)
    np.testing.assert_allclose(made.transform(values), (values - values.mean(0)) / values.std(0))
    with pytest.raises(ValueError, match="2 columns; the one learned from had 3"):
        made.transform(values[:, :2])
    with pytest.raises(ValueError, match="infinity"):
        made.transform(np.full((2, 3), np.inf))


def test_large_numbers_that_differ_little_keep_their_differences():
    values = 1e9 + np.arange(50.0)
    made = TableEncoder().fit(values).transform(values)[:, 0]
    np.testing.assert_allclose(made, (np.arange(50) - 24.5) / np.arange(50).std(), rtol=1e-9)
    times = 1.7e12 + np.arange(50.0)  # milliseconds since 1970
    np.testing.assert_allclose(TableEncoder().fit(times).transform(times)[:, 0], made, rtol=1e-3, atol=1e-3)
    rounded = pd.DataFrame({"sum": [0.1 + 0.2, 0.3] * 5, "other": np.arange(10.0)})
    assert TableEncoder().fit(rounded).features == ["other"]


def test_a_weight_is_a_repetition():
    weight = RNG.integers(1, 4, ROWS)
    repeated = TABLE.iloc[np.repeat(np.arange(ROWS), weight)]
    weighted, counted = TableEncoder().fit(TABLE, weight), TableEncoder().fit(repeated)
    assert weighted.features == counted.features
    np.testing.assert_allclose(weighted.transform(TABLE), counted.transform(TABLE), atol=1e-12)
    numbers = TABLE["size"]
    first, second = TargetEncoder().fit(numbers, weight), TargetEncoder().fit(np.repeat(numbers, weight))
    np.testing.assert_allclose([first.shift, first.scale], [second.shift, second.scale])


@pytest.mark.parametrize(
    ("target", "task"),
    [
        (RNG.normal(size=30), "regression"),
        (np.arange(30), "regression"),
        (np.arange(30) % 3, "classification"),
        (np.arange(30) % 2 * 1.0, "classification"),
        (np.arange(30) % 2 + 0.5, "regression"),
        (np.arange(30) % 3 * 1.0, "regression"),
        (np.arange(30) % 2 == 0, "classification"),
        (np.array(["yes", "no"] * 15), "classification"),
        (pd.Series(pd.Categorical([1, 2, 3] * 10)), "classification"),
    ],
)
def test_the_task_is_decided_from_the_target_and_said(target, task):
    made = TargetEncoder().fit(target)
    assert made.task == task
    assert f"Taken as {task}" in made.remarks[-1]
    again = TargetEncoder.from_json(json.loads(json.dumps(made.to_json())))
    np.testing.assert_array_equal(again.transform(target), made.transform(target))
    if task == "classification":
        np.testing.assert_array_equal(np.asarray(again.labels)[again.transform(target)], np.asarray(target))
    else:
        standard = (made.transform(target) - made.shift) / made.scale
        np.testing.assert_allclose([standard.mean(), standard.std()], [0, 1], atol=1e-12)


def test_targets_that_say_nothing_or_are_missing():
    with pytest.raises(ValueError, match="one value only"):
        TargetEncoder("regression").fit(np.full(5, 2.0))
    for constant in (np.full(5, 5.0), np.full(5, 5), ["5"] * 5):
        with pytest.raises(ValueError, match=r"one value only \(5\)"):
            TargetEncoder().fit(constant)
    with pytest.raises(ValueError, match="one class only"):
        TargetEncoder().fit(["a"] * 5)
    with pytest.raises(ValueError, match="Every target is missing"):
        TargetEncoder().fit([None, None])
    with pytest.raises(ValueError, match="unknown to a model"):
        TargetEncoder().fit(["a", "b"]).transform(["c"])
    with pytest.raises(ValueError, match="choose 'regression'"):
        TargetEncoder("ranking").fit([1, 2])  # type: ignore[arg-type]
    gaps = pd.Series([1.5, None, 2.5, 3.5])
    made = TargetEncoder("regression").fit(gaps)
    assert made.remarks == ["1 of 4 rows have no target: left out."]
    assert made.shift == pytest.approx(2.5)
    np.testing.assert_array_equal(made.is_missing(gaps), [False, True, False, False])
    assert TargetEncoder("classification").fit(np.arange(4)).labels == [0, 1, 2, 3]


def test_categories_keep_their_identity_in_other_types():
    numbers = TableEncoder().fit(pd.DataFrame({"code": pd.Categorical([1, 2, 3] * 4)}))
    assert numbers.features == ["code=1", "code=2", "code=3"]
    np.testing.assert_array_equal(numbers.transform(pd.DataFrame({"code": [2.0, np.nan]})), [[0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(numbers.transform(pd.DataFrame({"code": ["2.0", "03"]})), [[0, 1, 0], [0, 0, 0]])
    truth = TableEncoder().fit(pd.DataFrame({"on": [True, False] * 6}))
    for values in ([1, 0], [1.0, 0.0], ["TRUE", "false"], [True, False]):
        np.testing.assert_array_equal(truth.transform(pd.DataFrame({"on": values})), [[0, 1], [1, 0]])
    said = numbers.unseen(pd.DataFrame({"code": [2.0, 7.0, np.nan, 7.0]}))
    assert said == ["Column 'code': 3 of 4 rows hold categories unseen in training, such as '7'."]
    rare = TableEncoder().fit(pd.DataFrame({"kind": ["a"] * 9 + ["b"]}))
    assert (
        "rare or unseen in training, such as 'z': they count as 'other'"
        in rare.unseen(pd.DataFrame({"kind": ["z"]}))[0]
    )
    labels = TargetEncoder().fit(["1", "2", "x"])
    np.testing.assert_array_equal(labels.transform([2, 1]), [1, 0])
    np.testing.assert_array_equal(TargetEncoder().fit([True, False]).transform(["TRUE", "0"]), [1, 0])


def test_no_two_features_have_one_name():
    gaps = TableEncoder().fit(pd.DataFrame({"why": ["missing", None, "lost", "lost"] * 3}))
    assert gaps.features == ["why=lost", "why=missing"]
    np.testing.assert_array_equal(gaps.transform(pd.DataFrame({"why": ["missing", None]})), [[0, 1], [0, 1]])
    others = TableEncoder().fit(pd.DataFrame({"why": ["other", "lost"] * 4 + ["rare"]}))
    assert others.features == ["why=lost", "why=other"]
    np.testing.assert_array_equal(others.transform(pd.DataFrame({"why": ["other", "rare"]})), [[0, 1], [0, 1]])


DAYS = pd.date_range("2020-01-20", periods=12, freq="D")


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ([Decimal(f"{i}.5") for i in range(12)], np.arange(12) + 0.5),
        ([*range(11), None], [*range(11), np.nan]),
        ([0.5, *range(11)], [0.5, *range(11)]),
        ([pd.Timedelta(i, "D") for i in range(12)], np.arange(12.0)),
        ([day.date() for day in DAYS], DAYS),
        ([day.to_pydatetime() for day in DAYS], DAYS),
        ([day.to_period("D") for day in DAYS], DAYS),
        (DAYS.to_period("D"), DAYS),
        (DAYS.strftime("%d/%m/%Y"), DAYS),
        (DAYS.strftime("%d.%m.%Y 00:00"), DAYS),
        (DAYS.strftime("%m/%d/%y"), DAYS),
        ([f"{day:%Y-%m-%d}" + ("", "T00:00:00", "T00:00:00.000")[i % 3] for i, day in enumerate(DAYS)], DAYS),
        ([f"{day:%Y-%m-%d}T0{i % 3}:00:00+0{i % 3}:00" for i, day in enumerate(DAYS)], DAYS),
    ],
)
def test_numbers_and_dates_are_known_however_they_are_held(values, same):
    values = values if isinstance(values, pd.PeriodIndex) else pd.Series(list(values), dtype=object)
    made, expected = TableEncoder().fit(pd.DataFrame({"x": values})), TableEncoder().fit(pd.DataFrame({"x": same}))
    assert made.features == expected.features
    np.testing.assert_array_equal(
        made.transform(pd.DataFrame({"x": values})), expected.transform(pd.DataFrame({"x": same}))
    )


def test_days_and_months_are_told_apart_as_in_training():
    def learned(*dates):
        made = TableEncoder().fit(pd.DataFrame({"when": dates}))
        again = TableEncoder.from_json(json.loads(json.dumps(made.to_json())))
        return made.remarks[-1], again.columns[0].encode(pd.Series(["05/02/2020"]))[0, 0] * again.columns[0].days.std

    remark, near = learned("01/02/2020", "01/04/2020", "13/02/2020")
    assert "holds dates, day first: days since 2020-02-01" in remark
    days = np.array([0, 60, 12])
    assert near == pytest.approx(4 - days.mean())
    remark, far = learned("01/02/2020", "01/04/2020")
    assert "month first, as no day above 12 tells; if that is wrong, write 2020-12-31" in remark
    assert far == pytest.approx(121 - 1)  # 2 May is 121 days after 2 January; the mean is 1
    assert "holds dates, month first: days" in learned("01/02/2020", "01/14/2020")[0]
    with pytest.raises(
        ValueError,
        match="'when' must hold dates, all written alike, month first as in training; got '14/01/2020': write 2020",
    ):
        TableEncoder().fit(pd.DataFrame({"when": ["01/14/2020", "01/02/2020"]})).transform(
            pd.DataFrame({"when": ["14/01/2020"]})
        )


def test_a_date_that_never_varies_is_said_to_be_one():
    frame = pd.DataFrame({"when": pd.Timestamp("2020-05-04"), "x": np.arange(5.0)})
    assert TableEncoder().fit(frame).remarks == ["Column 'when' has one value only (2020-05-04): left out."]
    frame.loc[0, "when"] = pd.NaT
    made = TableEncoder().fit(frame)
    assert made.features == ["when missing", "x"]
    assert made.remarks == ["Column 'when' has one value only (2020-05-04): used is whether it is missing."]


def test_targets_held_as_objects_and_dates():
    assert TargetEncoder().fit(pd.Series([Decimal(f"{i}.5") for i in range(9)], dtype=object)).task == "regression"
    assert TargetEncoder().fit(pd.Series([0, 1, 2, None] * 3, dtype=object)).labels == [0, 1, 2]
    assert TargetEncoder().fit(["0", "1", "2"] * 3).labels == ["0", "1", "2"]
    for dates in (DAYS, DAYS.strftime("%d/%m/%Y"), pd.Series([day.date() for day in DAYS], dtype=object)):
        for task in (None, "regression"):
            with pytest.raises(ValueError, match=r"The target holds dates.*days since"):
                TargetEncoder(task).fit(dates)


def test_rows_that_are_not_trained_on_may_show_how_dates_are_written():
    """Whichever rows are drawn for training, the one that tells days from months is heeded."""
    frame = pd.DataFrame({"when": [f"01/{1 + i % 12:02}/2020" for i in range(ROWS)], "y": np.arange(ROWS) + 0.5})
    for row in range(0, ROWS, 6):
        made = prepare(frame.assign(when=frame["when"].where(frame.index != row, "13/01/2020")), "y")
        assert "holds dates, day first: days" in made.remarks[-1]
