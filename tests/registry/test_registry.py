"""The registry against real servers: Valkey from its wheel, and the system's Redis if there is one."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from extproc.adapters.destinations import Destinations, Gate, parse_networks
from extproc.adapters.redis_link import Link
from extproc.adapters.registry import Registry
from extproc.core.fleet.fleet import Change, Fleet
from extproc.core.values.instance import Lifecycle, Load
from extproc.demo.ports import free_port
from extproc.errors import ConfigError, RegistryError
from tests.core.builders import instance
from tests.redis_server import RedisServer
from tests.registry.deployments import cluster_node

README = Path(__file__).parents[2] / "docs" / "registry-schema.md"
LONG_S = 30.0  # never reached by a machine that works


@pytest.fixture
async def registry(server: RedisServer) -> AsyncIterator[Registry]:
    async with Registry(server.url) as made:
        yield made


@asynccontextmanager
async def watching(
    server: RedisServer, fleet: Fleet, on_change: Callable[[Change], None] = lambda change: None
) -> AsyncIterator[asyncio.Task[None]]:
    """A router's side: follows the fleet with a connection of its own."""
    async with Registry(server.url) as registry:
        synced = asyncio.Event()
        task = asyncio.create_task(registry.watch(fleet, on_change, synced=synced))
        try:
            await asyncio.wait_for(synced.wait(), LONG_S)
            yield task
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def ids(fleet: Fleet) -> list[str]:
    return sorted(member.instance.id for member in fleet.members())


async def test_a_publish_is_pushed_to_a_watcher(server: RedisServer, registry: Registry) -> None:
    fleet, changes = Fleet(), list[Change]()
    async with watching(server, fleet, changes.append):
        published = instance("a", load=Load(running=7, kv_usage=0.1 + 0.2), models=("m/é", "x"))
        await registry.publish(published)
        await until(lambda: ids(fleet) == ["a"])
        assert fleet.members()[0].instance == published
        await registry.publish(instance("b"))
        await until(lambda: ids(fleet) == ["a", "b"])
    assert not any(change.gap for change in changes[2:])


async def test_a_watcher_begins_with_what_was_there_before(server: RedisServer, registry: Registry) -> None:
    await registry.publish(instance("a", age_s=0.5), ttl_s=100.0)
    await registry.order("a", Lifecycle.DRAINING)
    await asyncio.sleep(0.2)
    state = await registry.state()
    assert state.records[0].age_s >= 0.2
    assert 0 < state.records[0].ttl_s <= 100.0
    fleet = Fleet()
    async with watching(server, fleet):
        member = fleet.members()[0]
        assert member.instance.lifecycle is Lifecycle.DRAINING
        assert fleet.age_s(member) >= 0.7


async def test_what_is_not_allowed_never_gets_into_a_fleet_by_event_nor_by_state(server: RedisServer) -> None:
    """Nor does it make the watcher miss the events around it; the others go on."""
    fleet, changes, gate = Fleet(), list[Change](), Gate(Destinations(parse_networks("10.0.0.0/8")))
    async with Registry(server.url) as writer, Registry(server.url, gate=gate) as reader:
        await writer.publish(instance("before", address="169.254.169.254:80"))
        await writer.publish(instance("a", address="10.0.0.1:80"))
        synced = asyncio.Event()
        task = asyncio.create_task(reader.watch(fleet, changes.append, synced=synced))
        await asyncio.wait_for(synced.wait(), LONG_S)
        assert ids(fleet) == ["a"]
        await writer.publish(instance("a", address="8.8.8.8:80"))
        await writer.publish(instance("after", address="8.8.8.8:80"))
        await writer.publish(instance("b", address="10.0.0.2:80"))
        await until(lambda: ids(fleet) == ["a", "b"])
        assert [member.instance.address for member in fleet.members()] == ["10.0.0.1:80", "10.0.0.2:80"]
        assert not any(change.gap for change in changes)
        assert gate.refused.total() == 3
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_empty_registry_is_an_empty_state(registry: Registry) -> None:
    state = await registry.state()
    assert (state.seq, state.records, state.orders) == (None, (), {})


async def test_a_lost_event_is_noticed_and_the_state_read_again(server: RedisServer, registry: Registry) -> None:
    fleet, changes = Fleet(), list[Change]()
    async with watching(server, fleet, changes.append), aioredis.Redis.from_url(server.url) as raw:
        await registry.publish(instance("a"))
        await until(lambda: ids(fleet) == ["a"])
        key = "extproc:{default}:instance:unheard"
        record = b'{"id":"unheard","incarnation":"1","address":"10.0.0.1:1","cluster":"p","models":[],'
        await raw.set(key, record + b'"lifecycle":"Ready"}')
        await raw.zadd("extproc:{default}:ids", {"unheard": 0})
        await raw.incr("extproc:{default}:seq")
        await registry.publish(instance("b"))
        await until(lambda: ids(fleet) == ["a", "b", "unheard"])
        assert any(change.gap for change in changes)


async def test_a_watcher_that_comes_before_the_first_agent_misses_nothing_and_says_so(
    server: RedisServer, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """The count begins with the first event; one that is missed later is told."""

    def told() -> int:
        return sum("an event was missed" in record.message for record in caplog.records)

    caplog.set_level(logging.INFO, "extproc.registry")
    fleet = Fleet()
    async with watching(server, fleet):
        for name in ("a", "b", "c"):
            await registry.publish(instance(name))
        await until(lambda: ids(fleet) == ["a", "b", "c"])
        assert told() == 0
        await registry.link.command("INCR", f"{registry.base}:seq")
        await registry.publish(instance("d"))
        await until(lambda: told() == 1)


async def test_a_flushed_server_is_noticed_as_a_gap(server: RedisServer, registry: Registry) -> None:
    fleet = Fleet()
    async with watching(server, fleet), aioredis.Redis.from_url(server.url) as raw:
        await registry.publish(instance("a"), ttl_s=1000)
        await registry.publish(instance("b"), ttl_s=1000)
        await until(lambda: ids(fleet) == ["a", "b"])
        await raw.flushall()
        await registry.publish(instance("a"))
        await until(lambda: ids(fleet) == ["a"])


async def test_an_order_reaches_the_watcher_and_can_be_taken_back(server: RedisServer, registry: Registry) -> None:
    fleet = Fleet()
    async with watching(server, fleet):
        assert not await registry.order("a", Lifecycle.DRAINING)
        await registry.publish(instance("a"))
        assert await registry.order("a", Lifecycle.DRAINING)
        await until(
            lambda: [m.instance.lifecycle for m in fleet.members()] == [Lifecycle.DRAINING],
        )
        await registry.publish(instance("a", load=Load(running=2)))
        await until(lambda: fleet.members()[0].instance.load.running == 2)
        assert fleet.members()[0].instance.lifecycle is Lifecycle.DRAINING
        assert await registry.order("a", None)
        await until(lambda: fleet.members()[0].instance.lifecycle is Lifecycle.READY)


async def test_removing_tells_the_watcher_and_unknown_ids_are_told(server: RedisServer, registry: Registry) -> None:
    fleet = Fleet()
    async with watching(server, fleet):
        await registry.publish(instance("a"))
        await until(lambda: ids(fleet) == ["a"])
        assert await registry.remove("a")
        await until(lambda: ids(fleet) == [])
        assert not await registry.remove("a")
        assert (await registry.state()).records == ()


async def test_an_instance_that_is_not_published_again_is_dropped(server: RedisServer, registry: Registry) -> None:
    fleet, changes = Fleet(), list[Change]()
    async with watching(server, fleet, changes.append), aioredis.Redis.from_url(server.url) as raw:
        await registry.publish(instance("brief"), ttl_s=0.5)
        await until(lambda: any(change.reported for change in changes) and ids(fleet) == [])
        await registry.publish(instance("a"))
        assert await raw.zrange("extproc:{default}:ids", 0, -1) == [b"a"]  # the id was swept up


async def test_fleets_do_not_see_each_other(server: RedisServer, registry: Registry) -> None:
    fleet = Fleet()
    async with watching(server, fleet), Registry(server.url, "other") as other:
        await other.publish(instance("theirs"))
        await registry.publish(instance("ours"))
        await until(lambda: ids(fleet) == ["ours"])
        assert [record.instance.id for record in (await other.state()).records] == ["theirs"]


async def test_a_restarted_server_is_found_again_and_the_fleet_survives_it(
    server: RedisServer, registry: Registry
) -> None:
    fleet, missing = Fleet(recovery_s=3.0), list[str]()

    def check(_: Change) -> None:
        missing.extend({"a"} - set(ids(fleet)))

    await registry.publish(instance("a"))
    await registry.publish(instance("gone"), ttl_s=1000)
    async with watching(server, fleet, check):
        assert ids(fleet) == ["a", "gone"]
        server.stop()
        with pytest.raises(RegistryError, match=r"cannot reach Redis at 127\.0\.0\.1"):
            await registry.publish(instance("a"))
        assert ids(fleet) == ["a", "gone"]
        server.start()
        while "gone" in ids(fleet):
            await registry.publish(instance("a"))
            await asyncio.sleep(0.05)
        assert not missing


async def test_a_frozen_server_freezes_the_ages_and_recovers(server: RedisServer, registry: Registry) -> None:
    fleet = Fleet(recovery_s=0.3)
    async with watching(server, fleet):
        await registry.publish(instance("a"), ttl_s=60)
        await until(lambda: ids(fleet) == ["a"])
        server.freeze()
        try:
            with pytest.raises(RegistryError, match="did not answer within 1 s"):
                await registry.publish(instance("a"))
            frozen_at_s = fleet.heard_at_s
            age_s = fleet.age_s(fleet.members()[0])
            await asyncio.sleep(2.0)
            assert fleet.heard_at_s == frozen_at_s
            assert fleet.age_s(fleet.members()[0]) == age_s
        finally:
            server.thaw()
        await until(lambda: fleet.heard_at_s > frozen_at_s)
        await registry.publish(instance("a", load=Load(running=4)))
        await until(lambda: fleet.members()[0].instance.load.running == 4)


async def test_silence_is_told_by_pings_while_nobody_publishes(server: RedisServer) -> None:
    fleet = Fleet()
    async with watching(server, fleet):
        before_s = fleet.heard_at_s
        await until(lambda: fleet.heard_at_s > before_s + 1.0)


async def test_rubbish_on_the_channel_and_in_records_hurts_nothing(
    server: RedisServer, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet()
    async with watching(server, fleet), aioredis.Redis.from_url(server.url) as raw:
        await raw.set("extproc:{default}:instance:bad", "not json")
        await raw.zadd("extproc:{default}:ids", {"bad": 0})
        await raw.hset("extproc:{default}:orders", "bad", "Flying")
        for message in ("", "null", '{"event":"published","instance":{}}', "\xff"):
            await raw.publish("extproc:{default}:events", message)
        await registry.publish(instance("a"))
        await until(lambda: ids(fleet) == ["a"])
        assert [record.instance.id for record in (await registry.state()).records] == ["a"]
    assert "cannot be used" in caplog.text


async def test_a_callback_that_fails_does_not_end_the_watch(server: RedisServer, registry: Registry) -> None:
    fleet, calls = Fleet(), 0

    def fail_once(change: Change) -> None:
        nonlocal calls
        calls += bool(change.reported)
        if calls == 1 and change.reported:
            raise RuntimeError("a mistake in the router")

    async with watching(server, fleet, fail_once):
        await registry.publish(instance("a"))
        await until(lambda: calls == 1)
        await registry.publish(instance("b"))
        await until(lambda: ids(fleet) == ["a", "b"])


async def test_a_cancelled_call_ends_at_once_and_leaves_the_registry_usable(
    server: RedisServer, registry: Registry
) -> None:
    """Some 3 % of cancellations met asyncio.wait_for inside the library, which loses them before Python 3.12."""

    async def publish_for_ever() -> None:
        while True:
            await registry.publish(instance("a"))

    for number in range(300):
        publishing = asyncio.create_task(publish_for_ever())
        await asyncio.sleep(0.0001 * (number % 20))
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(publishing, LONG_S)
        assert publishing.cancelled()
        await registry.publish(instance("b"))


async def test_the_three_lines_of_the_manual_work_as_they_are_written(server: RedisServer) -> None:
    block = re.search(r"```redis\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    assert len(lines) == 3
    fleet = Fleet()
    async with watching(server, fleet), aioredis.Redis.from_url(server.url) as raw:
        for line in lines:
            await raw.execute_command(*shlex.split(line))  # type: ignore[no-untyped-call]
        await until(lambda: ids(fleet) == ["my-gpu"])
        late = Fleet()
        async with watching(server, late):
            assert ids(late) == ["my-gpu"]
            assert late.members()[0].instance == fleet.members()[0].instance


async def test_a_replica_that_refuses_writes_is_told_in_one_line(server: RedisServer, registry: Registry) -> None:
    async with aioredis.Redis.from_url(server.url) as raw:
        await raw.replicaof("127.0.0.1", free_port())
        with pytest.raises(RegistryError, match="read-only replica") as caught:
            await registry.publish(instance("a"))
        assert "\n" not in str(caught.value)
        await raw.replicaof("NO", "ONE")
    await registry.publish(instance("a"))


async def test_all_keys_of_a_fleet_lie_in_one_slot_of_a_cluster(kind: str, tmp_path: Path) -> None:
    fleet = Fleet()
    with cluster_node(kind, tmp_path)[0] as node:
        async with Registry(node.url) as registry, aioredis.Redis.from_url(node.url) as raw:
            with pytest.raises(RegistryError, match=r"CLUSTERDOWN|not served"):
                await registry.publish(instance("a"))
            await raw.execute_command("CLUSTER", "ADDSLOTS", *range(16384))  # type: ignore[no-untyped-call]
            async with asyncio.timeout(LONG_S):
                while not await published(registry):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            async with watching(node, fleet):
                assert ids(fleet) == ["a"]
                assert await registry.order("a", Lifecycle.DRAINING)
                assert await registry.remove("a")
                await until(lambda: ids(fleet) == [])


async def published(registry: Registry) -> bool:
    try:
        await registry.publish(instance("a"))
    except RegistryError:  # a cluster takes a moment to notice that it is whole
        return False
    return True


async def test_a_wrong_password_is_told_and_never_shown(server: RedisServer) -> None:
    url = server.url.replace("redis://", "redis://user:sesame@")
    async with Registry(url) as registry:
        with pytest.raises(RegistryError, match="refused the login") as caught:
            await registry.state()
    assert "sesame" not in str(caught.value)


async def test_nobody_listening_is_told_with_what_to_do() -> None:
    async with Registry(f"redis://127.0.0.1:{free_port()}/0") as registry:
        with pytest.raises(RegistryError, match=r"connection refused\): start it, or name another"):
            await registry.state()


@pytest.mark.parametrize("steps", range(1, 6))
async def test_a_close_that_is_cancelled_leaves_no_connection(
    server: RedisServer, registry: Registry, steps: int
) -> None:
    """Cancelled after so many turns of the event loop; the one connection that is left is the one that asks."""

    async def connections() -> int:
        return int((await registry.link.command("CLIENT", "LIST")).count(b"id="))

    link = Link(server.url)
    await asyncio.gather(*(link.command("PING") for _ in range(4)))
    assert await connections() == 5
    closing = asyncio.create_task(link.aclose())
    for _ in range(steps):
        await asyncio.sleep(0)
    closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(LONG_S):
        while await connections() > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("url", ["nonsense", "redis://127.0.0.1:abc", "http://x"])
def test_a_url_that_is_none_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a Redis URL"):
        Registry(url)
