"""Commands of extproc as processes of their own, forked from one that has imported everything: imports take a second.

What runs is the command's `main` with its arguments, environment and output, as `python -m extproc` would run it; the
tests of the command line itself start Python anew.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from extproc.demo import processes
from extproc.demo.processes import Child

_PRELOADED = """
    uvloop numpy grpc.aio aiohttp redis.asyncio extproc.cli
    extproc.commands.serve extproc.commands.agent extproc.commands.xds extproc.commands.engine
    extproc.server.run extproc.server.xds_run extproc.sim.engine.server
    extproc.commands.autoscale extproc.scaling_service.run
""".split()
_POLL_S = 0.01


class Processes(processes.Processes):
    """As the demo's, but its commands are forked."""

    async def start_extproc(self, name: str, *arguments: str, before: Callable[[], None] | None = None) -> Child:
        """Start a subcommand of `extproc`; `before`, a function of a module, is called in its process before it."""
        log = self._directory / f"{name}.log"
        # The first one starts the process that all are forked from, and waits until that has imported everything.
        started = await asyncio.to_thread(_started, arguments, log, log, before)
        child = Child(name, _Forked(started), log)  # type: ignore[arg-type]
        self._children.append(child)
        return child


def extproc(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends."""
    with tempfile.TemporaryDirectory() as name:
        output, errors = Path(name) / "stdout", Path(name) / "stderr"
        process = _started(arguments, output, errors)
        process.join(timeout_s)
        status = process.exitcode
        if status is None:
            process.kill()
            process.join()
            raise TimeoutError(f"extproc {' '.join(arguments)} runs after {timeout_s:g} s: {errors.read_text()}")
        return subprocess.CompletedProcess(arguments, status, output.read_text(), errors.read_text())


class _Forked:
    """What is used of `asyncio.subprocess.Process`."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self._process = process
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    async def wait(self) -> int:
        while (status := self.returncode) is None:  # noqa: ASYNC110 - another process' child
            await asyncio.sleep(_POLL_S)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def _started(
    arguments: tuple[str, ...], output: Path, errors: Path, before: Callable[[], None] | None = None
) -> ForkServerProcess:
    for path in {output, errors}:
        path.write_bytes(b"")
    process = _context().Process(target=_run, args=(arguments, dict(os.environ), output, errors, before))
    process.start()
    return process


def _run(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    output: Path,
    errors: Path,
    before: Callable[[], None] | None = None,
) -> None:
    """In the child."""
    os.setsid()
    for descriptor, path in enumerate((Path(os.devnull), output, errors)):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND if descriptor else os.O_RDONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    from extproc.cli import main

    if before is not None:
        before()
    sys.argv = ["extproc", *arguments]
    sys.exit(main(arguments))
