"""Shares what was learned of speeds with the other routers now and then, and begins with what they knew."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.slices import in_slices
from extproc.core.speeds.speed_records import record_of
from extproc.core.speeds.speeds_told import SHARE_EVERY_S, by_kind, merge_kind
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from extproc.adapters.profile_memory import ProfileMemory
    from extproc.core.speeds.speed_records import KindRecord
    from extproc.core.speeds.speeds import Speeds

ALIVE_S = 35.0  # a router that has written within this time counts as alive: three times are missed before it does not
BUDGET_S = 2.0
_TIDY_EVERY = 60  # shares

log = logging.getLogger("extproc.serve")


class ProfileKeeper:
    """Shares for the router `name`. `budget_s` is how long a start, an end or one turn may wait for Redis.

    `clock` is that of the times at which `speeds` learns.
    """

    def __init__(
        self,
        speeds: Speeds,
        memory: ProfileMemory,
        name: str,
        *,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._speeds = speeds
        self._memory = memory
        self._name = name
        self._budget_s = budget_s
        self._clock = clock
        self._heard: list[KindRecord] = []

    async def restore(self) -> None:
        """Begin with all that routers of this fleet have learned, as one; without Redis, begin with the table."""
        try:
            async with asyncio.timeout(self._budget_s):
                told = await self._memory.read()
        except (RegistryError, TimeoutError) as error:
            log.warning("speeds learned before this start are not known: %s", error or "Redis is too slow")
            return
        alike = by_kind(record for records in told.values() for record in records)
        self._speeds.restore([merge_kind(each) async for each in in_slices(alike)])

    async def run(self) -> NoReturn:
        """Write and read every `SHARE_EVERY_S` until cancelled; an outage costs nothing but the others' word."""
        turn = 0
        while True:
            await asyncio.sleep(SHARE_EVERY_S)
            await self.try_to_share()
            turn += 1
            if turn % _TIDY_EVERY == 0:
                await self._try_to_tidy()

    async def try_to_share(self) -> None:
        """Share as `share` does; what goes wrong is logged and nothing else. What was heard then counts no more."""
        try:
            async with asyncio.timeout(self._budget_s):
                await self.share()
        except (RegistryError, TimeoutError):
            self._speeds.hear(())
            log.debug("learned speeds were not shared", exc_info=True)
        except Exception:
            log.exception("learned speeds were not shared")

    async def share(self) -> None:
        """Tell what this router has learned itself, and hear what the others have. Raises RegistryError."""
        kinds = [kind for kind in self._speeds.kinds().values() if any(step.samples for step in kind.steps)]
        learned = [record_of(kind, self._clock()) async for kind in in_slices(kinds)]
        if learned:
            await self._memory.write(self._name, learned)
        told = await self._memory.read(ALIVE_S)
        others = [record for name, records in told.items() if name != self._name for record in records]
        outdated, self._heard = self._heard, others
        self._speeds.hear(others, self._clock())
        async for _ in in_slices(_let_go(outdated)):  # many thousand values take milliseconds to free
            pass

    async def _try_to_tidy(self) -> None:
        try:
            async with asyncio.timeout(self._budget_s):
                await self._memory.tidy()
        except (RegistryError, TimeoutError):
            log.debug("old speeds were not dropped", exc_info=True)


def _let_go(records: list[KindRecord]) -> Iterator[None]:
    while records:
        records.pop()
        yield
