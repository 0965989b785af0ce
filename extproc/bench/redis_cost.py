"""What a fleet costs its Redis: memory, commands and processor time for each hundred instances.

Publishes a fleet of its own, named so that it meets no other, for some seconds at the agents' pace; reads the
server's own counters before and after, and deletes what it wrote. Other users of the server are measured with it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from extproc.adapters.kv_log import START, KvLog
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import RedisSettings
from extproc.adapters.registry import Registry
from extproc.core.fleet.fleet import Fleet
from extproc.core.values.instance import Instance, Lifecycle, Load

_DELTA_BYTES = 1024  # one append a second: the blocks that ten requests a second of 4,000 tokens add and drop
_SNAPSHOT_BYTES = 200_000  # 25,000 blocks of 8 bytes, an H100 with a 70B model
_MODELS = ("meta-llama/Llama-3.1-70B-Instruct", "adapter-a", "adapter-b")


@dataclass(frozen=True, slots=True)
class RedisCost:
    """Rates while `instances` publish once a second and `routers` follow; memory once all of it is there."""

    instances: int
    routers: int
    publish_calls_per_s: float  # scripts that agents run
    commands_per_s: float  # all commands as the server counts them, those inside of scripts too
    cpu_share: float  # of one core, user and system, whole server
    sent_bytes_per_s: float  # to all routers and agents
    registry_bytes: int  # memory of the records, ids, orders
    kv_log_bytes: int  # memory of the streams, full, and of the snapshots


async def redis_cost(settings: RedisSettings | str, instances: int, *, seconds: float, routers: int = 2) -> RedisCost:
    """Measure for `seconds`. Raises RegistryError."""
    fleet_name = f"bench-{secrets.token_hex(4)}"
    async with Registry(settings, fleet_name) as registry:
        try:
            return await _measure(registry, [_instance(number) for number in range(instances)], seconds, routers)
        finally:
            await _clean_up(registry, instances)


async def _measure(registry: Registry, fleet: list[Instance], seconds: float, routers: int) -> RedisCost:
    followers = [Registry(registry.link.settings, registry.fleet_name) for _ in range(routers)]
    synced = [asyncio.Event() for _ in followers]
    tasks = [
        asyncio.create_task(follower.watch(Fleet(), synced=event))
        for follower, event in zip(followers, synced, strict=True)
    ]
    try:
        await asyncio.gather(*(event.wait() for event in synced), _publish_all(registry, fleet, 0.5))
        before, began_s = await _counters(registry.link), time.monotonic()
        rounds = max(1, round(seconds))
        for _ in range(rounds):
            await _publish_all(registry, fleet, 1.0)
        after, took_s = await _counters(registry.link), time.monotonic() - began_s
    finally:
        for task, follower in zip(tasks, followers, strict=True):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await follower.aclose()
    records = await _memory(registry.link, await _keys(registry, fleet))
    kv_log = await _kv_log_memory(registry, fleet[0])

    def rate(name: str) -> float:
        return (after[name] - before[name]) / took_s

    return RedisCost(
        instances=len(fleet),
        routers=routers,
        publish_calls_per_s=rounds * len(fleet) / took_s,
        commands_per_s=rate("total_commands_processed"),
        cpu_share=rate("used_cpu_user") + rate("used_cpu_sys"),
        sent_bytes_per_s=rate("total_net_output_bytes"),
        registry_bytes=records,
        kv_log_bytes=kv_log * len(fleet),
    )


async def _publish_all(registry: Registry, fleet: list[Instance], within_s: float) -> None:
    """Publish every instance once, evenly over that time as agents of their own would."""
    began_s = time.monotonic()
    for number, instance in enumerate(fleet):
        await asyncio.sleep(max(0.0, began_s + number * within_s / len(fleet) - time.monotonic()))
        await registry.publish(instance, ttl_s=30.0)
    await asyncio.sleep(max(0.0, began_s + within_s - time.monotonic()))


async def _kv_log_memory(registry: Registry, instance: Instance) -> int:
    """Fill the log of one instance to its brim, and return the bytes that it takes."""
    log = KvLog(registry.link, registry.base)
    payload = secrets.token_bytes(_DELTA_BYTES)
    for _ in range(log.max_entries + 200):
        await log.append(instance.key, payload)
    await log.write_snapshot(instance.key, secrets.token_bytes(_SNAPSHOT_BYTES), START)
    keys = [f"{registry.base}:kv:{instance.key}", f"{registry.base}:kvsnap:{instance.key}"]
    return await _memory(registry.link, keys)


async def _memory(link: Link, keys: list[str]) -> int:
    return sum([await link.command("MEMORY", "USAGE", key, "SAMPLES", 0) or 0 for key in keys])


async def _keys(registry: Registry, fleet: list[Instance]) -> list[str]:
    records = [f"{registry.base}:instance:{instance.id}" for instance in fleet]
    return [*records, *(f"{registry.base}:{name}" for name in ("ids", "orders", "seq"))]


async def _clean_up(registry: Registry, instances: int) -> None:
    fleet = [_instance(number) for number in range(instances)]
    names = (f"{registry.base}:{kind}:{instance.key}" for kind in ("kv", "kvsnap") for instance in fleet[:1])
    await registry.link.command("DEL", *await _keys(registry, fleet), *names)


async def _counters(link: Link) -> dict[str, float]:
    """The server's own counters, those that are numbers."""
    counters: dict[str, float] = {}
    for section in ("stats", "cpu"):
        text: Any = await link.command("INFO", section)
        for line in text.decode().splitlines():
            name, _, value = line.partition(":")
            with suppress(ValueError):
                counters[name] = float(value)
    return counters


def _instance(number: int) -> Instance:
    return Instance(
        id=f"10.20.{number // 250}.{number % 250}:8000",
        incarnation="1764412345.67",
        address=f"10.20.{number // 250}.{number % 250}:8000",
        cluster="pool",
        models=_MODELS,
        lifecycle=Lifecycle.READY,
        engine="vllm",
        engine_version="0.32.0",
        hardware="h100_sxm",
        tensor_parallel=4,
        zone="eu-west-1a",
        max_model_len_tokens=131072,
        block_size_tokens=16,
        kv_blocks=25000,
        max_num_seqs=256,
        load=Load(running=37, waiting=4, kv_usage=0.731),
    )


def readable(cost: RedisCost) -> str:
    """The measurement in five lines, for each hundred instances."""
    hundreds = cost.instances / 100
    rows = [
        ("scripts run by agents", f"{cost.publish_calls_per_s / hundreds:,.0f} /s"),
        ("commands, those in scripts too", f"{cost.commands_per_s / hundreds:,.0f} /s"),
        ("processor of the server", f"{cost.cpu_share / hundreds:.1%} of a core"),
        (f"sent to {cost.routers} routers", f"{cost.sent_bytes_per_s / hundreds / 1024:,.0f} KiB/s"),
        ("memory of the records", f"{cost.registry_bytes / hundreds / 1024:,.0f} KiB"),
        ("memory of full KV logs, if kept", f"{cost.kv_log_bytes / hundreds / 2**20:,.0f} MiB"),
    ]
    return "\n".join(f"{what:<32} {value:>14}" for what, value in rows)
