"""Keeps the router's knowledge of what engines hold equal to their KV logs in Redis.

News comes in on the event loop that requests are answered on. So it is taken in a little at a time: what came together
is put together, and no more than takes as long as `_PIECE_BLOCKS` is applied without letting requests through.

Where news has stopped, what was told is forgotten, so that what was learned by routing counts; when news comes again,
all is read anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.kv_log import KvLog, KvNews, Whole
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.kv_delta import KvDelta, KvDeltaError, merged, pieces
from extproc.core.prefixes.kv_freshness import KvFreshness
from extproc.core.values.instance import Lifecycle, id_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.core.router import Router

_PIECE_BLOCKS = 2_000  # about 3 ms
_OF_EACH = 15  # blocks that could be applied in the time that a piece takes besides its own: 20 µs

log = logging.getLogger("extproc.serve")


class KvFeed:
    """Follows the logs of all instances whose agents write one. `clock` is that of the router's fleet."""

    def __init__(
        self,
        router: Router,
        kv_log: KvLog,
        fleet_known: asyncio.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._log = kv_log
        self._fleet_known = fleet_known
        self._clock = clock
        self._freshness = KvFreshness()
        self._frozen: set[str] = set()  # forgotten, because their logs have stopped
        self._anew: set[str] = set()  # to be read whole again, because their logs go on
        self._read_at_s: dict[str, float] = {}  # when the end of a log was read that is not yet applied
        self._pending: dict[str, list[KvDelta]] = {}  # by instance key, in order
        self._applied = ""  # key of what is being applied; "" once that is void
        self._came = asyncio.Event()

    async def run(self, synced: asyncio.Event) -> NoReturn:
        """Follow until cancelled, once the fleet is known; `synced` is set when all that is there was taken in."""
        await self._fleet_known.wait()
        read = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._log.watch(self._tellers, self.take, synced=read))
            group.create_task(self._apply_all(read, synced))
        raise AssertionError("neither task ends by itself")

    def take(self, news: KvNews) -> None:
        """Take down a snapshot or one more delta. What cannot be read counts as nothing told."""
        key = news.instance_key
        if isinstance(news, Whole):
            self._forget(key)
        elif key in self._frozen and not news.behind:
            self._frozen.discard(key)
            self._anew.add(key)
            self._freshness.heard(key, self._clock())
        if news.payload is None or key in self._frozen or key in self._anew:
            return
        try:
            self._pending.setdefault(key, []).append(kv_delta.decode(news.payload))
        except KvDeltaError as error:
            log.warning("KV log of %s cannot be read: %s", key, error)
            self._forget(key)
        else:
            if not isinstance(news, Whole) and not news.behind:
                self._read_at_s[key] = self._clock()
        self._came.set()

    def look(self) -> None:
        """Forget what was told by those whose logs have stopped since the last look; to be called all the time."""
        frozen = self._freshness.look(self._lively(), self._router.fleet.heard_at_s)
        for key in frozen - self._frozen:
            self._forget(key)
        self._frozen = set(frozen)

    @property
    def frozen(self) -> frozenset[str]:
        """Ids of the instances whose logs have stopped."""
        return frozenset(id_of(key) for key in self._frozen)

    async def apply(self) -> None:
        """Apply all that was taken down, letting requests through in between."""
        spent = 0  # in this turn, in blocks
        while self._pending:
            key = self._applied = next(iter(self._pending))
            read_at_s = self._read_at_s.pop(key, None)
            for piece in pieces(merged(self._pending.pop(key)), _PIECE_BLOCKS):
                cost = piece.blocks + _OF_EACH
                if spent and spent + cost > _PIECE_BLOCKS:
                    spent = 0
                    await asyncio.sleep(0)
                    if self._is_void(key):
                        break
                self._router.kv.apply(key, piece)
                spent += cost
            else:
                if read_at_s is not None:
                    self._freshness.heard(key, read_at_s)
        self._applied = ""

    async def _apply_all(self, read: asyncio.Event, synced: asyncio.Event) -> NoReturn:
        await read.wait()
        await self.apply()
        synced.set()
        while True:
            await self._came.wait()
            self._came.clear()
            await self.apply()

    def _is_void(self, key: str) -> bool:
        """Whether what is being applied of an instance was forgotten meanwhile, or is when what came is applied."""
        return key != self._applied or (key in self._pending and self._pending[key][0].cleared)

    def _forget(self, key: str) -> None:
        if key == self._applied:
            self._applied = ""
        self._pending.pop(key, None)
        self._read_at_s.pop(key, None)
        self._router.kv.forget(key)

    def _tellers(self) -> set[str]:
        """Whom the reader shall follow. Who is missing once is read whole the next time."""
        members = self._router.fleet.members()
        anew, self._anew = self._anew, set()
        return {member.instance.key for member in members if member.instance.kv_events} - anew

    def _lively(self) -> set[str]:
        """Instances whose agents live and follow their engines, so that their logs ought to go on."""
        fleet, stale_after_s = self._router.fleet, self._router.policy.stale_after_s
        return {
            member.instance.key
            for member in fleet.members()
            if member.instance.kv_events
            and member.instance.lifecycle in (Lifecycle.READY, Lifecycle.DRAINING)
            and fleet.age_s(member) <= stale_after_s
        }
