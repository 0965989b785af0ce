"""What routers have learned of each instance's prefixes, kept in Redis for a router that starts.

One hash for each incarnation with one field, packed 64-bit words as `core.prefix.PrefixIndex.dump` makes them: no
string, so that a router's Redis user needs no right to overwrite instances' records. Any router may write it, the
last one is believed: each sees a share of the same traffic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extproc.adapters.redis_link import Link

_FIELD = "blocks"
DEFAULT_TTL_S = 600.0  # prefixes that nobody has used for so long are hardly worth knowing


class PrefixMemory:
    """Reads and writes the memories of one fleet. `base` is `Registry.base`; both methods raise RegistryError."""

    def __init__(self, link: Link, base: str, ttl_s: float = DEFAULT_TTL_S) -> None:
        self._link = link
        self._prefixes = f"{base}:prefixes:"
        self._ttl_ms = round(ttl_s * 1000)

    async def write(self, instance_key: str, dumped: bytes) -> None:
        """Keep what is known of an instance in place of what was."""
        key = self._prefixes + instance_key
        await self._link.command("HSET", key, _FIELD, dumped)
        await self._link.command("PEXPIRE", key, self._ttl_ms)

    async def read(self, instance_key: str) -> bytes | None:
        """What was known of an instance, None if nothing was."""
        fields: list[bytes] = await self._link.command("HGETALL", self._prefixes + instance_key)
        return fields[1] if fields else None
