"""Follows the KV events of one backend's engine and keeps the log of what it holds, one incarnation after another."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from extproc.adapters.kv_events import KvEventsSettings, follow
from extproc.adapters.kv_log import START
from extproc.agent.kv_losses import KvLosses
from extproc.agent.kv_silence import PATIENCE_S, KvSilence
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.prefixes.kv_fold import KvFold
from extproc.core.prefixes.kv_freshness import BEAT_EVERY_S
from extproc.core.values.instance import Lifecycle
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from extproc.adapters.kv_log import KvLog
    from extproc.core.values.instance import Instance

DEFAULT_HOLD_EVERY_S = 15.0  # well within the log's time to live
DEFAULT_TELL_LOSSES_EVERY_S = 60.0
_RETRY_S = 1.0

log = logging.getLogger("extproc.agent")


class KvWriter:
    """Writes for the incarnation that was published last; `keep` says which that is.

    `hold_every_s`: how often what Redis has of the log is looked at; `tell_losses_every_s`: how often, at most, our
    own log tells what could not be taken in; `beat_every_s`: how long the log may be without a new entry;
    `patience_s`: how long an engine may work without a word before it is thought not to be heard any more.
    """

    def __init__(
        self,
        settings: KvEventsSettings,
        kv_log: KvLog,
        *,
        hold_every_s: float = DEFAULT_HOLD_EVERY_S,
        tell_losses_every_s: float = DEFAULT_TELL_LOSSES_EVERY_S,
        beat_every_s: float = BEAT_EVERY_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._settings = settings
        self._log = kv_log
        self._periods = _Periods(hold_every_s, tell_losses_every_s, beat_every_s)
        self._subject: _Subject | None = None
        self._patience_s = patience_s
        self._silence = KvSilence(patience_s)
        self._task: asyncio.Task[None] | None = None

    async def keep(self, instance: Instance) -> None:
        """Follow this incarnation from now on, or nobody if its engine is not there to tell."""
        if instance.lifecycle not in (Lifecycle.READY, Lifecycle.DRAINING) or not instance.models:
            if instance.lifecycle in (Lifecycle.STOPPED, Lifecycle.LOADING):
                await self.stop()
            return  # an engine that is late for a moment goes on telling
        subject = _Subject(instance.key, instance.models[0], instance.data_parallel)
        if subject != self._subject:
            await self.stop()
            self._subject = subject
            settings = replace(self._settings, ranks=subject.ranks)
            self._silence = KvSilence(self._patience_s)
            follower = _Follower(settings, self._log, subject, self._silence, self._periods)
            self._task = asyncio.create_task(follower.run())
        self._silence.worked(instance.work_done)

    async def stop(self) -> None:
        """Follow nobody. The log stays until its time to live is over, or a new incarnation takes its place."""
        task, self._task, self._subject = self._task, None, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@dataclass(frozen=True, slots=True)
class _Subject:
    """Whom to follow: anything else than this is followed anew."""

    key: str  # of the instance
    model: str  # the name that its base model is known by
    ranks: int  # data-parallel; what an engine tells of them may come later than the rest


@dataclass(frozen=True, slots=True)
class _Periods:
    """Of what a follower does again and again."""

    hold_s: float
    tell_losses_s: float
    beat_s: float


class _Follower:
    """One incarnation: events become deltas, deltas become entries, and now and then all of it a snapshot."""

    def __init__(
        self,
        settings: KvEventsSettings,
        kv_log: KvLog,
        subject: _Subject,
        silence: KvSilence,
        periods: _Periods,
    ) -> None:
        self._settings = settings
        self._log = kv_log
        self._key = subject.key
        self._silence = silence
        self._periods = periods
        self._fold = KvFold(subject.model)
        self._writing = asyncio.Lock()  # what the server has is compared with what was written: both must stand still
        self._written = START  # the last entry
        self._entries = 0  # since the last snapshot
        self._beats = 0  # likewise: entries without content
        self._told = False  # since the last beat
        self._trouble = False

    async def run(self) -> None:
        """Follow until cancelled; what goes wrong is logged and tried again."""
        while True:
            try:
                losses = KvLosses(self._fold)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hold())
                    group.create_task(self._tell(losses))
                    group.create_task(self._beat(losses))
                    group.create_task(follow(self._settings, self._fold, self._write, losses.watch))
            except Exception:
                log.exception("%s: following its KV events failed; starting anew", self._key)
            self._fold = KvFold(self._fold.model)
            await asyncio.sleep(_RETRY_S)

    async def _hold(self) -> None:
        """Say that this incarnation lives, and keep its snapshot as long as its log."""
        while True:
            try:
                async with self._writing:
                    await self._hold_once()
            except RegistryError as error:
                self._complain(str(error))
            await asyncio.sleep(self._periods.hold_s)

    async def _hold_once(self) -> None:
        """Also write again what the server has lost, though an engine that rests has nothing to tell."""
        kept = await self._log.hold(self._key)
        lost = kept.last != self._written
        if lost:
            self._written = kept.last
            self._fold.resync()  # the entry that follows sets right whoever read what is not there any more
        if self._entries or (self._fold.held_blocks and (lost or not kept.has_snapshot)):
            await self._snapshot()

    async def _tell(self, losses: KvLosses) -> None:
        while True:
            await asyncio.sleep(self._periods.tell_losses_s)
            for line in losses.lines():
                log.warning("%s: KV events: %s", self._key, line)

    async def _beat(self, losses: KvLosses) -> None:
        """Keep the log going while there is nothing to tell, as long as there is reason to think that this is so."""
        silent = False
        while True:
            await asyncio.sleep(self._periods.beat_s)
            was_silent, silent = silent, self._silence.look(losses.heard, time.monotonic())
            if silent and not was_silent:
                log.warning("%s: its engine works, but no KV events come; telling nothing of its cache", self._key)
            elif was_silent and not silent:
                log.info("%s: its KV events come again", self._key)
            told, self._told = self._told, False
            if not told and not silent and self._written != START:
                await self._write(KvDelta(self._fold.block_size_tokens))

    async def _write(self, delta: KvDelta) -> None:
        try:
            async with self._writing:
                await self._append(delta)
        except RegistryError as error:
            self._complain(str(error))
            await asyncio.sleep(_RETRY_S)
            self._fold.resync()  # nobody knows what arrived: the next delta tells everything
            return
        if self._trouble:
            log.info("%s: its KV events are written again", self._key)
        self._trouble = False

    async def _append(self, delta: KvDelta) -> None:
        entry = await self._log.append(self._key, kv_delta.encode(delta))
        if entry.before != self._written and not delta.cleared:
            log.info("%s: Redis has lost entries of its KV log; telling everything anew", self._key)
            self._fold.resync()  # after a failover, say, to a replica that lagged
        self._written = entry.entry_id
        if delta.blocks or delta.cleared:
            self._told = True
            self._entries += 1
        else:
            self._beats += 1
        if self._entries + self._beats >= self._log.max_entries // 4:
            await self._snapshot()

    async def _snapshot(self) -> None:
        await self._log.write_snapshot(self._key, kv_delta.encode(self._fold.whole()), self._written)
        self._entries = self._beats = 0

    def _complain(self, trouble: str) -> None:
        if not self._trouble:
            log.warning("%s: cannot write its KV events: %s; trying on", self._key, trouble)
        self._trouble = True
