"""Reads back what an agent before this one published last, so that a restarted agent goes on from there."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from extproc.adapters.registry import Registry
    from extproc.core.fleet.events import Record

_FRESH_S = 1.0  # one reading of the registry serves all backends that begin together


class LastRecords:
    """The registry's records, by id, as they were when a backend's publisher began."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = asyncio.Lock()
        self._records: dict[str, Record] = {}
        self._read_at_s = float("-inf")

    async def get(self, instance_id: str) -> Record | None:
        """Return an instance's last record, None if there is none. Raises RegistryError."""
        async with self._lock:
            if time.monotonic() - self._read_at_s > _FRESH_S:
                state = await self._registry.state()
                self._records = {record.instance.id: record for record in state.records}
                self._read_at_s = time.monotonic()
        return self._records.get(instance_id)
