"""What the control plane brings about in a real Envoy: instances come and go, it dies itself, Envoy refuses things."""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType, ClusterLbPolicy

from extproc.control.bootstrap import bootstrap
from extproc.control.config_source import Transport
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.control.xds.membership import Endpoint, Health
from extproc.control.xds.resources import CLUSTER, Resource, Resources, Snapshot
from extproc.core.values.instance import Lifecycle
from extproc.demo.ports import free_port
from extproc.observe.xds_metrics import XdsGauges, XdsMetrics
from extproc.server.xds_service import Discovery, XdsService
from tests.control.parts import HOST
from tests.control.xds.parts import VARIANTS, Setup, Variant, following
from tests.e2e.eventually import eventually
from tests.envoy_process import EnvoyProcess, validation_error

WELL = "healthy"


async def counted(things: Sized) -> int:
    return len(things)


OF_ALL = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)


@OF_ALL
async def test_an_instance_joins_drains_and_leaves_and_its_running_request_ends_well(
    variant: Variant, tmp_path: Path
) -> None:
    async with following(tmp_path, variant, "a") as setup:
        alone = variant.shape is Shape.INSTANCE
        without_b = (503, "") if alone else (200, "a")
        await eventually(setup.balanced, lambda answer: answer == (200, "a"))
        await eventually(setup.decided, lambda answer: answer == without_b)

        await setup.publish("b")
        await eventually(setup.decided, lambda answer: answer == (200, "b"))
        await eventually(setup.known, lambda known: known.get("b") == WELL)
        assert {await setup.balanced() for _ in range(30)} == {(200, "a"), (200, "b")}

        b = setup.engines["b"]
        b.held = asyncio.Event()
        running = asyncio.create_task(setup.decided())
        number = len(b.seen)
        await eventually(lambda: counted(b.seen), lambda count: count > number)
        await setup.publish("b", Lifecycle.DRAINING)
        await eventually(setup.known, lambda known: known.get("b") not in (WELL, None))
        assert {await setup.balanced() for _ in range(10)} == {(200, "a")}

        await setup.registry.remove("b")
        await eventually(setup.known, lambda known: not {"b", "cluster b"} & known.keys())
        assert await setup.decided() == without_b
        b.held.set()
        assert await running == (200, "b")
        assert await setup.refusals() == {}


@pytest.mark.parametrize("variant", VARIANTS[1:3] + VARIANTS[4:], ids=lambda variant: variant.name)
async def test_a_control_plane_that_is_killed_costs_no_request_and_catches_up_when_it_is_back(
    variant: Variant, tmp_path: Path
) -> None:
    """In between an instance came and one went. A request without a decision never misses the one that stayed.

    In each of the four ways in which Envoy may ask; what it is told of a shape is the same as before.
    """
    async with following(tmp_path, variant, "a", "c") as setup:
        await eventually(setup.known, lambda known: {"a", "c"} <= known.keys())
        over, answers = asyncio.Event(), []

        async def ask() -> None:
            while not over.is_set():
                answers.append(await setup.balanced())
                await asyncio.sleep(0.01)

        async def twenty_more() -> None:
            wanted = len(answers) + 20
            await eventually(lambda: counted(answers), lambda count: count >= wanted)

        asking = asyncio.create_task(ask())
        await setup.processes.stop(setup.xds)
        await setup.registry.remove("c")
        await setup.publish("b")
        await twenty_more()
        assert {"a", "c"} <= (await setup.known()).keys()
        assert "b" not in await setup.known()

        await setup.start_xds()
        await eventually(setup.decided, lambda answer: answer == (200, "b"))
        gone = {"c", "cluster c"}
        await eventually(setup.known, lambda known: not gone & known.keys())
        await twenty_more()
        over.set()
        await asking
        assert {status for status, _ in answers} == {200}
        assert await setup.refusals() == {}


@pytest.mark.parametrize("variant", VARIANTS[:1] + VARIANTS[3:4], ids=lambda variant: variant.name)
async def test_when_none_is_ready_those_that_are_left_are_tried(variant: Variant, tmp_path: Path) -> None:
    """Fail-open: to a draining instance rather than to none. With one that is ready, to that one alone."""
    async with following(tmp_path, variant, "a", "b", "c") as setup:
        await setup.publish("a", Lifecycle.DRAINING)
        await setup.publish("b", Lifecycle.UNHEALTHY)
        await eventually(setup.known, lambda known: known.get("b") not in (WELL, None) and known.get("a") != WELL)
        assert {await setup.balanced() for _ in range(20)} == {(200, "c")}
        await setup.publish("c", Lifecycle.DRAINING)
        await eventually(setup.known, lambda known: known["c"] != WELL)
        assert {await setup.balanced() for _ in range(40)} == {(200, "a"), (200, "b"), (200, "c")}


async def test_a_decision_for_an_instance_that_is_not_ready_yet_finds_it(tmp_path: Path) -> None:
    """The router may know that it is Ready before Envoy does."""
    async with following(tmp_path, Variant(Shape.POOL, delta=True), "a") as setup:
        await setup.publish("b", Lifecycle.LOADING)
        await eventually(setup.known, lambda known: "b" in known)
        assert {await setup.balanced() for _ in range(10)} == {(200, "a")}
        await eventually(setup.decided, lambda answer: answer == (200, "b"))


async def test_a_registry_that_lost_everything_takes_nothing_from_envoy(tmp_path: Path) -> None:
    async with following(tmp_path, Variant(Shape.POOL, delta=True), "a") as setup:
        await eventually(setup.balanced, lambda answer: answer == (200, "a"))
        setup.redis.stop()
        assert await setup.balanced() == (200, "a")
        setup.redis.start()
        await setup.publish("b")
        await eventually(setup.decided, lambda answer: answer == (200, "b"))
        assert "a" in await setup.known()
        assert (await setup.balanced())[0] == 200


def settings_for(xds_port: int, *, delta: bool) -> EnvoySettings:
    return EnvoySettings(
        xds=XdsSource(servers=((HOST, xds_port),), delta=delta), listen=(HOST, free_port()), admin=(HOST, free_port())
    )


def with_bad(good: Snapshot, bad: Resource | None) -> dict[Transport, Snapshot]:
    everything = [each for named in good.resources.values() for each in named.values()]
    return {Transport.AGGREGATED: Snapshot.of([*everything, *([bad] if bad else [])])}


@pytest.mark.parametrize("delta", [True, False])
async def test_what_envoy_refuses_is_counted_told_once_and_does_not_hold_up_the_rest(
    delta: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bad cluster is static and says that its cluster type balances, which a static one does not."""
    metrics = XdsMetrics(lambda: XdsGauges({}, {}, {}, {}, 0.0))
    discovery = Discovery(metrics)
    service = XdsService(discovery)
    settings = settings_for(service.bind((HOST, 0)), delta=delta)
    resources = Resources(settings)
    wrong = Cluster(name="wrong", type=ClusterDiscoveryType.STATIC, lb_policy=ClusterLbPolicy.CLUSTER_PROVIDED)
    bad = Resource(CLUSTER, "wrong", bytes(wrong))

    def pools(*names: str) -> Snapshot:
        endpoints = [Endpoint(name, name, name, (HOST, 1), Health.HEALTHY) for name in names]
        return resources.snapshots(endpoints)[Transport.AGGREGATED]

    async def answered(kind: str) -> float:
        page = metrics.page().decode()
        return float(page.partition(f'extproc_xds_{kind}_total{{type="cluster"}} ')[2].partition("\n")[0])

    envoy = EnvoyProcess(bootstrap(settings), tmp_path)
    await service.start()
    caplog.set_level(logging.ERROR, "extproc.xds")
    try:
        discovery.publish(with_bad(pools("pool"), bad))
        await asyncio.to_thread(envoy.start)
        await eventually(lambda: answered("nacks"), lambda count: count == 1)
        discovery.publish(with_bad(pools("pool", "more"), bad))
        active = await eventually(
            lambda: asyncio.to_thread(envoy.page, "/clusters"), lambda page: "\nmore::" in page and "pool::" in page
        )
        assert "wrong::" not in active
        if delta:  # the bad one is not sent again
            await eventually(lambda: answered("acks"), lambda count: count == 1)
        await eventually(lambda: answered("nacks"), lambda count: count == (1 if delta else 2))
        discovery.publish(with_bad(pools("pool", "more", "last"), None))
        await eventually(lambda: answered("acks"), lambda count: count >= 1 + delta)
        told = [record.getMessage() for record in caplog.records if "refused a cluster" in record.getMessage()]
        assert len(told) == 1
        assert "cluster 'wrong' did not provide" in told[0]
        assert discovery.refusals["cluster"] in told[0]
    finally:
        envoy.stop()
        await service.stop()


@asynccontextmanager
async def one_pool(*servers: tuple[str, int]) -> AsyncIterator[EnvoySettings]:
    """A control plane in this process that publishes one pool; an Envoy of the settings knows it beside `servers`."""
    metrics = XdsMetrics(lambda: XdsGauges({}, {}, {}, {}, 0.0))
    discovery = Discovery(metrics)
    service = XdsService(discovery)
    settings = settings_for(service.bind((HOST, 0)), delta=True)
    assert settings.xds is not None
    settings = replace(settings, xds=replace(settings.xds, servers=(*servers, *settings.xds.servers)))
    discovery.publish(Resources(settings).snapshots([Endpoint("pool", "a", "a", (HOST, 1), Health.HEALTHY)]))
    await service.start()
    try:
        yield settings
    finally:
        await service.stop()


async def test_of_two_control_planes_one_is_enough(tmp_path: Path) -> None:
    async with one_pool((HOST, free_port())) as settings:
        envoy = EnvoyProcess(bootstrap(settings), tmp_path)
        try:
            await asyncio.to_thread(envoy.start)
            await eventually(lambda: asyncio.to_thread(envoy.page, "/clusters"), lambda page: "pool::" in page)
        finally:
            envoy.stop()


async def test_a_stream_on_which_nothing_happens_is_not_cut(tmp_path: Path) -> None:
    """However often Envoy asks whether the other end still lives."""
    async with one_pool() as settings:
        dynamic = bootstrap(settings)
        (xds,) = (each for each in dynamic["static_resources"]["clusters"] if each["name"] == "xds")
        (options,) = xds["typed_extension_protocol_options"].values()
        keepalive = options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
        keepalive |= {"interval": "0.050s", "timeout": "60s"}
        envoy = EnvoyProcess(dynamic, tmp_path)
        try:
            await asyncio.to_thread(envoy.start)
            await eventually(lambda: asyncio.to_thread(envoy.page, "/clusters"), lambda page: "pool::" in page)
            await asyncio.sleep(2.0)  # about 40 questions
            stats = await asyncio.to_thread(envoy.stats, "cluster.xds.upstream_cx")
            assert stats["cluster.xds.upstream_cx_total"] == 1
        finally:
            envoy.stop()


@pytest.mark.parametrize("aggregated", [True, False])
@pytest.mark.parametrize("delta", [True, False])
def test_envoy_accepts_every_dynamic_bootstrap(delta: bool, aggregated: bool, tmp_path: Path) -> None:
    source = XdsSource(servers=(("10.0.0.1", 18000), ("xds.example", 18000)), delta=delta, aggregated=aggregated)
    assert not validation_error(bootstrap(EnvoySettings(xds=source, fail_closed=delta)), tmp_path)


async def _joins(setup: Setup, number: int) -> list[float]:
    """Seconds from the publication of b until it has answered, `number` times."""
    times = []
    for _ in range(number):
        await setup.registry.remove("b")
        await eventually(setup.known, lambda known: not {"b", "cluster b"} & known.keys())
        began = time.perf_counter()
        await setup.publish("b")
        while await setup.decided() != (200, "b"):
            pass
        times.append(time.perf_counter() - began)
    return times


@pytest.mark.realtime
@OF_ALL
async def test_how_soon_a_new_instance_serves(variant: Variant, tmp_path: Path) -> None:
    """Prints the median and the longest time from publication to its first answer, through Redis and Envoy."""
    async with following(tmp_path, variant, "a") as setup:
        await setup.publish("b")
        await eventually(setup.decided, lambda answer: answer == (200, "b"))
        times_s = await _joins(setup, 30)
        shown = f"median {statistics.median(times_s) * 1e3:.1f} ms, longest {max(times_s) * 1e3:.1f} ms"
        print(f"\n{variant.name}: {shown}")  # noqa: T201
        assert statistics.median(times_s) < 1.0
