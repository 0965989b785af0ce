"""The messages of ext_proc: what Envoy tells of a request, and what it is answered.

Replies that never differ are serialised once; the service sends and receives raw bytes around this file.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.wire import plain
from extproc.adapters.wire.features import KEY, NAMESPACE, write_features
from extproc.adapters.wire.large_body import large_body
from extproc.adapters.wire.wire_error import WireError
from extproc.api.pieces import Pieces, size_of
from extproc.core.values.outcome import Features
from extproc.stream.messages import (
    ALTERNATIVES_KEY,
    ENDPOINTS_HEADER,
    ENDPOINTS_NAMESPACE,
    EXPLANATION_HEADER,
    MODEL_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    Headers,
    Message,
    MoreTime,
    PassOn,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    RouteTo,
    Substitute,
    Trailers,
)

EXT_PROC_METHOD = ("envoy.service.ext_proc.v3.ExternalProcessor", "Process")

_SERVED_KEY = "x-gateway-destination-endpoint-served"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = "x-gateway-destination-endpoint-subset"
_ATTRIBUTES = "envoy.filters.http.ext_proc"

_METADATA = plain.tag_of(ext_proc.ProcessingResponse, "dynamic_metadata")
_BALANCING, _OURS_TO_LOG = plain.key_of(ENDPOINTS_NAMESPACE), plain.key_of(NAMESPACE)
_ENDPOINTS, _ALTERNATIVES = plain.key_of(ENDPOINTS_HEADER), plain.key_of(ALTERNATIVES_KEY)
_FEATURES = plain.key_of(KEY)
_REQUEST, _ANSWER = (plain.tag_of(ext_proc.ProcessingResponse, f"{name}_body") for name in ("request", "response"))
_RESPONSE = plain.tag_of(ext_proc.BodyResponse, "response")
_MUTATION = plain.tag_of(ext_proc.CommonResponse, "body_mutation")
_BODY, _STREAM = (plain.tag_of(ext_proc.BodyMutation, name) for name in ("body", "streamed_response"))
_STREAMED_BODY = plain.tag_of(ext_proc.StreamedBodyResponse, "body")
_LAST = bytes(ext_proc.StreamedBodyResponse(end_of_stream=True).SerializeToString())

_OURS = (EXPLANATION_HEADER, MODEL_HEADER)  # of the answer: an engine cannot set them
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


def _continue_replies() -> dict[tuple[type[Message], bool], bytes]:
    go_on, answer_on = ext_proc.HeadersResponse(), ext_proc.HeadersResponse()
    answer_on.response.header_mutation.remove_headers.extend(_OURS)
    body, trailers = ext_proc.BodyResponse(), ext_proc.TrailersResponse()
    answers = {
        Continue(RequestHeaders): ext_proc.ProcessingResponse(request_headers=go_on),
        Continue(RequestBody): ext_proc.ProcessingResponse(request_body=body),
        Continue(ResponseHeaders): ext_proc.ProcessingResponse(response_headers=answer_on),
        Continue(ResponseBody): ext_proc.ProcessingResponse(response_body=body),
        Continue(Trailers, True): ext_proc.ProcessingResponse(request_trailers=trailers),
        Continue(Trailers, False): ext_proc.ProcessingResponse(response_trailers=trailers),
    }
    return {(reply.to, reply.of_request): answer.SerializeToString() for reply, answer in answers.items()}


_CONTINUE = _continue_replies()


def encode_reply(reply: Reply, cluster_header: str) -> bytes:
    """One ProcessingResponse, serialised. `cluster_header` names the header that Envoy's route reads."""
    match reply:
        case Continue():
            return _CONTINUE[reply.to, reply.of_request]
        case Annotate():
            return _annotate(reply)
        case PassOn():
            on = _CONTINUE[reply.to, True] if not reply.endpoints else _pass_on(reply)
            return on if reply.features is None else on + _believed(reply.features)
        case RouteTo():
            return _route_to(reply, cluster_header)
        case Answer():
            return _answer(reply)
        case HandBack():
            return _hand_back(reply)
        case MoreTime():
            return _more_time(reply)
        case Substitute():
            return _substitute(reply)


def _more_time(reply: MoreTime) -> bytes:
    answer = ext_proc.ProcessingResponse()
    answer.override_message_timeout.FromMilliseconds(round(reply.for_s * 1000))
    return bytes(answer.SerializeToString())


def _hand_back(reply: HandBack) -> bytes:
    mark = _LAST if reply.last else b""
    inner = mark + plain.opened((_STREAMED_BODY,), len(reply.body))
    kind = _REQUEST if reply.of_request else _ANSWER
    outer = plain.opened((kind, _RESPONSE, _MUTATION, _STREAM), len(inner) + len(reply.body))
    return b"".join((outer, inner, reply.body))


def _substitute(reply: Substitute) -> bytes:
    return b"".join((plain.opened((_REQUEST, _RESPONSE, _MUTATION, _BODY), len(reply.body)), reply.body))


def _annotate(reply: Annotate) -> bytes:
    answer = ext_proc.ProcessingResponse()
    mutation = answer.response_headers.response.header_mutation
    told = dict(reply.headers)
    mutation.remove_headers.extend(name for name in _OURS if name not in told)
    for name, value in reply.headers:
        _set_header(mutation, name, value)
    changes = bytes(answer.SerializeToString())
    return changes if reply.features is None else changes + _believed(reply.features)


def _believed(features: Features) -> bytes:
    """The part of a reply that says nothing to Envoy, and comes back with its access log."""
    told = plain.text(_FEATURES, write_features(features))
    return plain.part(_METADATA, plain.struct(_OURS_TO_LOG, told))


def _route_to(reply: RouteTo, cluster_header: str) -> bytes:
    in_headers = reply.to is RequestHeaders
    headers = ((cluster_header, reply.cluster), *reply.headers) if reply.cluster else reply.headers
    if reply.path is not None:
        headers = (*headers, (":path", reply.path))
    if reply.body is not None:
        return b"".join((*_body_replaced(headers, reply.body), _where_to(reply)))
    changes = _headers_set(in_headers, headers) if reply.path is None else _headers_written(in_headers, headers)
    return changes + _where_to(reply)


def _where_to(reply: RouteTo) -> bytes:
    """The part of a reply that Envoy's balancing reads, and what is to come back with its access log."""
    endpoints, alternatives = ",".join(reply.endpoints).encode(), ",".join(reply.alternatives).encode()
    told = plain.text(_ENDPOINTS, endpoints) + plain.text(_ALTERNATIVES, alternatives)
    believed = plain.text(_FEATURES, write_features(reply.features))
    return plain.part(_METADATA, plain.struct(_BALANCING, told) + plain.struct(_OURS_TO_LOG, believed))


def _body_replaced(headers: Headers, body: Pieces) -> Pieces:
    """The part of a reply to a body that sets the request's headers and puts another body in its place.

    Protobuf would copy the body three times.
    """
    told = bytes(_with_headers(ext_proc.ProcessingResponse(), False, headers).SerializeToString())
    size_bytes = size_of(body)
    mutation = plain.opened((_MUTATION, _BODY), size_bytes)
    outer = plain.opened((_REQUEST, _RESPONSE), len(told) + len(mutation) + size_bytes)
    return (outer, told, mutation, *body)


@lru_cache(maxsize=1024)
def _headers_set(in_headers: bool, headers: Headers) -> bytes:
    """The part of a reply that sets the request's headers: mostly one of a few clusters."""
    return _headers_written(in_headers, headers)


def _headers_written(in_headers: bool, headers: Headers) -> bytes:
    answer = ext_proc.ProcessingResponse()
    _with_headers(answer, in_headers, headers)
    return bytes(answer.SerializeToString())


def _with_headers(answer: Any, in_headers: bool, headers: Headers) -> Any:
    common = _common(answer, in_headers)
    for name, value in headers:
        _set_header(common.header_mutation, name, value)
    return common


def _pass_on(reply: PassOn) -> bytes:
    answer = ext_proc.ProcessingResponse()
    endpoints = ",".join(reply.endpoints)
    _set_header(_common(answer, reply.to is RequestHeaders).header_mutation, ENDPOINTS_HEADER, endpoints)
    told = answer.dynamic_metadata.fields[ENDPOINTS_NAMESPACE].struct_value.fields
    told[ENDPOINTS_HEADER].string_value = endpoints
    return bytes(answer.SerializeToString())


def _common(answer: Any, in_headers: bool) -> Any:
    """The part of a reply that changes the request; Envoy looks for its route anew."""
    common = (answer.request_headers if in_headers else answer.request_body).response
    common.clear_route_cache = True  # without it Envoy keeps the route chosen before the header existed
    return common


def _answer(reply: Answer) -> bytes:
    answer = ext_proc.ProcessingResponse()
    immediate = answer.immediate_response
    immediate.status.code = reply.status
    immediate.body = reply.body
    immediate.details = f"extproc_{reply.reason}"
    _set_header(immediate.headers, "content-type", "application/json")
    if reply.retry_after_s is not None:
        _set_header(immediate.headers, "retry-after", str(reply.retry_after_s))
    for name, value in reply.headers:
        _set_header(immediate.headers, name, value)
    return bytes(answer.SerializeToString())


def _set_header(mutation: Any, key: str, value: str) -> None:
    # Envoy ignores `value` here and sets an empty header; `raw_value` works.
    option = mutation.set_headers.add()
    option.header.key = key
    option.header.raw_value = value.encode()
    option.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
