"""The gRPC service on a real port, called as Envoy calls it and as nobody should."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import h2.connection
import h2.events
import orjson
import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.adapters import wire
from extproc.adapters.tokenizers import CountOutcome, Tokenizers
from extproc.core.admission.admission import Admission
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.tokens.token_counts import count_classes
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import ExtProc
from extproc.server.parts import counted_by
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.adapters.test_wire import entry_with
from tests.adapters.tiny_tokenizer import train
from tests.core.builders import MODEL, instance, router


@asynccontextmanager
async def listening(
    made: Router, tokenizers: Tokenizers | None = None, max_streams: int = 100
) -> AsyncIterator[tuple[Service, int]]:
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    rules = Rules(counted_models=tokenizers.models if tokenizers else frozenset())
    count = partial(counted_by, tokenizers) if tokenizers else None
    shell = Shell(made, observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", rules, count, max_streams=max_streams)
    service = Service(shell)
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    yield service, port
    await service.stop(0.0)


@asynccontextmanager
async def serving(
    made: Router, tokenizers: Tokenizers | None = None, max_streams: int = 100
) -> AsyncIterator[tuple[Service, grpc.aio.Channel]]:
    async with (
        listening(made, tokenizers, max_streams) as (service, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield service, channel


def process(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    return channel.stream_stream("/" + "/".join(wire.EXT_PROC_METHOD))()


def headers() -> bytes:
    message = ext_proc.ProcessingRequest()
    for key, value in ((":method", b"POST"), (":path", b"/v1/chat/completions")):
        message.request_headers.headers.headers.add(key=key, raw_value=value)
    return message.SerializeToString()


def body(text: str = "x") -> bytes:
    content = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
    return ext_proc.ProcessingRequest(
        request_body=ext_proc.HttpBody(body=orjson.dumps(content), end_of_stream=True)
    ).SerializeToString()


async def test_signs_of_life_are_given_as_often_as_a_client_asks_on_a_silent_connection() -> None:
    """Envoy asks every 5 s; a server that takes offence ends every stream on the connection."""
    asked = 20
    async with listening(router(instance("a"))) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = h2.connection.H2Connection()
        client.initiate_connection()
        for number in range(asked):
            client.ping(number.to_bytes(8))
        writer.write(client.data_to_send())
        answered = 0
        while answered < asked and (data := await reader.read(65_536)):
            events = client.receive_data(data)
            answered += sum(isinstance(event, h2.events.PingAckReceived) for event in events)
            assert not any(isinstance(event, h2.events.ConnectionTerminated) for event in events)
        writer.close()
    assert answered == asked


async def test_a_stream_that_is_cancelled_while_its_request_runs_gives_the_reservation_back() -> None:
    made = router(instance("a"))
    async with serving(made) as (_, channel):
        call = process(channel)
        for message in (headers(), body()):
            await call.write(message)
            assert await call.read()
        assert made.ledger.in_flight() == {"a@1": 1}
        call.cancel()
        second = process(channel)  # answered only after the first has been taken down
        await second.write(headers())
        await second.read()
        await second.done_writing()
        while await second.read():
            pass
    assert made.ledger.in_flight() == {}


async def test_a_message_of_another_protocol_ends_its_stream_and_nothing_else() -> None:
    made = router(instance("a"))
    async with serving(made) as (_, channel):
        call = process(channel)
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        logs = channel.stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
        await logs.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await logs
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        call = process(channel)
        await call.write(headers())
        assert await call.read()
        call.cancel()


@pytest.mark.parametrize(("room_tokens", "name"), [(0, "small"), (-1, "large")])
async def test_a_prompt_is_counted_by_its_models_own_tokenizer_before_it_is_routed(
    room_tokens: int, name: str, tmp_path: Path
) -> None:
    reference = train(tmp_path / "model")
    text = "the quick brown fox jumps over the lazy dog and the dog sleeps\n" * 40
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    limit = len(reference.encode(prompt, add_special_tokens=False).ids) + room_tokens
    made = router(instance("small", max_model_len_tokens=limit), instance("large", hardware="l40s"))
    for _ in range(200):  # the estimate is so near by then that only the count can tell
        made.beliefs.tokens.learn(MODEL, count_classes([b"user:" + text.encode()]), limit)
    tokenizers = Tokenizers.load({MODEL: tmp_path / "model"}, budget_s=60.0)
    async with serving(made, tokenizers) as (_, channel):
        call = process(channel)
        for message in (headers(), body(text)):
            await call.write(message)
            assert await call.read()
        assert made.ledger.in_flight() == {f"{name}@1": 1}
        call.cancel()
    assert tokenizers.outcomes == {CountOutcome.COUNTED: 1}
    tokenizers.close()


async def test_health_says_serving_until_the_service_drains() -> None:
    async with serving(router()) as (service, channel):
        health = health_pb2_grpc.HealthStub(channel)
        names = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", "liveness")

        async def serving_names() -> list[str]:
            answers = {name: await health.Check(health_pb2.HealthCheckRequest(service=name)) for name in names}
            serves = health_pb2.HealthCheckResponse.SERVING
            return [name for name, answer in answers.items() if answer.status == serves]

        assert await serving_names() == list(names)
        await service.drain()
        assert await serving_names() == ["liveness"]


async def test_an_access_log_stream_that_never_ends_does_not_hold_up_the_stop() -> None:
    async with serving(router()) as (service, channel):
        logs = channel.stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
        await logs.write(b"")
        async with asyncio.timeout(60):
            await service.stop(grace_s=3600.0)
        with pytest.raises(grpc.aio.AioRpcError):
            await logs


async def test_a_stream_whose_answer_goes_on_when_the_service_stops_ends_in_good_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By an error Envoy would cut an answer whose body it streams to us. The log has nothing to tell of it."""
    made = router(instance("a"))
    async with serving(made) as (service, channel):
        call = process(channel)
        for message in (headers(), body()):
            await call.write(message)
            assert await call.read()
        await service.stop(0.0)
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
        assert made.ledger.in_flight() == {}
        gc.collect()
    assert caplog.text == ""


async def test_requests_of_two_routers_never_share_an_id() -> None:
    """Envoy tells the outcome of a request to any router, where the id finds what is known of it, or nothing."""
    routers = [router(instance("a")) for _ in range(2)]
    for made in routers:
        async with serving(made) as (_, channel):
            call = process(channel)
            for message in (headers(), body()):
                await call.write(message)
                await call.read()
            (made_id,) = made.ledger.booked()
            assert made.meter.where(made_id) == "a@1"
            assert not any(other.meter.where(made_id) for other in routers if other is not made)
            call.cancel()


async def test_an_outcome_that_we_stumble_over_costs_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same message a failed attempt at an instance. What would do that is not known, so it is made up."""

    def stumble(*_: object) -> None:
        raise ArithmeticError

    made = router(instance("a", address="10.0.0.9:80"))
    monkeypatch.setattr(made, "learn", stumble)
    failed = accesslog_pb2.HTTPAccessLogEntry()
    failed.common_properties.custom_tags["attempted"] = "10.0.0.9:80"
    failed.common_properties.response_flags.upstream_connection_failure = True
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.extend([entry_with(prompt_tokens=5), failed])
    async with serving(made) as (_, channel):
        logs = channel.stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
        await logs.write(message.SerializeToString())
        await logs.done_writing()
        await logs
    assert made.cooldowns.remaining_s("a@1", 0.0) > 0
    assert "was not taken in" in caplog.text


@pytest.mark.parametrize(
    ("flags", "address", "told"),
    [
        ({"no_cluster_found": True}, "", "a: Envoy does not know its cluster 'gpus'"),
        ({}, "10.0.0.9", "a: Envoy sends its requests elsewhere without trying it"),
        ({}, "10.0.0.1", ""),
    ],
)
async def test_what_envoy_does_not_know_is_told_once(
    flags: dict[str, bool], address: str, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Or an operator would look for the fault in the engine, which no request has reached."""
    made = router(instance("a", cluster="gpus", address="10.0.0.1:80"))
    lost = entry_with()
    common = lost.common_properties
    common.response_flags.Clear()
    for name, value in flags.items():
        setattr(common.response_flags, name, value)
    common.upstream_remote_address.socket_address.address = address
    common.upstream_request_attempt_count = 1 if address else 0
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.extend([lost] * 9)
    async with serving(made) as (_, channel):
        logs = channel.stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
        await logs.write(message.SerializeToString())
        await logs.done_writing()
        await logs
    assert [record.getMessage().startswith(told) for record in caplog.records] == ([True] if told else [])


def in_mode(mode: int) -> bytes:
    message = ext_proc.ProcessingRequest.FromString(headers())
    message.protocol_config.request_body_mode = mode  # type: ignore[assignment]
    return message.SerializeToString()


def chunk(data: bytes, *, last: bool) -> bytes:
    content = ext_proc.HttpBody(body=data, end_of_stream=last)
    return ext_proc.ProcessingRequest(request_body=content).SerializeToString()


async def test_one_message_may_get_several_replies_and_several_one() -> None:
    """FULL_DUPLEX_STREAMED: the decision first, then the body."""
    text = ext_proc.ProcessingRequest.FromString(body()).request_body.body
    async with serving(router(instance("a"))) as (_, channel):
        call = process(channel)
        for message in (in_mode(4), chunk(text[:9], last=False), chunk(text[9:], last=False), chunk(b"", last=True)):
            await call.write(message)
        replies = [ext_proc.ProcessingResponse.FromString(await call.read()) for _ in range(3)]
        call.cancel()
    assert replies[0].request_headers.response.clear_route_cache
    parts = [reply.request_body.response.body_mutation.streamed_response for reply in replies[1:]]
    assert [(part.body, part.end_of_stream) for part in parts] == [(text[:9], False), (text[9:], True)]


async def test_where_requests_are_held_a_stream_too_many_is_refused_and_one_of_another_protocol_ends() -> None:
    """What is no message of ours says nothing of whether it would be held."""
    async with serving(router(instance("a"), policy=Policy(admission=Admission())), max_streams=0) as (_, channel):
        call = process(channel)
        await call.write(headers())
        answer = ext_proc.ProcessingResponse.FromString(await call.read())
        assert answer.immediate_response.status.code == 503
        call = process(channel)
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_messages_out_of_order_end_their_stream_with_what_to_do() -> None:
    async with serving(router(instance("a"))) as (_, channel):
        call = process(channel)
        await call.write(body())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "request_header_mode" in (caught.value.details() or "")


async def test_a_body_mode_in_which_nothing_can_be_decided_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(router(instance("a"))) as (_, channel):
        for _ in range(3):
            call = process(channel)
            for message in (in_mode(1), chunk(b"{", last=False)):
                await call.write(message)
                assert await call.read()
            call.cancel()
    told = [record.getMessage() for record in caplog.records if "request_body_mode" in record.getMessage()]
    assert len(told) == 1
    assert "streamed_body" in told[0]


@pytest.mark.parametrize("mode", [2, 4])
async def test_a_body_is_not_kept_while_the_engines_answer_is_waited_for(mode: int) -> None:
    """Thousands of streams wait for minutes, each for an answer to a prompt that is long."""
    message = body("x" * 400_000)
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    served = ExtProc(Shell(router(instance("a")), observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", Rules()))

    class Envoy:
        """As gRPC hands it over; notes how much memory there is each time that it is asked for a message."""

        def __init__(self) -> None:
            self.memory: list[int] = []
            self.beginnings: list[bytes] = []

        async def read(self) -> bytes:
            self.memory.append(tracemalloc.get_traced_memory()[0])
            match len(self.memory):
                case 1:
                    return in_mode(mode)
                case 2:
                    return bytes(bytearray(message))  # a copy that nobody else holds
            return grpc.aio.EOF

        async def write(self, reply: bytes) -> None:
            self.beginnings.append(reply[:1000])

    envoy = Envoy()
    tracemalloc.start()
    try:
        await served.process(None, envoy)
    finally:
        tracemalloc.stop()
    assert b"x-upstream-cluster" in b"".join(envoy.beginnings)
    _, before, after = envoy.memory
    assert after - before < len(message) / 2  # prefix and features are known of it
