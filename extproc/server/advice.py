"""What the fleet's autoscaler recommends, as it has left it in Redis: read only while somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from extproc.adapters.scaling_memory import ScalingMemory, Written
from extproc.errors import RegistryError
from extproc.scaling_service.word import decode_word

_READ_EVERY_S = 2.0
_PATIENCE_S = 0.3  # for which whoever looks waits at the most; Redis may be gone


class Advice:
    """Read anew where the last reading is old; what was read last is told where that takes too long."""

    def __init__(self, memory: ScalingMemory, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` only goes forward."""
        self._memory = memory
        self._clock = clock
        self._written: Written | None = None
        self._read_at_s = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def look(self) -> dict[str, Any] | None:
        """The autoscaler's latest word as plain values, with its age; None while none is known."""
        if self._clock() - self._read_at_s > _READ_EVERY_S:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.get_running_loop().create_task(self._read())
            await asyncio.wait((self._reading,), timeout=_PATIENCE_S)
        written = self._written
        word = None if written is None else decode_word(written.data)
        if written is None or word is None:
            return None
        return {
            "age_s": written.age_s + self._clock() - self._read_at_s,
            "name": word.name,
            "pages": word.about,
            "outside": len(word.outside),
            "pools": [
                msgspec.to_builtins(each) | {"pending": word.pending.get(each.pool, 0)} for each in word.recommendations
            ],
        }

    async def _read(self) -> None:
        with suppress(RegistryError):  # other parts tell of Redis's silence; the last word gets older meanwhile
            self._written = await self._memory.told()
            self._read_at_s = self._clock()
