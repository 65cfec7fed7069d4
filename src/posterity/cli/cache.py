"""Compiled programs kept in a folder of the user's, so that a second run need not compile them again."""

from __future__ import annotations

import os
from pathlib import Path

from posterity.cli.folders import try_writing
from posterity.cli.output import say

MIN_COMPILE_SECONDS = 0.3  # what compiles quicker is not worth a file


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/posterity, or ~/.cache/posterity."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "posterity"


def keep_compiled_programs() -> Path | None:
    """Tell JAX where to keep compiled programs; None, said aloud, where that folder cannot be written."""
    import jax

    if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        return Path(jax.config.jax_compilation_cache_dir)  # type: ignore[attr-defined]
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try_writing(folder)
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
