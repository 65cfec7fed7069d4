"""The frame of the studies: parts are computed once, rows and pages say what they should, every study runs tiny."""

import json
import math

import pytest

from posterity.data import data_root
from posterity.studies import study
from posterity.studies.gal2016 import glorot
from posterity.studies.page import page, section
from posterity.studies.rows import Row, tables, with_error
from posterity.studies.study import UNFINISHED, Record, reproduce

SETTINGS = {"seed": 0}
needs_data = pytest.mark.skipif(
    not data_root().exists(), reason=f"no data folder {data_root()}; name it POSTERITY_DATA"
)


@pytest.fixture
def record(tmp_path):
    return Record("gal2016", "tiny", tmp_path, SETTINGS)


def test_a_part_is_computed_once_even_after_a_stop(record, tmp_path):
    calls = []
    compute = lambda: calls.append(1) or {"value": 2.5}  # noqa: E731
    assert record.once("part", compute)["value"] == 2.5
    again = Record("gal2016", "tiny", tmp_path, SETTINGS)
    assert again.once("part", compute)["value"] == 2.5
    assert len(calls) == 1


def test_other_settings_begin_anew(record, tmp_path):
    record.once("part", lambda: {"value": 1.0})
    assert Record("gal2016", "tiny", tmp_path, {"seed": 1}).parts == {}


def test_a_part_of_a_group_outlives_a_change_of_another_group(tmp_path):
    first = Record("gal2016", "tiny", tmp_path, {"uci": {"draws": 2}, "digits": {"draws": 2}})
    for key in ("uci/yacht/0", "digits/map", "other"):
        first.once(key, lambda: {"value": 1.0})
    again = Record("gal2016", "tiny", tmp_path, {"uci": {"draws": 2}, "digits": {"draws": 3}})
    assert list(again.parts) == ["uci/yacht/0"]


def test_sizes_do_not_overwrite_each_other(tmp_path):
    paths = {Record("gal2016", size, tmp_path, SETTINGS).path.name for size in study.SIZES}
    assert paths == {"gal2016.json", "gal2016-quick.json", "gal2016-tiny.json"}


def test_apart_is_the_difference_in_standard_errors():
    assert Row("a", 1.0, 0.3, 0.0, 0.4).apart() == pytest.approx(2.0)
    assert Row("a", 1.0, 0.3, 0.0, 0.4, difference=(1.0, 0.1)).apart() == pytest.approx(10.0)  # paired: much sharper
    assert Row("a", 1.0).apart() is None
    assert Row("a", 1.0, 0.3, 0.0, 0.4, comparable=False).apart() is None
    assert Row("a", 1.0, published=2.0).apart() is None  # no error, no unit to measure in


def test_with_error_shows_two_digits_of_the_error():
    assert with_error(4.8147, 0.1433) == "4.81 ± 0.14"
    assert with_error(304.0812, None) == "304.1"
    assert with_error(1.0, 0.0) == "1.000 ± 0.000"


def test_the_table_and_the_page_name_what_fell_short(record, tmp_path):
    rows = [
        Row("kept", 1.0, 0.1, 1.0, 0.1, target="at least 0.9", holds=True),
        Row("missed", 0.0, 0.1, 1.0, 0.1, holds=False, remark="few epochs"),
    ]
    assert "**no**" in tables(rows)
    assert "(1) |\n\n1. few epochs\n" in tables(rows)
    assert tables([Row("alone", 1.5)]) == "|  | ours |\n| --- | --- |\n| alone | 1.5 |\n"
    record.once("part", lambda: {"value": 1.0})
    record.rows += rows
    record.write()
    assert UNFINISHED in section(json.loads(record.path.read_text()))
    record.finished = True
    record.write()
    text = section(json.loads(record.path.read_text()))
    assert UNFINISHED not in text
    assert "**missed** lies 7.1 standard errors below the published value and misses its target: few epochs." in text
    assert "**kept**" not in text
    assert section(json.loads(record.path.read_text())) not in page(tmp_path)  # a tiny run is not a result


def test_subjects_with_the_same_quantities_share_a_wide_table():
    rows = [
        Row("boston: error", 1.0, 0.1, 2.0, 0.1, holds=False, target="below 1", remark="short"),
        Row("boston: loss", 3.0, remark="short"),
        Row("yacht: error", 4.0, target="below 1", holds=True),
        Row("yacht: loss", 5.0, remark="of one run"),
        Row("wine: error", 6.0),
        Row("wine: time", 7.0),
        Row("wine: loss", 8.0),
        Row("all: held", 2.0),
    ]
    assert tables(rows).splitlines() == [
        "|  | error | published | apart | loss | time | notes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| boston | **1.00 ± 0.10** | 2.00 ± 0.10 | -7.1 | 3 |  | (2) |",
        "| yacht | 4 |  |  | 5 (1) |  |  |",
        "| wine | 6 |  |  | 8 | 7 |  |",
        "",
        "Targets: error: below 1. A number in bold misses its own.",
        "",
        "1. of one run",
        "2. short",
        "",
        "|  | ours |",
        "| --- | --- |",
        "| all: held | 2 |",
    ]
    assert tables(rows[:4]).count("ours") == 1  # two subjects are no table of their own


def test_parts_from_several_processes_are_kept(tmp_path):
    record = Record("gal2016", "quick", tmp_path, SETTINGS)
    found = record.each({"four": (2.0,), "nine": (3.0,)}, squared)
    assert [found[key]["value"] for key in ("four", "nine")] == [4.0, 9.0]
    assert set(json.loads(record.path.read_text())["parts"]) == {"four", "nine"}


def squared(value):
    return {"value": math.pow(value, 2)}


def test_a_missing_file_of_published_numbers_is_named_with_its_origin(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"trace\.csv is missing. It comes from the notebooks .*POSTERITY_DATA"):
        study.published_file("toy/bnn_hmc_synth_hmc_trace.csv")


def test_glorots_weights_are_uniform_with_the_variance_2_over_inputs_plus_outputs():
    layers = glorot((300, 500, 1), seed=0)
    assert [layer["weight"].shape for layer in layers.values()] == [(300, 500), (500, 1)]
    weight = layers["layer_0"]["weight"]
    assert abs(weight).max() <= math.sqrt(6 / 800)
    assert weight.var() == pytest.approx(2 / 800, rel=4 * math.sqrt(0.8 / weight.size))  # kurtosis 1.8
    assert not layers["layer_1"]["bias"].any()


OTHERS = ["izmailov2021-small", "izmailov2021-imdb", "kendall2017", "lakshminarayanan2017", "ood"]


@needs_data
@pytest.mark.parametrize("name", ["gal2016", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_every_study_runs_tiny(name, tmp_path):
    rows = reproduce(name, "tiny", tmp_path)
    found = json.loads((tmp_path / f"{name}-tiny.json").read_text())
    assert len(found["rows"]) == len(rows) > 0
    assert all(math.isfinite(row.ours) for row in rows)
    assert all((tmp_path / picture).stat().st_size > 5_000 for picture in found["pictures"])
    shown = (tmp_path / f"{name}-tiny.md").read_text()
    assert all(with_error(row.ours, row.standard_error) in shown for row in rows)


@needs_data
def test_the_page_of_results_is_the_one_the_results_files_give():
    from pathlib import Path

    root = Path(__file__).parent.parent
    assert (root / "docs" / "results.md").read_text() == page(root / "results"), "run `make results-page`"
