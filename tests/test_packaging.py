"""What is shipped: the wheel works where there is no repository, and every tool and dependency has one version."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import posterity

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEN_LINES = """
import numpy as np
import posterity
from posterity import Gaussian, Laplace, Model, Normal, fit, mlp

x = np.linspace(-2, 2, 40)[:, None]
y = np.sin(2 * x[:, 0])
posterior = fit(Model(mlp((10,)), Gaussian(0.1), Normal(0.0, 1.0)), Laplace(), (x, y), holdout=0.1)
inside, outside = posterior.predict(np.array([[0.3], [9.0]])).epistemic
assert outside > inside > 0
print(posterity.__file__)
"""


def normalised(name: str) -> str:
    """A name as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    """Name -> version of every line `name==version`."""
    found = re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(), re.M)
    assert len({normalised(name) for name, _ in found}) == len(found), "a package is pinned twice"
    return {normalised(name): version for name, version in found}


def test_the_version_is_in_one_place():
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    assert posterity.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_everything_that_is_installed_by_name_is_pinned():
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    wanted = {normalised(re.match(r"[\w.-]+", line)[0]) for line in PROJECT["dependencies"] + extras}
    assert wanted - {PROJECT["name"]} <= set(pinned(ROOT / "constraints.txt"))


def test_the_benchmarks_measure_the_versions_that_are_pinned():
    """blackjax is the exception: the peer that is measured asks for an older one."""
    ours, theirs = pinned(ROOT / "constraints.txt"), pinned(ROOT / "benchmarks" / "requirements.txt")
    differing = {name for name in set(ours) & set(theirs) if ours[name] != theirs[name]}
    assert differing == {"blackjax"}


def test_the_hooks_are_the_tools_of_the_environment():
    """Nothing is fetched when a commit is made: the hooks run what `make lint types` has installed."""
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert set(re.findall(r"repo: (\S+)", text)) == {"local"}
    tools = {normalised(entry) for entry in re.findall(r"entry: \.venv/bin/([\w-]+)", text)}
    assert tools == {"ruff", "pyright"}
    assert tools <= set(pinned(ROOT / "constraints.txt"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment that holds the wheel and its dependencies, and nothing of the repository."""
    folder = tmp_path_factory.mktemp("away")
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder / "dist", ROOT], folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    run([sys.executable, "-m", "venv", folder / "empty"], folder)
    binaries = folder / "empty" / ("Scripts" if sys.platform == "win32" else "bin")
    run([binaries / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel], folder)
    return binaries


def run(command: list, folder: Path) -> str:
    """What a command prints, in a folder away from the repository, with compiled programs of its own."""
    ours = ("PYTHONPATH", "XLA_FLAGS", "POSTERITY_DATA")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment["XDG_CACHE_HOME"] = str(folder / "cache")
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.long
def test_the_wheel_is_whole(installed, tmp_path):
    """The version, a fit, and the tour, all from the files of the wheel alone."""
    assert run([installed / "posterity", "--version"], tmp_path) == f"posterity {posterity.__version__}\n"
    found = Path(run([installed / "python", "-c", TEN_LINES], tmp_path).splitlines()[-1])
    assert found.is_relative_to(installed.parent)
    run([installed / "posterity", "demo", tmp_path / "tour"], tmp_path)
    assert "<svg" in (tmp_path / "tour" / "report.html").read_text()
