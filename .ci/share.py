"""A share of the long tests, about ten minutes of them, chosen by the commit.

    python .ci/share.py                    run the share of this commit
    python .ci/share.py record REPORT.xml  keep the durations of a run of the long tests (`make test-long` writes one)

The long tests, in the order in which they are collected, are cut into slices of about equal time; the hash of the
commit chooses one, so that all of them get their turn as commits follow each other. What fails twice is run again on
the parent commit: where it fails there too, or where there is no parent to run, it is reported, and this change passes.
"""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = Path(__file__).with_name("durations.json")  # test function -> mean seconds of one of its tests
UNKNOWN = 10.0  # seconds of a test that has not been recorded
PROCESSES = 2
SLICE = 600.0  # seconds
LIMIT, LIMIT_AGAIN = 1200.0, 600.0  # seconds, after which a run is given up: estimates may be wrong for a machine
PYTEST = (sys.executable, "-m", "pytest", "-q")
NOTHING_COLLECTED = 5


def function(test: str) -> str:
    """The name of a test without its parameters."""
    return test.split("[")[0]


def cut(seconds: Sequence[float], target: float) -> list[range]:
    """Consecutive slices of about `target` each: item i is in the slice in which the middle of its time falls."""
    total = sum(seconds)
    count = max(1, round(total / target))
    ends, past = [0] * (count + 1), 0.0
    for i, one in enumerate(seconds):
        k = min(count - 1, int((past + one / 2) / total * count))
        ends[k + 1] = i + 1
        past += one
    for k in range(count):  # a slice without an item, beside one that is longer than a slice
        ends[k + 1] = max(ends[k], ends[k + 1])
    return [range(first, last) for first, last in itertools.pairwise(ends) if last > first]


def choose(tests: Sequence[str], durations: dict[str, float], commit: str) -> tuple[list[str], str]:
    """The tests that a commit runs, and a sentence about them."""
    seconds = [durations.get(function(test), UNKNOWN) for test in tests]
    slices = cut(seconds, PROCESSES * SLICE)
    k = int(commit, 16) % len(slices)
    minutes = sum(seconds[i] for i in slices[k]) / PROCESSES / 60
    words = (
        f"share {k + 1} of {len(slices)}: {len(slices[k])} of {len(tests)} tests, about {math.ceil(minutes)} minutes"
    )
    return [tests[i] for i in slices[k]], words


def judge(failed: Sequence[str], parents: Sequence[str] | None, also: Sequence[str]) -> tuple[list[str], list[str]]:
    """(tests that this change broke, tests that failed before it): `parents` are the parent's tests, `also` those of
    them that fail there; None where there is no parent to run. A test that the parent lacks came with this change."""
    if parents is None:
        return [], list(failed)
    old = [test for test in failed if test in parents and test in also]
    return [test for test in failed if test not in old], old


def git(*words: str) -> bytes | None:
    """What git prints, or None where it cannot answer."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def environment(folder: Path) -> dict[str, str]:
    """The package of this folder, and the data beside the repository."""
    data = os.environ.get("POSTERITY_DATA", str(ROOT.parent / "shared" / "data"))
    return os.environ | {"PYTHONPATH": str(folder / "src"), "POSTERITY_DATA": data}


def collect(folder: Path) -> list[str] | None:
    """The long tests of a checkout, in their order; None where they cannot be collected."""
    command = [*PYTEST, "-p", "no:cacheprovider", "--collect-only", "-m", "long", "tests"]
    done = subprocess.run(command, cwd=folder, env=environment(folder), capture_output=True, text=True, check=False)
    if done.returncode not in (0, NOTHING_COLLECTED):
        print(done.stdout[-3000:], done.stderr[-3000:])
        return None
    return [line for line in done.stdout.splitlines() if "::" in line]


def failures(folder: Path, tests: Sequence[str], limit: float = LIMIT) -> list[str] | None:
    """Those of the tests that fail; None where the run was given up."""
    with tempfile.TemporaryDirectory() as scratch:
        names = Path(scratch, "tests.txt")
        names.write_text("\n".join(tests))
        # Neighbours share compiled programs: each process begins with half of the list, and helps the other at the end.
        spread = ["-n", str(PROCESSES), "--dist", "worksteal", "-o", f"cache_dir={scratch}"]
        command = [*PYTEST, *spread, f"@{names}"]
        running = subprocess.Popen(command, cwd=folder, env=environment(folder), start_new_session=True)
        try:
            code = running.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            return None
        found = Path(scratch, "v", "cache", "lastfailed")
        failed = list(json.loads(found.read_text())) if found.exists() else []
        if code != 0 and not failed:
            print(f"Long tests: pytest ended with code {code} and named no test that failed; its output is above.")
            return None
        return failed


def ask_parent(failed: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """The tests of the parent commit, and the failed ones that fail there too; None where they cannot be run."""
    archive = git("archive", "--format=tar", "HEAD^")
    if archive is None:
        return None, []
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        tests = collect(Path(folder))
        if tests is None:
            return None, []
        shared = [test for test in failed if test in tests]
        also = failures(Path(folder), shared, LIMIT_AGAIN) if shared else []
        return (None, []) if also is None else (tests, also)


def run() -> int:
    """The share of this commit; 1 where this change broke a test of it."""
    commit = git("rev-parse", "HEAD")
    if commit is None:
        print("Long tests: skipped, as there is no git commit to choose a share by.")
        return 0
    tests = collect(ROOT)
    if tests is None:
        print("Long tests: they cannot be collected; the errors are above.")
        return 1
    if not tests:
        print("Long tests: there are none.")
        return 0
    chosen, words = choose(tests, json.loads(DURATIONS.read_text()), commit.decode().strip())
    print(f"Long tests: {words}.", flush=True)
    failed = failures(ROOT, chosen)
    if failed is None:
        print(f"Long tests: no result within {LIMIT / 60:.0f} minutes; reported only. `make test-long` runs them all.")
        return 0
    if failed:
        print(f"Long tests: {len(failed)} failed; they are run once more.", flush=True)
        again = failures(ROOT, failed, LIMIT_AGAIN) or []
        if by_chance := [test for test in failed if test not in again]:
            print("Long tests: failed once in two runs, reported only:", *by_chance, sep="\n  ")
        failed = again
    if not failed:
        return 0
    print(f"Long tests: {len(failed)} failed; they are run again on the parent commit.", flush=True)
    parents, also = ask_parent(failed)
    broken, old = judge(failed, parents, also)
    reason = "the parent commit cannot be run" if parents is None else "they fail on the parent commit too"
    if old:
        print(f"Long tests: reported only, as {reason}:", *old, sep="\n  ")
    if broken:
        print("Long tests: broken by this change:", *broken, sep="\n  ")
    return int(bool(broken))


def record(report: Path) -> None:
    """Keep the mean seconds of the tests of each function, from a JUnit report; other functions stay as they are."""
    seconds: dict[str, list[float]] = {}
    for case in ElementTree.parse(report).iterfind(".//testcase[@classname]"):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        seconds.setdefault(function(f"{path}::{case.attrib['name']}"), []).append(float(case.attrib["time"]))
    durations = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    durations |= {name: max(0.1, round(sum(found) / len(found), 1)) for name, found in seconds.items()}
    DURATIONS.write_text(json.dumps(dict(sorted(durations.items())), indent=0) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["record"] and len(sys.argv) == 3:
        record(Path(sys.argv[2]))
    elif len(sys.argv) == 1:
        sys.exit(run())
    else:
        sys.exit(__doc__)
