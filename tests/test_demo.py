"""`posterity demo`: the whole tour, as a new user runs it."""

import re
import time

import pytest

from posterity import demo


@pytest.mark.long
def test_the_tour_is_written_whole(tmp_path, capsys):
    began = time.perf_counter()
    path = demo.run(tmp_path)
    page = path.read_text()
    assert len(re.findall("<figure", page)) == 6
    assert len(re.findall("<svg", page)) >= 3 + 3 + 2 + 4 + 10 + 1
    assert str(path) in capsys.readouterr().out
    assert time.perf_counter() - began < 600  # three minutes alone, cold; the tests share the machine
