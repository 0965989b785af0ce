"""Carries what routers tell each other of their requests over a channel of Redis. Never on the request path.

A change travels at once, but no sooner than `batch_s` after the batch before: what changes until then goes together. If
Redis is gone, our own reservations stay as they are, those of peers run out with their leases, and once it is back
everybody states anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.persistence import persist
from extproc.core.flight.sharing import HEARTBEAT_S, LEASE_S, Sharing
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.adapters.redis_link import Link
    from extproc.core.flight.ledger import Ledger

BATCH_S = 0.004  # at most 250 messages a second from each router; 83 in a dozen routers and more
FAREWELL_S = 1.0  # it spares peers the rest of our lease, no more

log = logging.getLogger("extproc.bookings")


class Bookings:
    """One router's reservations, told to all routers of a fleet, and theirs kept in `ledger`.

    `base` is what all names of the fleet begin with, `Registry.base`; `router_name` must differ for every start.
    """

    def __init__(
        self,
        link: Link,
        base: str,
        router_name: str,
        ledger: Ledger,
        *,
        batch_s: float = BATCH_S,
        heartbeat_s: float = HEARTBEAT_S,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sharing = Sharing(router_name, ledger, heartbeat_s=heartbeat_s, lease_s=lease_s)
        self.unusable = 0
        """Messages on the channel that were no batch."""
        self.on_heard: Callable[[], None] = lambda: None
        """Called when a peer has told something, or is not heard any more."""
        self._link = link
        self._channel = f"{base}:bookings"
        self._batch_s = batch_s
        self._clock = clock
        self._pending = asyncio.Event()
        self.sharing.outbox.on_pending = self._pending.set

    async def run(self) -> NoReturn:
        """Tell and listen until cancelled; never raises, whatever becomes of the server."""
        leases = asyncio.create_task(self._watch_leases())
        try:
            await persist("bookings", self._link.where, self._live, self.sharing.outbox.lost)
        finally:
            leases.cancel()

    async def farewell(self) -> None:
        """Tell peers that nothing of ours is open any more; call it when `run` has ended. Never raises."""
        try:
            async with asyncio.timeout(FAREWELL_S):
                for data in self.sharing.outbox.farewell(self._clock()):
                    await self._link.publish(self._channel, data)
        except (RegistryError, TimeoutError) as error:
            log.info("bookings: no farewell, our lease will run out: %s", error)

    async def _live(self, in_touch: Callable[[], None]) -> None:
        """Live through one connection. Whichever of telling and listening fails first ends both."""
        try:
            async with self._link.follow(self._channel) as subscription, asyncio.TaskGroup() as group:
                group.create_task(self._tell())
                async for message in subscription:
                    in_touch()
                    if message is not None:
                        self._take(message.payload)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _tell(self) -> NoReturn:
        outbox = self.sharing.outbox
        told_at_s = float("-inf")
        while True:
            while (wait_s := max(outbox.due_at_s, told_at_s + self._gap_s()) - self._clock()) > 0:
                self._pending.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._pending.wait()
            told_at_s = self._clock()
            for data in outbox.batches(told_at_s):
                await self._link.publish(self._channel, data)

    def _gap_s(self) -> float:
        """Least time between two batches: more where many routers would each have to read them."""
        return self._batch_s * min(3.0, max(1.0, self.sharing.peers.number / 4))

    def _take(self, data: bytes) -> None:
        try:
            self.sharing.receive(data, self._clock())
            self.on_heard()
        except ValueError as error:
            self.unusable += 1
            if self.unusable == 1:
                log.warning("bookings: a message on %s is no batch: %s", self._channel, error)

    async def _watch_leases(self) -> NoReturn:
        while True:
            self.sharing.expire(self._clock())
            self.on_heard()
            await asyncio.sleep(self.sharing.peers.lease_s / 8)
