"""The order of the rooms: CONTRIBUTING.md lists them, and imports go up the list only."""

import ast
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import posterity
from posterity.inference import METHODS
from posterity.inference.methods.card import Expectation
from posterity.inference.methods.sampler import Sampler
from posterity.plots import PALETTE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "posterity"
ROOMS = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
ENTRANCES = {"__init__.py", "__main__.py", "py.typed"}


def order():
    """Room -> its line in the list."""
    listed = re.findall(r"^    (\w+)/ {2,}\w", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    return {name: i for i, name in enumerate(listed)}


def imported(path):
    """Rooms that a file imports from, but for what only a type checker reads."""
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


def test_the_root_holds_rooms_and_nothing_else():
    assert {path.name for path in PACKAGE.iterdir() if not path.is_dir()} == ENTRANCES
    assert set(order()) == ROOMS


@pytest.mark.parametrize("room", sorted(ROOMS - {"studies"}))  # studies use the package as its users do
def test_imports_go_up_the_list(room):
    line = order()
    for path in (PACKAGE / room).rglob("*.py"):
        below = {name for name in imported(path) & set(line) if line[name] > line[room]}
        assert not below, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(below))}, further down the list"


def test_tests_stand_in_folders_of_the_same_names():
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert folders == ROOMS


def packages():
    yield posterity
    for found in pkgutil.walk_packages(posterity.__path__, "posterity."):
        if found.ispkg:
            yield importlib.import_module(found.name)


NEEDS_PYTORCH = {"posterity.networks.pytorch.export"}  # which the environment of these tests does without


@pytest.mark.parametrize("package", list(packages()), ids=lambda package: package.__name__)
def test_no_function_shadows_a_module(package):
    """`posterity.networks.mlp` was a function or a module, depending on what had been imported before."""
    for found in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{found.name}"
        if name in NEEDS_PYTORCH and importlib.util.find_spec("torch") is None:
            continue
        module = importlib.import_module(name)
        assert isinstance(getattr(package, found.name), ModuleType), f"{package.__name__}.{found.name}"
        assert getattr(package, found.name) is module


def test_every_method_has_a_card_of_its_own():
    for name, method in METHODS.items():
        card = vars(method)["card"]
        assert card.name == name
        assert all((card.label, card.what, card.when, card.reference, card.ignorance, card.cost)), name
        assert card.colour in PALETTE
        assert card.is_sampler == issubclass(method, Sampler), name
        assert card.verdict in get_args(Expectation), name
    styles = [(method.card.colour, method.card.line, method.card.marker) for method in METHODS.values()]
    assert len(set(styles)) == len(METHODS)


def test_the_name_and_the_label_of_a_method_are_in_its_own_file_alone():
    """Others take them from its card; the published experiments, which choose methods by name, are left out."""
    words = {word for method in METHODS.values() for word in (method.card.name, method.card.label)}
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room == "studies" or path.parent == PACKAGE / "inference" / "methods":
            continue
        constants = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        exported = {"Laplace"} if path.name == "codec.py" else set()  # numpyro's distribution of that name
        assert not {node.value for node in constants if node.value in words} - exported, path.relative_to(PACKAGE)


# What is asked of objects that are not ours, or before it is known whose they are. Contracts are for all others.
PROBES = {
    "core/checks.py": {"getattr(value, 'shape', None)"},
    "core/devices.py": {"hasattr(os, 'sched_getaffinity')", "hasattr(leaf, 'dtype')"},
    "data/arrays.py": {"hasattr(value, 'toarray')", "hasattr(value, 'to_numpy')"},
    "datasets/catalogue.py": {"getattr(target, 'ndim', 1)"},
    "inference/methods/method.py": {"getattr(value, '__name__', None)"},
    "models/model.py": {"hasattr(network, name)"},
    "models/priors.py": {"hasattr(dist, name)"},
    "networks/adapters.py": {"getattr(function, '__name__', type(function).__name__)"},
    "networks/convolutions.py": {"hasattr(atom, 'val')"},
    "networks/jaxpr.py": {
        "hasattr(atom, 'val')",
        "getattr(inner, 'jaxpr', inner)",
        "getattr(inner, 'consts', ())",
        "hasattr(getattr(inner, 'jaxpr', inner), 'eqns')",
    },
    "posterior/diagnosis.py": {"hasattr(arviz, 'InferenceData')"},
    "posterior/receipt.py": {"getattr(value, '__name__', str(value))"},
    "prediction/mixture.py": {"getattr(distribution, 'support', None)", "getattr(support, name, None)"},
    "report/page.py": {"hasattr(pictures, 'figure')"},
    "report/svg.py": {
        "hasattr(handle, 'get_linestyle')",
        "hasattr(handle, 'get_marker')",
        "hasattr(handle, 'get_facecolor')",
    },
    "storage/codec.py": {"hasattr(value, '_fields')"},
    "studies/study.py": {"hasattr(os, 'sched_setaffinity')", "getattr(find(name), 'PARTS', ())"},
    "tables/estimators.py": {"hasattr(self, 'feature_names_in_')"},
}


def probes(path):
    """Calls that ask whether an object has an attribute: hasattr, and getattr with a default."""
    for node in ast.walk(ast.parse(path.read_text())):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        if name == "hasattr" or (name == "getattr" and len(node.args) == 3):
            yield ast.unparse(node)


def test_nothing_of_ours_is_probed():
    """A method or family that lacks a member is a mistake, which a probe would hide."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        unknown = set(probes(path)) - PROBES.get(name, set())
        assert not unknown, f"{name} probes with {', '.join(sorted(unknown))}: declare the member on the base class"
