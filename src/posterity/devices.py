"""All cores of a CPU as devices, and the mesh of chains over them.

XLA runs one small chain on one core; chains spread over one device a core run side by side. The number of devices must
be said before JAX starts its backend, so importing posterity says it.
"""

from __future__ import annotations

import os
import warnings

import jax
import numpy as np
from jax.sharding import Mesh


def use_all_cores() -> None:
    """One CPU device a core, unless the user has chosen a number or JAX is running already."""
    by_flag = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    chosen = by_flag or getattr(jax.config, "jax_num_cpu_devices") != -1  # noqa: B009 (its type stub lacks it)
    if chosen:
        return
    try:
        jax.config.update("jax_num_cpu_devices", _num_cores())
    except RuntimeError:
        if jax.default_backend() != "cpu" or jax.device_count() >= _num_cores():
            return
        warnings.warn(
            "JAX was running before posterity was imported, so chains share one CPU device. To use all cores, import "
            "posterity before the first JAX computation.",
            stacklevel=3,
        )


def _num_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def chain_mesh(num_chains: int) -> Mesh:
    """A mesh (chain, data) with as many devices along `chain` as there are chains to fill them."""
    devices = jax.devices()[: max(1, min(num_chains, jax.device_count()))]
    return Mesh(np.asarray(devices).reshape(-1, 1), ("chain", "data"))
