"""Readers of what Envoy and KEDA send: single messages. Their order is a matter of `test_exchange`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NoReturn

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from envoy_data_plane.envoy.config.core.v3 import Node
from envoy_data_plane.envoy.service.discovery.v3 import DeltaDiscoveryRequest, DiscoveryRequest
from envoy_data_plane.google.rpc import Status

from extproc.adapters.wire import WireError, decode_access_log, decode_message
from extproc.adapters.wire.features import KEY, NAMESPACE, write_features
from extproc.control.xds.messages import Encoder, MessageError, decode
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource
from extproc.control.xds.stream import Snapshot, Stream
from extproc.core.health.verdict import Attempt
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.tally import Tally
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import ExtProc
from extproc.server.shell import Shell
from tests.core.builders import features, instance, router
from tests.fuzz import scaling
from tests.fuzz.living import use
from tests.fuzz.messages import (
    CHAT,
    DUPLEX,
    EXAMPLES,
    RULES,
    STREAMED,
    answered,
    body,
    confined,
    head,
    trailers,
)
from tests.fuzz.mutations import Form, join_conversation, split_conversation
from tests.fuzz.reader import Reader

ADDRESS = "10.0.0.1:80"


class _AbortedError(Exception):
    """A stream that the service ended."""


class _Context:
    """Stands where gRPC's context does, and brings messages."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = iter(messages)

    async def read(self) -> object:
        return next(self._messages, grpc.aio.EOF)

    async def write(self, answer: bytes) -> None:
        assert ext_proc.ProcessingResponse.FromString(answer).WhichOneof("response")

    async def abort(self, code: grpc.StatusCode, words: str) -> NoReturn:
        raise _AbortedError(f"{code.name}: {words}")


def _conversation(data: bytes) -> None:
    """Any messages on one stream: it ends well, or as a fault of whoever speaks; and nothing is left of it."""
    made = router(instance("a", address=ADDRESS), instance("b", address="10.0.0.2:80"))
    moments = itertools.count(1)
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    service = ExtProc(Shell(made, observer, lambda: next(moments) / 1000, lambda: 0.5, "x-upstream-cluster", RULES))
    try:
        asyncio.run(service.process(None, _Context(split_conversation(data))))
    except _AbortedError as error:
        assert str(error).startswith("INVALID_ARGUMENT: ")  # noqa: PT017 - to end without is right too
    assert service.idle.is_set()
    assert made.ledger.in_flight() == {}
    assert not made.ledger.booked()


def _message(data: bytes) -> None:
    decode_message(data, RULES.headers)


def _logged(data: bytes) -> None:
    """Outcomes that cannot be true, by an engine's word or Envoy's, do no harm to what comes after."""
    made = router(instance("a", address=ADDRESS), instance("b"))
    observer, tally = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {}))), Tally(ClassPolicy())
    for entry in decode_access_log(data):
        if isinstance(entry, Attempt):
            made.attempted(entry, 2.0)
        else:
            made.learn(entry, 2.0)
            observer.finished(entry)
            tally.ended(entry)
    observer.page()
    counts = tally.take()
    for each in counts.values():
        f"{each.output_squares:.0f}"
    scaling.look(counts=counts)
    use(made)


def _discovery(delta: bool, data: bytes) -> None:
    stream, encoder = Stream(delta=delta), Encoder()
    snapshot = Snapshot.of([Resource(CLUSTER, "a", b"one")])
    stream.receive(decode(data, delta=delta))
    for response in stream.due(snapshot):
        encoder.encode(response, delta=delta)


BELIEVED = write_features(
    features(token_counts=(1, 2, 3), cap_tokens=100, request_class="interactive", batch_requests=2, instance_key="a@1")
)


def _features(data: bytes) -> None:
    """What came back in the place of what we had sent along."""
    text = BELIEVED.partition(b" ")[0] + b" " + data
    _logged(log_of(believed=text.decode("utf-8", "replace")))


def _entry(believed: str = BELIEVED.decode()) -> accesslog_pb2.HTTPAccessLogEntry:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    common.upstream_remote_address.socket_address.address = "10.0.0.1"
    common.upstream_remote_address.socket_address.port_value = 80
    common.duration.FromMilliseconds(1500)
    common.start_time.FromSeconds(1_800_000_000)
    common.upstream_request_attempt_count = 2
    common.custom_tags.update({"ttft_us": "200000", "dispatched_us": "1500"})
    entry.response.response_code.value = 200
    common.metadata.filter_metadata[NAMESPACE].update({KEY: believed})
    usage = common.metadata.filter_metadata["usage"]
    usage.update({"prompt_tokens": 100, "completion_tokens": 50, "cached_tokens": 64})
    return entry


def log_of(
    tags: Mapping[str, str] | None = None, usage: Mapping[str, float] | None = None, believed: str = BELIEVED.decode()
) -> bytes:
    """A message with one entry, with these tags and counts beside the usual ones."""
    message, entry = als_pb2.StreamAccessLogsMessage(), _entry(believed)
    entry.common_properties.custom_tags.update(tags or {})
    entry.common_properties.metadata.filter_metadata["usage"].update(usage or {})
    message.http_logs.log_entry.append(entry)
    return bytes(message.SerializeToString())


def _log() -> bytes:
    message = als_pb2.StreamAccessLogsMessage()
    failed, attempt = _entry(), _entry()
    failed.common_properties.response_flags.upstream_connection_failure = True
    failed.response.response_code.value = 503
    attempt.common_properties.custom_tags["attempted"] = ADDRESS
    attempt.response.response_headers["retry-after"] = "7"
    message.http_logs.log_entry.extend([_entry(), failed, attempt])
    return bytes(message.SerializeToString())


DELTA = DeltaDiscoveryRequest(
    type_url=CLUSTER, node=Node(id="front-1", cluster="c"), resource_names_subscribe=["*", "a"],
    resource_names_unsubscribe=["b"], initial_resource_versions={"a": "1"}, response_nonce="7",
    error_detail=Status(code=3, message="no"),
)  # fmt: skip
WHOLE = DiscoveryRequest(
    type_url=ENDPOINT, node=Node(id="f"), resource_names=["a"], version_info="3", response_nonce="1"
)

CONVERSATIONS = tuple(
    join_conversation([bytes(each.SerializeToString()) for each in told])
    for told in (
        (head(), body(), answered(), trailers(of_request=False)),
        (head(mode=DUPLEX), body(CHAT[:20], last=False), body(CHAT[20:]), answered()),
        (
            head(mode=DUPLEX, answer=DUPLEX),
            body(last=False),
            trailers(of_request=True),
            answered(),
            body(b"x", of_request=False),
        ),
        (head(mode=STREAMED, early=True, length=len(CHAT)), body(CHAT[:20], last=False), body(CHAT[20:], last=False)),
        (confined(), body(), answered("503", "10.0.0.2:80")),
        (head("/v1/models", method="GET", last=True),),
    )
)

READERS = (
    Reader(name="ext-proc-message", form=Form.PROTOBUF, examples=EXAMPLES, read=_message, errors=(WireError,)),
    Reader(name="conversation", form=Form.CONVERSATION, examples=CONVERSATIONS, read=_conversation),
    Reader(name="access-log", form=Form.PROTOBUF, examples=[_log()], read=_logged, errors=(WireError,)),
    Reader(name="features", form=Form.JSON, examples=[BELIEVED.partition(b" ")[2]], read=_features),
    Reader(
        name="delta-discovery", form=Form.PROTOBUF, examples=[bytes(DELTA)], read=partial(_discovery, True),
        errors=(MessageError,),
    ),
    Reader(
        name="whole-discovery", form=Form.PROTOBUF, examples=[bytes(WHOLE)], read=partial(_discovery, False),
        errors=(MessageError,),
    ),
)  # fmt: skip
"""All of them."""
