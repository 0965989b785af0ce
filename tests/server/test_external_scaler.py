"""The external scaler on a real port, called as KEDA calls it, with messages of another implementation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.core.scaling.recommendation import Driver, Recommendation, Signal
from extproc.server.certificates import Certificates
from extproc.server.external_scaler import ExternalScaler
from tests.e2e.eventually import eventually
from tests.secrets import SERVICE, SecretDirectory, of_envoy, of_service
from tests.server.keda_client import Keda


@dataclass
class Setup:
    """A scaler with nothing recommended yet, at second 1000."""

    scaler: ExternalScaler = field(init=False)
    latest: dict[str, Recommendation] = field(default_factory=dict)
    now_s: float = 1000.0
    channel: Any = None
    reads: int = 0  # of `latest`

    def __post_init__(self) -> None:
        self.scaler = ExternalScaler(self.read_latest, lambda: self.now_s, stale_after_s=30.0)

    def read_latest(self) -> dict[str, Recommendation]:
        self.reads += 1
        return self.latest

    def recommend(
        self, pool: str, desired: int, ready: int = 0, coming: int = 0, leaving: int = 0, broken: int = 0
    ) -> None:
        """A look that came to this."""
        driver = Driver(Signal.LOAD, desired, "a test says so")
        self.latest[pool] = Recommendation(
            pool=pool,
            at_s=self.now_s,
            desired=desired,
            ready=ready,
            coming=coming,
            leaving=leaving,
            broken=broken,
            most=20,
            drivers=(driver,),
            without=desired,
        )
        self.scaler.changed()

    def keda(self, **metadata: str) -> Keda:
        return Keda(self.channel, **metadata)


@asynccontextmanager
async def serving() -> AsyncIterator[Setup]:
    setup = Setup()
    port = setup.scaler.bind(("127.0.0.1", 0))
    await setup.scaler.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        setup.channel = channel
        yield setup
    await setup.scaler.stop()


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a call was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def read(call: Any) -> Any:
    async with asyncio.timeout(60):
        return await call.read()


async def test_an_hpa_gets_a_target_of_an_instance_and_what_is_desired_in_its_hundredths() -> None:
    """In whole numbers too, which is all that KEDA before 2.17 reads; several pools are told apart by `pool`."""
    async with serving() as setup:
        setup.recommend("h100", desired=7, ready=5)
        setup.recommend("l40s", desired=0)
        h100, l40s = setup.keda(pool="h100", scalerAddress="extproc:8002"), setup.keda(pool="l40s")
        assert await h100.target() == await l40s.target() == ("extproc-instances", 100, 100.0)
        assert await h100.value() == ("extproc-instances", 700, 700.0)
        assert await h100.value("s0-extproc-instances") == ("s0-extproc-instances", 700, 700.0)
        assert await l40s.value() == ("extproc-instances", 0, 0.0)
        assert [await h100.is_active(), await l40s.is_active()] == [True, False]


async def test_a_step_down_is_told_so_that_the_tolerance_does_not_take_it() -> None:
    """One of 15 is drained already: the HPA still counts it. With its tolerance at 0, the plain number does."""
    async with serving() as setup:
        plain, exact = setup.keda(pool="h100"), setup.keda(pool="h100", tolerance="0")
        setup.recommend("h100", desired=15, ready=15)
        assert (await plain.value())[1] == (await exact.value())[1] == 1500
        setup.recommend("h100", desired=14, ready=14, leaving=1)
        assert (await plain.value())[1] == 1301
        setup.recommend("h100", desired=15, ready=14, coming=1)
        for _ in range(4):
            assert (await exact.value())[1] == 1500


async def test_one_that_is_broken_is_a_replica_and_another_one_is_told_in_its_place() -> None:
    """The HPA counts it: of three that are told, two would serve for good. A pool that sleeps is not woken for it."""
    async with serving() as setup:
        plain, exact = setup.keda(pool="h100"), setup.keda(pool="h100", tolerance="0")
        setup.recommend("h100", desired=3, ready=2, broken=1)
        assert (await exact.value())[1] == 400
        setup.recommend("h100", desired=20, ready=17, broken=3)
        assert (await exact.value())[1] == 2000
        setup.recommend("h100", desired=11, ready=10, broken=1)
        assert (await plain.value())[1] == 1300, "from 11, the HPA would not go to 12"
        setup.recommend("h100", desired=0, broken=1)
        assert ((await exact.value())[1], await exact.is_active()) == (0, False)


async def test_a_pool_that_nobody_knows_is_not_found_and_the_line_says_which_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So it stands in the ScaledObject's events; the log has it once, not at each poll."""
    async with serving() as setup:
        setup.recommend("l40s", desired=1)
        setup.recommend("h100", desired=1)
        with caplog.at_level(logging.WARNING, "extproc.keda"):
            wrong = setup.keda(pool="H100")
            for call in (wrong.target, wrong.value, wrong.is_active, lambda: wrong.stream().read()):
                code, words = await refusal(call())
                assert code is grpc.StatusCode.NOT_FOUND
                assert words == "no pool is called 'H100', which the trigger's metadata name; pools: h100, l40s"
        assert [record.getMessage().partition(": ")[0] for record in caplog.records] == ["ScaledObject llm/h100"]


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, "the trigger's metadata name no pool, as in `pool: NAME`; pools: h100"),
        ({"pool": "h100", "tolerance": "10%"}, "`tolerance: 10%` in the trigger's metadata is no share from 0 to 1"),
        ({"pool": "h100", "tolerance": "nan"}, "`tolerance: nan` in the trigger's metadata is no share from 0 to 1"),
        ({"pool": "h100", "tolerance": "-0.1"}, "`tolerance: -0.1` in the trigger's metadata is no share"),
    ],
)
async def test_metadata_that_mean_nothing_are_invalid(metadata: dict[str, str], words: str) -> None:
    """KEDA asks for the target first, when the ScaledObject is made."""
    async with serving() as setup:
        setup.recommend("h100", desired=1)
        code, told = await refusal(setup.keda(**metadata).target())
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert told.startswith(words)


async def test_while_nothing_is_known_the_target_is_told_and_a_value_is_not() -> None:
    """Just started, Redis away from the start: KEDA makes the right HPA, and takes nothing away."""
    async with serving() as setup:
        keda = setup.keda(pool="h100")
        assert await keda.target() == ("extproc-instances", 100, 100.0)
        for call in (keda.value, keda.is_active):
            code, words = await refusal(call())
            assert (code, words) == (grpc.StatusCode.UNAVAILABLE, "nothing is known of pool 'h100' yet")


async def test_recommendations_that_are_too_old_are_not_told_any_more() -> None:
    """Redis or the leader is lost: KEDA's fallback applies, until there is a new one. The target stays."""
    async with serving() as setup:
        keda = setup.keda(pool="h100")
        setup.recommend("h100", desired=3, ready=3)
        setup.now_s += 30.0
        assert (await keda.value())[1] == 300
        setup.now_s += 1.0
        for call in (keda.value, keda.is_active):
            code, words = await refusal(call())
            assert code is grpc.StatusCode.UNAVAILABLE
            assert words == "what is known of pool 'h100' is 31 s old: is Redis there, and a leader?"
        assert (await keda.target())[1] == 100
        setup.recommend("h100", desired=4, ready=3)
        assert (await keda.value())[1] == 400
        assert await keda.is_active()


async def test_one_pool_may_be_old_while_another_is_not() -> None:
    """Age is a recommendation's own."""
    async with serving() as setup:
        setup.recommend("old", desired=1)
        setup.now_s += 31.0
        setup.recommend("new", desired=1)
        assert (await refusal(setup.keda(pool="old").is_active()))[0] is grpc.StatusCode.UNAVAILABLE
        assert await setup.keda(pool="new").is_active()


async def test_a_stream_tells_what_holds_at_once_and_then_each_change_once() -> None:
    """Looks that change nothing, or another pool, say nothing; each stream goes by itself."""
    async with serving() as setup:
        setup.recommend("h100", desired=0)
        first, second = setup.keda(pool="h100").stream(), setup.keda(pool="h100").stream()
        assert [(await read(first)).result, (await read(second)).result] == [False, False]
        for desired in (0, 2, 3, 3, 0, 0, 1):
            setup.recommend("other", desired=1 - min(desired, 1))
            setup.recommend("h100", desired=desired)
            await asyncio.sleep(0)
            await setup.keda(pool="h100").is_active()  # a round trip: what is to be told, is
        assert [(await read(first)).result for _ in range(3)] == [True, False, True]
        setup.recommend("h100", desired=0)
        assert not (await read(first)).result, "nothing came between"
        assert [(await read(second)).result for _ in range(4)] == [True, False, True, False]
        first.cancel()
        second.cancel()


async def test_a_stream_waits_for_the_first_recommendation_and_through_stale_ones() -> None:
    """An end with an error would be answered by pauses of up to a minute, in which no pool wakes up."""
    async with serving() as setup:
        stream = setup.keda(pool="h100").stream()
        await setup.keda(pool="h100").target()
        setup.recommend("h100", desired=0)
        assert not (await read(stream)).result
        setup.now_s += 31.0
        setup.scaler.changed()
        assert (await refusal(setup.keda(pool="h100").is_active()))[0] is grpc.StatusCode.UNAVAILABLE
        setup.recommend("h100", desired=1)
        assert (await read(stream)).result
        stream.cancel()


async def test_a_stream_ends_with_its_client() -> None:
    """Nothing is worked out any more for ScaledObjects that are gone, however they went."""
    async with serving() as setup:
        setup.recommend("h100", desired=1)
        streams = [setup.keda(pool="h100").stream() for _ in range(3)]
        for stream in streams:
            assert (await read(stream)).result

        async def count() -> int:
            """Each stream that is kept reads what is recommended at a change."""
            before = setup.reads
            setup.scaler.changed()
            for _ in range(20):
                await asyncio.sleep(0)
            return setup.reads - before

        await eventually(count, lambda left: left == 3)
        streams[0].cancel()
        await eventually(count, lambda left: left == 2)
        await setup.channel.close()
        await eventually(count, lambda left: left == 0)


async def test_a_service_that_stops_ends_its_streams_cleanly() -> None:
    """After a clean end KEDA comes again in 2 s; after an error its pause grows."""
    async with serving() as setup:
        setup.recommend("h100", desired=1)
        stream = setup.keda(pool="h100").stream()
        assert (await read(stream)).result
        stopping = asyncio.create_task(setup.scaler.stop())
        assert await read(stream) is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK
        await stopping


async def test_what_newer_kedas_try_is_not_implemented_and_so_they_ask_as_before() -> None:
    """StreamMetricSpec is for targets that change; ours does not."""
    async with serving() as setup:
        assert (await refusal(setup.keda(pool="h100").stream_metric_spec()))[0] is grpc.StatusCode.UNIMPLEMENTED


async def test_it_is_healthy_also_while_recommendations_are_stale() -> None:
    """Kubernetes must not take all replicas away from KEDA, which then could not even be told to fall back."""
    async with serving() as setup:
        setup.recommend("h100", desired=1)
        setup.now_s += 1000.0
        for name in ("", "externalscaler.ExternalScaler"):
            answer = await health_pb2_grpc.HealthStub(setup.channel).Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_bytes_that_are_no_message_end_their_call_alone() -> None:
    """The next call is answered."""
    async with serving() as setup:
        setup.recommend("h100", desired=1)
        for method in ("IsActive", "GetMetricSpec", "GetMetrics"):
            call = setup.channel.unary_unary(f"/externalscaler.ExternalScaler/{method}")
            await refusal(call(b"\x0a\xff\xff\xff", timeout=30))
        assert await setup.keda(pool="h100").is_active()


async def test_with_tls_only_a_keda_with_a_certificate_gets_in(tmp_path: Path) -> None:
    """As caCert, tlsClientCert and tlsClientKey of a TriggerAuthentication are used."""
    authority, secret = trustme.CA(), SecretDirectory(tmp_path / "tls")
    secret.put(of_service(authority), [authority])
    setup = Setup()
    setup.recommend("h100", desired=2)
    port = setup.scaler.bind(("127.0.0.1", 0), Certificates(secret.files))
    await setup.scaler.start()
    client = of_envoy(authority)
    ca = authority.cert_pem.bytes()
    with_one = grpc.ssl_channel_credentials(
        ca, client.private_key_pem.bytes(), b"".join(blob.bytes() for blob in client.cert_chain_pems)
    )
    options = [("grpc.ssl_target_name_override", SERVICE)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", with_one, options) as channel:
        assert (await Keda(channel, pool="h100").value())[1] == 200
        stream = Keda(channel, pool="h100").stream()
        assert (await read(stream)).result
        stream.cancel()
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials(ca), options) as channel:
        assert (await refusal(Keda(channel, pool="h100").value()))[0] is grpc.StatusCode.UNAVAILABLE
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert (await refusal(Keda(channel, pool="h100").value()))[0] is grpc.StatusCode.UNAVAILABLE
    await setup.scaler.stop()
