"""The discovery service on a real port, called as Envoys call it, as many of them at once, and as nobody should."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import orjson
import pytest
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.service.discovery.v3 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from envoy_data_plane.google.rpc import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.control.config_source import Transport
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.control.xds.membership import Endpoint, Health, Membership
from extproc.control.xds.messages import ADS, CDS, EDS
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resources, Snapshot
from extproc.core.fleet.events import Published, Record, State
from extproc.core.fleet.fleet import Change, Fleet
from extproc.core.values.instance import Instance, Lifecycle
from extproc.demo.processes import wait_for_line
from extproc.errors import ConfigError
from extproc.observe.xds_metrics import XdsMetrics
from extproc.server.xds_keeper import Keeper
from extproc.server.xds_pages import gauges, status
from extproc.server.xds_service import Discovery, XdsService
from tests.e2e.eventually import eventually
from tests.observe.documented import undescribed
from tests.processes import Processes
from tests.redis_server import RedisServer

SETTINGS = EnvoySettings(xds=XdsSource(), shape=Shape.INSTANCE, retries=0)


@dataclass
class Setup:
    """A service with nothing published yet."""

    discovery: Discovery
    metrics: XdsMetrics
    service: XdsService
    channel: grpc.aio.Channel
    resources: Resources

    def publish(self, names: Iterable[str]) -> None:
        endpoints = [Endpoint("pool", name, name, ("10.0.0.1", 80), Health.HEALTHY) for name in names]
        self.discovery.publish(self.resources.snapshots(endpoints))

    def count(self, line: str) -> float:
        """A value on the metrics page."""
        return float(self.metrics.page().decode().partition(f"{line} ")[2].partition("\n")[0])

    def call(self, service: str, method: str) -> grpc.aio.StreamStreamCall[bytes, bytes]:
        return self.channel.stream_stream(f"/{service}/{method}")()


@asynccontextmanager
async def serving() -> AsyncIterator[Setup]:
    membership, fleet = Membership(Shape.INSTANCE, "pool"), Fleet()
    metrics = XdsMetrics(lambda: gauges(discovery, membership, fleet, 0.0))
    discovery = Discovery(metrics)
    service = XdsService(discovery)
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Setup(discovery, metrics, service, channel, Resources(SETTINGS))
    await service.stop()


def delta(type_url: str = "", **fields: Any) -> bytes:
    return bytes(DeltaDiscoveryRequest(type_url=type_url, **fields))


async def told(call: grpc.aio.StreamStreamCall[bytes, bytes]) -> DeltaDiscoveryResponse:
    async with asyncio.timeout(60):
        return DeltaDiscoveryResponse.parse(await call.read())


async def test_each_service_speaks_both_protocols() -> None:
    """A stream of one type need not name it."""
    async with serving() as setup:
        setup.publish("a")
        named = {"resource_names_subscribe": ["pool"]}
        for service, method, request in (
            (ADS, "DeltaAggregatedResources", delta(CLUSTER)),
            (CDS, "DeltaClusters", delta()),
            (EDS, "DeltaEndpoints", delta(**named)),
        ):
            call = setup.call(service, method)
            await call.write(request)
            answer = await told(call)
            assert {each.name for each in answer.resources} == ({"pool"} if service == EDS else {"pool", "a"})
            assert answer.type_url == (ENDPOINT if service == EDS else CLUSTER)
            assert all(each.resource and each.resource.type_url == answer.type_url for each in answer.resources)
            call.cancel()
        for service, method, whole in (
            (ADS, "StreamAggregatedResources", DiscoveryRequest(type_url=CLUSTER)),
            (CDS, "StreamClusters", DiscoveryRequest()),
            (EDS, "StreamEndpoints", DiscoveryRequest(resource_names=["pool"])),
        ):
            call = setup.call(service, method)
            await call.write(bytes(whole))
            async with asyncio.timeout(60):
                state = DiscoveryResponse.parse(await call.read())
            assert len(state.resources) == (1 if service == EDS else 2)
            assert state.version_info
            call.cancel()


async def test_nothing_is_said_before_something_is_known() -> None:
    """An empty answer would take everything from an Envoy that came from another control plane."""
    async with serving() as setup:

        async def begun() -> bool:
            return any(link.stream.subscriptions[CLUSTER].begun for link in setup.discovery.links)

        call = setup.call(ADS, "DeltaAggregatedResources")
        await call.write(delta(CLUSTER, initial_resource_versions={"pool": "x", "gone": "y"}))
        reading = asyncio.create_task(told(call))
        await eventually(begun, bool)
        assert not reading.done()
        setup.publish("a")
        assert {each.name for each in (await reading).resources} == {"pool", "a"}
        assert (await told(call)).removed_resources == ["gone"]
        call.cancel()


@pytest.mark.parametrize("is_delta", [True, False])
async def test_a_hundred_envoys_are_told_by_one_encoding(is_delta: bool) -> None:
    """Of each push the bytes are made once; nonces apart, all Envoys get the same."""
    async with serving() as setup:
        setup.publish(["a", "b"])
        calls = []
        for _ in range(100):
            call = setup.call(ADS, "DeltaAggregatedResources" if is_delta else "StreamAggregatedResources")
            await call.write(delta(CLUSTER) if is_delta else bytes(DiscoveryRequest(type_url=CLUSTER)))
            calls.append(call)
        first = [await call.read() for call in calls]
        assert len(set(first)) == 1
        setup.publish(["a", "b", "c"])
        second = [await call.read() for call in calls]
        assert len(set(second)) == 1
        assert setup.discovery.encoder.counts == (2, 198)
        assert setup.count('extproc_xds_pushes_total{type="cluster"}') == 200
        assert (
            setup.count(f'extproc_xds_streams{{protocol="{"delta" if is_delta else "sotw"}",transport="ads"}}') == 100
        )
        for call in calls:
            call.cancel()


async def test_what_many_envoys_refuse_is_counted_each_time_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "extproc.xds")
    async with serving() as setup:
        setup.publish("a")
        for number, words in enumerate(("no such policy", "no such policy", "another")):
            call = setup.call(ADS, "DeltaAggregatedResources")
            await call.write(delta(CLUSTER, node=Node(id=f"front-{number}")))
            nonce = (await told(call)).nonce
            refused = {"response_nonce": nonce, "error_detail": Status(code=3, message=words)}
            await call.write(delta(CLUSTER, **refused, resource_names_subscribe=["a"]))
            assert [each.name for each in (await told(call)).resources] == ["a"]  # the refusal was read
            call.cancel()
        assert setup.count('extproc_xds_nacks_total{type="cluster"}') == 3
        assert setup.count('extproc_xds_acks_total{type="cluster"}') == 0
        messages = [record.getMessage() for record in caplog.records]
        assert messages == [
            "Envoy front-0 refused a cluster: no such policy",
            "Envoy front-2 refused a cluster: another",
        ]
        assert setup.discovery.refusals == {"cluster": "another"}


async def test_a_message_of_another_protocol_ends_its_stream_and_nothing_else() -> None:
    async with serving() as setup:
        setup.publish("a")
        good = setup.call(CDS, "DeltaClusters")
        await good.write(delta())
        await told(good)
        bad = setup.call(CDS, "DeltaClusters")
        await bad.write(b"\x0a\x80")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await bad.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        setup.publish("b")
        assert [each.name for each in (await told(good)).resources] == ["b"]
        good.cancel()


async def test_an_envoy_that_goes_is_forgotten() -> None:
    """Whether it says farewell, is cut off, or ends its half."""
    async with serving() as setup:

        async def open_links() -> int:
            return len(setup.discovery.links)

        setup.publish("a")
        for farewell in (True, False):
            call = setup.call(CDS, "DeltaClusters")
            await call.write(delta())
            await told(call)
            assert len(setup.discovery.links) == 1
            if farewell:
                await call.done_writing()
                assert await call.read() is grpc.aio.EOF
            else:
                call.cancel()
            await eventually(open_links, lambda number: number == 0)


async def test_one_that_asks_and_ends_its_half_at_once_is_answered() -> None:
    """As tools do that look what is published."""
    async with serving() as setup:
        setup.publish("a")
        call = setup.call(CDS, "DeltaClusters")
        await call.write(delta())
        await call.done_writing()
        assert {each.name for each in (await told(call)).resources} == {"pool", "a"}
        assert await call.read() is grpc.aio.EOF


async def test_it_is_healthy_once_there_is_something_to_tell() -> None:
    async with serving() as setup:
        stub = health_pb2_grpc.HealthStub(setup.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        await setup.service.serving()
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_port_in_use_is_told_as_such() -> None:
    async with serving() as setup:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            other = XdsService(setup.discovery)
            with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
                other.bind(("127.0.0.1", port))
            await other.stop()


def keeper(
    settle_s: float, *names: str, resources: Resources | None = None
) -> tuple[Keeper, Fleet, Discovery, Membership]:
    """A keeper over a registry that holds these instances."""
    fleet, membership = Fleet(recovery_s=0.0), Membership(Shape.POOL, "pool")
    metrics = XdsMetrics(lambda: gauges(discovery, membership, fleet, 0.0))
    discovery = Discovery(metrics)
    built = resources or Resources(EnvoySettings(xds=XdsSource()))
    made = Keeper(fleet, membership, built, discovery, metrics, settle_s, clock=lambda: 0.0)
    fleet.resync(State(None, tuple(Record(instance(name), 0.0, 600.0) for name in names), {}), 0.0)
    return made, fleet, discovery, membership


def instance(name: str, address: str = "10.0.0.1:80") -> Instance:
    return Instance(id=name, incarnation="1", address=address, cluster="pool", models=("m",), lifecycle=Lifecycle.READY)


def test_a_registry_that_holds_a_fleet_is_published_at_once() -> None:
    made, _, discovery, membership = keeper(5.0, "a")
    made.look(0.0)
    assert discovery.snapshots is not None
    assert made.first_published.is_set()
    shown = status(discovery, membership)
    assert [each["address"] for each in shown["endpoints"]] == ["10.0.0.1:80"]
    assert shown["versions"]["cluster"] == discovery.snapshots[Transport.AGGREGATED].versions[CLUSTER]


def test_a_registry_that_is_empty_at_first_is_given_time_to_fill() -> None:
    """It may have lost everything: the first agent that is back is not the fleet."""
    made, fleet, discovery, _ = keeper(5.0)
    made.look(0.0)
    fleet.apply(Published(instance=instance("a"), ttl_ms=600_000), 100.0)
    made.look(100.0)
    assert discovery.snapshots is None
    fleet.apply(Published(instance=instance("b", "10.0.0.2:80"), ttl_ms=600_000), 102.0)
    made.look(104.0)
    assert discovery.snapshots is None
    made.look(105.0)
    assert discovery.snapshots is not None


def test_nothing_is_published_twice() -> None:
    made, fleet, discovery, _ = keeper(5.0, "a")
    made.look(0.0)
    before = discovery.snapshots
    fleet.apply(Published(instance=instance("a")), 1.0)
    made.look(1.0)
    assert discovery.snapshots is before
    fleet.apply(Published(instance=instance("b", "10.0.0.2:80")), 2.0)
    made.look(2.0)
    assert discovery.snapshots is not before


def test_an_address_that_is_none_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    made, fleet, _, _ = keeper(5.0, "a")
    fleet.apply(Published(instance=instance("b", "999.0.0.1:80"), ttl_ms=600_000), 0.0)
    for now in (0.0, 1.0, 2.0):
        made.look(now)
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("b is left out: its address is none")


async def test_a_look_that_fails_is_told_and_made_up_for(caplog: pytest.LogCaptureFixture) -> None:
    """What was published stays until then."""

    class FailsOnce(Resources):
        failures = 1

        def snapshots(self, endpoints: Sequence[Endpoint]) -> dict[Transport, Snapshot]:
            if self.failures:
                self.failures -= 1
                raise ValueError("no such thing")
            return super().snapshots(endpoints)

    made, _, discovery, _ = keeper(5.0, "a", resources=FailsOnce(EnvoySettings(xds=XdsSource())))
    made.take(Change())
    running = asyncio.create_task(made.run())
    async with asyncio.timeout(60):
        await made.first_published.wait()
    running.cancel()
    assert discovery.snapshots is not None
    assert [record.getMessage() for record in caplog.records] == ["what is published stays as it was"]


async def test_the_command_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as redis:
        async with (
            Processes(tmp_path) as processes,
            Registry(redis.url) as registry,
            HttpClient(timeout_s=60.0) as http,
        ):
            await registry.publish(instance("a"), 600.0)
            listen = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0")
            child = await processes.start_extproc("xds", "xds", *listen, "--redis-url", redis.url)
            pages = (await wait_for_line(child, r"pages on port (\d+)", timeout_s=60))[1]
            await wait_for_line(child, "1 instances are published; pools: pool", timeout_s=60)
            shown = await http.get(f"http://127.0.0.1:{pages}/xds")
            assert isinstance(shown, Answer)
            assert orjson.loads(shown.body)["endpoints"] == [
                {"id": "a", "pool": "pool", "cluster": "pool", "address": "10.0.0.1:80", "health": "healthy"}
            ]
            page = await http.get(f"http://127.0.0.1:{pages}/metrics")
            assert isinstance(page, Answer)
            assert b'extproc_xds_endpoints{health="healthy"} 1.0' in page.body
            assert undescribed(page.body.decode(), "xds") == []
            child.process.terminate()
            async with asyncio.timeout(60):
                assert await child.process.wait() == 0
