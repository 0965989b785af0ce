"""The registry on sentinels, on a cluster, over TLS and over a slow wire: real servers, real failovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from extproc.adapters.redis_settings import RedisSettings, parse
from extproc.adapters.registry import Registry
from extproc.core.fleet.fleet import Fleet
from extproc.core.values.instance import Lifecycle, Load
from extproc.demo.ports import free_port
from extproc.errors import RegistryError
from tests.core.builders import instance
from tests.redis_server import RedisServer
from tests.registry.deployments import (
    LONG_S,
    Wire,
    ask,
    certificates,
    cluster_of_three,
    node_id,
    until,
    watched_by_sentinels,
)


@asynccontextmanager
async def watching(settings: RedisSettings | str, fleet: Fleet) -> AsyncIterator[None]:
    async with Registry(settings) as registry:
        synced = asyncio.Event()
        task = asyncio.create_task(registry.watch(fleet, synced=synced))
        try:
            await asyncio.wait_for(synced.wait(), LONG_S)
            yield
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@asynccontextmanager
async def agent(settings: RedisSettings | str) -> AsyncIterator[list[str]]:
    """Publish `a` again and again as an agent does; the list holds what went wrong since."""
    errors: list[str] = []

    async def publish_for_ever(registry: Registry) -> None:
        number = 0
        while True:
            try:
                await registry.publish(instance("a", load=Load(running=number)))
            except RegistryError as error:
                if "did not answer within" not in str(error):  # as on a busy machine; the next one tells more
                    errors.append(str(error))
            number += 1
            await asyncio.sleep(0.05)

    async with Registry(settings) as registry:
        task = asyncio.create_task(publish_for_ever(registry))
        try:
            yield errors
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def running(fleet: Fleet) -> int:
    """How many requests the instance last told."""
    return next((member.instance.load.running or 0 for member in fleet.members()), -1)


async def progress(fleet: Fleet) -> None:
    """Wait until reports arrive that were sent after now."""
    seen = running(fleet)
    await until(lambda: running(fleet) > seen + 3)


async def test_a_watching_fleet_follows_sentinels_to_the_new_primary(kind: str, tmp_path: Path) -> None:
    """The instance is known throughout, and reports flow again without a hand."""
    fleet = Fleet(recovery_s=60.0)
    with watched_by_sentinels(kind, tmp_path) as group:
        async with agent(group.url), watching(group.url, fleet):
            await progress(fleet)
            group.primary.stop()
            await until(lambda: group.told_primary() == group.replica.port)
            assert [member.instance.id for member in fleet.members()] == ["a"]
            await progress(fleet)


@pytest.mark.chaos
async def test_a_primary_that_lost_its_office_while_it_was_frozen_is_left(kind: str, tmp_path: Path) -> None:
    """SIGSTOP, failover, SIGCONT: for a moment two servers call themselves primary."""
    fleet = Fleet(recovery_s=60.0)
    with watched_by_sentinels(kind, tmp_path, sentinels=1) as group:
        async with agent(group.url) as errors, watching(group.url, fleet):
            await progress(fleet)
            group.primary.freeze()
            try:
                await until(lambda: group.told_primary() == group.replica.port)
                await progress(fleet)
            finally:
                group.primary.thaw()
            await until(lambda: ask(group.primary, "ROLE")[0] == b"slave")
            errors.clear()
            await progress(fleet)
            assert errors == []


async def test_a_sentinel_that_is_gone_or_knows_nothing_is_passed_over(kind: str, tmp_path: Path) -> None:
    with watched_by_sentinels(kind, tmp_path, sentinels=1) as group:
        url = group.url.replace("//", f"//127.0.0.1:{free_port()},")
        async with Registry(url) as registry:
            await registry.publish(instance("a"))
        async with Registry(group.url + "-other") as registry:
            with pytest.raises(RegistryError, match="does not know a primary 'mymaster-other'"):
                await registry.state()


@pytest.mark.chaos
async def test_the_primary_goes_on_being_used_while_all_sentinels_are_gone(kind: str, tmp_path: Path) -> None:
    fleet = Fleet()
    with watched_by_sentinels(kind, tmp_path, sentinels=1) as group:
        async with agent(group.url) as errors, watching(group.url, fleet):
            group.sentinels[0].stop()
            await asyncio.sleep(4.0)  # longer than between two looks at the sentinels
            await progress(fleet)
            assert errors == []


async def test_any_node_of_a_cluster_leads_to_the_fleet(kind: str, tmp_path: Path) -> None:
    with cluster_of_three(kind, tmp_path) as nodes:
        async with Registry(f"redis+cluster://127.0.0.1:{nodes[0].port}") as first:
            await first.publish(instance("a"))
        for node in nodes:
            fleet = Fleet()
            url = f"redis+cluster://127.0.0.1:{node.port}"
            async with Registry(url) as registry, watching(url, fleet):
                assert [member.instance.id for member in fleet.members()] == ["a"]
                assert await registry.order("a", Lifecycle.DRAINING)
                await until(lambda fleet=fleet: fleet.members()[0].instance.lifecycle is Lifecycle.DRAINING)  # type: ignore[misc]
                assert await registry.order("a", None)


async def test_a_slot_that_moves_to_another_node_is_followed_without_an_error(kind: str, tmp_path: Path) -> None:
    """The whole migration under an agent that publishes: ASK, TRYAGAIN and MOVED, then the old node dies."""
    fleet = Fleet(recovery_s=60.0)
    with cluster_of_three(kind, tmp_path) as nodes:
        url = f"redis+cluster://127.0.0.1:{nodes[0].port}"
        async with agent(url) as errors, watching(url, fleet):
            await progress(fleet)
            slot = ask(nodes[0], "CLUSTER", "KEYSLOT", "extproc:{default}:seq")
            source = next(node for node in nodes if owns(node, slot))
            target = next(node for node in nodes if node is not source)
            await asyncio.to_thread(migrate, nodes, slot, source, target)
            await progress(fleet)
            errors.clear()
            await progress(fleet)
            assert errors == []
            source.stop()
            await until(lambda: owns(target, slot))


async def test_a_redis_url_that_names_a_node_of_a_cluster_is_told_what_to_write(kind: str, tmp_path: Path) -> None:
    with cluster_of_three(kind, tmp_path) as nodes:
        slot = ask(nodes[0], "CLUSTER", "KEYSLOT", "extproc:{default}:seq")
        stranger = next(node for node in nodes if not owns(node, slot))
        async with Registry(stranger.url) as registry:
            with pytest.raises(RegistryError, match=r"is one of a cluster, and 127\.0\.0\.1:\d+ has .*redis\+cluster"):
                await registry.publish(instance("a"))


def owns(node: RedisServer, slot: int) -> bool:
    """Whether a node says that a slot is its own."""
    return any(
        first <= slot <= last and owner[1] == node.port for first, last, owner, *_ in ask(node, "CLUSTER", "SLOTS")
    )


def migrate(nodes: list[RedisServer], slot: int, source: RedisServer, target: RedisServer) -> None:
    """Move a slot with its keys as `redis-cli --cluster reshard` does."""
    ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
    ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
    while keys := ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
        ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)
    for node in (target, source, *(node for node in nodes if node not in (target, source))):
        ask(node, "CLUSTER", "SETSLOT", slot, "NODE", node_id(target))


async def test_tls_with_a_private_authority_and_a_certificate_of_our_own(kind: str, tmp_path: Path) -> None:
    certificates(tmp_path)
    port = free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", str(tmp_path / "server.pem"))
    options += ("--tls-key-file", str(tmp_path / "server.key"), "--tls-ca-cert-file", str(tmp_path / "ca.pem"))
    try:
        server = RedisServer(kind, tmp_path, *options)
        server.start()
    except AssertionError:
        pytest.skip(f"{kind} is built without TLS")
    with_server = parse(
        f"rediss://127.0.0.1:{port}",
        ca_file=str(tmp_path / "ca.pem"),
        cert_file=str(tmp_path / "client.pem"),
        key_file=str(tmp_path / "client.key"),
    )
    try:
        fleet = Fleet()
        async with agent(with_server) as errors, watching(with_server, fleet):
            await progress(fleet)
            assert errors == []
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={tmp_path}/ca.pem"
        for wrong, told in (
            (f"rediss://127.0.0.1:{port}", "its certificate: (unable to get local issuer|self.signed)"),
            (f"rediss://localhost:{port}?ssl_ca_certs={tmp_path}/ca.pem", "[Hh]ostname mismatch"),
            (url, "(?i)certificate required|closed|reset"),
        ):
            async with Registry(wrong) as registry:
                with pytest.raises(RegistryError, match=told) as caught:
                    await registry.state()
                assert "\n" not in str(caught.value)
    finally:
        server.stop()


@pytest.mark.chaos
async def test_a_wire_of_two_seconds_marks_the_fleet_silent_and_heals(kind: str, tmp_path: Path) -> None:
    fleet = Fleet(recovery_s=60.0)
    with RedisServer(kind, tmp_path) as server:
        async with Wire(server.port) as wire, agent(server.url), watching(wire.url, fleet):
            await progress(fleet)
            wire.delay_s = 2.0
            heard_at_s = fleet.contact_at_s
            await asyncio.sleep(4.0)
            assert [member.instance.id for member in fleet.members()] == ["a"]
            async with Registry(wire.url) as registry:
                with pytest.raises(RegistryError, match="did not answer within 1 s"):
                    await registry.state()
            wire.delay_s = 0.0
            await progress(fleet)
            assert fleet.contact_at_s > heard_at_s


@pytest.mark.chaos
async def test_a_server_that_loads_its_data_is_told_so_and_waited_for(kind: str, tmp_path: Path) -> None:
    fleet = Fleet(recovery_s=60.0)
    slow = ("--dbfilename", "dump.rdb", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    with RedisServer(kind, tmp_path, *slow) as server:
        async with agent(server.url) as errors, watching(server.url, fleet):
            await progress(fleet)
            for number in range(3):
                ask(server, "MSET", *(word for i in range(1000) for word in (f"k{number}-{i}", "v" * 50)))
            ask(server, "SAVE")
            server.stop()
            await asyncio.to_thread(server.start)  # until it has loaded, which takes some seconds
            assert any("still loading" in error for error in errors)
            assert [member.instance.id for member in fleet.members()] == ["a"]
            await progress(fleet)


@pytest.mark.chaos
async def test_a_server_that_becomes_a_replica_of_nobody_is_no_longer_taken_at_its_word(
    kind: str, tmp_path: Path
) -> None:
    """It answers every ping, but no agent can write: ages stand still and nothing runs out until it is back."""
    fleet = Fleet()
    with RedisServer(kind, tmp_path) as server:
        async with agent(server.url) as errors, watching(server.url, fleet):
            await progress(fleet)
            ask(server, "REPLICAOF", "127.0.0.1", free_port())
            await until(lambda: any("read-only" in error for error in errors))
            await asyncio.sleep(12.0)  # longer than records live
            assert [member.instance.id for member in fleet.members()] == ["a"]
            assert fleet.age_s(fleet.members()[0]) < 8.0  # stood still
            ask(server, "REPLICAOF", "NO", "ONE")
            await progress(fleet)
            assert [member.instance.id for member in fleet.members()] == ["a"]


@pytest.mark.chaos
async def test_a_server_that_takes_writes_is_believed_when_all_agents_fall_silent(kind: str, tmp_path: Path) -> None:
    """Then it is they who are gone, and their records run out."""
    fleet = Fleet()
    with RedisServer(kind, tmp_path) as server:
        async with watching(server.url, fleet):
            async with Registry(server.url) as registry:
                await registry.publish(instance("a"), ttl_s=4.0)
            await until(lambda: len(fleet.members()) == 1)
            await until(lambda: not fleet.members())
            assert fleet.dropped() == ("a",)
