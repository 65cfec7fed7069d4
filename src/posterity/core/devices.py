"""All cores of a CPU as devices, the mesh of chains and rows over all devices, and what crosses between processes.

XLA runs one small chain on one core; chains spread over one device per core run side by side. The number of devices
must be said before JAX starts its backend, so importing posterity says it.
The mesh has two axes, (chain, data). Chains come first: they never talk to each other. Devices that are left split the
rows, and every gradient is then a sum over them. Under `jax.distributed` the devices are those of all processes; each
process runs the same program, and what one of them decides by its own clock they must agree on.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WORK_WORTH_SPLITTING = 2**25  # rows of a step x weights: below it the sums between devices cost more than they save


def compiler_options() -> dict[str, Any]:
    """Settings of XLA for the programs of a network with convolutions.

    For the weights' gradient of a convolution this jaxlib prefers kernels on the CPU that take twice as long as its
    older ones, and 1.35 times as long for a whole ResNet-20. Dense products and sums are left to the newer ones.
    """
    known = jaxlib.version.__version_info__[:2] == (0, 10)  # another version may do better, or refuse the setting
    if jax.default_backend() != "cpu" or not known:
        return {}
    return {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"}


def jit_once(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """`jax.jit` for what a run does once: on a CPU it is compiled fast, not well.

    Random numbers take XLA seconds to compile well: the first weights of five layers 5.2 s of processor, 1.1 s so.
    """

    @cache
    def compiled() -> Any:  # made when it is first called: only then is the backend known
        fast = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
        return jax.jit(function, compiler_options=fast, **settings)

    @wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled()(*arguments)

    return call


@contextmanager
def double_precision(wanted: bool) -> Iterator[None]:
    """Programs that are traced and run inside may compute in float64; what is float32 stays so.

    Their small factorisations go to LAPACK, whose threads wait for each other longer than they compute: with one thread
    a 51 x 51 Cholesky factor in a leapfrog step took a fifteenth of the time on a busy machine of two cores.
    """
    if not wanted:
        yield
        return
    import scipy.linalg  # noqa: F401  (the library that JAX calls must be loaded to be limited)
    from threadpoolctl import threadpool_limits

    with jax.enable_x64(True), threadpool_limits(1, "blas"):
        yield


def use_all_cores() -> None:
    """One CPU device per core, unless the user has chosen a number or JAX is running already."""
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


class Fork:
    """Whether this process is a copy of one in which JAX was running, whose threads it does not have."""

    happened = False

    @classmethod
    def notice(cls) -> None:
        cls.happened = cls.happened or _is_running()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=Fork.notice)


def check_process() -> None:
    """Refuse to compute where JAX would wait forever for threads that a fork has not copied."""
    if Fork.happened:
        raise RuntimeError(
            "This process was forked from one in which JAX was running, and JAX would hang in it. Start processes by "
            "'spawn', multiprocessing.get_context('spawn'), or use joblib with its own backend, loky."
        )


def _is_running() -> bool:
    """Whether JAX has started its devices, which it answers by refusing another number of them."""
    chosen = getattr(jax.config, "jax_num_cpu_devices")  # noqa: B009 (its type stub lacks it)
    try:
        jax.config.update("jax_num_cpu_devices", 2 if chosen == 1 else 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", chosen)
    return False


def _num_cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_mesh(
    num_chains: int, work: float = 0.0, shape: tuple[int, int] | None = None, splits_rows: bool = False
) -> Mesh:
    """The mesh (chain, data) of a run whose steps cost `work` rows x weights, or of the shape the user asks for.

    `splits_rows`: the network gains from split rows on a CPU.
    """
    available = jax.device_count()
    chain, data = _mesh_shape(num_chains, work, available, splits_rows) if shape is None else shape
    if shape is not None and (min(shape) < 1 or chain * data > available or chain > num_chains):
        raise ValueError(
            f"mesh={shape} wants {chain} x {data} devices for {num_chains} chains; there are {available} devices. "
            "Give (devices for chains, devices for rows), at most as many for chains as there are chains."
        )
    devices = np.asarray(jax.devices()[: chain * data]).reshape(chain, data)
    used = {device.process_index for device in devices.flat}
    if len(used) < jax.process_count():
        raise ValueError(f"mesh={shape} leaves {jax.process_count() - len(used)} process(es) without a device.")
    return Mesh(devices, ("chain", "data"))


def _mesh_shape(num_chains: int, work: float, available: int, splits_rows: bool = False) -> tuple[int, int]:
    chain = min(num_chains, available)
    if jax.process_count() > 1:  # every process must take part
        chain = max(c for c in range(1, chain + 1) if available % c == 0)
        return chain, available // chain
    # On a CPU, XLA's matrix products use all cores already: split rows gave 0.6-0.7 of the speed (one chain, dense).
    # What is not a large product runs on one core, so networks made of much else gain, and say so.
    pays = splits_rows if jax.default_backend() == "cpu" else work >= WORK_WORTH_SPLITTING
    return chain, available // chain if pays else 1


def place(values: Any, mesh: Mesh, *axes: str) -> Any:
    """Host values on the mesh, their leading axis split along `axes`; every process must hold the same values."""
    sharding = NamedSharding(mesh, PartitionSpec(*axes))

    def put(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(put(np.asarray(jax.random.key_data(leaf))))
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return jax.device_put(values, sharding) if jax.process_count() == 1 else jax.tree.map(put, values)


def fetch(values: Any) -> Any:
    """Values of the mesh on the host of every process; keys stay keys."""

    def get(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(get(jax.random.key_data(leaf))))
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return np.asarray(leaf)

    return jax.tree.map(get, values)


def precision() -> str:
    """What this process computes in."""
    return "float64" if jax.config.jax_enable_x64 else "float32"  # type: ignore[attr-defined]


def wait_for_all(where: str) -> None:
    """Go on once every process has come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


def is_key(leaf: Any) -> bool:
    """Whether an array, or the shape of one, holds random keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def agree(*numbers: float) -> list[float]:
    """The largest of each number over all processes, so that all of them go on in the same way."""
    if jax.process_count() == 1:
        return list(numbers)
    gathered = multihost_utils.process_allgather(np.asarray(numbers, np.float32))
    return [float(value) for value in np.max(gathered, axis=0)]
