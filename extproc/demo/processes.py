"""Child processes that a command starts: each told to end when the command ends, none left behind."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from extproc.errors import ProcessError

_STOP_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Child:
    """A running program and the file that holds what it prints."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    def output(self) -> str:
        """All that it has printed so far."""
        return self.log.read_text(errors="replace")


class Processes:
    """Starts programs with their output in files under `directory`; leaving the context ends them all.

    Children run in sessions of their own, so that Ctrl-C reaches the parent alone, which then ends them in order.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the last started first, all within a few seconds."""
        for child in reversed(self._children):
            _signal(child, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE_S):
                await asyncio.gather(*(child.process.wait() for child in self._children))
        for child in self._children:
            _signal(child, signal.SIGKILL)
        await asyncio.gather(*(child.process.wait() for child in self._children))

    @property
    def children(self) -> tuple[Child, ...]:
        """All that were started, in their order."""
        return tuple(self._children)

    async def start(self, name: str, *command: str) -> Child:
        """Start a program."""
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    async def start_extproc(self, name: str, *arguments: str) -> Child:
        """Start a subcommand of `extproc` in an interpreter of its own."""
        return await self.start(name, sys.executable, "-m", "extproc", *arguments)

    async def end(self, child: Child) -> None:
        """Tell one program to end, and wait until it has; one that does not within the grace is killed."""
        _signal(child, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE_S):
                await child.process.wait()
        await self.stop(child)

    async def stop(self, child: Child) -> None:
        """End one program now, without grace."""
        _signal(child, signal.SIGKILL)
        await child.process.wait()


async def wait_for_line(child: Child, pattern: str, timeout_s: float) -> re.Match[str]:
    """First match of `pattern` in what a child prints. Raises ProcessError if it ends or says nothing in time."""
    for _ in range(int(timeout_s / 0.02)):
        found = re.search(pattern, child.output())
        if found:
            return found
        ended(child)
        await asyncio.sleep(0.02)
    raise ProcessError(f"{child.name} was not ready within {timeout_s:g} s; it said: {_tail(child)}")


def ended(child: Child) -> None:
    """Raise ProcessError if a child is no longer running."""
    if child.process.returncode is not None:
        raise ProcessError(f"{child.name} ended with status {child.process.returncode}: {_tail(child)}")


def find_program(name: str, hint: str) -> str:
    """Path of a program in this virtual environment or on PATH. Raises ProcessError with a hint how to get it."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    found = shutil.which(name, path=path)
    if found is None:
        raise ProcessError(f"the program '{name}' is missing: {hint}")
    return found


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process.returncode is None:
        with suppress(ProcessLookupError):
            child.process.send_signal(number)


def _tail(child: Child) -> str:
    lines: Sequence[str] = child.output().strip().splitlines()
    return " | ".join(lines[-3:]) or "nothing"
