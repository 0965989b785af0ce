"""A Redis that waits for its disk: every write is synchronised at once, and each such call takes half a second.

strace puts the delay into its `fdatasync` (`inject=…:delay_enter`), which halts the thread as a slow disk does.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.chaos.house import running_house
from tests.chaos.traffic import Traffic
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer

_STRACE = shutil.which("strace")
pytestmark = [pytest.mark.chaos, pytest.mark.skipif(_STRACE is None, reason="strace is not installed")]

DELAY_US = 500_000
SLOW_SYNCS = 8


@asynccontextmanager
async def slow_disk(pid: int, log: Path) -> AsyncIterator[None]:
    """Delay each synchronising call of a process while the context lasts."""
    assert _STRACE is not None
    calls = "fsync,fdatasync"
    tracing = await asyncio.create_subprocess_exec(
        *(_STRACE, "-f", "-qq", "-o", str(log), "-p", str(pid)),
        *("-e", f"trace={calls}", "-e", f"inject={calls}:delay_enter={DELAY_US}"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield
    finally:
        if tracing.returncode is None:
            tracing.terminate()
        await tracing.communicate()


async def test_a_redis_that_waits_for_its_disk_holds_no_request_up(tmp_path: Path) -> None:
    """Decisions need no answer of it; what it says comes late, and all is well when the disk is."""
    redis = RedisServer("valkey", tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    log = tmp_path / "strace.log"
    async with running_house(tmp_path, redis=redis) as house:
        async with Traffic(house) as traffic:
            await traffic.more(100)

            async def syncs() -> int:
                return log.read_text().count("DELAYED") if log.exists() else 0

            async with slow_disk(house.redis.pid, log):
                slow_s = time.time()
                await eventually(syncs, lambda count: count >= SLOW_SYNCS, 60.0)
                await traffic.more(300)
                await traffic.decided(slow_s)
            delayed = await syncs()
            await house.well()
            await traffic.more(100)
        toll = await traffic.toll()
        print(f"\nslow disk, {delayed} calls of {DELAY_US / 1e6} s: {toll}")  # noqa: T201
        assert toll.lost == 0, toll.words
        assert toll.passed_on == 0
        await house.idle()
