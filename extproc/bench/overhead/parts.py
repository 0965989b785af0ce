"""Starts the single parts of a stand, each as a process of its own, and waits until each is ready."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from extproc.bench.overhead import churn, floor
from extproc.bench.overhead.figures import FLOOR, OURS
from extproc.demo.processes import Child, Processes, wait_for_line
from extproc.errors import ProcessError

READY_S = 30.0
_TOLD_LINES = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """Where they are started, and how many workers a service has."""

    processes: Processes
    envoy_program: str
    directory: Path
    workers: int

    def sockets(self, name: str) -> list[Path]:
        """Where the workers of a service listen, as `extproc serve --workers` names them."""
        path = self.directory / f"{name}.sock"
        return [path] if self.workers == 1 else [Path(f"{path}.{number}") for number in range(self.workers)]

    async def envoy(self, name: str, values: dict[str, Any]) -> Child:
        """An Envoy of one thread. Raises ProcessError."""
        path = self.directory / f"{name}.json"
        path.write_bytes(orjson.dumps(values))
        arguments = ("-c", str(path), "--concurrency", "1", "--disable-hot-restart", "--log-level", "info")
        child = await self.processes.start(f"envoy-{name}", self.envoy_program, *arguments)
        await wait_for_line(child, "all dependencies initialized. starting workers", READY_S)
        return child

    async def churn(self, redis_url: str, fleet: str, instances: int, port: int) -> Child:
        """What publishes the fleet's state, once all of it is known. Raises ProcessError."""
        child = await self._module("churn", churn.__name__, redis_url, fleet, str(instances), str(port))
        await wait_for_line(child, churn.READY, READY_S)
        return child

    async def floors(self) -> list[Child]:
        """The do-nothing service, a process for each worker. Raises ProcessError."""
        started = [
            await self._module(f"floor-{number}", floor.__name__, f"unix:{socket}")
            for number, socket in enumerate(self.sockets(FLOOR))
        ]
        for child in started:
            await wait_for_line(child, floor.READY, READY_S)
        return started

    async def service(self, serve: Sequence[str], redis_url: str, fleet: str) -> Child:
        """The service with all its workers, started by the command `serve` with flags. Raises ProcessError."""
        flags = ["--listen", f"unix:{self.directory / OURS}.sock", "--metrics-listen", "127.0.0.1:0", "--drain-s", "0"]
        flags += ["--redis-url", redis_url, "--fleet", fleet]
        flags += ["--workers", str(self.workers)] if self.workers > 1 else []
        try:
            child = await self.processes.start("serve", *serve, *flags)
        except OSError as error:
            raise ProcessError(f"the service cannot be started: {shlex.join(serve)}: {error.strerror}") from None
        try:
            await wait_for_line(child, "workers serve" if self.workers > 1 else "serving ext_proc on", READY_S)
        except ProcessError:
            raise ProcessError(f"the service did not serve: {shlex.join(serve)} {_what_became(child)}") from None
        return child

    async def _module(self, name: str, module: str, *arguments: str) -> Child:
        return await self.processes.start(name, sys.executable, "-m", module, *arguments)


def _what_became(child: Child) -> str:
    """Of a program that did not get ready: how it ended, and what it said last."""
    status, lines = child.process.returncode, child.output().strip().splitlines()[-_TOLD_LINES:]
    end = f"was not ready within {READY_S:g} s" if status is None else f"ended with status {status}"
    return f"{end} and printed {' | '.join(lines) or 'nothing'}"
