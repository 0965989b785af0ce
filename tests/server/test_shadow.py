"""Shadow mode through the gRPC service: Envoy is told nothing, and what became of it is on the pages."""

from __future__ import annotations

from typing import Any

import grpc.aio
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters import wire
from extproc.observe.live_gauges import Gauges, Guards
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.adapters.test_wire import entry_with
from tests.core.builders import instance, router
from tests.server.test_service import body, headers, process


def begun(address: str) -> bytes:
    """An answer begins, from that address."""
    message = ext_proc.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    message.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = address
    return bytes(message.SerializeToString())


def logged(metadata: Any, address: str) -> bytes:
    """Envoy's access log of the request, with what rode on it."""
    entry = entry_with(prompt_tokens=5, completion_tokens=50)
    common = entry.common_properties
    common.metadata.filter_metadata["extproc"].CopyFrom(metadata["extproc"])
    host, _, port = address.rpartition(":")
    common.upstream_remote_address.socket_address.address = host
    common.upstream_remote_address.socket_address.port_value = int(port)
    common.upstream_request_attempt_count = 1
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.append(entry)
    return bytes(message.SerializeToString())


async def test_envoy_is_told_nothing_and_the_operator_all() -> None:
    fast, slow = instance("fast"), instance("slow", hardware="l40s")
    made = router(fast, slow)
    guards = Guards(rollout_share=0.0)
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {}, guards=guards)))
    shell = Shell(made, observer, lambda: 0.0, lambda: 0.0, "x-upstream-cluster", Rules(rollout_share=0.0))
    service = Service(shell)
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    assert service.rollout_share == 0.0
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = process(channel)
        answers = []
        for message in (headers(), body(), begun(slow.address)):
            await stream.write(message)
            answers.append(ext_proc.ProcessingResponse.FromString(await stream.read()))
        assert made.ledger.in_flight() == {slow.key: 1}
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        decided, seen = answers[1:]
        assert decided.request_body == ext_proc.BodyResponse()
        assert set(decided.dynamic_metadata) == set(seen.dynamic_metadata) == {"extproc"}
        log = channel.stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
        await log.write(logged(seen.dynamic_metadata, slow.address))
        await log.done_writing()
        await log
        service.use(Rules(), 100, None)  # all is rolled out while it runs
        assert service.rollout_share == 1.0
        stream = process(channel)
        for message in (headers(), body()):
            await stream.write(message)
            routed = ext_proc.ProcessingResponse.FromString(await stream.read())
        assert routed.request_body.response.header_mutation.set_headers[0].header.key == "x-upstream-cluster"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    await service.stop(0.0)
    assert made.ledger.in_flight() == {}
    recent, later = observer.recent()
    assert later["shadow"] is None
    assert recent["instance"] == "fast"
    assert recent["shadow"]["would"] == "routed"
    assert recent["shadow"]["went"]["instance"] == "slow"
    _, row = observer.rows(10)
    assert (row["shadow"], row["went"], row["outcome"]["status"]) == ("routed", "slow", 200)
    page = observer.page().decode()
    for line in (
        'extproc_requests_total{action="passed_on",reason="shadow"} 1.0',
        'extproc_shadow_requests_total{reason="",would="routed"} 1.0',
        'extproc_shadow_agreement_total{agreed="no"} 1.0',
        "extproc_shadow_regret_seconds_count 1.0",
        'extproc_outcomes_total{routed="false",status="200"} 1.0',
        "extproc_rollout_share 0.0",
    ):
        assert line in page
