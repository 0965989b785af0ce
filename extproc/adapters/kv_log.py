"""The KV log: what each instance's cache has gained and lost, kept in Redis so that a router that starts knows it.

One stream of deltas for each incarnation of an instance, bounded in length, and one snapshot that says up to which
entry it holds. A reader takes the snapshot, then the entries after it, then what comes. Payloads are opaque bytes.
Keys are described in docs/registry-schema.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from extproc.adapters.persistence import persist
from extproc.adapters.redis_scripts import Script
from extproc.core.values.instance import id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from extproc.adapters.redis_link import Link, StreamEntry

_ENTRY_ID = re.compile(rb"[0-9]{1,19}-[0-9]{1,19}")  # halves beyond 64 bits Redis refuses itself
START = "0-0"  # the id before the first entry of every stream

DEFAULT_MAX_ENTRIES = 2048
DEFAULT_TTL_S = 60.0
"""An idle instance must say that it lives (`hold`) more often than this; what is left by a dead agent goes then."""

_MAX_ENTRIES_AT_ONCE = 1000  # of one stream
_GATHER_S = 0.2  # what many instances tell in this time is read by one command, and not each delta by one of its own
_MOST_IN_TURN = 256  # entries that are taken without letting others through: about 2 ms
_BLOCK_S = 0.25  # longest wait of one read; a new instance is followed that much later at the most
_RELOAD_EVERY_S = 5.0  # while an instance's snapshot is missing or too old

log = logging.getLogger("extproc.kv_log")


@dataclass(frozen=True, slots=True)
class Whole:
    """All that is known of an instance's cache, in place of what was known; None: nothing, its deltas only add."""

    instance_key: str
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class Delta:
    """One entry after everything that came before."""

    instance_key: str
    payload: bytes
    entry_id: str
    behind: bool = False  # more is known to wait after it


KvNews = Whole | Delta


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry that was written. `before` is the one that the server had before it, `START` if it had none."""

    entry_id: str
    before: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What the server has of a log: its last entry, `START` if there is none, and whether there is a snapshot."""

    last: str
    has_snapshot: bool


class KvLog:
    """Writes and reads the logs of one fleet. `base` is `Registry.base`; `instance_key` is `Instance.key`.

    Every method but `watch` raises RegistryError.
    """

    def __init__(
        self, link: Link, base: str, *, max_entries: int = DEFAULT_MAX_ENTRIES, ttl_s: float = DEFAULT_TTL_S
    ) -> None:
        self._link = link
        self._stream, self._snapshot, self._living = f"{base}:kv:", f"{base}:kvsnap:", f"{base}:kvnow:"
        self.max_entries = max_entries
        """About how many entries a stream keeps; write a snapshot at least every quarter of this."""
        self._ttl_ms = round(ttl_s * 1000)
        self._append, self._hold = Script("kv_append.lua"), Script("kv_hold.lua")

    async def hold(self, instance_key: str) -> Kept:
        """Say that this incarnation lives: its log stays, and that of the incarnation before it is deleted.

        Returns what there is of it. To be called when it begins, and more often than `ttl_s` from then on.
        """
        keys = [self._living + id_of(instance_key), self._stream + instance_key, self._snapshot + instance_key]
        arguments = (instance_key, self._stream, self._snapshot, self._ttl_ms)
        last, has_snapshot = await self._link.run(self._hold, keys, arguments)
        return Kept(last.decode(), bool(has_snapshot))

    async def append(self, instance_key: str, payload: bytes) -> Appended:
        """Append a delta. A writer that did not write the entry before it ought to tell everything anew."""
        arguments = (payload, self.max_entries, self._ttl_ms)
        entry_id, before = await self._link.run(self._append, [self._stream + instance_key], arguments)
        return Appended(entry_id.decode(), before.decode())

    async def write_snapshot(self, instance_key: str, payload: bytes, up_to: str) -> None:
        """Write the whole as it is after the entry `up_to` (`START` if there is none yet)."""
        value = up_to.encode() + b"\n" + payload
        await self._link.command("SET", self._snapshot + instance_key, value, "PX", self._ttl_ms)

    async def watch(
        self,
        instance_keys: Callable[[], Collection[str]],
        take: Callable[[KvNews], None],
        *,
        synced: asyncio.Event | None = None,
    ) -> NoReturn:
        """Give `take` the whole and then the deltas of every instance until cancelled; never raises.

        `instance_keys` says whom to follow and is asked again all the time; who is not in it any more is followed
        and known no longer: `Whole` with nothing is the last news. `synced` is set once nothing was left
        to read of anyone in it.
        """
        reader = _Reader(self, take)
        await persist(
            "KV log", self._link.where, lambda in_touch: reader.live(instance_keys, in_touch, synced), lambda: None
        )

    async def _read_snapshot(self, instance_key: str) -> tuple[bytes, str] | None:
        """The whole and the entry that it holds up to; None if there is none, or none that we can read."""
        value = await self._link.command("GET", self._snapshot + instance_key)
        up_to, _, payload = (value or b"").partition(b"\n")
        return (payload, up_to.decode()) if _ENTRY_ID.fullmatch(up_to) else None

    async def _last(self, instance_key: str) -> str:
        entries = await self._link.command("XREVRANGE", self._stream + instance_key, "+", "-", "COUNT", 1)
        return entries[0][0].decode() if entries else START

    async def _first_after(self, instance_key: str, entry_id: str) -> StreamEntry | None:
        streams = {self._stream + instance_key: entry_id}
        found = await self._link.read_streams(streams, count=1)
        return next((entries[0] for entries in found.values()), None)


class _Reader:
    """How far one router has read: the last entry it has taken of each instance."""

    def __init__(self, kv_log: KvLog, take: Callable[[KvNews], None]) -> None:
        self._log = kv_log
        self._take = take
        self._at: dict[str, str] = {}
        self._partial: dict[str, float] = {}  # without a snapshot, and when to look for one again
        self._in_turn = 0  # entries taken

    async def live(
        self, wanted: Callable[[], Collection[str]], in_touch: Callable[[], None], synced: asyncio.Event | None
    ) -> None:
        """Follow over one connection until something breaks."""
        for key in list(self._at):
            await self._look_back(key)
        async with self._log._link.apart(_BLOCK_S) as blocking:
            while True:
                await self._adjust(set(wanted()))
                in_touch()
                if not self._at:
                    _set(synced)
                    await asyncio.sleep(_BLOCK_S)
                    continue
                streams = {self._log._stream + key: entry_id for key, entry_id in self._at.items()}
                found = await blocking.read_streams(streams, count=_MAX_ENTRIES_AT_ONCE, block_s=_BLOCK_S)
                at_the_end = [
                    await self._go_on(stream.removeprefix(self._log._stream), entries)
                    for stream, entries in found.items()
                ]
                if all(at_the_end):
                    _set(synced)
                    if found:
                        await asyncio.sleep(_GATHER_S)

    async def _adjust(self, wanted: set[str]) -> None:
        for key in self._at.keys() - wanted:
            del self._at[key]
            self._partial.pop(key, None)
            self._take(Whole(key, None))
        now = time.monotonic()
        for key in wanted - self._at.keys():
            await self._load(key)
        for key in [key for key, at_s in self._partial.items() if at_s <= now]:
            await self._take_snapshot(key)

    async def _look_back(self, key: str) -> None:
        """See, after an outage, whether the server has what we had read of it.

        If it has lost the whole stream, what we know is the best there is until the writer tells more.
        """
        last = await self._log._last(key)
        if last == START:
            self._partial[key] = 0.0
        elif _number(last) < _number(self._at[key]):
            await self._load(key)

    async def _go_on(self, key: str, entries: list[StreamEntry]) -> bool:
        """Take entries in; True if there were no more when they were read."""
        behind = len(entries) >= _MAX_ENTRIES_AT_ONCE
        for entry in entries:
            if entry.before != self._at[key]:  # trimmed, or the stream began anew
                log.info("KV log: entries of %s were missed; reading it whole", key)
                await self._load(key)
                return False
            self._at[key] = entry.entry_id
            self._take(Delta(key, entry.payload, entry.entry_id, behind))
            self._in_turn += 1
            if self._in_turn >= _MOST_IN_TURN:
                self._in_turn = 0
                await asyncio.sleep(0)
        return not behind

    async def _load(self, key: str) -> None:
        """Begin with the snapshot if the entries after it are all there, else with the entries that are."""
        if await self._take_snapshot(key):
            return
        first = await self._log._first_after(key, START)
        self._at[key] = first.before if first else START
        if self._at[key] != START:
            log.warning("KV log: %s has no snapshot that fits; knowing only what it tells from here on", key)
        self._partial[key] = time.monotonic() + _RELOAD_EVERY_S
        self._take(Whole(key, None))

    async def _take_snapshot(self, key: str) -> bool:
        snapshot = await self._log._read_snapshot(key)
        if snapshot is not None:
            payload, up_to = snapshot
            following = await self._log._first_after(key, up_to)
            if following is None or following.before == up_to:
                self._partial.pop(key, None)
                self._at[key] = up_to
                self._take(Whole(key, payload))
                return True
        if key in self._partial:
            self._partial[key] = time.monotonic() + _RELOAD_EVERY_S
        return False


def _set(event: asyncio.Event | None) -> None:
    if event is not None:
        event.set()


def _number(entry_id: str) -> tuple[int, int]:
    milliseconds, _, count = entry_id.partition("-")
    return int(milliseconds), int(count)
