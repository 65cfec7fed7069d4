"""A real browser for tests: headless Chromium driven over its DevTools pipe, with nothing to install beside it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
SECONDS = 60


def find() -> str | None:
    """Where a Chromium is, if there is one; the variable CHROMIUM may name it."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Visit(NamedTuple):
    """What a visit to a page brought."""

    found: Any  # what the script returned
    problems: list[str]  # errors and warnings of the console, and exceptions
    requests: list[str]  # addresses that were asked for


class Browser:
    """`with Browser() as browser: browser.visit(path, script, width=390, dark=True)`."""

    def __enter__(self) -> Browser:
        path = find()
        assert path is not None, "no Chromium here: ask find() first"
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # A shell puts the pipes where Chromium looks for them, 3 and 4: Python's own way, preexec_fn, forks, and JAX's
        # threads do not take that well.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        command = ["bash", "-c", shell, "bash", path, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._events = b"", 0, []
        target = self._call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._write)  # the browser ends when its pipe does
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        self._folder.cleanup()

    def visit(
        self,
        page: Path,
        script: str,
        *,
        width: int = 1280,
        dark: bool = False,
        screenshot: Path | None = None,
        media: str = "screen",
    ) -> Visit:
        """Open a file at a width and theme, run a script in it, and perhaps keep a picture of the whole page."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", size)
        self._events = []
        self._call("Page.navigate", {"url": page.resolve().as_uri()})
        self._wait_for("Page.loadEventFired")
        answer = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if screenshot is not None:
            taken = self._call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
            screenshot.write_bytes(base64.b64decode(taken["data"]))
        problems = [_problem(event) for event in self._events]
        if "exceptionDetails" in answer:
            problems.append(str(answer["exceptionDetails"]))
        asked = [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return Visit(answer["result"].get("value"), [p for p in problems if p], asked)

    def _call(self, method: str, params: dict[str, Any] | None = None, session: str | None = "here") -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._events.append(answer)

    def _wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self._events):
            self._events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium has said nothing for {SECONDS} seconds"
            part = os.read(self._read, 2**20)
            assert part, f"Chromium has ended with status {self._process.poll()}"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


def _problem(event: dict[str, Any]) -> str:
    params = event.get("params", {})
    if event.get("method") == "Runtime.exceptionThrown":
        return str(params["exceptionDetails"])
    if event.get("method") == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return params["entry"]["text"]
    if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        return str(params["args"])
    return ""
