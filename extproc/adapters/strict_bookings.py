"""Strict mode: choose and reserve in one step of Redis, so that two routers can never both take the last place.

It costs each request one round trip, and makes Redis part of the request path for up to `budget_s`: beyond, the first
candidate is taken as without strict mode.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.leased_counts import LeasedCounts
from extproc.adapters.redis_scripts import Script
from extproc.core.flight.sharing import HEARTBEAT_S, LEASE_S
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from extproc.adapters.redis_link import Link
    from extproc.stream.errands import TakePlace

BUDGET_S = 0.05


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
        self._budget_s = budget_s
        self._reserve = Script("reserve.lua")
        self._counts = LeasedCounts(
            link, "strict bookings", f"{base}:routers", router_name, heartbeat_s=heartbeat_s, lease_s=lease_s
        )
        self._where: dict[str, str] = {}  # request id -> name of the count

    async def take(self, wish: TakePlace) -> int | None:
        """Take the first of the places whose limit holds over all routers, and return its number; None if none does.

        Never raises but when it is cancelled: without Redis it is the first place, whatever its limit.
        """
        counts = self._counts
        names = [f"{self._base}:open:{place.key}" for place in wish.places]
        limits = [-1 if place.limit is None else place.limit for place in wish.places]
        counts.asking(names)
        try:
            async with asyncio.timeout(self._budget_s):
                arguments: list[str | float] = [counts.router, counts.lease_ms, *limits]
                number = int(await self._link.run(self._reserve, [counts.routers_key, *names], arguments))
            taken = number - 1 if number else None
        except (RegistryError, TimeoutError):
            self.unsettled += 1
            counts.doubt(names)
            taken = 0
        except BaseException:  # its client went away meanwhile: a place may have been taken that nobody will give back
            counts.doubt(names)
            raise
        finally:
            counts.answered(names)
        if taken is not None:
            self._where[wish.request_id] = names[taken]
            counts.taken(names[taken])
        return taken

    def release(self, request_id: str) -> None:
        """The request has ended. Unknown ids are ignored."""
        name = self._where.pop(request_id, None)
        if name is not None:
            self._counts.given_back(name)

    async def run(self) -> NoReturn:
        """State our counts until cancelled, so that they are right and our lease lives; never raises."""
        await self._counts.run()
