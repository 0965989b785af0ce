"""Follows the KV events of one backend's engine and keeps the log of what it holds, one incarnation after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from extproc.adapters.kv_events import KvEventsSettings, follow
from extproc.adapters.kv_log import START
from extproc.core import kv_delta
from extproc.core.kv_fold import KvFold
from extproc.core.model import Lifecycle
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from extproc.adapters.kv_log import KvLog
    from extproc.core.kv_delta import KvDelta
    from extproc.core.model import Instance

_HOLD_EVERY_S = 15.0  # well within the log's time to live
_RETRY_S = 1.0

log = logging.getLogger("extproc.agent")


class KvWriter:
    """Writes for the incarnation that was published last; `keep` says which that is."""

    def __init__(self, settings: KvEventsSettings, kv_log: KvLog) -> None:
        self._settings = settings
        self._log = kv_log
        self._subject = ("", "")  # instance key, and the name that its base model is known by
        self._task: asyncio.Task[None] | None = None

    async def keep(self, instance: Instance) -> None:
        """Follow this incarnation from now on, or nobody if its engine is not there to tell."""
        if instance.lifecycle not in (Lifecycle.READY, Lifecycle.DRAINING) or not instance.models:
            if instance.lifecycle in (Lifecycle.STOPPED, Lifecycle.LOADING):
                await self.stop()
            return  # an engine that is late for a moment goes on telling
        subject = (instance.key, instance.models[0])
        if subject != self._subject:
            await self.stop()
            self._subject = subject
            settings = replace(self._settings, ranks=instance.data_parallel)
            self._task = asyncio.create_task(_Follower(settings, self._log, *subject).run())

    async def stop(self) -> None:
        """Follow nobody. The log stays until its time to live is over, or a new incarnation takes its place."""
        task, self._task, self._subject = self._task, None, ("", "")
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class _Follower:
    """One incarnation: events become deltas, deltas become entries, and now and then all of it a snapshot."""

    def __init__(self, settings: KvEventsSettings, kv_log: KvLog, key: str, model: str) -> None:
        self._settings = settings
        self._log = kv_log
        self._key = key
        self._fold = KvFold(model)
        self._written = START  # the last entry
        self._entries = 0  # since the last snapshot
        self._trouble = False

    async def run(self) -> None:
        """Follow until cancelled; what goes wrong is logged and tried again."""
        while True:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hold())
                    group.create_task(follow(self._settings, self._fold, self._write))
            except Exception:
                log.exception("%s: following its KV events failed; starting anew", self._key)
            self._fold = KvFold(self._fold.model)
            await asyncio.sleep(_RETRY_S)

    async def _hold(self) -> None:
        """Say that this incarnation lives, and keep its snapshot as long as its log."""
        while True:
            try:
                await self._log.hold(self._key)
                if self._entries:
                    await self._snapshot()
            except RegistryError as error:
                self._complain(str(error))
            await asyncio.sleep(_HOLD_EVERY_S)

    async def _write(self, delta: KvDelta) -> None:
        try:
            self._written = await self._log.append(self._key, kv_delta.encode(delta))
            self._entries += 1
            if self._entries >= self._log.max_entries // 4:
                await self._snapshot()
        except RegistryError as error:
            self._complain(str(error))
            await asyncio.sleep(_RETRY_S)
            self._fold.resync()  # nobody knows what arrived: the next delta tells everything
            return
        if self._trouble:
            log.info("%s: its KV events are written again", self._key)
        self._trouble = False

    async def _snapshot(self) -> None:
        await self._log.write_snapshot(self._key, kv_delta.encode(self._fold.whole()), self._written)
        self._entries = 0

    def _complain(self, trouble: str) -> None:
        if not self._trouble:
            log.warning("%s: cannot write its KV events: %s; trying on", self._key, trouble)
        self._trouble = True
