"""Shared data and settings of the tests."""

import gc
import itertools
import os
from pathlib import Path

# Tests compile many small programs and run each briefly: quick compilation is worth more than quick code.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")

import jax
import numpy as np
import pytest

import posterity  # noqa: F401  (before anything starts JAX: it makes every core a device)

# The data beside a clone of the repository, unless the variable names another folder; processes that tests start read
# it there too.
DATA = Path(os.environ.setdefault("POSTERITY_DATA", str(Path(__file__).parents[2] / "shared" / "data")))


MANY_MAPS = 25_000


LOOK_EVERY = 4
tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def free_compiled_programs():
    """Each compiled program holds memory maps, of which a process has 65,530: let go of all programs in good time."""
    yield
    maps = Path("/proc/self/maps")
    if next(tests_run) % LOOK_EVERY == 0 and (not maps.exists() or maps.read_bytes().count(b"\n") > MANY_MAPS):
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def line():
    """Forty rows of a noisy line in two features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    return x, x @ np.array([1.0, -2.0]) + 0.5 + 0.3 * rng.normal(size=40)


@pytest.fixture(scope="session")
def wave():
    """Rows of a sine with a gap."""
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-2, -0.5, 40), rng.uniform(0.5, 2, 40)])[:, None]
    return x, np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=80)
