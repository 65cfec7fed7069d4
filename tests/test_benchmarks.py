"""The frame of the benchmarks: a bar that is missed is named and makes the exit code 1."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "bars.py"
spec = importlib.util.spec_from_file_location("benchmark_bars", PATH)
assert spec is not None
assert spec.loader is not None
bars = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bars)


def test_a_ratio_is_the_median_within_a_turn_with_its_quartiles():
    ours, theirs = [2.0, 8.0, 3.0, 40.0, 10.0], [2.0, 4.0, 1.0, 10.0, 2.0]
    reports = {"ours": [{"s": one} for one in ours], "theirs": [{"s": one} for one in theirs]}
    assert bars.ratios(reports, "ours", "theirs", "s") == {"ratio": 3.0, "ratio_quartiles": [2.0, 4.0]}
    alone = {name: each[:1] for name, each in reports.items()}
    assert bars.ratios(alone, "ours", "theirs", "s") == {"ratio": 1.0, "ratio_quartiles": [1.0, 1.0]}
    assert bars.medians(reports, "s") == {"ours s": 8.0, "theirs s": 2.0}


def test_a_missed_bar_is_named_and_ends_with_code_1(capsys):
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
