"""Times how long a choice of one router process takes to be counted by another, through a real server.

Two processes, as two replicas are. On one machine both read the same monotonic clock, so that a request id that says
when it was booked is enough.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.adapters.bookings import Bookings
from extproc.adapters.redis_link import Link
from extproc.bench.beside import beside
from extproc.core.flight.ledger import Ledger
from extproc.core.flight.work import OURS, Reservation

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RATES_PER_S = (20.0, 200.0, 1000.0)

_INSTANCES = 16
_SETTLE_S = 0.5
_LONGEST_S = 30.0


@dataclass(frozen=True, slots=True)
class Visibility:
    """Seconds from a booking until the other process counts it, and what it costs."""

    rate_per_s: float
    bookings: int
    seen: int  # counted by the other
    p50_s: float
    p99_s: float
    longest_s: float
    teller_cpu_share: float  # of one core, in the process that books
    listener_cpu_share: float  # in the process that is told


class _Watched(Ledger):
    """A ledger that notes how late each booking of a peer came."""

    def __init__(self) -> None:
        super().__init__()
        self.late_s: list[float] = []

    def reserve(self, key: str, reservation: Reservation, now: float | None = None) -> None:
        super().reserve(key, reservation, now)
        if reservation.router != OURS:
            self.late_s.append(time.monotonic() - float(reservation.request_id))


async def visibility(url: str, rate_per_s: float, bookings: int) -> Visibility:
    """Book and release at a steady rate here, and watch from a process of its own. Raises RegistryError."""
    base = f"extproc:{{bench-{secrets.token_hex(4)}}}"  # apart from any real fleet on the same server
    with beside(_listen, url, base) as listener:
        async with Link(url) as link:
            await link.command("PING")
            await asyncio.to_thread(_expect, listener)
            cpu_share = await _book(link, base, rate_per_s, bookings)
        listener.send("end")
        late_s, listener_share = await asyncio.to_thread(_expect, listener)
    late_s.sort()
    at = [
        late_s[min(len(late_s) - 1, int(share * len(late_s)))] if late_s else float("nan") for share in (0.5, 0.99, 1)
    ]
    return Visibility(rate_per_s, bookings, len(late_s), at[0], at[1], at[2], cpu_share, listener_share)


async def _book(link: Link, base: str, rate_per_s: float, count: int) -> float:
    ledger = Ledger()
    sharing = Bookings(link, base, "teller", ledger)
    task = asyncio.create_task(sharing.run())
    try:
        async with asyncio.timeout(_LONGEST_S):
            while not sharing.sharing.peers.names:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        open_ids: list[str] = []
        for number in range(count):
            await asyncio.sleep(max(0.0, began_s + number / rate_per_s - time.monotonic()))
            request_id = repr(time.monotonic())
            ledger.reserve(
                f"i-{number % _INSTANCES}@1", Reservation(request_id, float(request_id), 0.05, 1000, 200, 800)
            )
            open_ids.append(request_id)
            if len(open_ids) > 100:
                ledger.release(open_ids.pop(0), time.monotonic())
        share = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
        await asyncio.sleep(_SETTLE_S)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return share


def _listen(url: str, base: str, pipe: Connection) -> None:
    asyncio.run(_listen_until_told(url, base, pipe))


async def _listen_until_told(url: str, base: str, pipe: Connection) -> None:
    ledger = _Watched()
    async with Link(url) as link:
        task = asyncio.create_task(Bookings(link, base, f"listener-{os.getpid()}", ledger).run())
        pipe.send("ready")
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        await asyncio.to_thread(pipe.recv)
        share = (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    pipe.send((ledger.late_s, share))


def _expect(pipe: Connection) -> tuple[list[float], float]:
    """What the listener sends next; nothing would ever come from one that failed."""
    if not pipe.poll(_LONGEST_S):
        raise TimeoutError("the listening process says nothing")
    said: tuple[list[float], float] = pipe.recv()
    return said
