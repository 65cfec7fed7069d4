"""The frame of the benchmarks: a bar that is missed is named and makes the exit code 1, and the page says so."""

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def on_path():
    """Scripts there import each other by their plain names, as when they are run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield
    for name in ("bars", "page"):
        sys.modules.pop(name, None)


@pytest.fixture
def bars():
    return importlib.import_module("bars")


@pytest.fixture
def speed():
    return importlib.import_module("page")


def test_a_ratio_is_the_median_within_a_turn_with_its_quartiles(bars):
    ours, theirs = [2.0, 8.0, 3.0, 40.0, 10.0], [2.0, 4.0, 1.0, 10.0, 2.0]
    reports = {"ours": [{"s": one} for one in ours], "theirs": [{"s": one} for one in theirs]}
    assert bars.ratios(reports, "ours", "theirs", "s") == {"ratio": 3.0, "ratio_quartiles": [2.0, 4.0]}
    alone = {name: each[:1] for name, each in reports.items()}
    assert bars.ratios(alone, "ours", "theirs", "s") == {"ratio": 1.0, "ratio_quartiles": [1.0, 1.0]}
    assert bars.medians(reports, "s") == {"ours s": 8.0, "theirs s": 2.0}


def test_a_missed_bar_is_named_and_ends_with_code_1(bars, capsys):
    kept = {"fast": {"ratio": 1.0, "at_least": 1.0}, "small": {"ratio": 4.4, "at_most": 4.5}, "none": {"ratio": 0.1}}
    bars.end(kept | {"facts": {"seconds": 3.0}})
    lost = {"slow": {"ratio": 0.99999, "at_least": 1.0}, "large": {"ratio": 5.0, "at_most": 4.5}}
    lost |= {"worse": {"gain": -0.1, "at_least": 0.0}, "broken": {"ratio": float("nan"), "at_least": 1.0}}
    with pytest.raises(SystemExit) as ended:
        bars.end(kept | lost)
    assert str(ended.value) == (
        "Missed: slow: ratio 0.99999, at least 1 was asked; large: ratio 5, at most 4.5 was asked; "
        "worse: gain -0.1, at least 0 was asked; broken: ratio nan, at least 1 was asked."
    )
    bars.show("slow", {**lost["slow"], "ratio_quartiles": [0.98765432, 1.0]})
    assert capsys.readouterr().out == "slow {'ratio': 1.0, 'at_least': 1.0, 'ratio_quartiles': [0.9877, 1.0]}\n"


def test_the_page_of_speed_is_the_one_the_results_give(speed):
    assert (ROOT / "docs" / "speed.md").read_text() == speed.page(ROOT / "results"), "run `make results-page`"


def test_the_page_of_speed_has_words_for_every_bar_and_names_what_was_missed(speed, tmp_path):
    for name, words in speed.WORDS.items():
        found = json.loads((ROOT / "results" / f"benchmark-{name}.json").read_text())
        with_bar = {part for part, numbers in found.items() if {"at_least", "at_most"} & set(numbers)}
        assert with_bar <= set(words)
        if name == "core":
            del found["ensemble"]
        if name == "networks":
            found["resnet20_gradient"] = {"ratio": 0.5, "at_least": 0.6}
        (tmp_path / f"benchmark-{name}.json").write_text(json.dumps(found))
    text = speed.page(tmp_path)
    assert f"| {speed.WORDS['core']['ensemble']} | not measured | | | |" in text
    assert f"| {speed.WORDS['networks']['resnet20_gradient']} | 0.5 |  | at least 0.6 | **no** |" in text
