"""The order of the modules: CONTRIBUTING.md lists them in lines, and imports go up the list only."""

import ast
import re
from pathlib import Path

import pytest

from posterity.cli.catalogue import DESCRIPTIONS
from posterity.comparison import LABELS
from posterity.inference import METHODS
from posterity.tabular import SETTINGS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "posterity"


def lines():
    """Module -> the number of its line."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"^    ((?:\w+(?:\.py|/) ?)+) {2,}", text, re.M)
    return {name.removesuffix(".py").strip("/"): i for i, line in enumerate(listed) for name in line.split()}


def imported(path):
    """Top-level modules of this package that a file imports, but for what only a type checker reads."""
    found = set()
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "posterity":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def _without_type_checking(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return tree


MODULES = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")} - {"__init__"}


def test_every_module_is_listed():
    assert set(lines()) == MODULES


@pytest.mark.parametrize("module", sorted(MODULES - {"studies"}))  # studies use the package as its users do
def test_imports_go_up_the_list(module):
    place = lines()
    files = [PACKAGE / f"{module}.py"] if (PACKAGE / f"{module}.py").exists() else (PACKAGE / module).rglob("*.py")
    for path in files:
        below = {name for name in imported(path) & set(place) if place[name] > place[module]}
        assert not below, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(below))}, further down the list"


def test_every_method_is_in_every_table():
    for name, table in {"LABELS": LABELS, "SETTINGS": SETTINGS, "DESCRIPTIONS": DESCRIPTIONS}.items():
        assert set(table) == set(METHODS), f"{name} and METHODS name different methods"
