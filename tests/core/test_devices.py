"""Chains and rows over several devices and processes: the same draws, whoever computes them."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from posterity import load
from posterity.core.devices import _mesh_shape, device_mesh
from posterity.storage.folder import Reader

WORKER = """
import sys
from pathlib import Path
import jax
folder, number, count, address = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2 // count)
if count > 1:
    jax.distributed.initialize(address, num_processes=count, process_id=number)
import numpy as np
from posterity import HMC, Gaussian, Model, Normal, fit, mlp
rng = np.random.default_rng(0)
x = rng.normal(size=(31, 2))  # an odd number: one device gets a row of padding
y = np.sin(x[:, 0]) + 0.1 * rng.normal(size=31)
model = Model(mlp((3,), activation="tanh"), Gaussian(0.3), Normal(0.0, 1.0))
method = HMC(num_draws=8, num_burn_in=0, step_size=0.05)
found = {}
for name, mesh in (("chains", (2, 1)), ("rows", (1, 2))):
    store = f"{folder}/store-{count}-{name}"
    posterior = fit(model, method, (x, y), chains=2, mesh=mesh, store=store, progress=False)
    found[name] = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(posterior.family)])
found["mean"] = posterior.predict(x).mean
np.savez(f"{folder}/{count}-{number}.npz", **found)
"""


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def run_processes(folder, count):
    """Each process's results."""
    address = free_address()
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", WORKER, str(folder)]
    processes = [
        subprocess.Popen(
            [*command, str(number), str(count), address],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    return [dict(np.load(folder / f"{count}-{number}.npz")) for number in range(count)]


def test_two_processes_give_the_draws_of_one_bit_for_bit(tmp_path):
    (alone,) = run_processes(tmp_path, 1)
    together = run_processes(tmp_path, 2)
    for result in together:
        for name, values in alone.items():
            np.testing.assert_array_equal(result[name], values, err_msg=name)
    np.testing.assert_allclose(alone["chains"], alone["rows"], atol=1e-9)
    assert alone["chains"].std() > 0.1  # and the draws are draws
    for name in ("chains", "rows"):
        stored = [Reader(tmp_path / f"store-{count}-{name}") for count in (1, 2)]
        assert all("posterior" in reader.body for reader in stored)
        assert all(reader.check_files() is None for reader in stored)


def test_devices_go_to_chains_first_and_to_rows_where_it_pays(monkeypatch):
    assert _mesh_shape(4, 0.0, 2) == (2, 1)
    assert _mesh_shape(1, 1e12, 2) == (1, 1)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _mesh_shape(1, 0.0, 2) == (1, 1)
    assert _mesh_shape(1, 1e12, 2) == (1, 2)
    assert _mesh_shape(3, 1e12, 8) == (3, 2)


def test_a_mesh_that_does_not_fit_is_refused():
    count = jax.device_count()
    with pytest.raises(ValueError, match=f"there are {count} devices"):
        device_mesh(4, shape=(1, count + 1))
    with pytest.raises(ValueError, match="at most as many for chains"):
        device_mesh(1, shape=(2, 1))


@pytest.mark.long
def test_the_documented_script_runs_on_two_processes(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()
    (code,) = re.findall(r'```python title="many.py"\n(.*?)```', page, re.S)
    (tmp_path / "many.py").write_text(code.replace("127.0.0.1:9911", free_address()))
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "many.py", number], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        for number in "01"
    ]
    said = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "num chains" in said[0]
    assert load(tmp_path / "many").family.num_draws == 400
