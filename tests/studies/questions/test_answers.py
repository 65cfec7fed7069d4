"""How a question is answered: references from disk, reports, the command, and every study once in a tiny form."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from posterity import HMC, Gaussian, Model, fit, mlp
from posterity.cli import app
from posterity.cli.tables import bundled
from posterity.studies.questions import findings, reference
from posterity.studies.questions.question import OUTCOMES, QUESTIONS, answer
from posterity.studies.questions.reference import References, describe, may_judge
from posterity.studies.questions.subject import Subject, row_scores
from posterity.studies.rows import Row
from posterity.studies.study import QUESTION, SIZES, find

ROOT = Path(__file__).parents[3]
METHOD = HMC(20, num_burn_in=20)


def table(name):
    found = bundled(name)
    return Subject(found.title, found.frame, found.target)


@pytest.fixture
def fits(monkeypatch):
    """Budgets of the references that are sampled; each takes the draws that are planned, whatever time it has."""
    made = []

    def planned(model, method, data, *, budget, until, at, **options):
        made.append(budget)
        return fit(model, method, data, **options)

    monkeypatch.setattr(reference, "fit", planned)
    return made


def test_a_second_study_finds_the_reference_of_the_first(tmp_path, line, fits):
    model, other = (Model(mlp((2,), activation="tanh"), Gaussian(noise)) for noise in (0.3, 0.31))
    x, y = line
    references = References(tmp_path)
    first = references.get(model, (x, y), x[:5], 1.0, METHOD)
    again = references.get(model, (x, y), x[:5], 1.0, METHOD)
    assert len(fits) == 1
    np.testing.assert_array_equal(first.posterior.predict(x).outputs, again.posterior.predict(x).outputs)
    assert first.facts == again.facts
    assert first.facts["verdict"] != "good"  # twenty draws cannot be
    references.get(model, (x, y), x[:5], 2.0, METHOD)  # so that more time may do better
    references.get(model, (x, y + 1e-6), x[:5], 1.0, METHOD)
    references.get(other, (x, y), x[:5], 1.0, METHOD)
    assert fits == [1.0, 2.0, 1.0, 1.0]


def test_a_damaged_reference_is_made_again(tmp_path, line, fits):
    model = Model(mlp((2,), activation="tanh"), Gaussian(0.3))
    x, y = line
    References(tmp_path).get(model, (x, y), x[:5], 1.0, METHOD)
    (folder,) = tmp_path.iterdir()
    (folder / "manifest.json").write_text("{}")
    References(tmp_path).get(model, (x, y), x[:5], 1.0, METHOD)
    assert len(fits) == 2


def test_what_may_judge_and_what_may_not():
    facts = {"num_chains": 4, "num_draws": 9, "seconds": 1.0, "num_inputs": 5, "r_hat": 1.2, "effective_draws": 8.0}
    assert [may_judge({"verdict": one}) for one in ("good", "usable", "not converged", "undetermined")] == [1, 1, 0, 0]
    assert "may not judge" in describe({**facts, "verdict": "not converged"})
    assert "may not judge" not in describe({**facts, "verdict": "usable"})
    assert "no R-hat" in describe({**facts, "verdict": "undetermined", "r_hat": None})


@pytest.mark.long
def test_scores_of_numbers_have_no_unit():
    """The same table in other units gives the same scores."""
    found = bundled("diabetes")
    scores = []
    for factor in (1.0, 100.0):
        frame = found.frame.assign(target=found.frame["target"] * factor)
        split = Subject("table", frame, "target").split(0, 60, (2,))
        posterior = split.fit("map", effort=0.02)
        scores.append(row_scores(posterior.predict(split.x_test), split))
    for name in ("nll", "error"):
        np.testing.assert_allclose(scores[0][name], scores[1][name], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_is_whole(name):
    study = find(QUESTION + name)
    assert study.TITLE.endswith("?")
    assert study.REFERENCE.endswith((".", "?"))
    for size in SIZES:
        json.dumps(study.settings(size))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "bma" else pytest.mark.long) for name in QUESTIONS]
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # chains too short to be anything else are reported as such
def test_every_study_runs_in_its_tiny_form(name, tmp_path):
    usual = find(QUESTION + name).DATA
    subject = None if usual is None else table(usual)
    path = answer(name, "tiny", tmp_path, subject, tmp_path / "references")
    found = json.loads(path.with_suffix(".json").read_text())
    assert found["finished"]
    assert found["rows"]
    assert all(row["remark"] and math.isfinite(row["ours"]) for row in found["rows"])
    assert all((tmp_path / picture).stat().st_size > 3_000 for picture in found["pictures"])
    page = path.read_text()
    assert "Conclusion" in page
    assert all(f"<li>{OUTCOMES[row['holds']]}: " in page for row in found["rows"])
    before = path.with_suffix(".json").read_text()
    answer(name, "tiny", tmp_path, subject, None)  # nothing is left to compute
    assert json.loads(path.with_suffix(".json").read_text())["parts"] == json.loads(before)["parts"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["bma", "methods", "shift", "priors", "tempering", "mixing"])
def test_a_regression_of_the_users_own(name, tmp_path):
    path = answer(name, "tiny", tmp_path, table("diabetes"), tmp_path / "references", usual=False)
    assert path.name == f"study-{name}-diabetes-tiny.html"
    assert json.loads(path.with_suffix(".json").read_text())["rows"]


def test_the_command_lists_studies_and_refuses_what_it_cannot_do(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, ["study", *arguments])

    listed = json.loads(run("--json").stdout)
    assert [one["name"] for one in listed] == list(QUESTIONS)
    wrong = run("tempring")
    assert wrong.exit_code == 2
    assert "did you mean 'tempering'" in wrong.stderr
    own = run("width", "--data", "iris")
    assert own.exit_code == 2
    assert "leave out --data" in own.stderr


def test_the_page_of_findings_is_the_one_the_results_give():
    assert (ROOT / "docs" / "findings.md").read_text() == findings.page(ROOT / "results"), "run `make results-page`"


@pytest.mark.parametrize(
    ("holds", "said"),
    [
        ((True, None, True), "confirmed"),
        ((False, None), "contradicted"),
        ((True, False), "in part"),
        ((None, None), "open"),
    ],
)
def test_a_finding_is_what_all_decided_claims_agree_on(holds, said):
    assert findings.verdict([Row("a: b", 0.0, holds=one) for one in holds]) == said
