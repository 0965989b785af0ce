"""Lets what was learned of instances' prefixes survive this process: read when it starts, written now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

import xxhash

from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from extproc.adapters.prefix_memory import PrefixMemory
    from extproc.core.router import Router

WRITE_EVERY_S = 20.0

log = logging.getLogger("extproc.serve")


class PrefixKeeper:
    """Remembers for one router. Instances whose engines tell what they hold need no memory of ours."""

    def __init__(self, router: Router, memory: PrefixMemory) -> None:
        self._router = router
        self._memory = memory
        self._written: dict[str, int] = {}  # digest of what was written last

    async def restore(self) -> None:
        """Read what is known of every instance that this router knows nothing of yet."""
        try:
            for key in list(self._learning()):
                dumped = await self._memory.read(key)
                if dumped and not self._router.prefixes.size(key):
                    self._router.prefixes.load(key, dumped)
        except (RegistryError, ValueError) as error:  # ValueError: no whole number of words
            log.warning("prefixes learned before this start are not known: %s", error)

    async def run(self) -> NoReturn:
        """Write what has changed, every `WRITE_EVERY_S`, until cancelled; an outage costs nothing but the memory."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self.write()
            except RegistryError:
                log.debug("learned prefixes were not written", exc_info=True)

    async def write(self) -> None:
        """Write what has changed since it was written last. Raises RegistryError."""
        learning = set(self._learning())
        self._written = {key: digest for key, digest in self._written.items() if key in learning}
        for key in learning:
            dumped = self._router.prefixes.dump(key)
            digest = xxhash.xxh3_64_intdigest(dumped)
            if dumped and digest != self._written.get(key):
                await self._memory.write(key, dumped)
                self._written[key] = digest

    def _learning(self) -> Iterable[str]:
        for member in self._router.fleet.members():
            if not member.instance.kv_events:
                yield member.instance.key
