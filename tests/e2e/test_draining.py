"""A lone worker that drains: through a real Envoy, which has no other to ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.control.parts import raw
from tests.e2e.eventually import eventually
from tests.e2e.secure import CHAT, HEALTHY, PATH, running

NEW = 5


async def test_what_comes_while_a_lone_worker_drains_is_balanced_at_once_and_what_runs_goes_on(tmp_path: Path) -> None:
    """With no other worker Envoy goes on asking it, as a last resort: then it must say no."""
    async with running(tmp_path) as secured:
        await secured.healthy()
        secured.engine.held = asyncio.Event()

        async def seen() -> int:
            return len(secured.engine.seen)

        async def healthy() -> int:
            return secured.stat(HEALTHY)

        asked = [asyncio.create_task(raw(secured.port, "POST", PATH, body=CHAT))]
        await eventually(seen, lambda count: count == 1)
        await secured.service.drain()
        stopping = asyncio.create_task(secured.service.stop(600.0))
        await eventually(healthy, lambda count: count == 0)
        asked += [asyncio.create_task(raw(secured.port, "POST", PATH, body=CHAT)) for _ in range(NEW)]
        await eventually(seen, lambda count: count == 1 + NEW)
        assert ["x-upstream-cluster" in headers for _, _, headers, _ in secured.engine.seen] == [True] + [False] * NEW
        assert len(secured.made.ledger.booked()) == 1
        assert not stopping.done()
        secured.engine.held.set()
        assert {status for status, *_ in await asyncio.gather(*asked)} == {200}
        async with asyncio.timeout(60):
            await stopping  # the last of its own has ended: it need not wait for more
