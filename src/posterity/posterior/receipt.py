"""The receipt of a posterior: what was done, to the digit."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from posterity.core import pytrees
from posterity.core.devices import precision
from posterity.data.arrays import Dataset
from posterity.models.heads import Heads
from posterity.models.model import Model
from posterity.posterior.posterior import Posterior
from posterity.storage.codec import fingerprint

VERSIONS = ("posterity", "jax", "jaxlib", "numpyro", "optax", "blackjax")


@dataclass(frozen=True)
class Receipt:
    """What was done, to the digit: enough to judge a posterior and to make it again.

    Attributes:
        method: The method, with the settings that are not the default ones.
        num_data: Rows it was trained on.
        num_weights: Weights of the model, those held fixed included.
        num_chains: Chains.
        num_steps: Steps of each chain.
        num_gradients: Passes over the data, of all chains together, those of the method it started from and of restarts
            included.
        step_size: The last of each chain; of samplers with a learning rate, the first and the last; or "none".
        seconds: Wall time of the fit.
        prior: The prior of the weights.
        likelihood: The likelihood, with its settings.
        temperature: The temperature that was targeted, or "not applicable".
        tempering: "posterior" or "likelihood", or "not applicable".
        seed: The seed of the fit.
        devices: Devices it ran on, and for what.
        precision: The precision of the arithmetic.
        versions: Of this package and those it computes with, by name.
        restarts: Chains that were stuck in warm-up and started again.
        notes: What went other than planned, in sentences.
        remarks: How the method ran on this model: which weights were integrated out, or why none were.
        targets: A fingerprint of the targets of the training rows, by which an audit recognises that two fits saw the
            same ones.
        warnings: What may be wrong with it, in sentences: chains that have not converged, a loss that rose.
    """

    method: str
    num_data: int
    num_weights: int
    num_chains: int
    num_steps: int
    num_gradients: int
    step_size: str
    seconds: float
    prior: str
    likelihood: str
    temperature: float | str
    tempering: str
    seed: int
    devices: str
    precision: str
    versions: dict[str, str]
    restarts: int = 0
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    targets: str = ""
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [(f.name.replace("_", " "), getattr(self, f.name)) for f in dataclasses.fields(self)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {_plain(value)}" for name, value in rows if value not in ((), ""))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, tuple):
        return "; ".join(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def make_receipt(
    *,
    model: Model,
    method: Any,
    rows: Dataset,
    num_data: int,
    seed: int,
    num_chains: int,
    num_steps: int,
    num_gradients: float,
    seconds: float,
    restarts: int,
    num_devices: tuple[int, int],
    notes: tuple[str, ...],
    remarks: tuple[str, ...],
    trace: Mapping[str, np.ndarray],
) -> Receipt:
    shapes = jax.eval_shape(model.init, jax.random.key(0), pytrees.take_rows(rows.x, slice(0, 1)))
    applies = method.targets_temperature or (method.uses_prior and model.tempering == "likelihood")
    return Receipt(
        method=_settings(method),
        num_data=num_data,
        num_weights=pytrees.size(shapes),
        num_chains=num_chains,
        num_steps=num_steps,
        num_gradients=round(num_gradients),
        step_size=_step_size(trace),
        seconds=seconds,
        prior=str(model.prior),
        likelihood=_settings(model.likelihood),
        temperature=float(model.temperature) if applies else "not applicable",
        tempering=model.tempering if applies else "not applicable",
        seed=int(seed),
        devices=_devices(num_devices),
        precision=precision(),
        versions=installed_versions(),
        restarts=restarts,
        notes=notes,
        remarks=(*remarks, *_trajectories(trace)),
        targets=fingerprint(rows.y)[:16],
    )


def _trajectories(trace: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    if "covered" not in trace:
        return ()
    return (f"trajectories cover {100 * trace['covered'].mean():.4g} % of their length",)


def _step_size(trace: Mapping[str, np.ndarray]) -> str:
    if "step_size" in trace:
        return ", ".join(f"{last:.3g}" for last in trace["step_size"][:, -1])
    if "learning_rate" in trace:
        first, last = trace["learning_rate"][0, [0, -1]]
        return f"learning rate {first:.3g} at first, {last:.3g} at last"
    return "none"


def _devices(used: tuple[int, int]) -> str:
    """How many of the devices there are, by what they were used for where both are shared out."""
    chains, rows = used
    available = jax.devices()
    shared = f" ({chains} for chains, each with {rows} for rows)" if rows > 1 else ""
    return f"{chains * rows} of {len(available)} {available[0].device_kind}{shared}"


def _settings(value: Any) -> str:
    if isinstance(value, Heads):
        return f"Heads({', '.join(f'{name}={_settings(head)}' for name, head in value.items())})"
    shown = [f for f in dataclasses.fields(value) if getattr(value, f.name) != f.default or f.name == "scale"]
    parts = [f"{f.name}={_short(getattr(value, f.name))}" for f in shown]
    return f"{type(value).__name__}({', '.join(parts)})"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Posterior):  # to start from, by how it was made
        return value.receipt.method
    if isinstance(value, Mapping):
        return "given weights"
    return getattr(value, "__name__", str(value))


def installed_versions() -> dict[str, str]:
    """Of this package and those it computes with."""
    return {name: _version(name) for name in VERSIONS}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
