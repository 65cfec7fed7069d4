"""The frame of the studies: parts are computed once, rows and pages say what they should, every study runs tiny."""

import importlib
import json
import math
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from posterity.cli import app
from posterity.datasets import data_root
from posterity.datasets.catalogue import SOURCES
from posterity.storage.codec import StoreError
from posterity.studies import study
from posterity.studies.needs import NEEDS, PUBLISHED_FILES
from posterity.studies.page import page, section
from posterity.studies.published import izmailov2021_digits, izmailov2021_imdb, izmailov2021_uci, kendall2017, ood
from posterity.studies.published.gal2016 import glorot
from posterity.studies.rows import Row, tables, with_error
from posterity.studies.study import STUDIES, UNFINISHED, StudyLog, find, reproduce, table_file

SETTINGS = {"seed": 0}
COMMAND = importlib.import_module("posterity.cli.reproduce")  # by its name the package has the command itself
RESULTS = Path(__file__).parents[2] / "results"
SECONDS_OF_A_TINY_RUN = 20  # of processor time, once its programs are compiled
needs_data = pytest.mark.skipif(
    not data_root().is_dir() or not any(data_root().iterdir()),
    reason=f"no data in {data_root()}; name their folder POSTERITY_DATA",
)


@pytest.fixture
def log(tmp_path):
    return StudyLog("gal2016", "tiny", tmp_path, SETTINGS)


def test_a_part_is_computed_once_even_after_a_stop(log, tmp_path):
    calls = []
    compute = lambda: calls.append(1) or {"value": 2.5}  # noqa: E731
    assert log.once("part", compute)["value"] == 2.5
    again = StudyLog("gal2016", "tiny", tmp_path, SETTINGS)
    assert again.once("part", compute)["value"] == 2.5
    assert len(calls) == 1


def test_other_settings_begin_anew(log, tmp_path):
    log.once("part", lambda: {"value": 1.0})
    assert StudyLog("gal2016", "tiny", tmp_path, {"seed": 1}).parts == {}


def test_a_part_of_a_group_outlives_a_change_of_another_group(tmp_path):
    first = StudyLog("gal2016", "tiny", tmp_path, {"uci": {"draws": 2}, "digits": {"draws": 2}})
    for key in ("uci/yacht/0", "digits/map", "other"):
        first.once(key, lambda: {"value": 1.0})
    again = StudyLog("gal2016", "tiny", tmp_path, {"uci": {"draws": 2}, "digits": {"draws": 3}})
    assert list(again.parts) == ["uci/yacht/0"]


def test_sizes_do_not_overwrite_each_other(tmp_path):
    paths = {StudyLog("gal2016", size, tmp_path, SETTINGS).path.name for size in study.SIZES}
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


def test_the_table_and_the_page_name_what_fell_short(log, tmp_path):
    rows = [
        Row("kept", 1.0, 0.1, 1.0, 0.1, target="at least 0.9", holds=True),
        Row("missed", 0.0, 0.1, 1.0, 0.1, holds=False, remark="few epochs"),
    ]
    assert "**no**" in tables(rows)
    assert "(1) |\n\n1. few epochs\n" in tables(rows)
    assert tables([Row("alone", 1.5)]) == "|  | ours |\n| --- | --- |\n| alone | 1.5 |\n"
    log.once("part", lambda: {"value": 1.0})
    log.rows += rows
    log.write()
    assert UNFINISHED in section(json.loads(log.path.read_text()))
    log.finished = True
    log.write()
    text = section(json.loads(log.path.read_text()))
    assert UNFINISHED not in text
    assert "**missed** lies 7.1 standard errors below the published value and misses its target: few epochs." in text
    assert "**kept**" not in text
    assert section(json.loads(log.path.read_text())) not in page(tmp_path)  # a tiny run is not a result


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
        "Targets: error (boston; yacht): below 1. A number in bold misses its own.",
        "",
        "1. of one run",
        "2. short",
        "",
        "|  | ours |",
        "| --- | --- |",
        "| all: held | 2 |",
    ]
    assert tables(rows[:4]).count("ours") == 1  # two subjects are no table of their own


@pytest.mark.long
def test_parts_from_several_processes_are_kept(tmp_path):
    log = StudyLog("gal2016", "quick", tmp_path, SETTINGS)
    found = log.each({"four": (2.0,), "nine": (3.0,)}, squared)
    assert [found[key]["value"] for key in ("four", "nine")] == [4.0, 9.0]
    assert set(json.loads(log.path.read_text())["parts"]) == {"four", "nine"}


def squared(value):
    return {"value": math.pow(value, 2)}


def test_a_missing_file_of_published_numbers_is_named_with_its_origin(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"trace\.csv is missing\. It comes from the notebooks .*<https.*POSTERITY_DATA"
    ):
        study.published_file("toy/bnn_hmc_synth_hmc_trace.csv")


def test_glorots_weights_are_uniform_with_the_variance_2_over_inputs_plus_outputs():
    layers = glorot((300, 500, 1), seed=0)
    assert [layer["weight"].shape for layer in layers.values()] == [(300, 500), (500, 1)]
    weight = layers["layer_0"]["weight"]
    assert abs(weight).max() <= math.sqrt(6 / 800)
    assert weight.var() == pytest.approx(2 / 800, rel=4 * math.sqrt(0.8 / weight.size))  # kurtosis 1.8
    assert not layers["layer_1"]["bias"].any()


@pytest.fixture
def said(monkeypatch):
    """Exit code and words of the command that runs gal2016 tiny into a folder."""
    monkeypatch.setattr(COMMAND, "keep_compiled_programs", lambda: None)  # a setting of the whole process

    def run(out):
        found = CliRunner().invoke(app, ["reproduce", "gal2016", "--tiny", "--out", str(out)])
        assert isinstance(found.exception, SystemExit), found.exception
        return found.exit_code, " ".join(found.stderr.split())

    return run


def test_the_command_looks_at_its_folder_first(said, tmp_path, monkeypatch):
    monkeypatch.setattr(COMMAND, "reproduce", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        code, text = said(out)
        assert (code, "is not a folder that can be written to" in text) == (2, True)


@pytest.mark.parametrize("content", ["{", "[]", '{"settings": {}}', '{"settings": {}, "parts": {"co2/relu": {}}}'])
def test_the_command_names_a_damaged_results_file(said, tmp_path, content):
    (tmp_path / "gal2016-tiny.json").write_text(content)
    code, text = said(tmp_path)
    assert code == 2
    assert "gal2016-tiny.json is damaged, so the run cannot go on from it. Move it away to begin anew." in text


@pytest.mark.parametrize(
    ("error", "code"), [(StoreError("no store"), 2), (OSError(28, "No space left"), 2), (FloatingPointError("inf"), 1)]
)
def test_the_command_says_what_stopped_a_run(said, tmp_path, monkeypatch, error, code):
    def stopped(*_):
        raise error

    monkeypatch.setattr(COMMAND, "reproduce", stopped)
    found, text = said(tmp_path)
    assert (found, str(error) in text) == (code, True)


def test_the_command_names_a_file_of_another_edition_and_one_that_is_damaged(said, tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path))
    monkeypatch.setattr(study, "check_data", lambda *_: None)  # the others are not there
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci" / "yacht.npz").write_bytes(b"other")
    code, text = said(tmp_path / "out")
    assert code == 2
    assert "gal2016 was not run to its end." in text
    assert "yacht.npz is not the archive of plain arrays" in text
    rows = np.arange(4)
    np.savez(tmp_path / "uci" / "yacht.npz", X=np.ones((4, 2)), y=np.ones(4), train=rows[None, :3], test=rows[None, 3:])
    code, text = said(tmp_path / "out")
    assert (code, "holds numbers of the sha256" in text) == (2, True)
    assert "`posterity reproduce NAME --unchecked`" in text


SCORES = dict.fromkeys(("accuracy", "agreement", "total_variation"), (0.9, 0.01))


def test_the_reference_of_digits_is_computed_anew_where_its_store_is_gone(tmp_path, monkeypatch):
    made, hmc = [], {**SCORES, "share_r_hat_under_1.1": 1.0}
    monkeypatch.setattr(izmailov2021_digits, "_reference", lambda store, chosen: made.append(store) or hmc)
    monkeypatch.setattr(izmailov2021_digits, "_judge", lambda store, name, chosen: SCORES)
    settings = find("izmailov2021-small").settings("tiny")
    log = StudyLog("izmailov2021-small", "tiny", tmp_path, settings)
    log.parts = {"digits/hmc": {**hmc, "seconds": 1.0}}
    izmailov2021_digits.run(log)
    assert [store.name for store in made] == ["izmailov2021-small-tiny-hmc.store"]
    izmailov2021_digits.run(log)  # every part is known: the store is not needed
    assert len(made) == 1


def test_swag_that_stands_still_is_said_to():
    found = {"accuracy": [0.887, 0.01], "agreement": [0.9355, 0.01], "total_variation": [0.12412, 0.003]}
    moved = {**found, "total_variation": [0.12, 0.003]}
    assert izmailov2021_digits._same_scores(found, {**found, "total_variation": [0.12414, 0.003]})
    assert not izmailov2021_digits._same_scores(found, moved)
    assert not izmailov2021_digits._same_scores(found, None)


def test_unfamiliar_images_tell_the_budget_of_every_method():
    chosen = ood.settings("full")
    made, per_epoch = ood.methods(chosen), 469
    for name in chosen["methods"]:
        plan = made[name].plan(chosen["rows"])
        assert abs(sum(phase.num_steps for phase in plan) / per_epoch - chosen["epochs"][name]) < 0.5, name
        assert (getattr(made[name], "start", None) is not None) == (name in ood.STARTED)
    told = {name: ood.budget(name, chosen) for name in chosen["methods"]}
    assert told["bayes_by_backprop"] == "15 epochs, where MAP has 5"
    assert told["mc_dropout"] == "10 epochs, where MAP has 5"
    assert told["map"] == told["mle"] == "5 epochs"
    assert told["deep_ensemble"] == "5 epochs for each of 5 members"
    assert told["laplace"] == "one pass after the 5 epochs of MAP, where it begins"
    assert told["cyclical"] == "10 epochs after the 5 epochs of MAP, where it begins"


def test_unfamiliar_images_say_where_swag_stands_still_and_that_their_laplace_was_tuned(tmp_path):
    chosen = ood.settings("full") | {"methods": ["map", "laplace", "swag"]}
    log = StudyLog("ood", "full", tmp_path, chosen)
    scores = {area: [0.9, 0.01] for area in ("fashion_mnist, entropy", "notmnist, maximum probability")}
    point = {"error": [0.01, 0.001], **scores, "seconds": 1.0}
    mutual = {"notmnist, mutual information": [0.5, 0.01]}  # which MAP does not have
    log.parts = {"map": point, "laplace": point | mutual, "swag": point | mutual}
    rows = {row.name: row for row in ood.run(log)}
    assert "hardly moves the weights" in rows["SWAG: test error on MNIST"].remark
    assert "their LA*, with every choice tuned" in rows["Laplace: AUROC, notmnist, maximum probability"].remark
    assert "LA*" not in rows["SWAG: AUROC, notmnist, maximum probability"].remark
    log.parts["swag"] = point | {"fashion_mnist, entropy": [0.91, 0.01]}
    assert all("hardly moves" not in row.remark for row in ood.run(log))


@pytest.mark.parametrize("name", ["ood", "lakshminarayanan2017"])
def test_the_settings_name_every_batch_size_and_rate(name):
    """A batch size or a rate that is written in the code alone could change without a run being made again."""
    settings = json.dumps(find(name).settings("full"))
    assert settings.count("batch_size") == settings.count('"seed"')
    assert settings.count("learning_rate") == settings.count('"seed"')


def test_a_ratio_of_what_is_next_to_nothing_is_said_to_be_one():
    """In regression these are standard deviations, so 6e-8 of 0.2 is some 1e-13 of the noise variance."""
    many = {"noise where added": 0.4, "noise elsewhere": 0.05, "noise where seen": 0.2, "true noise": 8.0}
    many |= {"ignorance where removed": 3e-8, "ignorance where seen": 6e-8}
    few = many | {"ignorance where removed": 6e-3, "ignorance where seen": 5e-3}
    _, ratio, lost, _ = kendall2017._rows("line", "learned dropout", {100: few, 1000: many})
    assert "rounding decides the ratio" in ratio.remark
    assert "rounding decides how little" in lost.remark
    (_, ratio) = kendall2017._rows("line", "learned dropout", {100: few})
    assert "rounding" not in ratio.remark
    _, _, lost, _ = kendall2017._rows("line", "fixed dropout", {100: few, 1000: few})
    assert lost.remark == "a fixed rate need not concentrate"


@pytest.mark.parametrize("size", ["full", "quick"])
def test_the_reviews_tell_of_an_earlier_run_where_there_was_one(tmp_path, size):
    settings = izmailov2021_imdb.settings(size)
    log = StudyLog("izmailov2021-imdb", size, tmp_path, settings)
    part = {**dict.fromkeys(izmailov2021_imdb.METRICS, (0.5, 0.1)), "seconds": 1.0}
    log.parts = dict.fromkeys(("hmc", *settings["epochs"]), part)
    better = part | {"log-likelihood": (0.6, 0.1)}
    for name in ("early_map", "mc_dropout"):
        log.parts |= {f"{name}, {count} epochs": part for count in settings["tried_epochs"]}
        log.parts[f"{name}, 3 epochs"] = better  # neither the first nor the last in a full run
    remarks = {row.subject: row.remark for row in izmailov2021_imdb.run(log)}
    assert ("test scores were seen" in remarks["SGHMC"]) == (size == "full")
    assert remarks["MAP, stopped early"].startswith("3 epochs, as many as held-out")
    assert remarks["Deep ensemble"].startswith("3 epochs as MAP stopped early")
    assert remarks["MAP (SGD there)"].startswith(f"{settings['epochs']['map']} epochs of Adam")
    assert f"1/40 and {settings['rows']:,} reviews, weight decay 3 and 20,000 there" in remarks["Deep ensemble"]


@pytest.mark.parametrize("size", ["full", "quick"])
def test_the_remarks_on_uci_count_the_splits_and_say_what_the_prior_was_chosen_by(tmp_path, size):
    settings = find("izmailov2021-small").settings(size)
    chosen = settings["uci"] | {"sets": ["yacht"]}
    log = StudyLog("izmailov2021-small", size, tmp_path, settings | {"uci": chosen})
    scores = ("ll_gaussian", "ll", "rmse", "r_hat_median", "share_r_hat_under_1.1")
    numbers = range(chosen["splits"])
    tried = {f"uci/yacht/prior {scale}/{i}": scale for i in numbers for scale in (0.3, 0.5)}
    best = {i: 0.5 if i % 2 or size == "quick" else 0.3 for i in numbers}
    log.parts = {key: {"ll_gaussian": float(best[int(key[-1])] == scale)} for key, scale in tried.items()}
    # Only the runs of the best prior are there: another choice would begin a run of minutes.
    log.parts |= {f"uci/yacht/{i}, prior {scale}": dict.fromkeys(scores, 1.0) for i, scale in best.items()}
    first, _, last = izmailov2021_uci.run(log)
    assert last.remark.startswith(f"{len(numbers)} splits")
    assert "prior sd 0.3, 0.5, 0.3" in first.remark if size == "full" else "prior sd 0.5, 0.5" in first.remark
    assert ("its training rows alone" in first.remark) == (size == "full")


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_settings_name_their_seed(name):
    for size in study.SIZES:
        assert '"seed' in json.dumps(find(name).settings(size))
    assert '"seed' in json.dumps(json.loads((RESULTS / f"{name}.json").read_text())["settings"])


@pytest.mark.parametrize("name", STUDIES)
def test_the_table_beside_a_results_file_is_what_the_code_writes_from_it(name):
    found = json.loads((RESULTS / f"{name}.json").read_text())
    assert (RESULTS / f"{name}.md").read_text() == table_file(found), "run `make results-page`"


def link_needs(name, root, target):
    """A folder that has what the tiny study says that it reads, and nothing else."""
    for need in NEEDS[name](find(name).settings("tiny"), "tiny"):
        paths = (need,) if need in PUBLISHED_FILES else SOURCES[need].files
        path = next(path for path in paths if (root / path).exists())
        files = (root / path).parent.glob("*-ubyte*") if "idx3" in path else [root / path]
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        for file in files:
            (target / path).with_name(file.name).symlink_to(file.absolute())


TINY = ["gal2016", "izmailov2021-small", "izmailov2021-imdb", "kendall2017", "lakshminarayanan2017", "ood"]


@pytest.mark.long
@needs_data
@pytest.mark.parametrize("name", TINY)
def test_every_study_runs_tiny_on_what_it_says_that_it_reads(name, tmp_path, monkeypatch):
    link_needs(name, data_root(), tmp_path / "data")
    monkeypatch.setenv("POSTERITY_DATA", str(tmp_path / "data"))
    rows = reproduce(name, "tiny", tmp_path)
    began = time.process_time()
    again = reproduce(name, "tiny", tmp_path / "again")
    assert time.process_time() - began < SECONDS_OF_A_TINY_RUN
    np.testing.assert_allclose([row.ours for row in again], [row.ours for row in rows], rtol=1e-6)
    found = json.loads((tmp_path / f"{name}-tiny.json").read_text())
    assert len(found["rows"]) == len(rows) > 0
    assert all(math.isfinite(row.ours) for row in rows)
    assert all((tmp_path / picture).stat().st_size > 5_000 for picture in found["pictures"])
    shown = (tmp_path / f"{name}-tiny.md").read_text()
    assert all(with_error(row.ours, row.standard_error) in shown for row in rows)


@needs_data
def test_the_page_of_results_is_the_one_the_results_files_give():
    assert (RESULTS.parent / "docs" / "results.md").read_text() == page(RESULTS), "run `make results-page`"
