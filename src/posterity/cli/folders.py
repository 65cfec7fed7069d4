"""Folders that runs are kept in: which one to write to, what it holds, and what is left of a run that was stopped."""

from __future__ import annotations

import tempfile
from pathlib import Path

from posterity.cli.errors import InputError
from posterity.storage.folder import LEFT_BEHIND, MANIFEST, Reader

ASKED = "comparison.json"  # what a comparison was asked


def is_comparison(folder: Path) -> bool:
    return (folder / ASKED).is_file()


def holds_run(folder: Path) -> bool:
    """Whether `posterity resume` can take it."""
    return is_comparison(folder) or (folder / MANIFEST).is_file()


def try_writing(path: Path) -> None:
    """Raise OSError where a file or folder, which need not be there yet, could not be written; leaves nothing."""
    there = next((one for one in (path, *path.parents) if one.exists()), Path())
    with tempfile.TemporaryFile(dir=there):
        pass


def check_writable(path: Path, what: str = "a folder") -> Path:
    """Before the work is done: whether what it finds can be kept."""
    try:
        try_writing(path)
    except OSError as error:
        raise InputError(f"{path} is not {what} that can be written to: {error.strerror}; name another.") from error
    return path


def new_folder(given: Path | None, default: str) -> Path:
    """The folder to write to; where none was named, the first free one of that name."""
    if given is None:
        candidates = (Path(default if number == 1 else f"{default}-{number}") for number in range(1, 10_000))
        return check_writable(next(path for path in candidates if not path.exists()))
    if given.is_file():
        raise InputError(f"--out {given} is a file; name a new folder.")
    if holds_run(given):
        raise InputError(
            f"{given} is not empty. Name a new folder with --out, or go on with what is in it: posterity resume {given}"
        )
    if given.is_dir() and (found := sorted(path.name for path in given.iterdir() if not _is_ours(path))):
        raise InputError(f"{given} is not empty: it holds {found[0]}, and no fit. Name a new folder with --out.")
    return check_writable(given)


def after_stop(folder: Path) -> str:
    """What may be said after Ctrl-C: only from a state that was stored can a run go on."""
    if any(_has_state(path.parent) for path in folder.rglob(MANIFEST)):
        return f"What is done is kept: `posterity resume {folder}` goes on."
    if holds_run(folder):
        return f"Nothing was stored yet: `posterity resume {folder}` begins anew."
    return "Nothing was stored yet: give the same command again, and it begins anew."


def _has_state(folder: Path) -> bool:
    body = Reader(folder).body
    return "posterior" in body or body.get("progress") is not None


def _is_ours(path: Path) -> bool:
    """Of a run that was stopped as it began, which a store looks at more closely; hidden files are file managers'."""
    return path.name == LEFT_BEHIND or path.name.startswith(".")
