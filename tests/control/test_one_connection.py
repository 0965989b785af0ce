"""What one client's HTTP/2 connection may do to Envoy's connection to the service, which all requests share."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.control.deciding import CHAT, HELLO, deciding
from tests.control.http2_client import begun2
from tests.control.raw_requests import Answered, http1
from tests.e2e.eventually import eventually

REQUESTS = 1020  # Envoy lets a connection have 1,024; it takes 1,000 resets at once for an attack by default


async def test_a_connection_that_ends_with_a_thousand_requests_ends_nobody_elses(tmp_path: Path) -> None:
    """Each of them resets a stream to the service, all in one turn of Envoy's loop."""
    async with deciding(tmp_path) as setup:

        async def under_way() -> int:
            return setup.router.ledger.in_flight().get("s@1", 0)

        setup.chosen.held = asyncio.Event()
        async with begun2(setup.port, CHAT, HELLO, REQUESTS):
            await eventually(under_way, lambda count: count == REQUESTS)
            other = asyncio.create_task(http1(setup.port, CHAT, [HELLO]))
            await eventually(under_way, lambda count: count == REQUESTS + 1)
        await eventually(under_way, lambda count: count <= 1)
        assert await under_way() == 1  # its stream goes on, and what is booked for it
        setup.chosen.held.set()
        assert await other == Answered(200, HELLO)
        stats = await asyncio.to_thread(setup.envoy.stats, "cluster.extproc.")
        assert stats["cluster.extproc.upstream_rq_tx_reset"] >= REQUESTS
        assert stats["cluster.extproc.http2.outbound_control_flood"] == 0
