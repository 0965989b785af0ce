"""When a leader's memory is written into Redis, and whether what is there is newer than what this replica knows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from extproc.scaling_service.word import Memory, decode_memory, encode_memory

if TYPE_CHECKING:
    from extproc.adapters.scaling_memory import ScalingMemory
    from extproc.scaling_service.journal import Journal

_EVERY_S = 30.0  # though the journal is the same: what the scaler has learned


class Remembering:
    """Keeps the memory of one replica in `memory`."""

    def __init__(self, memory: ScalingMemory) -> None:
        self._memory = memory
        self._written = b""  # the journal, as Redis has it
        self._written_under: int | None = None  # the number under which we wrote last
        self._due_at_s = float("-inf")

    async def recall(self) -> Memory | None:
        """What the last leader has left; None where what we know ourselves stands. Raises RegistryError.

        It does where Redis has lost it, or has an old copy of it, and where nobody else has led since we wrote it.
        """
        data = await self._memory.read()
        memory = None if data is None else decode_memory(data)
        if memory is None or (self._written_under is not None and memory.fence <= self._written_under):
            return None
        return memory

    def hasten(self) -> None:
        """We lead anew: whatever the journal, it is written under our number."""
        self._due_at_s = float("-inf")

    def is_due(self, journal: Journal) -> bool:
        """Whether it is to be written now: it has changed, or was not written for a while."""
        return time.monotonic() >= self._due_at_s or msgspec.json.encode(journal) != self._written

    async def write(self, journal: Journal, scaler: bytes, fence: int) -> bool:
        """Write it down, with `Scaler.dump()`; False if another leads by now. Raises RegistryError."""
        encoded = msgspec.json.encode(journal)
        memory = Memory(fence=fence, journal=journal, scaler=scaler)
        written = await self._memory.write(encode_memory(memory), fence)
        if written:
            self._written, self._written_under = encoded, fence
            self._due_at_s = time.monotonic() + _EVERY_S
        return written
