"""Keeps the router's knowledge of what engines hold equal to their KV logs in Redis.

News comes in on the event loop that requests are answered on. So it is taken in a little at a time: what came within
`_GATHER_S` is put together, and no more than `_PIECE_BLOCKS` are applied without letting requests through.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.kv_log import KvLog, KvNews, Whole
from extproc.core import kv_delta
from extproc.core.kv_delta import KvDelta, KvDeltaError, merged, pieces

if TYPE_CHECKING:
    from extproc.core.router import Router

_GATHER_S = 0.02
_PIECE_BLOCKS = 2_000  # about 3 ms

log = logging.getLogger("extproc.serve")


class KvFeed:
    """Follows the logs of all instances whose agents write one."""

    def __init__(self, router: Router, kv_log: KvLog, fleet_known: asyncio.Event) -> None:
        self._router = router
        self._log = kv_log
        self._fleet_known = fleet_known
        self._pending: dict[str, list[KvDelta]] = {}  # by instance key, in order
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
            self._pending.pop(key, None)
            self._router.kv.forget(key)
        if news.payload is None:
            return
        try:
            self._pending.setdefault(key, []).append(kv_delta.decode(news.payload))
        except KvDeltaError as error:
            log.warning("KV log of %s cannot be read: %s", key, error)
            self._pending.pop(key, None)
            self._router.kv.forget(key)
        self._came.set()

    async def apply(self) -> None:
        """Apply all that was taken down, letting requests through in between."""
        while self._pending:
            key = next(iter(self._pending))
            for piece in pieces(merged(self._pending.pop(key)), _PIECE_BLOCKS):
                self._router.kv.apply(key, piece)
                await asyncio.sleep(0)
                if key in self._pending and self._pending[key][0].cleared:
                    break  # void by now

    async def _apply_all(self, read: asyncio.Event, synced: asyncio.Event) -> NoReturn:
        await read.wait()
        await self.apply()
        synced.set()
        while True:
            await self._came.wait()
            await asyncio.sleep(_GATHER_S)
            self._came.clear()
            await self.apply()

    def _tellers(self) -> set[str]:
        members = self._router.fleet.members()
        return {member.instance.key for member in members if member.instance.kv_events}
