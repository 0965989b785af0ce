"""What Envoy tells of a request: messages of ext_proc, read."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.wire.large_body import large_body
from extproc.adapters.wire.wire_error import WireError
from extproc.stream.messages import (
    ENDPOINTS_NAMESPACE,
    BodyMode,
    Message,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    Trailers,
)

EXT_PROC_METHOD = ("envoy.service.ext_proc.v3.ExternalProcessor", "Process")

_SERVED_KEY = "x-gateway-destination-endpoint-served"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = "x-gateway-destination-endpoint-subset"
_ATTRIBUTES = "envoy.filters.http.ext_proc"

_STATUS_DIGITS = 3
_EARLY = BodyMode.STREAMED_EARLY
_STREAMED = ProcessingMode.STREAMED
_BODY_MODES = {
    ProcessingMode.NONE: BodyMode.NONE,
    ProcessingMode.STREAMED: BodyMode.STREAMED,
    ProcessingMode.BUFFERED: BodyMode.BUFFERED,
    ProcessingMode.BUFFERED_PARTIAL: BodyMode.BUFFERED_PARTIAL,
    ProcessingMode.FULL_DUPLEX_STREAMED: BodyMode.FULL_DUPLEX,
}


def decode_message(data: bytes, wanted: Container[str] = ()) -> Message:
    """One ProcessingRequest, with the headers in `wanted` (lower-case names). Raises WireError."""
    if (large := large_body(data)) is not None:
        return large
    try:
        request = ext_proc.ProcessingRequest.FromString(data)
    except Exception as error:  # protobuf's DecodeError has no common home across its backends
        raise WireError(f"not a ProcessingRequest: {error}") from None
    kind = request.WhichOneof("request")
    match kind:
        case "request_headers":
            return _request_headers(request, wanted)
        case "request_body":
            return RequestBody(request.request_body.body, request.request_body.end_of_stream)
        case "response_headers":
            return _response_headers(request)
        case "response_body":
            return ResponseBody(request.response_body.body, request.response_body.end_of_stream)
        case "request_trailers" | "response_trailers":
            return Trailers(of_request=kind == "request_trailers")
    raise WireError(f"unexpected message '{kind}': only headers, bodies and trailers are known")


def _request_headers(request: Any, wanted: Container[str]) -> RequestHeaders:
    method = path = ""
    kept: dict[str, str] = {}
    for header in request.request_headers.headers.headers:
        key = header.key  # most are neither: they are told apart in the fewest steps
        if key in wanted:
            kept[key] = _value(header)
        elif key == ":path":
            path = _value(header)
        elif key == ":method":
            method = _value(header)
    last, subset = request.request_headers.end_of_stream, _subset(request.metadata_context.filter_metadata)
    if not request.HasField("protocol_config"):  # Envoys before 1.34 do not tell; BUFFERED fits too, but for trailers
        return RequestHeaders(method, path, last, kept, BodyMode.BUFFERED_PARTIAL, subset=subset)
    told = request.protocol_config
    early = told.send_body_without_waiting_for_header_response
    mode = _EARLY if early and told.request_body_mode == _STREAMED else _body_mode(told.request_body_mode)
    answer_mode = _body_mode(told.response_body_mode)
    return RequestHeaders(method, path, last, kept, mode, answer_mode, subset)


def _subset(namespaces: Any) -> frozenset[str] | None:
    """Endpoints to choose from; none at all if the hint is there and holds none that we can read."""
    hint = namespaces.get(_SUBSET_NAMESPACE)
    if hint is None or _SUBSET_KEY not in hint.fields:
        return None
    value = hint.fields[_SUBSET_KEY]
    told = [value, *value.list_value.values] if value.WhichOneof("kind") == "list_value" else [value]
    texts = (part.strip() for each in told for part in each.string_value.split(","))
    return frozenset(filter(None, texts))


def _body_mode(number: int) -> BodyMode:
    mode = _BODY_MODES.get(number)
    if mode is None:
        raise WireError(f"body mode {number} is not supported: configure BUFFERED or FULL_DUPLEX_STREAMED")
    return mode


def _response_headers(request: Any) -> ResponseHeaders:
    status = 0
    for header in request.response_headers.headers.headers:
        if header.key == ":status":
            told = _value(header)
            status = int(told) if told.isascii() and told.isdigit() and len(told) == _STATUS_DIGITS else 0
            break
    attributes = request.attributes.get(_ATTRIBUTES)
    upstream = attributes.fields["upstream.address"].string_value if attributes else ""
    if not upstream and (told := request.metadata_context.filter_metadata.get(ENDPOINTS_NAMESPACE)):
        upstream = told.fields[_SERVED_KEY].string_value
    return ResponseHeaders(status, upstream)


def _value(header: Any) -> str:
    raw: bytes = header.raw_value
    return raw.decode("utf-8", "replace") if raw else str(header.value)
