"""`posterity audit`: whether the chains of a fit have converged, and how far it is from a reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from posterity.cli.cache import keep_compiled_programs
from posterity.cli.errors import InputError
from posterity.cli.folders import is_comparison
from posterity.cli.output import print_json, results
from posterity.core import pytrees
from posterity.data.arrays import evenly_spaced
from posterity.inference import load
from posterity.posterior.audit import Audit, audit
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior
from posterity.storage.codec import StoreError
from posterity.storage.folder import MANIFEST
from posterity.tables.comparison import REFERENCE

MAX_ROWS = 200  # training inputs to judge at


def run_audit(folder: Path, reference: Path | None, as_json: bool) -> None:
    folders, reference = _chosen(folder, reference)
    keep_compiled_programs()
    judge = None if reference is None else _load(reference)
    found = {path: _judge(_load(path), judge) for path in folders}
    if as_json:
        print_json({str(path): _plain(*each) for path, each in found.items()})
        return
    for path, (diagnosis, held) in found.items():
        results().print(str(path), str(diagnosis), *([] if held is None else [str(held)]), sep="\n", markup=False)
    if judge is None:
        results().print("To hold it against HMC: posterity audit DIR --reference HMC_DIR", markup=False)


def _chosen(folder: Path, reference: Path | None) -> tuple[list[Path], Path | None]:
    """The fits to judge, and what to hold them against: the one named, or HMC's of the same comparison."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; name one that `posterity fit` or `posterity compare` made.")
    whole = is_comparison(folder)
    beside = (folder if whole else folder.parent) / REFERENCE.name
    if reference is None and (whole or is_comparison(folder.parent)) and (beside / MANIFEST).is_file():
        reference = beside
    fits = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}")) if whole else [folder]
    chosen = [path for path in fits if reference is None or not _same(path, reference)]
    if not chosen:
        raise InputError(f"{folder} is its own reference: name another with --reference DIR.")
    return chosen, reference


def _same(first: Path, second: Path) -> bool:
    return first.resolve() == second.resolve()


def _load(folder: Path) -> Posterior:
    if not (folder / MANIFEST).is_file():
        raise InputError(f"{folder} holds no fit; make one: posterity fit DATA --target NAME --out NEW_FOLDER")
    try:
        return load(folder)
    except StoreError as error:
        raise InputError(str(error)) from error


def _judge(posterior: Posterior, reference: Posterior | None) -> tuple[Diagnosis, Audit | None]:
    """At some of the training rows, which every fit keeps."""
    rows = evenly_spaced(pytrees.num_rows(posterior.inputs), MAX_ROWS)
    x = pytrees.take_rows(posterior.inputs, rows)
    try:
        return posterior.diagnose(x), None if reference is None else audit(posterior, reference, x)
    except ValueError as error:
        raise InputError(str(error)) from error


def _plain(diagnosis: Diagnosis, held: Audit | None) -> dict[str, Any]:
    """What was found in numbers; `words` has the sentences."""
    parts = {
        name: {"verdict": part.verdict, "r_hat": float(np.max(part.r_hat)), "missing": part.missing}
        for name, part in diagnosis.parts.items()
    }
    found: dict[str, Any] = {
        "verdict": diagnosis.verdict,
        "missing": diagnosis.missing,
        "parts": parts,
        "halves": {name: values.tolist() for name, values in diagnosis.halves.items()},
        "words": str(diagnosis).split("\n"),
    }
    if held is None:
        return found
    distances = {
        name: {
            "value": one.value,
            "standard_error": one.standard_error,
            "monte_carlo_error": held.monte_carlo_error.get(name),
        }
        for name, one in held.distances.items()
    }
    tested = held.comparison
    return {
        **found,
        "reference": {
            "method": held.reference,
            "verdict": held.diagnosis.verdict,
            "different": held.different,
            "p_value": None if tested is None else tested.p_value,
            "p_values": {} if tested is None else dict(zip(held.quantities, tested.by_quantity.tolist(), strict=True)),
            "distances": distances,
            "ignorance": float(np.median(held.ignorance)),
            "inputs_beyond_floor": held.inputs_beyond_floor.tolist(),
            "words": str(held).split("\n"),
        },
    }
