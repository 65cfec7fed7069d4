"""Folders of runs: what is said of one that a stopped run has left."""

from posterity.cli import folders
from posterity.store import Writer


def test_only_what_was_stored_is_said_to_be_kept(tmp_path):
    assert "give the same command again" in folders.after_stop(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.safetensors").write_bytes(b"")  # killed before its first manifest
    assert "give the same command again" in folders.after_stop(tmp_path / "run")
    assert folders.new_folder(tmp_path / "run", "") == tmp_path / "run"  # and that command is not refused
    begun = Writer(tmp_path / "begun")
    begun.manifest({"progress": None})
    assert f"`posterity resume {begun.folder}` begins anew" in folders.after_stop(begun.folder)
    first = Writer(tmp_path / "begun" / "start")  # of a method that starts from another
    first.manifest({"progress": {"num_steps": 5}})
    assert "goes on" in folders.after_stop(tmp_path / "begun")
