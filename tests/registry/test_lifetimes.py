"""Nothing that the registry writes stays for ever: every key has a time to live, and names that never come back go."""

from __future__ import annotations

import asyncio
import time

from extproc.adapters.kv_log import KvLog
from extproc.adapters.registry import Registry
from extproc.core.values.instance import Lifecycle
from tests.core.builders import instance
from tests.redis_server import RedisServer
from tests.registry.deployments import ask

IDS, ORDERS = "extproc:{default}:ids", "extproc:{default}:orders"
DAY_MS = 86_400_000


async def test_every_key_has_a_time_to_live(server: RedisServer) -> None:
    """Also if the only thing that ever happened was an order, or a removal, for a record that was written by hand."""
    async with Registry(server.url) as registry, Registry(server.url, "by-hand") as by_hand:
        await registry.publish(instance("a"))
        await registry.order("a", Lifecycle.DRAINING)
        kv_log = KvLog(registry.link, registry.base)
        await kv_log.hold("a@1")
        await kv_log.write_snapshot("a@1", b"x", (await kv_log.append("a@1", b"x")).entry_id)
        for name in ("b", "c"):
            ask(server, "SET", f"extproc:{{by-hand}}:instance:{name}", "{}", "PX", 10_000)
        await by_hand.remove("b")
        await by_hand.order("c", Lifecycle.DRAINING)
    keys = ask(server, "KEYS", "*")
    assert len(keys) == 10
    assert [key for key in keys if ask(server, "PTTL", key) < 0] == []


async def test_an_order_outlives_an_instance_whose_agent_was_away(server: RedisServer) -> None:
    async with Registry(server.url) as registry:
        await registry.publish(instance("drained"), ttl_s=0.05)
        await registry.order("drained", Lifecycle.DRAINING)
        await asyncio.sleep(0.1)
        await registry.publish(instance("a"))
        assert (await registry.state()).orders == {"drained": Lifecycle.DRAINING}
        assert ask(server, "ZCARD", IDS) == 2


async def test_orders_and_ids_of_names_that_never_came_back_are_swept_up_after_a_day(server: RedisServer) -> None:
    """An autoscaler drains and deletes pods with ever new names: their orders must not pile up."""
    now_ms = int(time.time() * 1000)
    for number in range(20):
        ask(server, "ZADD", IDS, now_ms - DAY_MS - 60_000, f"pod-{number}")
        ask(server, "HSET", ORDERS, f"pod-{number}", "Draining")
    ask(server, "ZADD", IDS, now_ms - DAY_MS + 60_000, "yesterday")
    ask(server, "HSET", ORDERS, "yesterday", "Draining")
    async with Registry(server.url) as registry:
        for _ in range(6):
            await registry.publish(instance("a"))
        assert (await registry.state()).orders == {"yesterday": Lifecycle.DRAINING}
        assert ask(server, "ZRANGE", IDS, 0, -1) == [b"yesterday", b"a"]


async def test_an_instance_that_is_alive_keeps_its_order_however_old_its_last_publish(server: RedisServer) -> None:
    async with Registry(server.url) as registry:
        await registry.publish(instance("slow"), ttl_s=3 * 86_400.0)
        await registry.order("slow", Lifecycle.DRAINING)
        ask(server, "ZADD", IDS, int(time.time() * 1000) - 2 * DAY_MS, "slow")
        await registry.publish(instance("a"))
        assert (await registry.state()).orders == {"slow": Lifecycle.DRAINING}
