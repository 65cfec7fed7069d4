"""The referee of a study: HMC until its diagnosis is good, kept on disk, so that a second study starts at once.

What is kept is found again by a fingerprint of model, data, sampler and inputs. A reference that did not converge is
kept as well, and sampled anew where more time is allowed than it had. It may not judge: conclusions that rest on it
are withheld, and the report states why.
"""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterity.inference import HMC, fit, load
from posterity.models.model import Model
from posterity.posterior.diagnosis import Diagnosis
from posterity.posterior.posterior import Posterior
from posterity.storage.codec import StoreError, encode, fingerprint

JUDGES = ("good", "usable")
MOST_KEPT = 200  # references in a folder; the oldest go
BUDGET = "reference_budget"  # the entry of a posterior's metadata: seconds it was allowed


class Reference(NamedTuple):
    """A sample of the posterior, and how far it can be trusted."""

    posterior: Posterior
    diagnosis: Diagnosis

    @property
    def facts(self) -> dict[str, Any]:
        """What a results file keeps of it."""
        found = self.diagnosis
        return {
            "verdict": found.verdict,
            "r_hat": float(np.nanmax(found.r_hat)) if np.isfinite(found.r_hat).any() else None,
            "effective_draws": float(np.nanmin(found.ess_bulk)) if np.isfinite(found.ess_bulk).any() else None,
            "num_chains": found.num_chains,
            "num_draws": found.num_draws,
            "num_inputs": len(found.r_hat),
            "seconds": self.posterior.receipt.seconds,
        }


def may_judge(facts: dict[str, Any]) -> bool:
    return facts["verdict"] in JUDGES


def describe(facts: dict[str, Any]) -> str:
    """The reference's own diagnosis in a sentence."""
    size = f"{facts['num_chains']} chains of {facts['num_draws']} draws, {facts['seconds']:.0f} s"
    if facts["r_hat"] is None:
        return f"{facts['verdict'].capitalize()} ({size}): no R-hat exists."
    numbers = f"R-hat {facts['r_hat']:.3f} at most, {facts['effective_draws']:.0f} effective draws at the worst input"
    doubt = "" if may_judge(facts) else " It may not judge."
    return f"{facts['verdict'].capitalize()} at {facts['num_inputs']} test inputs: {numbers} ({size}).{doubt}"


class References:
    """Makes references, or finds them in a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(
        self,
        model: Model,
        data: tuple[np.ndarray, ...],
        at: np.ndarray,
        budget: float,
        method: HMC | None = None,
        seed: int = 0,
    ) -> Reference:
        """HMC on these rows until it is good at inputs `at`, or the budget in seconds ends."""
        method = HMC() if method is None else method
        path = None if self.folder is None else self.folder / _key(model, method, data, at, seed)
        kept = None if path is None else _read(path, model, at)
        if kept is not None and (kept.diagnosis.verdict == "good" or kept.posterior.metadata[BUDGET] >= budget):
            return kept
        how: dict[str, Any] = {"seed": seed, "until": "good", "at": at, "budget": budget, "progress": False}
        made = fit(model, method, data, metadata={BUDGET: budget}, **how)
        if path is not None:
            _keep(path, made)
        return Reference(made, made.diagnose(at))


def _key(model: Model, method: HMC, data: tuple[np.ndarray, ...], at: np.ndarray, seed: int) -> str:
    arrays: dict[str, np.ndarray] = {}
    stated = [encode(value, arrays, name) for name, value in (("model", model), ("method", method))]
    text = json.dumps([stated, seed, fingerprint(arrays), fingerprint((data, at))], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:24]


def _read(path: Path, model: Model, at: np.ndarray) -> Reference | None:
    """What an earlier study left."""
    if not path.exists():
        return None
    try:
        found = load(path, model)
    except StoreError:  # damaged, or written by another version: it is made again
        return None
    return Reference(found, found.diagnose(at))


def _keep(path: Path, posterior: Posterior) -> None:
    """Whole or not at all; the oldest of too many go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = path.with_name(f"{path.name}.{os.getpid()}.part")
    posterior.save(waiting)
    shutil.rmtree(path, ignore_errors=True)
    waiting.replace(path)
    kept = sorted((each for each in path.parent.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for each in kept[:-MOST_KEPT]:
        shutil.rmtree(each, ignore_errors=True)
