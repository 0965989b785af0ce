"""A router process without Envoy: follows bookings, and books what its standard input says (`book ID KEY`, `end ID`).

python -m tests.registry.router_process URL NAME
"""

from __future__ import annotations

import asyncio
import sys
import time

from extproc.adapters.bookings import Bookings
from extproc.adapters.redis_link import Link
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.work import Reservation


async def main(url: str, name: str) -> None:
    ledger = Ledger()
    async with Link(url) as link:
        following = asyncio.create_task(
            Bookings(link, "extproc:{default}", name, ledger, heartbeat_s=0.2, lease_s=0.6).run()
        )
        while line := await asyncio.to_thread(sys.stdin.readline):
            match line.split():
                case ["book", request_id, key]:
                    ledger.reserve(key, Reservation(request_id, time.monotonic(), 0.1, 100, 50, 100))
                case ["end", request_id]:
                    ledger.release(request_id, time.monotonic())
        following.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
