"""Messages of ext_proc as Envoy sends them: what each kind looks like when it is right."""

from __future__ import annotations

import orjson
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2

from extproc.stream.rules import Rules
from tests.core.builders import MODEL

RULES = Rules(answer_models=True, body_limit_bytes=5000)
ALIAS, COLD = "auto", "waits"  # models under another name, and that no instance serves
BUFFERED, STREAMED, PARTIAL, DUPLEX = 2, 1, 3, 4  # of ProcessingMode.BodySendMode
CHAT_PATH = "/v1/chat/completions"
CHAT = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello there"}], "stream": True})


def head(
    path: str = CHAT_PATH, mode: int | None = BUFFERED, answer: int = 0, *,
    method: str = "POST", last: bool = False, early: bool = False, length: int | None = None,
) -> ext_proc.ProcessingRequest:  # fmt: skip
    """Headers of a request."""
    message = ext_proc.ProcessingRequest()
    given = {":method": method, ":path": path, "x-session-id": "s", "content-type": "application/json"}
    if length is not None:
        given["content-length"] = str(length)
    for name, value in given.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    message.request_headers.end_of_stream = last
    if mode is not None:
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = answer
        message.protocol_config.send_body_without_waiting_for_header_response = early
    return message


def body(data: bytes = CHAT, *, last: bool = True, of_request: bool = True) -> ext_proc.ProcessingRequest:
    """A body or a chunk of one."""
    part = ext_proc.HttpBody(body=data, end_of_stream=last)
    return ext_proc.ProcessingRequest(**{"request_body" if of_request else "response_body": part})


def answered(status: str = "200", upstream: str = "10.0.0.1:80") -> ext_proc.ProcessingRequest:
    """Headers of an answer."""
    message = ext_proc.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=status.encode())
    attributes = struct_pb2.Struct()
    attributes["upstream.address"] = upstream
    message.attributes["envoy.filters.http.ext_proc"].CopyFrom(attributes)
    return message


def trailers(*, of_request: bool) -> ext_proc.ProcessingRequest:
    """Trailers."""
    name = "request_trailers" if of_request else "response_trailers"
    return ext_proc.ProcessingRequest(**{name: ext_proc.HttpTrailers()})


def confined() -> ext_proc.ProcessingRequest:
    """Headers of a request that a gateway confines to some endpoints."""
    message = head()
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint["x-gateway-destination-endpoint-subset"] = ["10.0.0.1:80", "10.0.0.9:80, 10.0.0.2:80"]
    return message


ALL = (
    head(), head(mode=STREAMED), head(mode=STREAMED, early=True), head(mode=STREAMED, early=True, length=len(CHAT)),
    head(mode=PARTIAL), head(mode=DUPLEX), head(mode=DUPLEX, answer=DUPLEX), head(mode=None), head(mode=0),
    head(last=True), head("/", last=True), head("/v1/models", method="GET", last=True), head("/v1/unknown"),
    head("/v1/unknown", mode=DUPLEX),
    head("/v1/completions"), confined(),
    body(CHAT.replace(MODEL.encode(), ALIAS.encode())), body(CHAT.replace(MODEL.encode(), COLD.encode())),
    body(), body(CHAT[:20], last=False), body(CHAT[20:]), body(b"", last=True), body(b"", last=False), body(b"{"),
    body(b"null"), body(b"x" * 6000, last=False), body(b"x", last=False, of_request=False), body(b"", of_request=False),
    answered(), answered("503", "10.0.0.2:80"), answered("429", ""), answered("200", "nobody"),
    trailers(of_request=True), trailers(of_request=False),
)  # fmt: skip
"""Each once."""
EXAMPLES = tuple(bytes(each.SerializeToString()) for each in ALL)
"""The same as bytes."""
