"""Times how soon a change that an agent publishes is known to a router, through a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import msgspec

from extproc.adapters.registry import Registry
from extproc.core.fleet.fleet import Change, Fleet
from extproc.core.values.instance import Instance, Lifecycle, Load

_FLEET = "bench-push"
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class Push:
    """From the call that publishes to the router's own copy of the fleet; agent and router share one process."""

    rate_per_s: float
    published: int
    known: int
    p50_s: float
    p99_s: float
    longest_s: float


async def push(url: str, rate_per_s: float = 100.0, number: int = 1000) -> Push:
    """Publish `number` changes at a steady rate and watch them arrive. Raises RegistryError."""
    fleet, delays_s, sent_s = Fleet(), list[float](), dict[int, float]()
    done, synced = asyncio.Event(), asyncio.Event()

    def note(change: Change) -> None:
        for member in change.reported:
            running = member.instance.load.running or 0
            for count in [count for count in sent_s if count <= running]:  # a whole state may tell several at once
                delays_s.append(time.perf_counter() - sent_s.pop(count))
        if len(delays_s) == number:
            done.set()

    async with Registry(url, _FLEET) as writer, Registry(url, _FLEET) as reader:
        watcher = asyncio.create_task(reader.watch(fleet, note, synced=synced))
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await synced.wait()
            for count in range(1, number + 1):
                sent_s[count] = time.perf_counter()
                await writer.publish(msgspec.structs.replace(_INSTANCE, load=Load(running=count)))
                await asyncio.sleep(1.0 / rate_per_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await done.wait()
            await writer.remove(_INSTANCE.id)
        finally:
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher
    ranked = sorted(delays_s)
    return Push(
        rate_per_s, number, len(ranked), ranked[len(ranked) // 2], ranked[int(0.99 * (len(ranked) - 1))], ranked[-1]
    )


_INSTANCE = Instance(
    id="bench",
    incarnation="1",
    address="127.0.0.1:1",
    cluster="pool",
    models=("m",),
    lifecycle=Lifecycle.READY,
)
