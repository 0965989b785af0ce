"""A router as a service has it when it starts, read from Redis once, for somebody who only wants to know.

It announces itself to nobody. What it cannot know is what running routers have sent since the engines' last reports.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from extproc.adapters.kv_log import KvLog
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.core.router import Router
from extproc.server.kv_feed import KvFeed
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.server.profile_keeper import ProfileKeeper

if TYPE_CHECKING:
    from extproc.adapters.registry import Registry
    from extproc.core.snapshot import Policy
    from extproc.core.speeds.speed_records import KindRecord

_KV_BUDGET_S = 5.0  # for what engines tell that they hold; then on without


async def look(registry: Registry, policy: Policy, priors: Iterable[KindRecord] = (), *, kv: bool = False) -> Router:
    """Read fleet, learned prefixes and learned speeds, and with `kv` what engines tell that they hold.

    Raises RegistryError if the fleet cannot be read; the rest may be missing.
    """
    router = Router(policy, priors)
    router.take(router.fleet.resync(await registry.state(), time.monotonic()))
    await PrefixKeeper(router, PrefixMemory(registry.link, registry.base)).restore()
    await ProfileKeeper(router.beliefs.speeds, ProfileMemory(registry.link, registry.base), "").restore()
    if kv:
        await _read_kv(registry, router)
    return router


async def _read_kv(registry: Registry, router: Router) -> None:
    fleet_known, kv_known = asyncio.Event(), asyncio.Event()
    fleet_known.set()
    reading = asyncio.create_task(KvFeed(router, KvLog(registry.link, registry.base), fleet_known).run(kv_known))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(_KV_BUDGET_S):
                await kv_known.wait()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
