"""The documentation: its code runs, its tables say what the code says, and the site builds without a warning."""

import contextlib
import doctest
import inspect
import io
import logging
import re
from pathlib import Path

import numpy as np
import pytest

import posterity
from posterity.cli import pages
from posterity.inference import METHODS
from posterity.metrics import SCORES

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "posterity"
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
QUICK = [
    "data.md",
    "machines.md",
    "saving.md",
    *(f"methods/{name}.md" for name in ("deep_ensemble", "exact", "map", "mle")),
]
EXAMPLES = {
    "Model": posterity.Model,
    "Posterior.as_prior": posterity.Posterior.as_prior,
    "Posterior.conformal": posterity.Posterior.conformal,
    "Posterior.diagnose": posterity.Posterior.diagnose,
    "Posterior.predict": posterity.Posterior.predict,
    "Prediction.interval": posterity.Prediction.interval,
    "BayesianRegressor": posterity.BayesianRegressor,
    **{
        name: getattr(posterity, name)
        for name in ("acquire", "audit", "compare_models", "decide", "fit", "likelihood", "load", "prior")
    },
}
PRINTED = re.compile(r"^\| `(\w+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", re.M)
SETTING = re.compile(r"^\| `(\w+)` \| (.*?) \|", re.M)


def blocks(page: str) -> list[tuple[int, str]]:
    """(line, code) of each Python block."""
    text = PAGES[page].read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
    return [(text[: match.start(1)].count("\n"), match.group(1)) for match in found]


def run(page: str) -> dict:
    """All blocks of a page in one namespace, with the page's own line numbers in a traceback."""
    namespace: dict = {"__name__": "__main__"}
    for line, code in blocks(page):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile("\n" * line + code, str(PAGES[page]), "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page in QUICK else pytest.mark.long) for page in PAGES if blocks(page)],
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = run(page)
    if (name := Path(page).stem) in METHODS:
        _check_measured(name, namespace)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name == "audit" else ()) for name in EXAMPLES]
)
def test_the_example_of_a_docstring_prints_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(EXAMPLES[name].__doc__, {}, name, None, None)
    assert example.examples
    report = io.StringIO()
    assert doctest.DocTestRunner().run(example, out=report.write).failed == 0, report.getvalue()


def _check_measured(name: str, namespace: dict) -> None:
    """What a method page prints is what the table of all methods says, within Monte Carlo error of short runs."""
    table = {row[0]: np.array(row[1:], float) for row in PRINTED.findall(PAGES["methods/index.md"].read_text())}
    found = np.sqrt(namespace["prediction"].epistemic)
    np.testing.assert_allclose(found, table[name], rtol=0.5, atol=0.02)


def test_every_method_has_a_page_and_a_line_in_both_tables():
    index = PAGES["methods/index.md"].read_text()
    listed = re.findall(r"^\| \[`(\w+)`\]\((\w+)\.md\) \| `(\w+)` \|", index, re.M)
    assert listed == [(name, name, cls.__name__) for name, cls in METHODS.items()]
    assert [row[0] for row in PRINTED.findall(index)] == list(METHODS)
    assert {f"methods/{name}.md" for name in METHODS} <= set(PAGES)


@pytest.mark.parametrize("name", pages.PAGES)
def test_the_tables_of_methods_and_of_their_settings_are_those_of_the_classes(name):
    text = (ROOT / name).read_text()
    assert text == pages.written(name, text), "run `make pages`"


def test_nobody_counts_the_methods_by_hand():
    counted = re.compile(
        r"\b(nine|ten|eleven|twelve|thirteen|fourteen|fifteen|\d+) (of the \w+ )?(Bayesian )?methods\b", re.I
    )
    texts = [
        ROOT / "README.md",
        ROOT / "pyproject.toml",
        ROOT / "mkdocs.yml",
        *DOCS.rglob("*.md"),
        *SOURCE.rglob("*.py"),
    ]
    assert {str(path): found[0] for path in texts if (found := counted.search(path.read_text()))} == {}


def test_every_score_is_on_the_page_that_explains_the_numbers():
    shown = set(re.findall(r"^\| `(\w+)` \| (?:all|numbers|classes) \|", PAGES["numbers.md"].read_text(), re.M))
    assert shown == set(SCORES) - {"agreement", "total_variation", "wasserstein", "epistemic_distance"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_page_says_all_that_is_needed(name):
    text = PAGES[f"methods/{name}.md"].read_text()
    wanted = ["Equations", "Use", "Settings", "When to use it", "When it fails", "Cost", "Reference"]
    assert re.findall(r"^## (.*)$", text, re.M) == wanted


def test_the_settings_of_the_estimators_are_those_of_the_page():
    section = PAGES["estimators.md"].read_text()
    shown = {row[0]: row[1] for row in SETTING.findall(section[section.index("## Settings") :])}
    for estimator, lacks in ((posterity.BayesianRegressor, {"class_weight"}), (posterity.BayesianClassifier, set())):
        parameters = list(inspect.signature(estimator).parameters.values())
        wanted = {name: default for name, default in shown.items() if name not in lacks}
        assert wanted == {one.name: pages.shown(one.default) for one in parameters}


def test_the_command_page_names_every_command_and_option_and_no_other():
    from typer.main import get_command

    from posterity.cli import app

    text = PAGES["command.md"].read_text()
    commands: dict = get_command(app).commands  # type: ignore[attr-defined]
    options = {name: {flag for one in command.params for flag in one.opts} for name, command in commands.items()}
    used = re.findall(r"^posterity (\w+)(.*)$", text, re.M)
    assert {name for name, _ in used} == set(commands)
    for name, arguments in used:
        assert set(re.findall(r"--[\w-]+", arguments)) <= options[name]
    flags = {flag for found in options.values() for flag in found if flag.startswith("--")} - {"--help"}
    assert flags <= set(re.findall(r"--[\w-]+", text))


def test_every_public_name_is_in_the_reference():
    texts = [path.read_text() for page, path in PAGES.items() if page.startswith("reference/")]
    documented = re.findall(r"^::: posterity(?:\.\w+)*\.(\w+)$", "\n".join(texts), re.M)
    constants = {"METHODS", "Normal"}  # a table, which the reference shows, and numpyro's own class
    assert set(posterity.__all__) - constants - set(documented) == set()


def test_the_site_builds_without_a_warning(tmp_path, caplog):
    config = pytest.importorskip("mkdocs.config")
    build = pytest.importorskip("mkdocs.commands.build")
    with caplog.at_level(logging.WARNING):
        made = config.load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True)
        made.plugins.on_startup(command="build", dirty=False)
        build.build(made)
    assert [record.message for record in caplog.records] == []
    html = "".join(path.read_text() for path in tmp_path.rglob("*.html"))
    assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?://(?!\S*canonical)[^"]*"', html)
    assert (tmp_path / "methods" / "hmc" / "index.html").exists()
