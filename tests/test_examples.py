"""What people copy must run: the README's code, and every script in examples/."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PICTURES = {"diagnosing_hmc", "images", "own_likelihood"}
NOTEBOOKS = {"what_a_network_knows"}


def test_the_code_in_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "temperature  1" in re.sub(" +", "  ", capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.parametrize("name", [path.name for path in EXAMPLES])
def test_examples_run(name, tmp_path, monkeypatch, capsys):
    if name == "pytorch.py":
        pytest.importorskip("torch", reason="make test-torch runs it where PyTorch is")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr(sys, "argv", [name, str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert capsys.readouterr().out
    stem = Path(name).stem
    assert [path.name for path in tmp_path.iterdir()] == ([f"{stem}.png"] if stem in PICTURES else [])


def test_notebooks_are_of_cells_that_jupytext_reads():
    """The percent format: a header that names it, then cells, those of words in comments alone."""
    assert {path.stem for path in EXAMPLES if "jupytext" in path.read_text()} == NOTEBOOKS
    for name in NOTEBOOKS:
        header, *cells = re.split(r"^# %%", (ROOT / "examples" / f"{name}.py").read_text(), flags=re.M)
        assert "format_name: percent" in header
        assert all(line.startswith("#") for line in header.splitlines() if line)
        words = [cell for cell in cells if cell.startswith(" [markdown]\n")]
        assert 0 < len(words) < len(cells)
        for cell in words:
            assert all(line.startswith("#") for line in cell.splitlines()[1:] if line), cell
