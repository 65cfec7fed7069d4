"""The share of the long tests that a commit runs (.ci/share.py): how it is cut, and what its failures mean."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "share.py"
_spec = importlib.util.spec_from_file_location("share", SCRIPT)
share = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(share)


@pytest.mark.parametrize(
    ("seconds", "target", "sizes"),
    [
        ([10] * 12, 60, [6, 6]),
        ([10] * 12, 1000, [12]),
        ([5, 5, 100, 5, 5], 30, [2, 1, 2]),  # one test longer than a slice is a slice of its own
        ([1], 600, [1]),
        ([], 600, []),
    ],
)
def test_slices_are_of_about_equal_time(seconds, target, sizes):
    assert [len(part) for part in share.cut(seconds, target)] == sizes


def test_every_test_is_in_one_slice_and_slices_are_near_their_length():
    seconds = [0.1 + (7 * i * i) % 31 for i in range(500)]
    slices = share.cut(seconds, 300)
    assert [i for part in slices for i in part] == list(range(500))
    assert all(abs(sum(seconds[i] for i in part) - 300) <= 2 * 31 for part in slices)


def test_commits_choose_among_all_slices_by_their_hash():
    tests = [f"tests/test_a.py::test_b[{i}]" for i in range(100)]
    durations = {"tests/test_a.py::test_b": 60.0}  # five slices of 20
    chosen = [tuple(share.choose(tests, durations, f"{commit:040x}")[0]) for commit in range(7)]
    assert chosen[:5] == [tuple(tests[20 * k : 20 * k + 20]) for k in range(5)]
    assert chosen[5:] == chosen[:2]
    assert share.choose(tests, {}, "0")[1] == "share 1 of 1: 100 of 100 tests, about 9 minutes"  # ten seconds each


def test_failures_count_where_the_parent_passes_or_lacks_the_test():
    assert share.judge(["new", "broken", "old"], ["broken", "old"], ["old"]) == (["new", "broken"], ["old"])
    assert share.judge(["old"], None, []) == ([], ["old"])


@pytest.fixture
def project(tmp_path):
    """A repository with this script and with tests of its own."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    (tmp_path / ".ci" / "durations.json").write_text("{}")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = long: slow\n")
    return tmp_path


def commit(project, **passes):
    """A commit whose long tests pass or fail."""
    tests = [f"@pytest.mark.long\ndef test_{name}():\n    assert {value}\n" for name, value in passes.items()]
    (project / "tests" / "test_it.py").write_text("import pytest\n\n" + "\n".join(tests))
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "A commit"], check=True)


def run(project):
    done = subprocess.run([sys.executable, str(project / ".ci" / "share.py")], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_what_the_change_broke_fails_and_what_was_broken_is_reported(project):
    commit(project, fine=True, old=False, broken=True)
    code, words = run(project)
    assert code == 0  # no parent
    assert "reported only, as the parent commit cannot be run:\n  tests/test_it.py::test_old" in words

    commit(project, fine=True, old=False, broken=False, new=False)
    code, words = run(project)
    assert code == 1
    assert "reported only, as they fail on the parent commit too:\n  tests/test_it.py::test_old\n" in words
    assert "broken by this change:\n  tests/test_it.py::test_broken\n  tests/test_it.py::test_new\n" in words

    commit(project, fine=True, old=False)
    code, words = run(project)
    assert code == 0
    assert "broken by this change" not in words


@pytest.mark.long
def test_a_share_that_cannot_be_chosen_is_no_failure(project):
    assert run(project) == (0, "Long tests: skipped, as there is no git commit to choose a share by.\n")
    commit(project)
    assert run(project) == (0, "Long tests: there are none.\n")
    commit(project, fine=True)
    code, words = run(project)
    assert code == 0
    assert "share 1 of 1: 1 of 1 tests" in words
    (project / "tests" / "test_it.py").write_text("import nothing_of_that_name\n")
    assert run(project)[0] == 1
