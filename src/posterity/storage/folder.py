"""A run or a posterior as a directory: safetensors for arrays, then a JSON manifest with the checksum of every file.

Files are written beside their final name, flushed to disk and renamed, the manifest last: whatever interrupts a write,
the manifest on disk names only whole files. `codec` has the form of the values in it.

A store may come from a stranger. Nothing is read or written through a link, sizes are checked before memory is taken,
and a file is checked before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from posterity.core.devices import wait_for_all
from posterity.storage.codec import StoreError

FORMAT = 1
MANIFEST = "manifest.json"
LEFT_BEHIND = "job.safetensors"  # the one file that a run writes before its first manifest
FIRST_STAGE = "start"  # the folder, within that of a run, of the run it starts from
MANIFEST_BYTES = 128 * 2**20  # a manifest takes some kilobytes, and 100 bytes for each file
NO_FOLLOW = 0 if sys.platform == "win32" else os.O_NOFOLLOW

DAMAGE = (  # what values come to that were edited, wherever they are used
    *(LookupError, TypeError, ValueError, AttributeError, AssertionError),
    *(OverflowError, ZeroDivisionError, RecursionError),
)


class Writer:
    """Writes arrays and a manifest into a directory; remembers what is whole.

    `together`: all processes of a run call it in step; the first one writes, and none goes on before it has.
    `ours`: the folder lies within a store, so whatever it holds without a manifest was left by a run that was killed.
    """

    def __init__(self, folder: Path, together: bool = False, ours: bool = False) -> None:
        self.folder, self.together = folder, together
        self.files: dict[str, str] = {}  # name -> checksum
        _refuse_link(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            begins = not (folder / MANIFEST).exists()
            if begins and not ours:
                _check_empty(folder)
        except OSError as error:
            raise StoreError(
                f"Cannot make the folder {folder} or look into it: {error.strerror}. Choose another store."
            ) from error
        self._named = set() if begins else set(_read_manifest(folder)["files"])  # by the manifest on disk
        if begins and together:
            wait_for_all("store")  # or a process that is late would find what the first one has written

    def arrays(self, name: str, values: dict[str, np.ndarray]) -> None:
        try:
            payload = safetensors.numpy.save({key: np.ascontiguousarray(value) for key, value in values.items()})
        except SafetensorError as error:
            raise StoreError(f"A store cannot hold an array of {name}: {error}. Use float32 or float64.") from error
        self._write(f"{name}.safetensors", payload)
        self.files[f"{name}.safetensors"] = _digest(payload)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def drop(self, name: str) -> None:
        """Forget a file; it is removed once a manifest without it is in place."""
        self.files.pop(f"{name}.safetensors", None)

    def manifest(self, body: dict[str, Any]) -> None:
        body = {"format": FORMAT, "files": self.files, **body}
        text = json.dumps(body, sort_keys=True)
        whole = json.dumps({"checksum": _digest(text.encode()), "body": text}, indent=1).encode()
        if len(whole) > MANIFEST_BYTES:
            raise StoreError(
                f"The manifest of {self.folder} would take {_megabytes(len(whole))}, more than the "
                f"{_megabytes(MANIFEST_BYTES)} that can be read again: pass less metadata."
            )
        self._write(MANIFEST, whole)
        if self._writes:
            # Only what this store itself has named: a folder may hold files of others.
            for name in self._named - set(self.files):
                with suppress(OSError):  # what stays behind costs room, nothing else
                    (self.folder / name).unlink()
        self._named = set(self.files)

    @property
    def _writes(self) -> bool:
        return not self.together or jax.process_index() == 0

    def _write(self, name: str, payload: bytes) -> None:
        if self._writes:
            self._replace(name, payload)
        if self.together:
            wait_for_all(name)

    def _replace(self, name: str, payload: bytes) -> None:
        final, temporary = self.folder / name, self.folder / f".{name}.partial"
        try:
            temporary.unlink(missing_ok=True)  # of a run that was killed
            with open(temporary, "xb", opener=_without_following) as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, final)
        except OSError as error:
            with suppress(OSError):  # on a read-only disk this fails as well, and must not hide why
                temporary.unlink(missing_ok=True)
            raise StoreError(
                f"Cannot write {final}: {error.strerror}. What was stored before is whole and readable; make room, or "
                "choose another folder, then resume."
            ) from error


class Reader:
    """Reads a directory and refuses what is damaged, truncated or of a newer format."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.body = _read_manifest(self.folder)
        self.files: dict[str, str] = self.body["files"]
        self._verified: set[str] = set()

    def path(self, name: str) -> Path:
        """A file whose checksum was found right."""
        full = f"{name}.safetensors"
        if full not in self.files:
            raise StoreError(f"The store {self.folder} does not name {full}; it is damaged.")
        path = self.folder / full
        if full not in self._verified:
            if _digest_file(path) != self.files[full]:
                if _read_manifest(self.folder) != self.body:
                    raise StoreError(f"The run in {self.folder} went on while its store was read: read it again.")
                raise StoreError(f"{path} is missing or damaged (its checksum is wrong); restore it from a copy.")
            self._verified.add(full)
        return path

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a file, in memory."""
        size = _size(self.folder / f"{name}.safetensors")
        if size > _memory():
            raise StoreError(
                f"{self.folder / name}.safetensors takes {_megabytes(size)}, more than the memory of this machine: "
                "open it on a larger one."
            )
        path = self.path(name)
        try:
            arrays = safetensors.numpy.load_file(path)
        except (SafetensorError, LookupError, ValueError, OverflowError) as error:
            raise StoreError(f"{path} is damaged ({error}); restore it from a copy.") from error
        for key, array in arrays.items():
            if max(array.shape, default=0) > size:  # an array without numbers may claim any length
                raise StoreError(f"{path} is damaged: {key} has shape {array.shape}; restore it from a copy.")
        return arrays

    def check_files(self) -> None:
        """Refuse a store of which any file is damaged, those of its first stage included."""
        for name in self.files:
            self.path(name.removesuffix(".safetensors"))
        if os.path.lexists(self.folder / FIRST_STAGE / MANIFEST):
            Reader(self.folder / FIRST_STAGE).check_files()

    @contextmanager
    def damage_in_words(self, unless: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """What does not fit together, although every checksum is right, is a store that someone has edited.

        `unless`: asked when an error has come up, whether it is none of the store's.
        """
        try:
            yield
        except StoreError:
            raise
        except (MemoryError, jax.errors.JaxRuntimeError) as error:
            if unless() or not (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)):
                raise
            raise StoreError(
                f"The store {self.folder} asks for more memory than there is ({error}): it was edited, or needs a "
                "larger machine."
            ) from error
        except DAMAGE as error:
            if unless():
                raise
            raise StoreError(
                f"The store {self.folder} does not hold together ({type(error).__name__}: {error}); it was edited, is "
                "from another version, or is not of the model and method passed. Restore it from a copy, or pass those "
                "it began with."
            ) from error


def open_file(path: Path) -> FileIO:
    """A file of a store for reading: no link, which may lead anywhere, and no pipe or device, which may never end."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise StoreError(f"{path} is a link, which no store makes: put the file it leads to in its place.")
        if not stat.S_ISREG(mode):
            raise StoreError(f"{path} is not a file; restore it from a copy.")
        return open(path, "rb", buffering=0, opener=_without_following)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing or damaged; restore it from a copy.") from error
    except OSError as error:
        raise StoreError(f"Cannot read {path}: {error.strerror}.") from error


def _without_following(path: str, flags: int) -> int:
    return os.open(path, flags | NO_FOLLOW, 0o666)


def _refuse_link(folder: Path) -> None:
    """Of a folder within a store; the store itself may well be reached by a link."""
    if folder.is_symlink() and (folder.parent / MANIFEST).exists():
        raise StoreError(f"{folder} is a link, which no store makes: put the folder it leads to in its place.")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    _refuse_link(folder)
    if not os.path.lexists(path):
        remedy = "; the run in it was killed as it began: call fit again" if _left_behind(folder / LEFT_BEHIND) else ""
        raise StoreError(f"{folder} is not a store: it has no {MANIFEST}{remedy}.")
    damaged = StoreError(f"{path} is damaged; restore it from a copy.")
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size  # of this file: a run may put a new one in its place
            if size > MANIFEST_BYTES:
                raise StoreError(
                    f"{path} takes {_megabytes(size)}, and no manifest takes more than {_megabytes(MANIFEST_BYTES)}: "
                    "it is damaged; restore it from a copy."
                )
            whole = json.loads(file.read(size))
        if not isinstance(whole, dict) or _digest(whole["body"].encode()) != whole["checksum"]:
            raise damaged
        body = json.loads(whole["body"])
    except StoreError:
        raise
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise damaged from error
    if not isinstance(body, dict) or not isinstance(body.get("format"), int) or not _names_files(body.get("files")):
        raise damaged
    if body["format"] > FORMAT:
        raise StoreError(
            f"{path} has format {body['format']}, newer than the {FORMAT} this version reads: pip install -U posterity."
        )
    return body


def _names_files(files: Any) -> bool:
    """Whether this maps names of files with arrays, not of places elsewhere, to checksums."""
    return isinstance(files, dict) and all(
        re.fullmatch(r"[\w-]+\.safetensors", name, re.ASCII) and isinstance(files[name], str) for name in files
    )


def _check_empty(folder: Path) -> None:
    """Refuse to begin a store among files of others.

    Hidden ones do not count: file managers leave them behind. Nor does what a run leaves that was killed as it began.
    """
    found = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if found and not (found == [LEFT_BEHIND] and _left_behind(folder / LEFT_BEHIND)):
        raise StoreError(
            f"{folder} is not a store, and is not empty: it holds {', '.join(found[:3])}{' ...' if found[3:] else ''}. "
            f"Choose a new folder, for instance {folder / 'store'}, or empty this one."
        )


def _left_behind(path: Path) -> bool:
    """Whether this is the description of a run: a file of another's own could have its name."""
    if path.is_symlink() or not path.is_file():  # a pipe could be waited for forever
        return False
    try:
        with safe_open(path, "np") as file:
            return {"data/y", "outputs"} <= set(file.keys())
    except (OSError, SafetensorError):
        return False


def whole_number(values: dict[str, Any], name: str, least: int = 0) -> int:
    """A count of a manifest, which may have been edited."""
    number = values[name]
    if type(number) is not int or number < least:
        raise StoreError(
            f"The store gives {name}={number!r}; expected a whole number, at least {least}. It was edited: restore it "
            "from a copy."
        )
    return number


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _digest_file(path: Path) -> str:
    """The checksum of a file; none where there is no file."""
    if not os.path.lexists(path):
        return ""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0  # which whoever opens it reports


def _memory() -> float:
    """Bytes of memory that this machine has."""
    if sys.platform == "win32":
        return math.inf
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"
