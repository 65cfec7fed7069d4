"""What every reproduced experiment shares: three sizes of a run, parts that are computed once, and what is written.

A study is a function of a `Record` that yields rows: our numbers beside the published ones. It computes in parts,
`record.once(key, function)`; each part is written to disk as soon as it is known, so that a run of hours that was
stopped has a table of what it found, and goes on where it was. `reproduce` writes NAME.json (settings, every number,
versions), NAME.md (the table) and the pictures.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from posterity.data import data_root
from posterity.receipt import installed_versions
from posterity.studies.rows import Row, read_rows, tables

Size = Literal["full", "quick", "tiny"]
SIZES: tuple[Size, ...] = ("full", "quick", "tiny")
UNFINISHED = "\nThis run was stopped before its end: rows are missing. The same command goes on with it.\n"

PUBLISHED_FILES = {
    "uci/published_per_split_results.json": "the results folders of the code of Gal & Ghahramani 2016",
    "toy/bnn_hmc_synth_reg_data.npz": "the code of Izmailov et al. 2021",
    "toy/bnn_hmc_synth_hmc_trace.csv": "the notebooks in the code of Izmailov et al. 2021",
    "hmc_reference/hmc_reference.npz": "the samples that Izmailov et al. 2021 published",
}
# Each is a module of this package with TITLE, REFERENCE, LEFT_OUT (what of the paper is not here), settings(size) and
# run(record) -> rows.
STUDIES = {
    "gal2016": "gal2016",
    "blundell2015": "blundell2015",
    "kendall2017": "kendall2017",
    "lakshminarayanan2017": "lakshminarayanan2017",
    "izmailov2021-small": "izmailov2021_small",
    "izmailov2021-imdb": "izmailov2021_imdb",
    "ood": "ood",
}


class Record:
    """A run of a study: its size and settings, and the parts that are already known."""

    def __init__(self, name: str, size: Size, folder: Path, settings: dict[str, Any]) -> None:
        self.name, self.folder, self.settings = name, folder, settings
        self.size: Size = size
        self.stem = name if size == "full" else f"{name}-{size}"
        self.parts: dict[str, Any] = {}
        self.rows: list[Row] = []
        self.pictures: list[str] = []
        self.finished = False
        if self.path.exists():
            before = _read_document(self.path)
            same = partial(_same_settings, before["settings"], json.loads(json.dumps(settings)))
            self.parts = {key: part for key, part in before["parts"].items() if same(key)}

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem}.json"

    def once(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name: as an earlier run left it, or computed now and kept."""
        if key not in self.parts:
            self._keep(key, _timed(compute))
        return self.parts[key]

    def each(self, jobs: dict[str, tuple[Any, ...]], compute: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """The part compute(*arguments) of every key, in processes that have a core each.

        A network trains on one core, or gains little from a second one. A tiny run stays in this process, which has
        its programs compiled.
        """
        missing = {key: arguments for key, arguments in jobs.items() if key not in self.parts}
        if self.size == "tiny":
            for key, arguments in missing.items():
                self.once(key, partial(compute, *arguments))
        elif missing:
            with _a_process_a_core() as pool:
                waiting = {pool.submit(_timed, compute, *arguments): key for key, arguments in missing.items()}
                try:
                    for job in as_completed(waiting):
                        self._keep(waiting[job], job.result())
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
        return {key: self.parts[key] for key in jobs}

    def _keep(self, key: str, found: dict[str, Any]) -> None:
        self.parts[key] = found
        self.say(f"{key}: {_brief(found)}")
        self.write()

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name} {text}\n")
        sys.stderr.flush()

    def picture(self, label: str, figure: Any) -> Path:
        """Keep a matplotlib figure beside the numbers."""
        path = self.folder / f"{self.stem}-{label}.png"
        save_picture(figure, path)
        self.keep_picture(path.name)
        return path

    def keep_picture(self, name: str) -> None:
        """Say that a file which an earlier part drew belongs to this study."""
        if name not in self.pictures:
            self.pictures.append(name)

    def write(self) -> None:
        """The JSON file, whole or not at all, and the table of the rows so far."""
        study = find(self.name)
        document = {
            "study": self.name,
            "title": study.TITLE,
            "reference": study.REFERENCE,
            "size": self.size,
            "settings": self.settings,
            "versions": installed_versions(),
            "seconds": round(sum(part["seconds"] for part in self.parts.values()), 1),
            "finished": self.finished,
            "rows": [row._asdict() for row in self.rows],
            "pictures": self.pictures,
            "parts": self.parts,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        waiting = self.path.with_suffix(".json.part")
        waiting.write_text(_json(document) + "\n")
        waiting.replace(self.path)
        if text := table_file(document):
            self.path.with_suffix(".md").write_text(text)


def table_file(found: dict[str, Any]) -> str:
    """What stands in NAME.md beside a results file; nothing where there are no rows yet."""
    heading = f"# {found['title']}\n\n{found['reference']}\n\n"
    return heading + tables(read_rows(found)) + ("" if found["finished"] else UNFINISHED) if found["rows"] else ""


def _read_document(path: Path) -> dict[str, Any]:
    """What an earlier run left."""
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        found = json.loads(path.read_text())
        if isinstance(found["settings"], dict) and all("seconds" in part for part in found["parts"].values()):
            return found
    raise ValueError(f"{path} is damaged, so the run cannot go on from it. Move it away to begin anew.")


def _same_settings(before: dict[str, Any], now: dict[str, Any], key: str) -> bool:
    """Whether a part may be kept: "uci/yacht/0" depends on settings["uci"] alone where there is such an entry."""
    group = key.split("/")[0]
    return before[group] == now[group] if group in before and group in now else before == now


def _json(value: Any, depth: int = 0) -> str:
    """One line for each entry, and one for a whole list of plain values: some have ten thousand."""
    inside, outside = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and value:
        entries = (f"{json.dumps(name)}: {_json(item, depth + 1)}" for name, item in value.items())
        return "{" + inside + f",{inside}".join(entries) + outside + "}"
    if isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        return "[" + inside + f",{inside}".join(_json(item, depth + 1) for item in value) + outside + "]"
    return json.dumps(value, ensure_ascii=False)


def save_picture(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _timed(compute: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    began = time.perf_counter()
    found = compute(*arguments)
    return {**found, "seconds": round(time.perf_counter() - began, 2)}


def _a_process_a_core() -> ProcessPoolExecutor:
    context = get_context("spawn")
    if not hasattr(os, "sched_setaffinity"):
        return ProcessPoolExecutor(os.cpu_count(), context)
    cores = sorted(os.sched_getaffinity(0))
    free = context.Queue()
    for core in cores:
        free.put(core)
    return ProcessPoolExecutor(len(cores), context, _take_a_core, (free,))


def _take_a_core(free: Any) -> None:
    os.sched_setaffinity(0, {free.get()})
    jax.config.update("jax_num_cpu_devices", 1)  # importing this package has asked for a device on every core


def find(name: str) -> Any:
    """The module of a study."""
    return importlib.import_module(f"posterity.studies.{STUDIES[name]}")


def reproduce(name: str, size: Size = "full", folder: str | Path = "results") -> list[Row]:
    """Run a study, or what is left of it, and write its numbers, its table and its pictures."""
    study = find(name)
    record = Record(name, size, Path(folder), study.settings(size))
    for row in study.run(record):
        record.rows.append(row)
        record.write()
    record.finished = True
    record.write()
    return record.rows


def published_file(name: str) -> Path:
    """A file of published numbers among the data; none of them is a data set, so `load` does not know them."""
    path = data_root() / name
    if not path.exists():
        raise FileNotFoundError(
            f"{path.absolute()} is missing. It comes from {PUBLISHED_FILES[name]}; put it there, or name the folder "
            "that holds it with the variable POSTERITY_DATA."
        )
    return path


def mean_and_error(values: Any) -> tuple[float, float | None]:
    """The mean of repeated runs and its standard error; no error from a single one."""
    array = np.asarray(list(values), float)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None


def _brief(found: dict[str, Any]) -> str:
    """The plain numbers of a part."""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    return ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
