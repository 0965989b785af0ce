"""What a leading autoscaler leaves in Redis: its memory for the next leader, and its word for its followers.

Only the leader writes, by its fencing number (`adapters.leader`); anybody reads. Times are the server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.adapters.leader import leader_key
from extproc.adapters.redis_scripts import Script

if TYPE_CHECKING:
    from extproc.adapters.redis_link import Link

_MEMORY_LIFE_S = 30 * 86_400.0  # what was learned of a day or a week is worth it
_WORD_LIFE_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and how long ago."""

    data: bytes
    age_s: float


class ScalingMemory:
    """That of one fleet. `base` is `Registry.base`; all methods raise RegistryError."""

    def __init__(self, link: Link, base: str) -> None:
        self._link = link
        self._leader = leader_key(base)
        self._memory, self._word = f"{base}:scaling-memory", f"{base}:recommendations"
        self._write = Script("write_as_leader.lua")

    async def write(self, data: bytes, fence: int) -> bool:
        """Keep what the autoscaler remembers (`Scaler.dump`); False if another leads by now: nothing is written."""
        return await self._written(self._memory, data, fence, _MEMORY_LIFE_S)

    async def read(self) -> bytes | None:
        """What the latest leader remembered, None if nothing is known."""
        written = await self._read(self._memory)
        return None if written is None else written.data

    async def tell(self, data: bytes, fence: int) -> bool:
        """Say what is recommended; False if another leads by now: nothing is written."""
        return await self._written(self._word, data, fence, _WORD_LIFE_S)

    async def told(self) -> Written | None:
        """What the latest leader has said, and how long ago; None if nothing is known."""
        return await self._read(self._word)

    async def _written(self, key: str, data: bytes, fence: int, life_s: float) -> bool:
        arguments = (fence, data, round(life_s * 1000))
        return bool(await self._link.run(self._write, (self._leader, key), arguments))

    async def _read(self, key: str) -> Written | None:
        seconds, microseconds = await self._link.command("TIME")
        flat = await self._link.command("HGETALL", key)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        try:
            now_ms = int(seconds) * 1000 + int(microseconds) / 1000
            return Written(fields[b"data"], max(0.0, now_ms - float(fields[b"at_ms"])) / 1000)
        except (KeyError, ValueError):
            return None
