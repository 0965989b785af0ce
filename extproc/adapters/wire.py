"""Envoy's protobuf messages on one side, our values on the other. The only user of the `envoy` package.

Replies that never differ are serialised once; the service sends and receives raw bytes around this file.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.core.health.verdict import Attempt
from extproc.core.values.outcome import Features, Outcome
from extproc.errors import ExtprocError
from extproc.stream.messages import (
    ALTERNATIVES_KEY,
    ENDPOINTS_HEADER,
    ENDPOINTS_NAMESPACE,
    EXPLANATION_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    Message,
    PassOn,
    Reply,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    RouteTo,
    Trailers,
)

EXT_PROC_METHOD = ("envoy.service.ext_proc.v3.ExternalProcessor", "Process")
ACCESS_LOG_METHOD = ("envoy.service.accesslog.v3.AccessLogService", "StreamAccessLogs")

_SERVED_KEY = "x-gateway-destination-endpoint-served"
_SUBSET_NAMESPACE = "envoy.lb.subset_hint"
_SUBSET_KEY = "x-gateway-destination-endpoint-subset"
FEATURES_NAMESPACE = "extproc"
USAGE_NAMESPACE = "usage"
_ATTEMPT_TAG = "attempted"  # as `extproc.control.attempt_log` names it
_SEPARATOR = " "
_ATTRIBUTES = "envoy.filters.http.ext_proc"

_EARLY = BodyMode.STREAMED_EARLY
_STREAMED = ProcessingMode.STREAMED
_BODY_MODES = {
    ProcessingMode.NONE: BodyMode.NONE,
    ProcessingMode.STREAMED: BodyMode.STREAMED,
    ProcessingMode.BUFFERED: BodyMode.BUFFERED,
    ProcessingMode.BUFFERED_PARTIAL: BodyMode.BUFFERED_PARTIAL,
    ProcessingMode.FULL_DUPLEX_STREAMED: BodyMode.FULL_DUPLEX,
}


class WireError(ExtprocError):
    """Bytes that are no message of the protocol, or a message of a kind that our configuration never asks for."""


def decode_message(data: bytes, wanted: Container[str] = ()) -> Message:
    """One ProcessingRequest, with the headers in `wanted` (lower-case names). Raises WireError."""
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
        key = header.key
        match key:
            case ":method":
                method = _value(header)
            case ":path":
                path = _value(header)
            case _ if key in wanted:
                kept[key] = _value(header)
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
            status = int(_value(header) or 0)
            break
    attributes = request.attributes.get(_ATTRIBUTES)
    upstream = attributes.fields["upstream.address"].string_value if attributes else ""
    if not upstream and (told := request.metadata_context.filter_metadata.get(ENDPOINTS_NAMESPACE)):
        upstream = told.fields[_SERVED_KEY].string_value
    return ResponseHeaders(status, upstream)


def _value(header: Any) -> str:
    raw: bytes = header.raw_value
    return raw.decode("utf-8", "replace") if raw else str(header.value)


def _continue_replies() -> dict[Continue, bytes]:
    go_on = ext_proc.HeadersResponse()
    body, trailers = ext_proc.BodyResponse(), ext_proc.TrailersResponse()
    answers = {
        Continue(RequestHeaders): ext_proc.ProcessingResponse(request_headers=go_on),
        Continue(RequestBody): ext_proc.ProcessingResponse(request_body=body),
        Continue(ResponseHeaders): ext_proc.ProcessingResponse(response_headers=go_on),
        Continue(ResponseBody): ext_proc.ProcessingResponse(response_body=body),
        Continue(Trailers, True): ext_proc.ProcessingResponse(request_trailers=trailers),
        Continue(Trailers, False): ext_proc.ProcessingResponse(response_trailers=trailers),
    }
    return {reply: answer.SerializeToString() for reply, answer in answers.items()}


_CONTINUE = _continue_replies()


def encode_reply(reply: Reply, cluster_header: str) -> bytes:
    """One ProcessingResponse, serialised. `cluster_header` names the header that Envoy's route reads."""
    match reply:
        case Continue():
            return _CONTINUE[reply]
        case Annotate():
            return _annotate(reply)
        case PassOn():
            return _CONTINUE[Continue(reply.to)] if not reply.endpoints else _pass_on(reply)
        case RouteTo():
            return _route_to(reply, cluster_header)
        case Answer():
            return _answer(reply)
        case HandBack():
            return _hand_back(reply)


def _hand_back(reply: HandBack) -> bytes:
    answer = ext_proc.ProcessingResponse()
    part = answer.request_body if reply.of_request else answer.response_body
    streamed = part.response.body_mutation.streamed_response
    streamed.body = reply.body
    streamed.end_of_stream = reply.last
    return bytes(answer.SerializeToString())


def _annotate(reply: Annotate) -> bytes:
    answer = ext_proc.ProcessingResponse()
    _set_header(answer.response_headers.response.header_mutation, EXPLANATION_HEADER, reply.explanation)
    return bytes(answer.SerializeToString())


def _route_to(reply: RouteTo, cluster_header: str) -> bytes:
    answer = ext_proc.ProcessingResponse()
    common = _common(answer, reply.to)
    if reply.cluster:
        _set_header(common.header_mutation, cluster_header, reply.cluster)
    for name, value in reply.headers:
        _set_header(common.header_mutation, name, value)
    namespaces = answer.dynamic_metadata.fields
    endpoints = namespaces[ENDPOINTS_NAMESPACE].struct_value.fields
    endpoints[ENDPOINTS_HEADER].string_value = ",".join(reply.endpoints)
    endpoints[ALTERNATIVES_KEY].string_value = ",".join(reply.alternatives)
    features = namespaces[FEATURES_NAMESPACE].struct_value.fields
    for name, value in _features_fields(reply.features):
        field = features[name]
        if isinstance(value, str):
            field.string_value = value
        elif isinstance(value, tuple):  # one string: a Struct would make an object of each number
            field.string_value = _SEPARATOR.join(map(str, value))
        elif isinstance(value, bool):
            field.bool_value = value
        else:
            field.number_value = value
    return bytes(answer.SerializeToString())


def _pass_on(reply: PassOn) -> bytes:
    answer = ext_proc.ProcessingResponse()
    endpoints = ",".join(reply.endpoints)
    _set_header(_common(answer, reply.to).header_mutation, ENDPOINTS_HEADER, endpoints)
    told = answer.dynamic_metadata.fields[ENDPOINTS_NAMESPACE].struct_value.fields
    told[ENDPOINTS_HEADER].string_value = endpoints
    return bytes(answer.SerializeToString())


def _common(answer: Any, to: type[Message]) -> Any:
    """The part of a reply that changes the request; Envoy looks for its route anew."""
    common = (answer.request_headers if to is RequestHeaders else answer.request_body).response
    common.clear_route_cache = True  # without it Envoy keeps the route chosen before the header existed
    return common


def _features_fields(features: Features) -> Iterator[tuple[str, Any]]:
    for name in features.__dataclass_fields__:
        yield name, getattr(features, name)


def _answer(reply: Answer) -> bytes:
    answer = ext_proc.ProcessingResponse()
    immediate = answer.immediate_response
    immediate.status.code = reply.status
    immediate.body = reply.body
    immediate.details = f"extproc_{reply.reason}"
    _set_header(immediate.headers, "content-type", "application/json")
    if reply.retry_after_s is not None:
        _set_header(immediate.headers, "retry-after", str(reply.retry_after_s))
    if reply.explanation:
        _set_header(immediate.headers, EXPLANATION_HEADER, reply.explanation)
    return bytes(answer.SerializeToString())


def _set_header(mutation: Any, key: str, value: str) -> None:
    # Envoy ignores `value` here and sets an empty header; `raw_value` works.
    option = mutation.set_headers.add()
    option.header.key = key
    option.header.raw_value = value.encode()
    option.append_action = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def decode_access_log(data: bytes) -> list[Outcome | Attempt]:
    """Requests and single attempts of one StreamAccessLogsMessage, in order. Raises WireError."""
    try:
        message = als_pb2.StreamAccessLogsMessage.FromString(data)
    except Exception as error:  # as above
        raise WireError(f"not a StreamAccessLogsMessage: {error}") from None
    return [_entry(entry) for entry in message.http_logs.log_entry]


def access_log_answer() -> bytes:
    """The empty answer that ends an access-log stream."""
    return bytes(als_pb2.StreamAccessLogsResponse().SerializeToString())


def _entry(entry: Any) -> Outcome | Attempt:
    attempted = entry.common_properties.custom_tags.get(_ATTEMPT_TAG)
    return _outcome(entry) if attempted is None else _attempt(entry, attempted)


def _attempt(entry: Any, address: str) -> Attempt:
    common = entry.common_properties
    return Attempt(
        address=address,
        status=entry.response.response_code.value,
        flags=tuple(_flags(common.response_flags)),
        retry_after_s=_whole_s(entry.response.response_headers.get("retry-after", "")),
        duration_s=_duration_s(common),
    )


def _whole_s(value: str) -> float | None:
    """Seconds of a Retry-After header; its other form, a date, is not worth a calendar."""
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def _outcome(entry: Any) -> Outcome:
    common = entry.common_properties
    metadata = common.metadata.filter_metadata
    usage = metadata[USAGE_NAMESPACE].fields if USAGE_NAMESPACE in metadata else {}
    return Outcome(
        features=_features(metadata),
        address=_address(common.upstream_remote_address),
        status=entry.response.response_code.value,
        flags=tuple(_flags(common.response_flags)),
        attempts=common.upstream_request_attempt_count,
        duration_s=_duration_s(common),
        ttft_s=_tag_s(common.custom_tags.get("ttft_us")),
        routing_s=_tag_s(common.custom_tags.get("dispatched_us")),
        prompt_tokens=_prompt_tokens(usage),
        completion_tokens=_first(usage, "completion_tokens", "output_tokens"),
        cached_tokens=_first(usage, "cached_tokens", "cache_read_tokens"),
        started_s=common.start_time.seconds + common.start_time.nanos * 1e-9 if common.HasField("start_time") else None,
    )


def _features(metadata: Any) -> Features | None:
    if FEATURES_NAMESPACE not in metadata:
        return None
    fields = metadata[FEATURES_NAMESPACE].fields
    try:
        values = {name: getattr(field, field.WhichOneof("kind")) for name, field in fields.items()}
        values["token_counts"] = [int(count) for count in values["token_counts"].split(_SEPARATOR) if count]
        return msgspec.convert(values, Features, strict=False)
    except (msgspec.ValidationError, KeyError, AttributeError, TypeError, ValueError):
        return None  # written by another version of ours, or not by us


def _address(address: Any) -> str:
    socket = address.socket_address
    return f"{socket.address}:{socket.port_value}" if socket.address else ""


def _flags(flags: Any) -> Iterator[str]:
    for field, value in flags.ListFields():
        if value is True:
            yield field.name


def _duration_s(common: Any) -> float:
    length = common.duration if common.HasField("duration") else common.time_to_last_downstream_tx_byte
    return float(length.seconds + length.nanos * 1e-9)


def _tag_s(tag: str | None) -> float | None:
    """Seconds of a duration tag in microseconds; Envoy writes "-" where there was no such moment."""
    return int(tag) * 1e-6 if tag and tag.isdigit() else None


def _prompt_tokens(usage: Mapping[str, Any]) -> int | None:
    """Anthropic leaves what was read from the cache, or written to it, out of its input tokens; no other API does."""
    tokens = _first(usage, "prompt_tokens", "input_tokens")
    if tokens is None or "prompt_tokens" in usage:
        return tokens
    return tokens + sum(_first(usage, name) or 0 for name in ("cache_read_tokens", "cache_creation_tokens"))


def _first(usage: Mapping[str, Any], *names: str) -> int | None:
    """The count under the first of the names that has one: OpenAI's before others, where an engine tells both.

    What is not finite is none: Envoy reads a text such as "nan" as a number.
    """
    for name in names:
        told = usage[name].number_value if name in usage and usage[name].HasField("number_value") else math.nan
        if math.isfinite(told):
            return int(told)
    return None
