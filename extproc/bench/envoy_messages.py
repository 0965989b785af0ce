"""What Envoy says of one request: the messages of its ext_proc stream, and its entry in the access log."""

from __future__ import annotations

from collections.abc import Sequence

from envoy.config.core.v3 import base_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

_REQUEST_HEADERS = {
    ":authority": "llm.example.com",
    ":path": "/v1/chat/completions",
    ":method": "POST",
    ":scheme": "http",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate, br",
    "authorization": "Bearer sk-0123456789abcdef0123456789abcdef0123456789abcdef",
    "content-type": "application/json",
    "connection": "keep-alive",
    "user-agent": "OpenAI/Python 1.99.9",
    "x-stainless-arch": "x64",
    "x-stainless-async": "async:asyncio",
    "x-stainless-lang": "python",
    "x-stainless-os": "Linux",
    "x-stainless-package-version": "1.99.9",
    "x-stainless-read-timeout": "600",
    "x-stainless-retry-count": "0",
    "x-stainless-runtime": "CPython",
    "x-forwarded-proto": "http",
    "x-request-id": "6f1a52cb-87f2-4a0b-9f0e-6b0a7a1c2d3e",
}
_ANSWER_HEADERS = {
    ":status": "200",
    "date": "Mon, 01 Jan 2024 00:00:00 GMT",
    "server": "uvicorn",
    "content-type": "text/event-stream; charset=utf-8",
    "transfer-encoding": "chunked",
    "x-envoy-upstream-service-time": "42",
}


def conversation(body: bytes, upstream: str) -> tuple[bytes, ...]:
    """ProcessingRequests of one routed request, in order: headers, body, the answer's headers and its trailers."""
    headers = ext_proc.ProcessingRequest()
    _set(headers.request_headers.headers, {**_REQUEST_HEADERS, "content-length": str(len(body))})
    headers.protocol_config.request_body_mode = 2  # BUFFERED
    whole = ext_proc.ProcessingRequest()
    whole.request_body.body, whole.request_body.end_of_stream = body, True
    answer = ext_proc.ProcessingRequest()
    _set(answer.response_headers.headers, _ANSWER_HEADERS)
    answer.attributes["envoy.filters.http.ext_proc"]["upstream.address"] = upstream
    trailers = ext_proc.ProcessingRequest()
    trailers.response_trailers.SetInParent()
    return tuple(bytes(message.SerializeToString()) for message in (headers, whole, answer, trailers))


def access_log(requests: Sequence[tuple[bytes, str]]) -> bytes:
    """One message of the access log that tells of requests: the reply to the body of each, and who answered it."""
    message = als_pb2.StreamAccessLogsMessage()
    for reply, upstream in requests:
        host, _, port = upstream.rpartition(":")
        entry = message.http_logs.log_entry.add()
        common = entry.common_properties
        for namespace, value in ext_proc.ProcessingResponse.FromString(reply).dynamic_metadata.fields.items():
            common.metadata.filter_metadata[namespace].CopyFrom(value.struct_value)
        for name, tokens in (("prompt_tokens", 900), ("completion_tokens", 100), ("cached_tokens", 0)):
            common.metadata.filter_metadata["usage"][name] = tokens
        for address in (common.upstream_remote_address, common.downstream_remote_address):
            address.socket_address.address, address.socket_address.port_value = host, int(port)
        common.start_time.seconds, common.duration.nanos = 1_700_000_000, 900_000_000
        common.upstream_request_attempt_count, common.upstream_cluster = 1, "pool"
        for tag, told in (("ttft_us", "52000"), ("headers_us", "50000"), ("dispatched_us", "1500")):
            common.custom_tags[tag] = told
        entry.request.path, entry.request.authority = "/v1/chat/completions", "llm.example.com"
        entry.request.user_agent, entry.request.request_id = "OpenAI/Python 1.99.9", _REQUEST_HEADERS["x-request-id"]
        entry.request.request_body_bytes, entry.response.response_body_bytes = 4096, 20_000
        entry.response.response_code.value = 200
    return bytes(message.SerializeToString())


def chosen(reply: bytes) -> str:
    """The first endpoint of the reply to a body, "" if it names none."""
    told = ext_proc.ProcessingResponse.FromString(reply).dynamic_metadata.fields
    if "envoy.lb" not in told:
        return ""
    endpoints: str = told["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value
    return endpoints.partition(",")[0]


def nothing_replies() -> dict[int, bytes]:
    """What a processor that changes nothing replies, by the first byte of Envoy's message."""
    parts = ("request_headers", "request_body", "response_headers", "response_body", "response_trailers")
    replies = {}
    for part in parts:
        asked, answer = ext_proc.ProcessingRequest(), ext_proc.ProcessingResponse()
        getattr(asked, part).SetInParent()
        getattr(answer, part).SetInParent()
        replies[asked.SerializeToString()[0]] = bytes(answer.SerializeToString())
    return replies


def _set(headers: base_pb2.HeaderMap, values: dict[str, str]) -> None:
    for key, value in values.items():
        headers.headers.add(key=key, raw_value=value.encode())
