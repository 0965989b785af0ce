"""Lets what was learned of instances' prefixes survive this process: read when it starts, written now and then."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

import xxhash

from extproc.adapters.some_at_once import for_each
from extproc.errors import RegistryError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from extproc.adapters.prefix_memory import PrefixMemory
    from extproc.core.router import Router

WRITE_EVERY_S = 20.0
BUDGET_S = 2.0

log = logging.getLogger("extproc.serve")


class PrefixKeeper:
    """Remembers for one router. Instances whose engines tell what they hold need no memory of ours.

    `budget_s` is how long reading or writing all of them may take: a start or an end must not wait for a slow Redis.
    """

    def __init__(self, router: Router, memory: PrefixMemory, *, budget_s: float = BUDGET_S) -> None:
        self._router = router
        self._memory = memory
        self._budget_s = budget_s
        self._written: dict[str, int] = {}  # digest of what was written last, the longest ago first

    async def restore(self) -> None:
        """Read what is known of every instance that this router knows nothing of yet, as far as the time allows."""
        try:
            await self._each(list(self._learning()), self._restore)
        except RegistryError as error:
            log.warning("prefixes learned before this start are not all known: %s", error)

    async def run(self) -> NoReturn:
        """Write what has changed, every `WRITE_EVERY_S`, until cancelled; an outage costs nothing but the memory."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self.try_to_write()

    async def try_to_write(self) -> None:
        """Write as `write` does; what goes wrong is logged and nothing else."""
        try:
            await self.write()
        except RegistryError:
            log.debug("learned prefixes were not written", exc_info=True)
        except Exception:
            log.exception("learned prefixes were not written")

    async def write(self) -> None:
        """Write what has changed since it was written last, what waits longest first. Raises RegistryError."""
        learning = set(self._learning())
        self._written = {key: digest for key, digest in self._written.items() if key in learning}
        await self._each([*(learning - self._written.keys()), *self._written], self._write)

    async def _restore(self, key: str) -> None:
        try:
            dumped = await self._memory.read(key)
            if dumped and not self._router.prefixes.size(key):
                self._router.prefixes.load(key, dumped)
        except ValueError as error:  # no whole number of words
            log.warning("prefixes of %s learned before this start are not known: %s", key, error)

    async def _write(self, key: str) -> None:
        dumped = self._router.prefixes.dump(key)
        digest = xxhash.xxh3_64_intdigest(dumped)
        if dumped and digest != self._written.get(key):
            await self._memory.write(key, dumped)
            self._written.pop(key, None)
            self._written[key] = digest

    async def _each(self, keys: Iterable[str], work: Callable[[str], Awaitable[None]]) -> None:
        """Do `work` for all keys, some at once; raises RegistryError at the first failure, or when time is up."""
        try:
            async with asyncio.timeout(self._budget_s):
                await for_each(keys, work)
        except TimeoutError as error:
            raise RegistryError(f"Redis is too slow to do it for all instances in {self._budget_s:g} s") from error

    def _learning(self) -> Iterable[str]:
        for member in self._router.fleet.members():
            if not member.instance.kv_events:
                yield member.instance.key
