"""`posterity demo`: the whole tour, as a new user runs it."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_tour_is_written_whole(tmp_path):
    # A process of its own: within the tests programs are compiled without XLA's optimisations, and run for long.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    command = [str(Path(sys.executable).parent / "posterity"), "demo", str(tmp_path / "tour")]
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    path = tmp_path / "tour" / "report.html"
    page = path.read_text()
    assert len(re.findall("<figure", page)) == 6
    assert len(re.findall("<svg", page)) >= 3 + 3 + 2 + 4 + 10 + 1
    assert str(path) in done.stdout
    assert seconds < 600  # three minutes alone, cold; the tests share the machine
