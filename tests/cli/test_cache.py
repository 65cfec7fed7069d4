"""The folder of compiled programs: bounded, and left out where there is no place for it."""

import os
from pathlib import Path

from posterity.cli import cache


def test_the_files_unused_for_longest_are_removed(tmp_path):
    for number in range(5):
        path = tmp_path / f"program-{number}"
        path.write_bytes(bytes(100))
        os.utime(path, (1000 + number, 1000 + number))
    outside = tmp_path.parent / "outside"
    outside.write_bytes(bytes(1000))
    (tmp_path / "link").symlink_to(outside)
    (tmp_path / "folder").mkdir()
    cache.trim(tmp_path, 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "program-3", "program-4"]
    assert outside.stat().st_size == 1000


def test_a_user_without_a_home_is_told_how_to_keep_programs(monkeypatch, capsys):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert cache.keep_compiled_programs() is None
    assert "set XDG_CACHE_HOME" in capsys.readouterr().err
