"""What Envoy is answered: replies of ext_proc, serialised.

Those that never differ are serialised once; the service sends raw bytes around this file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters.wire import plain
from extproc.adapters.wire.features import KEY, NAMESPACE, write_features
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
        case RouteTo():
            return _route_to(reply, cluster_header)
        case Annotate():
            return _annotate(reply)
        case PassOn():
            on = _CONTINUE[reply.to, True] if not reply.endpoints else _pass_on(reply)
            return on if reply.features is None else on + _believed(reply.features)
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
