"""Keeps the router's knowledge of what engines hold equal to their KV logs in Redis."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.kv_log import KvLog, KvNews, Whole
from extproc.core import kv_delta
from extproc.core.kv_delta import KvDeltaError

if TYPE_CHECKING:
    from extproc.core.router import Router

log = logging.getLogger("extproc.serve")


class KvFeed:
    """Follows the logs of all instances whose agents write one."""

    def __init__(self, router: Router, kv_log: KvLog, fleet_known: asyncio.Event) -> None:
        self._router = router
        self._log = kv_log
        self._fleet_known = fleet_known

    async def run(self, synced: asyncio.Event) -> NoReturn:
        """Follow until cancelled, once the fleet is known; `synced` is set when all that is there was read."""
        await self._fleet_known.wait()
        await self._log.watch(self._tellers, self.take, synced=synced)

    def take(self, news: KvNews) -> None:
        """Apply a snapshot or one more delta. What cannot be read counts as nothing told."""
        kv = self._router.kv
        if isinstance(news, Whole):
            kv.forget(news.instance_key)
        if news.payload is None:
            return
        try:
            kv.apply(news.instance_key, kv_delta.decode(news.payload))
        except KvDeltaError as error:
            log.warning("KV log of %s cannot be read: %s", news.instance_key, error)
            kv.forget(news.instance_key)

    def _tellers(self) -> set[str]:
        members = self._router.fleet.members()
        return {member.instance.key for member in members if member.instance.kv_events}
