"""Strict mode: choose and reserve in one step of Redis, so that two routers can never both take the last place.

It costs each request one round trip, and makes Redis part of the request path for up to `budget_s`: beyond, the first
candidate is taken as without strict mode. Counts live under the lease of their router. Ends are stated in batches, as
absolute counts, which also mends whatever an interrupted call left behind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.bookings import BATCH_S
from extproc.adapters.persistence import persist
from extproc.adapters.redis_link import Script
from extproc.core.flight.sharing import HEARTBEAT_S, LEASE_S
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.adapters.redis_link import Link
    from extproc.stream.errands import TakePlace

BUDGET_S = 0.05
_DOUBTFUL_BEATS = 3


class StrictBookings:
    """One router's part in counting open requests in Redis. `base` and `router_name` as for `Bookings`."""

    def __init__(
        self,
        link: Link,
        base: str,
        router_name: str,
        *,
        budget_s: float = BUDGET_S,
        heartbeat_s: float = HEARTBEAT_S,
        lease_s: float = LEASE_S,
    ) -> None:
        self.unsettled = 0
        """Requests that Redis did not settle within the budget."""
        self._link = link
        self._base = base
        self._router = router_name
        self._budget_s = budget_s
        self._heartbeat_s = heartbeat_s
        self._lease_ms = round(lease_s * 1000)
        self._reserve, self._restate = Script("reserve.lua"), Script("restate.lua")
        self._where: dict[str, str] = {}  # request id -> instance key
        self._open: Counter[str] = Counter()  # by instance key
        self._asked: Counter[str] = Counter()  # calls under way that may take a place there
        self._changed: set[str] = set()  # instances whose count in Redis may be too high
        self._doubtful: dict[str, int] = {}  # where a call was cut off, and for how many beats it may still arrive
        self._pending = asyncio.Event()

    async def take(self, wish: TakePlace) -> int | None:
        """Take the first of the places whose limit holds over all routers, and return its number; None if none does.

        Never raises but when it is cancelled: without Redis it is the first place, whatever its limit.
        """
        places = wish.places
        keys = [place.key for place in places]
        limits = [-1 if place.limit is None else place.limit for place in places]
        self._asked.update(keys)
        try:
            async with asyncio.timeout(self._budget_s):
                names = [self._name(key) for key in keys]
                arguments: list[str | float] = [self._router, self._lease_ms, *limits]
                number = int(await self._link.run(self._reserve, [f"{self._base}:routers", *names], arguments))
            taken = number - 1 if number else None
        except (RegistryError, TimeoutError):
            self.unsettled += 1
            self._doubt(keys)
            taken = 0
        except BaseException:  # its client went away meanwhile: a place may have been taken that nobody will give back
            self._doubt(keys)
            raise
        finally:
            for key in keys:
                _less(self._asked, key)
        if taken is not None:
            self._where[wish.request_id] = keys[taken]
            self._open[keys[taken]] += 1
        return taken

    def release(self, request_id: str) -> None:
        """The request has ended. Unknown ids are ignored."""
        key = self._where.pop(request_id, None)
        if key is not None:
            _less(self._open, key)
            self._note(key)

    async def run(self) -> NoReturn:
        """State our counts until cancelled, so that they are right and our lease lives; never raises."""
        await persist("strict bookings", self._link.where, self._state_on, lambda: None)

    async def _state_on(self, in_touch: Callable[[], None]) -> NoReturn:
        clock = asyncio.get_running_loop().time
        beat_at_s = clock()
        while True:
            if clock() >= beat_at_s:
                beat_at_s = clock() + self._heartbeat_s
                await self._state({*self._open, *self._changed, *self._doubtful})
                self._doubtful = {key: beats - 1 for key, beats in self._doubtful.items() if beats > 1}
            else:
                await self._state(set(self._changed))
            in_touch()
            if not self._changed:
                self._pending.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(beat_at_s):
                        await self._pending.wait()
            await asyncio.sleep(BATCH_S)

    async def _state(self, keys: set[str]) -> None:
        """State what we have on some instances. A call under way counts as taken: rather too many than one too few."""
        self._changed -= keys
        counts = [self._open[key] + self._asked[key] for key in keys]
        names = [self._name(key) for key in keys]
        try:
            await self._link.run(
                self._restate, [f"{self._base}:routers", *names], (self._router, self._lease_ms, *counts)
            )
        except BaseException:
            self._changed |= keys
            raise
        self._note(*(key for key in keys if self._asked[key]))

    def _doubt(self, keys: list[str]) -> None:
        self._note(*keys)
        self._doubtful.update(dict.fromkeys(keys, _DOUBTFUL_BEATS))

    def _name(self, key: str) -> str:
        return f"{self._base}:open:{key}"

    def _note(self, *keys: str) -> None:
        self._changed.update(keys)
        self._pending.set()


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
