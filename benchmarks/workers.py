"""Processes that each hold one contestant, compiled and warm, and time it on request.

The contestants of a benchmark need different numbers of JAX devices, or packages that cannot live in one environment,
so each has a process of its own. They take turns, so that a disturbance of the machine meets all of them alike.
Imports nothing but the standard library: the peers' environment has no posterity.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = HERE.parent / ".benchmark-venv" / "bin" / "python"


class Worker:
    """A script that calls `serve`, with so many CPU devices."""

    def __init__(self, script: str, settings: dict[str, Any], devices: int, python: str | Path = sys.executable):
        environment = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
        self.process = subprocess.Popen(
            [str(python), str(HERE / script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.first = self._answer()  # what the run that compiles reports

    def run(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # libraries may print, too
                return json.loads(line)
        raise RuntimeError(f"{' '.join(self.process.args)} ended with code {self.process.wait()} and no answer.")  # type: ignore[arg-type]


def serve(contest: Callable[[], dict[str, Any]]) -> None:
    """Run once to compile, then once for every line that comes in; each run reports numbers."""
    print(json.dumps(contest()), flush=True)
    for _ in sys.stdin:
        print(json.dumps(contest()), flush=True)


def take_turns(workers: dict[str, Worker], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """`repeats` reports of each worker, in turn."""
    rounds = [{name: worker.run() for name, worker in workers.items()} for _ in range(repeats)]
    for worker in workers.values():
        worker.close()
    return {name: [one[name] for one in rounds] for name in workers}
