"""What a large fleet and many Envoys cost: prints times, so run with -m realtime -s."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest
from envoy_data_plane.envoy.service.discovery.v3 import DeltaDiscoveryRequest, DiscoveryRequest

from extproc.control.bootstrap import bootstrap
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.control.xds.membership import Endpoint, Health
from extproc.control.xds.messages import ADS
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resources
from extproc.demo.ports import free_port
from extproc.observe.xds_metrics import XdsGauges, XdsMetrics
from extproc.server.xds_service import Discovery, XdsService
from tests.control.parts import HOST
from tests.envoy_process import EnvoyProcess

INSTANCES, ENVOYS, ROUNDS = 1000, 100, 7

pytestmark = [
    pytest.mark.realtime,
    pytest.mark.parametrize("delta", [True, False], ids=["delta", "state of the world"]),
    pytest.mark.parametrize("shape", Shape),
]


@dataclass(frozen=True)
class Plane:
    """A control plane in this process, with a fleet that grows."""

    discovery: Discovery
    settings: EnvoySettings
    resources: Resources
    port: int

    def publish(self, number: int) -> float:
        """Publish so many instances; returns the seconds that it took."""
        alone = self.settings.shape is Shape.INSTANCE
        began = time.perf_counter()
        names = ((f"gpu-{i:04}", i) for i in range(number))
        endpoints = [
            Endpoint("pool", name, name if alone else "pool", (HOST, 20_000 + i), Health.HEALTHY) for name, i in names
        ]
        self.discovery.publish(self.resources.snapshots(endpoints))
        return time.perf_counter() - began


@asynccontextmanager
async def plane(shape: Shape, delta: bool) -> AsyncIterator[Plane]:
    discovery = Discovery(XdsMetrics(lambda: XdsGauges({}, {}, {}, {}, 0.0)))
    service = XdsService(discovery)
    port = service.bind((HOST, 0))
    settings = EnvoySettings(
        xds=XdsSource(servers=((HOST, port),), delta=delta),
        shape=shape,
        listen=(HOST, free_port()),
        admin=(HOST, free_port()),
    )
    await service.start()
    yield Plane(discovery, settings, Resources(settings), port)
    await service.stop()


async def in_step(made: Plane) -> None:
    """Wait until the one Envoy was sent what is published, and has answered."""
    assert made.discovery.snapshots is not None
    published = next(iter(made.discovery.snapshots.values())).resources
    (link,) = made.discovery.links
    held = link.stream.subscriptions
    while any(  # noqa: ASYNC110
        held[kind].unanswered or any(held[kind].lacks(each) for each in published[kind].values())
        for kind in (CLUSTER, ENDPOINT)
    ):
        await asyncio.sleep(0.001)


async def test_one_more_of_a_thousand_in_a_real_envoy(shape: Shape, delta: bool, tmp_path: Path) -> None:
    async with plane(shape, delta) as made:
        first_s = made.publish(INSTANCES)
        envoy = EnvoyProcess(bootstrap(made.settings), tmp_path)
        try:
            await asyncio.to_thread(envoy.start)
            times_s = []
            for more in range(1, ROUNDS + 1):
                began = time.perf_counter()
                made.publish(INSTANCES + more)
                await in_step(made)
                times_s.append(time.perf_counter() - began)
            stats = await asyncio.to_thread(envoy.stats, "cluster.pool.membership_total")
            assert stats["cluster.pool.membership_total"] == INSTANCES + ROUNDS
        finally:
            envoy.stop()
        taken = f"one more was taken over after {statistics.median(times_s) * 1e3:.0f} ms"
        print(f"\n{shape}, delta={delta}: {INSTANCES} encoded in {first_s:.1f} s; {taken}")  # noqa: T201


async def test_a_change_for_a_hundred_envoys(shape: Shape, delta: bool) -> None:
    method = "DeltaAggregatedResources" if delta else "StreamAggregatedResources"
    options = [("grpc.max_receive_message_length", 64 * 1024 * 1024)]
    async with plane(shape, delta) as made:
        made.publish(INSTANCES)
        async with grpc.aio.insecure_channel(f"{HOST}:{made.port}", options=options) as channel:
            calls = [channel.stream_stream(f"/{ADS}/{method}")() for _ in range(ENVOYS)]

            async def read(messages: int) -> int:
                """Bytes that the last one got, once all have got them."""
                got = [sum([len(await call.read()) for _ in range(messages)]) for call in calls]
                return got[-1]

            for call in calls:
                for kind, names in ((CLUSTER, []), (ENDPOINT, ["pool"])):
                    request = (
                        DeltaDiscoveryRequest(type_url=kind, resource_names_subscribe=names)
                        if delta
                        else DiscoveryRequest(type_url=kind, resource_names=names)
                    )
                    await call.write(bytes(request))
            await read(2)
            times_s = []
            for more in range(1, ROUNDS + 1):
                began = time.perf_counter()
                made.publish(INSTANCES + more)
                size = await read(2 if shape is Shape.INSTANCE else 1)
                times_s.append(time.perf_counter() - began)
            median_ms = statistics.median(times_s) * 1e3
            print(f"\n{shape}, delta={delta}: read by {ENVOYS} after {median_ms:.0f} ms, {size} bytes each")  # noqa: T201
            assert made.discovery.encoder.counts[0] <= (ROUNDS + 1) * 2
            for call in calls:
                call.cancel()
