"""Limits over all routers, in Redis: one call charges a request to all of its buckets, or to none.

The call may take `Limits.budget_s`, and Redis may be gone: then nobody knows, and what becomes of the request is the
operator's choice. Once one call was lost, one at a time tries whether Redis is back, and no other request waits for it.
What requests used in the end is settled off their path, in batches, at most once each: a batch that fails is dropped,
since what a charge was too large for comes back by itself, and nothing must be given back twice. The client may send
one again when its connection breaks, so batches have numbers by which Redis knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from hashlib import blake2b
from itertools import count
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import quote

from extproc.adapters.bookings import BATCH_S, FAREWELL_S
from extproc.adapters.leased_counts import LeasedCounts
from extproc.adapters.redis_scripts import Script
from extproc.core.flight.sharing import HEARTBEAT_S, LEASE_S
from extproc.core.limits.charge import Receipt, Settlement, State, Verdict, cost, of_kind, refund
from extproc.core.limits.counts import LimitCounts
from extproc.core.limits.rules import Bucket, Kind, Limits
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from extproc.adapters.redis_link import Link
    from extproc.stream.errands import Charge

log = logging.getLogger("extproc.registry")

_LONGEST_NAME = 64  # characters of a tenant or model in a key; longer ones are known by their digest
_MOST_UNSETTLED = 100_000  # that wait for Redis
_MOST_AT_ONCE = 500  # in one call


class RateLimits:
    """One router's part in counting. `base` and `router_name` as for `Bookings`."""

    def __init__(
        self,
        link: Link,
        base: str,
        router_name: str,
        limits: Limits,
        *,
        heartbeat_s: float = HEARTBEAT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self.counts = LimitCounts()
        self._link = link
        self._base = base
        self._limits = limits
        self._charge, self._settle = Script("limits.lua"), Script("settle.lua")
        self._open = LeasedCounts(
            link, "limits", f"{base}:routers", router_name, heartbeat_s=heartbeat_s, lease_s=lease_s
        )
        self._places: dict[str, list[str]] = {}  # request id -> names of the counts that it is in
        self._receipts: dict[str, Receipt] = {}  # of requests that no engine has been sent yet
        self._ended: deque[Settlement] = deque(maxlen=_MOST_UNSETTLED)
        self._batches = count(1)
        self._last_batch = f"{base}:limit:batch:{router_name}"
        self._pending = asyncio.Event()
        self._lost = False  # the last call did not come back in time
        self._trying = False  # one call tries whether that is over

    def use(self, limits: Limits) -> None:
        """Count by other limits from now on; what was charged stays charged."""
        self._limits = limits

    async def charge(self, wish: Charge) -> Verdict | None:
        """Charge a request if all of its buckets have room. None: not known, Redis did not tell in time.

        Never raises but when it is cancelled.
        """
        tries = self._lost
        if tries and self._trying:
            self.counts.lost += 1
            return None
        names = [self._name(bucket) for bucket in wish.buckets]
        counted = [self._name(bucket) for bucket in of_kind(wish.buckets, Kind.CONCURRENT)]
        self._open.asking(counted)
        if tries:
            self._trying = True
        try:
            async with asyncio.timeout(self._limits.budget_s):
                told = await self._link.run(self._charge, [self._open.routers_key, *names], self._arguments(wish))
        except (RegistryError, TimeoutError):
            self._lost = True
            self.counts.lost += 1
            self._open.doubt(counted)
            return None
        except BaseException:  # its client went away meanwhile: a place may have been taken that nobody will give back
            self._open.doubt(counted)
            raise
        finally:
            if tries:  # calls from before the loss may end while this one is still under way
                self._trying = False
            self._open.answered(counted)
        self._lost = False
        verdict = _verdict(wish.buckets, told)
        if verdict.allowed:
            self.counts.allowed += 1
            self._note(wish, counted, told[1])
        elif verdict.full is not None:
            self.counts.refused[verdict.full.bucket.kind] += 1
        return verdict

    def handed_over(self, request_id: str) -> None:
        """The request is on its way to an engine: what it uses will be told with its outcome, to whichever router."""
        self._receipts.pop(request_id, None)

    def release(self, request_id: str) -> None:
        """The request has ended; if it was never handed over, what it was charged is given back. Others are ignored."""
        for name in self._places.pop(request_id, ()):
            self._open.given_back(name)
        receipt = self._receipts.pop(request_id, None)
        if receipt is not None:
            self.settle(refund(receipt))

    def settle(self, settlement: Settlement) -> None:
        """Mend a charge, soon."""
        if len(self._ended) == _MOST_UNSETTLED:
            self.counts.unsettled += 1
        self._ended.append(settlement)
        self._pending.set()

    async def run(self) -> NoReturn:
        """Keep the lease of what is under way, and settle what has ended, until cancelled; never raises."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._open.run())
            group.create_task(self._settle_on())
        raise AssertionError("both go on for ever")

    async def farewell(self) -> None:
        """Settle what has not been settled yet; call it when `run` has ended. Takes little time, and never raises.

        Places need none: the lease of this router ends with it.
        """
        waiting = len(self._ended)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._settle_all()
        except TimeoutError:
            log.info("limits: no time to settle all of %d requests, their charges stand", waiting)

    async def _settle_on(self) -> NoReturn:
        while True:
            await self._pending.wait()
            await asyncio.sleep(BATCH_S)
            self._pending.clear()
            await self._settle_all()

    async def _settle_all(self) -> None:
        while self._ended:
            batch = [self._ended.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._ended)))]
            await self._send(batch)

    async def _send(self, batch: list[Settlement]) -> None:
        names = [self._last_batch]
        arguments: list[str | float] = [next(self._batches)]
        for settlement in batch:
            receipt = settlement.receipt
            for bucket in of_kind(self._limits.buckets(receipt.tenant, receipt.model), Kind.TOKENS):
                names.append(self._name(bucket))
                used_us = bucket.us(receipt.tokens + settlement.change_tokens)
                arguments += [repr(used_us - bucket.us(receipt.tokens)), receipt.at_us]
        if len(names) == 1:
            return
        try:
            await self._link.run(self._settle, names, arguments)
        except RegistryError:
            self.counts.unsettled += len(batch)
            return
        for settlement in batch:
            self.counts.added_tokens += max(0, settlement.change_tokens)
            self.counts.returned_tokens += max(0, -settlement.change_tokens)

    def _arguments(self, wish: Charge) -> list[str | float]:
        arguments: list[str | float] = [self._open.router, self._open.lease_ms]
        for bucket in wish.buckets:
            if bucket.kind is Kind.CONCURRENT:
                arguments += [-1, repr(bucket.capacity)]
            else:
                arguments += [repr(bucket.us(cost(bucket, wish.tokens))), repr(bucket.us(bucket.capacity))]
        return arguments

    def _note(self, wish: Charge, counted: list[str], at_us: int) -> None:
        if counted:
            self._places[wish.request_id] = counted
            for name in counted:
                self._open.taken(name)
        if of_kind(wish.buckets, Kind.TOKENS):
            self._receipts[wish.request_id] = Receipt(wish.tokens, at_us, wish.tenant, wish.model)
            self.counts.charged_tokens += wish.tokens

    def _name(self, bucket: Bucket) -> str:
        of = ":".join("*" if name is None else _word(name) for name in (bucket.tenant, bucket.model))
        return f"{self._base}:limit:{bucket.kind.value}:{of}"


def _word(name: str) -> str:
    """A name as part of a key, with nothing in it that parts keys."""
    if len(name) > _LONGEST_NAME:
        return "~" + blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return quote(name, safe="", errors="surrogatepass")


def _verdict(buckets: tuple[Bucket, ...], told: list[int]) -> Verdict:
    allowed, at_us, *pairs = told
    states = []
    for bucket, used, wait_us in zip(buckets, pairs[::2], pairs[1::2], strict=True):
        units = float(used) if bucket.kind is Kind.CONCURRENT else used / bucket.us(1.0)
        states.append(State(bucket, units, float("inf") if wait_us < 0 else wait_us * 1e-6))
    return Verdict(bool(allowed), at_us, tuple(states))
