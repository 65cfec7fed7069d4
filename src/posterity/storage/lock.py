"""One writer at a time: a lock on a store for as long as a run writes to it.

The lock is one of the operating system, on a file of the folder, so it ends with the process that holds it, however
that ends; the file only tells others whom they wait for.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax

from posterity.core.names import printable
from posterity.storage.codec import StoreError
from posterity.storage.folder import NO_FOLLOW

LOCK = ".lock"
NOTHING_TO_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep other processes from writing to a store; of processes that run together the first one holds it."""
    made = not folder.exists()
    descriptor = _acquire(folder) if jax.process_index() == 0 else None
    try:
        yield
    finally:
        if descriptor is not None:
            (folder / LOCK).unlink(missing_ok=True)  # before it is let go of: afterwards it may be another's
            os.close(descriptor)
        if made:
            with suppress(OSError):  # what was refused leaves no empty folder behind
                folder.rmdir()


def _acquire(folder: Path) -> int | None:
    """The open file that holds the lock; None where there is nothing to lock, or with a warning no way to."""
    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"{path} is a link, which no store makes: remove it.") from error
            if error.errno not in NOTHING_TO_WRITE and not isinstance(error, FileExistsError):
                _warn(folder, error)
            return None  # whoever writes here finds out why that is impossible
        try:
            _lock(descriptor)
        except BlockingIOError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreError(
                f"{folder} is in use by {printable(holder) or 'another process'}, which is writing to it: wait until "
                "that ends, or stop it, then resume. Nothing was changed."
            ) from error
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            _warn(folder, error)
            return None
        if _is_at(descriptor, path):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            return descriptor
        os.close(descriptor)  # the one who held it has removed the file


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOLCK, "not on this system")
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _warn(folder: Path, error: OSError) -> None:
    warnings.warn(
        f"{folder} cannot be locked ({error.strerror}): make sure that no other process writes to this store.",
        stacklevel=4,
    )
