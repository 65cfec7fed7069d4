"""Numbers and gaps as people write them, from a table to features and targets."""

import json

import numpy as np
import pandas as pd
import pytest

from posterity import MAP, BayesianClassifier, BayesianRegressor
from posterity.tables.encoders import TableEncoder, TargetEncoder
from posterity.tables.split import prepare
from posterity.tables.written import amount, common_unit, is_gap

ROWS = 30


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("12", 12.0, ""),
        (" -1.5e3 ", -1500.0, ""),
        ("1,234.50", 1234.5, ""),
        ("1,234,567", 1234567.0, ""),
        ("1.234,50", 1234.5, ""),
        ("1 234.5", 1234.5, ""),
        ("1'234", 1234.0, ""),
        ("$2.00", 2.0, "$"),
        ("-$2", -2.0, "$"),
        ("$-2", -2.0, "$"),
        ("(1,200.00)", -1200.0, ""),
        ("2,50 €", None, None),  # a decimal comma, or a slip
        ("3 €", 3.0, "€"),
        ("12 %", 12.0, "%"),
        ("12%", 12.0, "%"),
        ("\u22123", -3.0, ""),
        ("1,23", None, None),
        ("0,500", None, None),
        ("$2 %", None, None),
        ("--2", None, None),
        ("12 kg", None, None),
        ("", None, None),
    ],
)
def test_how_numbers_are_written(text, value, unit):
    assert amount(text) == (None if value is None else (value, unit))


def test_units_are_in_common_or_not_at_all():
    assert common_unit(["$2", "3", "$1,000"]) == "$"
    assert common_unit(["1", "2.5"]) == ""
    assert common_unit(["$2", "€3"]) is None
    assert common_unit(["12 %", "0.5"]) is None
    assert common_unit(["2", "two"]) is None


def test_a_dash_is_a_gap_among_numbers_alone():
    assert all(is_gap(mark, among_numbers=True) for mark in ("?", "-", "n/a", "N/A", " unknown "))
    assert is_gap("?", among_numbers=False)
    assert not is_gap("-", among_numbers=False)
    assert not is_gap(0, among_numbers=True)


def column(values):
    return pd.DataFrame({"x": np.resize(np.array(values, object), ROWS), "z": np.arange(ROWS)})


@pytest.mark.parametrize(
    ("values", "plain", "remark"),
    [
        (["$1,234.50", "$2", "$30.25"], [1234.5, 2, 30.25], "'$1,234.50' as 1234.5"),
        (["12 %", "7.5 %", "3%"], [12, 7.5, 3], "'12 %' as 12"),
        (["1", "?", "3"], [1, np.nan, 3], "10 cell(s) hold '?': missing"),
        (["1.5", "-", "n/a", "2"], [1.5, np.nan, np.nan, 2], "hold '-', 'n/a': missing"),
        (["2020-01-02", "?", "2020-02-02"], pd.to_datetime(["2020-01-02", None, "2020-02-02"]), "hold '?': missing"),
    ],
)
def test_features_are_those_of_plain_values(values, plain, remark):
    made = TableEncoder().fit(column(values))
    known = column(values).assign(x=pd.Series(np.resize(np.arange(len(plain)), ROWS)).map(pd.Series(plain)))
    np.testing.assert_allclose(made.transform(column(values)), TableEncoder().fit(known).transform(known))
    assert any(remark in one for one in made.remarks), made.remarks
    again = TableEncoder.from_json(json.loads(json.dumps(made.to_json())))
    np.testing.assert_array_equal(again.transform(column(values)), made.transform(column(values)))


def test_a_gap_in_categories_is_missing_and_a_dash_is_a_category():
    made = TableEncoder().fit(column(["a", "?", "-"]))
    assert made.features[:3] == ["x=-", "x=a", "x=missing"]
    assert any("10 cell(s) hold '?': missing" in remark for remark in made.remarks)


def test_new_rows_must_be_written_in_the_unit_that_was_learned():
    share, price, plain = (
        TableEncoder().fit(column(values)) for values in (["12 %", "7 %"], ["$2", "$3"], [0.12, 0.07])
    )
    for encoder, values, message in (
        (share, ["0.12"], r"'x' must hold numbers in %, as learned: got '0.12'"),
        (share, [0.12], r"'x' was learned in %; write '12 %'"),
        (price, ["€2"], r"'x' must hold numbers in \$, as learned: got '€2'"),
        (plain, ["12 %"], r"'x' must hold numbers without a unit: got '12 %'"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder.transform(column(values))
    np.testing.assert_array_equal(price.transform(column(["$2"])), price.transform(column([2])))
    assert np.isfinite(share.transform(column([None]))).all()


def test_every_column_that_is_not_simply_a_number_gets_a_remark():
    table = pd.DataFrame(
        {
            "number": np.arange(ROWS) * 1.5,
            "text": ["1", "2", "3"] * 10,
            "town": ["a", "b", "c"] * 10,
            "flag": [True, False] * 15,
            "date": pd.date_range("2020-01-01", periods=ROWS),
            "span": pd.to_timedelta(np.arange(ROWS), "D"),
            "tags": [["a", "b"], ["a"]] * 15,
            "": np.arange(ROWS),
        }
    )
    remarks = TableEncoder().fit(table).remarks
    for name in ("text", "town", "flag", "date", "span", "tags"):
        assert any(repr(name) in remark for remark in remarks), name
    assert not any("'number'" in remark for remark in remarks)
    assert any("holds lists" in remark for remark in remarks)
    assert "Column 8 of the inputs has no name: give it one." in remarks


def test_targets_are_read_as_written():
    made = TargetEncoder().fit(["$1,000.50", "$2", "?", "$7"])
    assert made.task == "regression"
    assert made.remarks[0] == "1 of 4 rows have no target: left out."
    np.testing.assert_array_equal(made.transform(["$1,000.50", "$7"]), [1000.5, 7.0])
    assert TargetEncoder().fit(["+", "-"] * 5).labels == ["+", "-"]
    assert TargetEncoder().fit(["yes", "no", "?"] * 5).labels == ["no", "yes"]


def test_a_class_with_one_member_gets_a_remark():
    assert "Class 'c' has one row only" in TargetEncoder().fit(["a", "b"] * 5 + ["c"]).remarks[0]
    assert "2 classes, such as 'c', have one row only" in TargetEncoder().fit(["a", "b"] * 5 + ["c", "d"]).remarks[0]


@pytest.mark.parametrize("estimator", [BayesianRegressor, BayesianClassifier])
def test_complex_numbers_are_refused_with_the_remedy(estimator):
    table = pd.DataFrame({"z": np.exp(1j * np.arange(ROWS)), "x": np.arange(ROWS)})
    for frame in (table, table.astype(object)):
        with pytest.raises(ValueError, match="'z' holds complex numbers; give real ones"):
            estimator(MAP(num_steps=1)).fit(frame, np.arange(ROWS) % 2)


def test_huge_numbers_are_right_or_refused_in_a_true_sentence():
    whole = pd.DataFrame({"x": [2**80 + 2**60 * i for i in range(ROWS)]}, dtype=object)
    np.testing.assert_allclose(
        TableEncoder().fit(whole).transform(whole),
        TableEncoder().fit(np.arange(ROWS)).transform(np.arange(ROWS)),
        atol=1e-6,
    )
    large = 1e300 * np.arange(1.0, ROWS)
    np.testing.assert_allclose(
        TableEncoder().fit(large).transform(large), TableEncoder().fit(large / 1e300).transform(large / 1e300)
    )
    with pytest.raises(ValueError, match=r"'x' holds numbers beyond 1\.8e308; rescale it"):
        TableEncoder().fit(pd.DataFrame({"x": [10**400, *range(1, ROWS)]}, dtype=object))
    with pytest.raises(ValueError, match=r"Column 'y' has values beyond 3\.4e\+38.*rescale"):
        prepare(pd.DataFrame({"x": np.arange(ROWS), "y": 1e300 * np.arange(ROWS)}), "y")
