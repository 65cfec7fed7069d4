"""Compiled programs kept in a folder of the user's, so that a second run need not compile them again."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from posterity.cli.folders import try_writing
from posterity.cli.output import say

MIN_COMPILE_SECONDS = 0.3  # what compiles quicker is not worth a file
CACHE_BYTES = 500 * 10**6  # a program takes some 100 kB


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/posterity, or ~/.cache/posterity."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "posterity"


def keep_compiled_programs() -> Path | None:
    """Let JAX keep compiled programs in a folder, trimmed to CACHE_BYTES; None, with a remark, where it cannot."""
    import jax

    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return Path(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
    try:
        folder = cache_folder()
    except RuntimeError:
        say("There is no home folder to keep compiled programs in: set XDG_CACHE_HOME to a folder you can write to.")
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)
        trim(folder, CACHE_BYTES)
    except OSError as error:
        say(
            f"Cannot write {folder} ({error.strerror}), so compiled programs are not kept and the next run compiles "
            "them again. Set XDG_CACHE_HOME to a folder you can write to."
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
    return folder


def trim(folder: Path, most: int) -> None:
    """Remove the files that were not used for longest until the others take at most so many bytes."""
    found = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process may trim as well
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found.append((max(status.st_atime, status.st_mtime), status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= most:
            return
        path.unlink(missing_ok=True)  # a process that is about to read it compiles it again
        total -= size
