"""Counts of one router's open requests, kept in Redis under the lease of the router, so that they die with it.

A script adds to them when it takes a place. Ends are stated in batches, as absolute counts, which also mends whatever
an interrupted call left behind.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.bookings import BATCH_S
from extproc.adapters.persistence import persist
from extproc.adapters.redis_scripts import Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from extproc.adapters.redis_link import Link

_DOUBTFUL_BEATS = 3


class LeasedCounts:
    """Open requests by the key of their count. `name` is how its log lines begin; `router` differs for every start."""

    def __init__(
        self, link: Link, name: str, routers_key: str, router: str, *, heartbeat_s: float, lease_s: float
    ) -> None:
        self.router = router
        self.lease_ms = round(lease_s * 1000)
        self.routers_key = routers_key
        self._name = name
        self._link = link
        self._heartbeat_s = heartbeat_s
        self._restate = Script("restate.lua")
        self._open: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()  # calls under way that may take a place there
        self._stating: frozenset[str] = frozenset()  # counts on their way to Redis
        self._changed: set[str] = set()  # counts that may be too high in Redis
        self._doubtful: dict[str, int] = {}  # where a call was cut off, and for how many beats it may still arrive
        self._pending = asyncio.Event()

    def asking(self, keys: Iterable[str]) -> None:
        """A script that may take a place in these is about to be called; `answered` follows in any case."""
        self._asked.update(keys)

    def answered(self, keys: Iterable[str]) -> None:
        """That call has ended, in whatever way."""
        for key in keys:
            _less(self._asked, key)

    def taken(self, key: str) -> None:
        """A request is open there, whether Redis knows it or not."""
        self._open[key] += 1
        if key in self._stating:  # what is on its way may overwrite what the script has just written
            self._note(key)

    def given_back(self, key: str) -> None:
        """It has ended."""
        _less(self._open, key)
        self._note(key)

    def doubt(self, keys: Iterable[str]) -> None:
        """A call was cut off: whether places were taken there, or still will be, is not known."""
        keys = tuple(keys)
        self._note(*keys)
        self._doubtful.update(dict.fromkeys(keys, _DOUBTFUL_BEATS))

    async def run(self) -> NoReturn:
        """State our counts until cancelled, so that they are right and our lease lives; never raises."""
        await persist(self._name, self._link.where, self._state_on, lambda: None)

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
        """State what we have of some. A call under way counts as taken: rather too many than one too few."""
        self._changed -= keys
        self._stating = frozenset(keys)
        told = tuple(keys)
        counts = [self._open[key] + self._asked[key] for key in told]
        try:
            await self._link.run(self._restate, [self.routers_key, *told], (self.router, self.lease_ms, *counts))
        except BaseException:
            self._changed |= keys
            raise
        finally:
            self._stating = frozenset()
        self._note(*(key for key in told if self._asked[key]))

    def _note(self, *keys: str) -> None:
        self._changed.update(keys)
        self._pending.set()


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
