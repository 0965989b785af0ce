"""The other end of the load generator's process: tells it of rounds, and hands back what it found."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from extproc.bench.overhead.load import Answers, Hold, Round
from extproc.errors import ProcessError

_ANSWER_BYTES = 64 * 1024 * 1024


class Generator:
    """A running load generator. Its methods raise ProcessError if it has ended."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def run(self, what: Round) -> Answers:
        """Send a round."""
        return msgspec.json.decode(await self._ask(what), type=Answers)

    async def hold(self, what: Hold) -> dict[str, int]:
        """Open requests that stay open, in place of those opened before; how those ended that did not stay."""
        return msgspec.json.decode(await self._ask(what), type=dict[str, int])

    async def _ask(self, wish: msgspec.Struct) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(wish) + b"\n")
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        except ConnectionError as error:
            raise ProcessError(f"the load generator failed: {error}") from None
        if not line:
            raise ProcessError("the load generator ended")
        return line


@asynccontextmanager
async def generating() -> AsyncIterator[Generator]:
    """A load generator for as long as the context is open."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "extproc.bench.overhead.load",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_ANSWER_BYTES,
        start_new_session=True,
    )
    try:
        yield Generator(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
