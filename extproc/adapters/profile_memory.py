"""What routers have learned of profiles, kept in Redis for each other and for a router that starts.

One hash for a fleet with a field for each router, JSON as `core.speed_records` has it. Each router writes its own field
and drops those that have not been written for long; the times are the server's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from extproc.core.speed_records import KindRecord, Records, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

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
        records = Records(kinds=tuple(kinds), written_at_s=await self._now_s())
        await self._link.command("HSET", self._key, router, encode(records))
        await self._link.command("PEXPIRE", self._key, round(self._ttl_s * 1000))

    async def read(self, younger_than_s: float | None = None) -> dict[str, tuple[KindRecord, ...]]:
        """What each router has learned, as far as it was written within that time; what cannot be read is left out."""
        limit_s = self._ttl_s if younger_than_s is None else younger_than_s
        since_s = await self._now_s() - limit_s
        flat: list[bytes] = await self._link.command("HGETALL", self._key)
        found = {}
        for name, data in zip(flat[::2], flat[1::2], strict=True):
            try:
                records = decode(data)
            except ValueError:  # of another version
                continue
            if records.written_at_s >= since_s:
                found[name.decode()] = records.kinds
        return found

    async def tidy(self) -> None:
        """Drop what routers that are long gone have written, and what nobody can read."""
        since_s = await self._now_s() - self._ttl_s
        flat: list[bytes] = await self._link.command("HGETALL", self._key)
        for name, data in zip(flat[::2], flat[1::2], strict=True):
            try:
                written_at_s = msgspec.json.decode(data, type=_Written).written_at_s
            except msgspec.DecodeError:
                written_at_s = 0.0
            if written_at_s < since_s:
                await self._link.command("HDEL", self._key, name)

    async def _now_s(self) -> float:
        seconds, microseconds = await self._link.command("TIME")
        return int(seconds) + int(microseconds) * 1e-6


class _Written(msgspec.Struct):
    written_at_s: float = 0.0
