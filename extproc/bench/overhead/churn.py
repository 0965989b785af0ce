"""A process that publishes a fleet as its agents would: load as it moves, and what KV caches gain and lose.

`python -m extproc.bench.overhead.churn REDIS_URL FLEET INSTANCES PORT` prints a line once all of them are published,
and goes on until it is ended.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import deque
from itertools import chain

from extproc.adapters.kv_log import KvLog
from extproc.adapters.registry import Registry
from extproc.agent.settings import AgentSettings
from extproc.bench.overhead.fleet import instance, moved
from extproc.core.prefixes import kv_delta
from extproc.core.prefixes.kv_delta import KvDelta
from extproc.core.values.instance import Instance

READY = "all instances are published"
# An agent looks again after the shortest of its periods as long as the load moves.
_STATE_EVERY_S = AgentSettings().periods.shortest_s
_DELTA_EVERY_S = 1.0
_DELTA_BLOCKS = 64  # a prompt of 4 KiB has about as many of 16 tokens
_HELD_BLOCKS = 2048  # the oldest go as new ones come
_HOLD_EVERY_S = 15.0  # and as often an agent writes down the whole


async def churn(redis_url: str, fleet: str, instances: int, port: int) -> None:
    """Publish until cancelled. Raises RegistryError."""
    async with Registry(redis_url, fleet) as registry:
        members = [instance(number, port) for number in range(instances)]
        for member in members:
            await registry.publish(member)
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        log = KvLog(registry.link, registry.base)
        async with asyncio.TaskGroup() as group:
            group.create_task(_tell_state(registry, members))
            group.create_task(_tell_blocks(log, [member.key for member in members if member.kv_events]))


async def _tell_state(registry: Registry, members: list[Instance]) -> None:
    """Each in its turn, evenly over the period."""
    chance, began_s, turn = random.Random(1), time.monotonic(), 0
    pause_s = _STATE_EVERY_S / len(members)
    while True:
        number = turn % len(members)
        members[number] = moved(members[number], chance)
        await registry.publish(members[number])
        turn += 1
        await asyncio.sleep(max(0.0, began_s + turn * pause_s - time.monotonic()))


async def _tell_blocks(log: KvLog, keys: list[str]) -> None:
    if not keys:
        return
    chance, began_s, turn = random.Random(2), time.monotonic(), 0
    held: dict[str, deque[tuple[int, ...]]] = {key: deque() for key in keys}
    held_at_s = dict.fromkeys(keys, 0.0)
    pause_s = _DELTA_EVERY_S / len(keys)
    while True:
        key = keys[turn % len(keys)]
        gained = tuple(chance.getrandbits(64) for _ in range(_DELTA_BLOCKS))
        kept = held[key]
        lost = kept.popleft() if len(kept) * _DELTA_BLOCKS >= _HELD_BLOCKS else ()
        first = not kept
        kept.append(gained)
        appended = await log.append(key, kv_delta.encode(KvDelta(16, first, gpu=gained, removed=lost)))
        if held_at_s[key] + _HOLD_EVERY_S <= time.monotonic():
            await log.hold(key)
            whole = KvDelta(16, cleared=True, gpu=tuple(chain.from_iterable(kept)))
            await log.write_snapshot(key, kv_delta.encode(whole), appended.entry_id)
            held_at_s[key] = time.monotonic()
        turn += 1
        await asyncio.sleep(max(0.0, began_s + turn * pause_s - time.monotonic()))


if __name__ == "__main__":
    asyncio.run(churn(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
