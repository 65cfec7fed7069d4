"""What every reproduced experiment shares: three sizes of a run, parts that are computed once, and what is written.

A study is a function of a `Record` that yields rows: our numbers beside the published ones. It computes in parts,
`record.once(key, function)`; each part is written to disk as soon as it is known, so that a run of hours that was
stopped has a table of what it found, and goes on where it was. `reproduce` writes NAME.json (settings, every number,
versions), NAME.md (the table) and the pictures.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from posterity.posterior import installed_versions

Size = Literal["full", "quick", "tiny"]
SIZES: tuple[Size, ...] = ("full", "quick", "tiny")
NUM_PROCESSES = 2
UNFINISHED = "\nThis run was stopped before its end: rows are missing. The same command goes on with it.\n"

# Each is a module of this package with TITLE, REFERENCE, settings(size) and run(record) -> rows.
STUDIES = {
    "gal2016": "gal2016",
    "blundell2015": "blundell2015",
    "kendall2017": "kendall2017",
    "lakshminarayanan2017": "lakshminarayanan2017",
    "izmailov2021-small": "izmailov2021_small",
    "izmailov2021-imdb": "izmailov2021_imdb",
    "ood": "ood",
}


class Row(NamedTuple):
    """One number of ours beside the published one, or beside a target."""

    name: str
    ours: float
    standard_error: float | None = None
    published: float | None = None
    published_error: float | None = None
    difference: tuple[float, float] | None = None  # ours - published and its standard error, where rows were paired
    target: str = ""  # in words, with its number: "at most 1.5 %"
    holds: bool | None = None  # the target; None where there is none
    remark: str = ""  # why a number stands where it stands

    def apart(self) -> float | None:
        """How far ours lies from the published value, in standard errors of the difference."""
        if self.difference is not None:
            return self.difference[0] / self.difference[1] if self.difference[1] > 0 else None
        if self.published is None:
            return None
        error = math.hypot(self.standard_error or 0.0, self.published_error or 0.0)
        return (self.ours - self.published) / error if error > 0 else None


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
            before = json.loads(self.path.read_text())
            if before["settings"] == json.loads(json.dumps(settings)):
                self.parts = before["parts"]

    @property
    def path(self) -> Path:
        return self.folder / f"{self.stem}.json"

    def once(self, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The part of this name: as an earlier run left it, or computed now and kept."""
        if key not in self.parts:
            began = time.perf_counter()
            found = compute()
            self.parts[key] = {**found, "seconds": round(time.perf_counter() - began, 2)}
            self.say(f"{key}: {_brief(found)} ({self.parts[key]['seconds']:.0f} s)")
            self.write()
        return self.parts[key]

    def each(self, jobs: dict[str, tuple[Any, ...]], compute: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """The part compute(*arguments) of every key, two at a time in processes of their own.

        A small network trains on one core. A tiny run stays in this process, which has its programs compiled.
        """
        missing = {key: arguments for key, arguments in jobs.items() if key not in self.parts}
        if self.size == "tiny":
            for key, arguments in missing.items():
                self.once(key, partial(compute, *arguments))
        elif missing:
            with ProcessPoolExecutor(NUM_PROCESSES, mp_context=get_context("spawn")) as pool:
                waiting = {key: pool.submit(compute, *arguments) for key, arguments in missing.items()}
                for key, job in waiting.items():
                    self.once(key, job.result)
        return {key: self.parts[key] for key in jobs}

    def say(self, text: str) -> None:
        sys.stderr.write(f"{self.name} {text}\n")
        sys.stderr.flush()

    def picture(self, label: str, figure: Any) -> Path:
        """Keep a matplotlib figure beside the numbers."""
        path = self.folder / f"{self.stem}-{label}.png"
        self.folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
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
        waiting.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        waiting.replace(self.path)
        if self.rows:
            heading = f"# {study.TITLE}\n\n{study.REFERENCE}\n\n"
            self.path.with_suffix(".md").write_text(heading + table(self.rows) + ("" if self.finished else UNFINISHED))


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


def table(rows: Sequence[Row]) -> str:
    """Markdown: ours, theirs, how far apart, and whether a target is met."""
    lines = [
        "| | ours | published | apart, in standard errors | target | met | remark |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        apart = row.apart()
        cells = [
            row.name,
            with_error(row.ours, row.standard_error),
            "" if row.published is None else with_error(row.published, row.published_error),
            "" if apart is None else f"{apart:+.1f}",
            row.target,
            "" if row.holds is None else "yes" if row.holds else "**no**",
            row.remark,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def mean_and_error(values: Any) -> tuple[float, float | None]:
    """The mean of repeated runs and its standard error; no error from a single one."""
    array = np.asarray(list(values), float)
    return float(array.mean()), float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None


def with_error(value: float, error: float | None) -> str:
    if error is None:
        return f"{value:.4g}"
    decimals = int(np.clip(1 - math.floor(math.log10(error)), 0, 6)) if error > 0 else 3
    return f"{value:.{decimals}f} ± {error:.{decimals}f}"


def _brief(found: dict[str, Any]) -> str:
    """The plain numbers of a part."""
    numbers = {key: value for key, value in found.items() if isinstance(value, int | float)}
    return ", ".join(f"{key} {value:.4g}" for key, value in numbers.items())
