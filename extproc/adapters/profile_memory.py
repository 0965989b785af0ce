"""What routers have learned of profiles, kept in Redis for each other and for a router that starts.

One hash for a fleet with a field for each router, JSON as `core.speeds.speed_records` has it. Each router writes its
own field and drops those that have not been written for long; the times are the server's. A fleet's records take long
to write and to read, so that is done in slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from extproc.adapters.slices import in_slices
from extproc.core.speeds.speed_records import KindRecord, decode_kind, encode_kind
from extproc.errors import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from extproc.adapters.redis_link import Link

DEFAULT_TTL_S = 86_400.0  # hardware stays what it is


class ProfileMemory:
    """Reads and writes one fleet's profiles. `base` is `Registry.base`; all methods raise RegistryError."""

    def __init__(self, link: Link, base: str, ttl_s: float = DEFAULT_TTL_S) -> None:
        self._link = link
        self._key = f"{base}:profiles"
        self._ttl_s = ttl_s

    async def write(self, router: str, kinds: Iterable[KindRecord]) -> None:
        """Keep what a router has learned in place of what it had told before."""
        encoded = [msgspec.Raw(encode_kind(each)) async for each in in_slices(kinds)]
        written = _Written(written_at_s=await self._now_s(), kinds=tuple(encoded))
        await self._link.command("HSET", self._key, router, msgspec.json.encode(written))
        await self._link.command("PEXPIRE", self._key, round(self._ttl_s * 1000))

    async def read(self, younger_than_s: float | None = None) -> dict[str, tuple[KindRecord, ...]]:
        """What each router has learned, as far as it was written within that time; what cannot be read is left out.

        The records say how long they have lain (`KindRecord.lain_s`).
        """
        limit_s = self._ttl_s if younger_than_s is None else younger_than_s
        found = {}
        async for name, data in self._fields():
            try:
                written = _WRITTEN.decode(data)
                lain_s = await self._now_s() - written.written_at_s
                if lain_s <= limit_s:
                    found[name.decode()] = await _kinds(written, lain_s)
            except UNREADABLE:  # of another version
                continue
        return found

    async def tidy(self) -> None:
        """Drop what routers that are long gone have written, and what nobody can read."""
        since_s = await self._now_s() - self._ttl_s
        async for name, data in self._fields():
            try:
                written_at_s = _WRITTEN.decode(data).written_at_s
            except UNREADABLE:
                written_at_s = 0.0
            if written_at_s < since_s:
                await self._link.command("HDEL", self._key, name)

    async def _fields(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """One router's after the other: all of them at once would be megabytes to take in."""
        for name in await self._link.command("HKEYS", self._key):
            data = await self._link.command("HGET", self._key, name)
            if data is not None:
                yield name, data

    async def _now_s(self) -> float:
        seconds, microseconds = await self._link.command("TIME")
        return int(seconds) + int(microseconds) * 1e-6


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    """`core.speed_records.Records`, its kinds not decoded yet."""

    written_at_s: float = 0.0
    kinds: tuple[msgspec.Raw, ...] = ()


_WRITTEN = msgspec.json.Decoder(_Written)


async def _kinds(written: _Written, lain_s: float) -> tuple[KindRecord, ...]:
    """Raises ValueError for what is no record."""
    kinds = [decode_kind(each) async for each in in_slices(written.kinds)]
    return tuple([msgspec.structs.replace(each, lain_s=max(0.0, lain_s)) for each in kinds])
