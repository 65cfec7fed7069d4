"""What every reproduced experiment shares: three sizes of a run, parts that are computed once, and what is written.

A study is a function of a `StudyLog` that yields rows: our numbers beside the published ones. It computes in parts,
`log.once(key, function)`; each part is written to disk as soon as it is known, so that a run of hours that was
stopped has a table of what it found, and goes on where it was. `reproduce` writes NAME.json (settings, every number,
versions), NAME.md (the table) and the pictures. One part of a study that consists of several, its PARTS, can be run
alone; it writes NAME-PART.json and so on, and the page of results does not read it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from posterity.datasets.files import checks_files
from posterity.posterior.receipt import installed_versions
from posterity.studies.needs import check_data
from posterity.studies.needs import published_file as published_file
from posterity.studies.rows import Row, read_rows, tables

Size = Literal["full", "quick", "tiny"]
SIZES: tuple[Size, ...] = ("full", "quick", "tiny")
QUESTION = "study-"  # what the name of a question's results begins with
UNFINISHED = "\nThis run was stopped before its end: rows are missing. The same command goes on with it.\n"

# Each is a module of this package with TITLE, REFERENCE, LEFT_OUT (what of the paper is not here), settings(size) and
# run(log) -> rows. Where it has PARTS, settings(size) has an entry for each, and run does those of the log's.
STUDIES = {
    "gal2016": "gal2016",
    "blundell2015": "blundell2015",
    "kendall2017": "kendall2017",
    "lakshminarayanan2017": "lakshminarayanan2017",
    "izmailov2021-small": "izmailov2021_small",
    "izmailov2021-imdb": "izmailov2021_imdb",
    "ood": "ood",
}


class StudyLog:
    """A run of a study, or of one part of it: its size and settings, and the numbers that are already known."""

    def __init__(self, name: str, size: Size, folder: Path, settings: dict[str, Any], part: str | None = None) -> None:
        self.name, self.folder, self.settings = name, folder, settings
        self.size: Size = size
        self.part = part
        self.stem = stem(name, size, part)
        self.parts: dict[str, Any] = {}
        self.asked: set[str] = set()  # keys of parts, by this run
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
        self.asked.add(key)
        if key not in self.parts:
            self._keep(key, _timed(compute))
        return self.parts[key]

    def each(self, jobs: dict[str, tuple[Any, ...]], compute: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """The part compute(*arguments) of every key, in processes that have a core each.

        A network trains on one core, or gains little from a second one. A tiny run stays in this process, which has
        its programs compiled.
        """
        self.asked |= set(jobs)
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

    def finish(self) -> None:
        """Let go of parts that the whole run did not ask for: those of a setting or a method that was given up."""
        self.parts = {key: part for key, part in self.parts.items() if key in self.asked}
        self.finished = True
        self.write()

    def write(self) -> None:
        """The JSON file, whole or not at all, and the table of the rows so far."""
        study = find(self.name)
        document = {
            "study": self.name,
            "title": study.TITLE if self.part is None else f"{study.TITLE}: {self.part}",
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
    return {**found, "seconds": round(time.perf_counter() - began, 2), "made_by": _made_by()}


def _made_by() -> str:
    """The version that computed a part, the commit if it is a checkout, and whether its data were taken unchecked."""
    told = [f"posterity {installed_versions()['posterity']}", _commit(), "" if checks_files() else "data unchecked"]
    return ", ".join(filter(None, told))


@cache
def _commit() -> str:
    """Of the checkout that this package is part of, with a mark if its files differ; nothing outside of one."""
    here = Path(__file__)

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, check=False)

    try:
        if git("ls-files", "--error-unmatch", here.name).returncode:  # installed into a folder of another repository
            return ""
    except OSError:  # no git here
        return ""
    same = git("diff", "--quiet", "HEAD", "--", str(here.parents[1])).returncode == 0
    return f"commit {git('rev-parse', '--short', 'HEAD').stdout.strip()}{'' if same else ' with changes'}"


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
    """The module of a study: of a published one, or of a question."""
    if name.startswith(QUESTION):
        return importlib.import_module(f"posterity.studies.questions.{name.removeprefix(QUESTION)}")
    return importlib.import_module(f"posterity.studies.published.{STUDIES[name]}")


def stem(name: str, size: Size, part: str | None = None) -> str:
    """What the names of the files of a run begin with."""
    return "-".join([name, *([] if part is None else [part]), *([] if size == "full" else [size])])


def settings_of(name: str, size: Size, part: str | None = None) -> dict[str, Any]:
    """Those of a whole study, or of one of its parts."""
    study = find(name)
    settings = study.settings(size)
    if part is None:
        return settings
    known = [each for each in parts_of(name) if each in settings]
    if part in known:
        return {part: settings[part]}
    if not parts_of(name):
        several = ", ".join(each for each in STUDIES if parts_of(each))
        raise ValueError(f"{name} has no parts to run alone; leave out --part {part}. Studies that have: {several}.")
    where = "" if size == "full" else f" when it is {size}"
    raise ValueError(f"{name} has no part {part!r}{where}; its parts are {', '.join(known)}.")


def parts_of(name: str) -> list[str]:
    return list(getattr(find(name), "PARTS", ()))


def reproduce(name: str, size: Size = "full", folder: str | Path = "results", part: str | None = None) -> list[Row]:
    """Run a study, or what is left of it, and write its numbers, its table and its pictures."""
    settings = settings_of(name, size, part)
    log = StudyLog(name, size, Path(folder), settings, part)  # a damaged results file is found without any data
    check_data(name, settings, size)
    for row in find(name).run(log):
        log.rows.append(row)
        log.write()
    log.finish()
    return log.rows


def mean_and_error(values: Any) -> tuple[float, float | None]:
    """The mean of repeated runs and its standard error; no error from a single one."""
    array = np.asarray(list(values), float)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None


def _brief(found: dict[str, Any]) -> str:
    """The plain numbers of a part."""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    return ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
