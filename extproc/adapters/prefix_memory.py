"""What routers have learned of each instance's prefixes, kept in Redis for a router that starts.

Each router keeps its own: a hash for each incarnation of an instance, with one field of packed 64-bit words as
`core.prefix.PrefixIndex.dump` makes them. Another hash lists who keeps any, and when it wrote last. A router that
starts is given what all of them know: each saw a share of the same traffic. They are no strings, so that a router's
Redis user needs no right to overwrite instances' records.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from extproc.core.prefixes.prefix_merge import merged_dumps

if TYPE_CHECKING:
    from collections.abc import Callable

    from extproc.adapters.redis_link import Link

_FIELD = "blocks"
_WORD_BYTES = 8
_LONGEST_MS = 16  # digits of a time that is one
_MAX_WRITERS = 8  # who wrote last; a fleet of routers that is restarted one by one leaves twice as many
DEFAULT_TTL_S = 600.0  # prefixes that nobody has used for so long are hardly worth knowing


class PrefixMemory:
    """Reads the memories of one fleet and writes one of them. `base` is `Registry.base`.

    `clock` is the time of day, in seconds: writers compare it with each other's to clean up, at `ttl_s` and not finer.
    All methods raise RegistryError.
    """

    def __init__(
        self, link: Link, base: str, ttl_s: float = DEFAULT_TTL_S, clock: Callable[[], float] = time.time
    ) -> None:
        self._link = link
        self._writers, self._prefixes = f"{base}:prefixes:", f"{base}:prefixes-by:"
        self._me = secrets.token_hex(6)
        self._ttl_ms = round(ttl_s * 1000)
        self._clock = clock

    async def write(self, instance_key: str, dumped: bytes) -> None:
        """Keep what this router knows of an instance in place of what it knew."""
        mine, writers = self._key(self._me, instance_key), self._writers + instance_key
        now_ms = round(self._clock() * 1000)
        await self._link.command("HSET", mine, _FIELD, dumped)
        await self._link.command("PEXPIRE", mine, self._ttl_ms)
        await self._link.command("HSET", writers, self._me, now_ms)
        await self._link.command("PEXPIRE", writers, self._ttl_ms)
        gone = [name for name, at_ms in (await self._known(instance_key)).items() if now_ms - at_ms > self._ttl_ms]
        if gone:
            await self._link.command("HDEL", writers, *gone)

    async def read(self, instance_key: str) -> bytes | None:
        """What the routers know of an instance, put together; None if nothing. ValueError for what is no dump."""
        known = await self._known(instance_key)
        latest = sorted(known, key=known.__getitem__, reverse=True)[:_MAX_WRITERS]
        dumps = [await self._link.command("HGETALL", self._key(name, instance_key)) for name in latest]
        return merged_dumps([fields[1] for fields in dumps if fields]) or None

    async def blocks(self, instance_key: str) -> int:
        """How many blocks the router that knows most of an instance knows; without reading any."""
        known = await self._known(instance_key)
        latest = sorted(known, key=known.__getitem__, reverse=True)[:_MAX_WRITERS]
        sizes = [await self._link.command("HSTRLEN", self._key(name, instance_key), _FIELD) for name in latest]
        return max(map(int, sizes), default=0) // _WORD_BYTES

    async def _known(self, instance_key: str) -> dict[str, int]:
        """Who keeps something of an instance, and when it wrote last, in ms; long ago if that cannot be read.

        Who has no name that we could write is nobody.
        """
        flat: list[bytes] = await self._link.command("HGETALL", self._writers + instance_key)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return {
            name.decode(): int(at_ms) if at_ms.isdigit() and len(at_ms) < _LONGEST_MS else 0
            for name, at_ms in pairs
            if name.isascii()
        }

    def _key(self, writer: str, instance_key: str) -> str:
        return f"{self._prefixes}{writer}:{instance_key}"
