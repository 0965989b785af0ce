"""Envoy's protobuf messages: decoded to our values, and our replies as Envoy needs them."""

from __future__ import annotations

import math

import msgspec
import pytest
from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.wire import WireError, decode_access_log, decode_message, encode_reply
from extproc.adapters.wire.features import read_features
from extproc.core.values.outcome import Outcome
from extproc.stream.messages import (
    EXPLANATION_HEADER,
    MODEL_HEADER,
    Annotate,
    Answer,
    BodyMode,
    Continue,
    HandBack,
    Message,
    MoreTime,
    PassOn,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
    RouteTo,
    Substitute,
    Trailers,
)
from tests.core.builders import features

FEATURES = features(
    request_id="7",
    model="m",
    token_counts=(1, 2, 300),
    cached_tokens=64,
    output_p50_tokens=1,
    output_p90_tokens=2,
    output_tokens=20,
    queue_s=0.25,
    ttft_s=0.5,
    batch_requests=3,
    batch_tokens=4000.5,
    engine_waiting=1,
    charge="1500 1800000000123456 a model with spaces",
    request_class="long_context",
)


def headers(**values: str) -> ext_proc.HttpHeaders:
    made = ext_proc.HttpHeaders()
    for key, value in values.items():
        made.headers.headers.add(key=key.replace("__", ":").replace("_", "-"), raw_value=value.encode())
    return made


def served(address: str) -> dict[str, struct_pb2.Struct]:
    attributes = struct_pb2.Struct()
    attributes["upstream.address"] = address
    return {"envoy.filters.http.ext_proc": attributes}


@pytest.mark.parametrize(
    ("request_message", "expected"),
    [
        (
            ext_proc.ProcessingRequest(request_headers=headers(__method="POST", __path="/x", x_request_id="r")),
            RequestHeaders("POST", "/x", last=False, body_mode=BodyMode.BUFFERED_PARTIAL),
        ),
        (
            ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=b"{}", end_of_stream=False)),
            RequestBody(b"{}", last=False),
        ),
        (ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=b"x")), ResponseBody(b"x", last=False)),
        (
            ext_proc.ProcessingRequest(response_headers=headers(__status="503")),
            ResponseHeaders(503, ""),
        ),
        (
            ext_proc.ProcessingRequest(response_headers=headers(__status="200"), attributes=served("10.0.0.1:80")),
            ResponseHeaders(200, "10.0.0.1:80"),
        ),
        (ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers()), Trailers(of_request=True)),
        (ext_proc.ProcessingRequest(response_trailers=ext_proc.HttpTrailers()), Trailers(of_request=False)),
    ],
)
def test_each_kind_of_message_is_decoded(request_message: ext_proc.ProcessingRequest, expected: Message) -> None:
    assert decode_message(request_message.SerializeToString()) == expected


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_the_declared_error(data: bytes) -> None:
    for decode in (decode_message, decode_access_log):
        try:
            decode(data)
        except WireError as error:
            assert str(error)  # noqa: PT017 - no error is fine too


def configured(request: int, answer: int = 0, *, early: bool = False) -> bytes:
    """The first message of a stream, as an Envoy that is configured so sends it."""
    message = ext_proc.ProcessingRequest(request_headers=headers(__method="POST", __path="/x"))
    message.protocol_config.request_body_mode = request  # type: ignore[assignment]
    message.protocol_config.response_body_mode = answer  # type: ignore[assignment]
    message.protocol_config.send_body_without_waiting_for_header_response = early
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("request_mode", "answer_mode", "early", "expected"),
    [
        (0, 0, False, (BodyMode.NONE, BodyMode.NONE)),
        (1, 0, False, (BodyMode.STREAMED, BodyMode.NONE)),
        (1, 1, True, (BodyMode.STREAMED_EARLY, BodyMode.STREAMED)),
        (2, 2, False, (BodyMode.BUFFERED, BodyMode.BUFFERED)),
        (2, 0, True, (BodyMode.BUFFERED, BodyMode.NONE)),
        (3, 0, False, (BodyMode.BUFFERED_PARTIAL, BodyMode.NONE)),
        (4, 4, False, (BodyMode.FULL_DUPLEX, BodyMode.FULL_DUPLEX)),
    ],
)
def test_envoy_says_with_the_headers_how_bodies_will_come(
    request_mode: int, answer_mode: int, early: bool, expected: tuple[BodyMode, BodyMode]
) -> None:
    message = decode_message(configured(request_mode, answer_mode, early=early))
    assert isinstance(message, RequestHeaders)
    assert (message.body_mode, message.answer_mode) == expected


@pytest.mark.parametrize("modes", [(5, 0), (0, 5), (99, 0)])
def test_a_body_mode_that_we_do_not_speak_is_a_declared_error(modes: tuple[int, int]) -> None:
    """GRPC (5), and what later Envoys may add."""
    with pytest.raises(WireError, match="body mode"):
        decode_message(configured(*modes))


@pytest.mark.parametrize(("of_request", "last"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_chunk_that_is_handed_back_holds_the_same_bytes_and_says_whether_it_is_the_last(
    of_request: bool, last: bool
) -> None:
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(HandBack(b"\x00\xff", last, of_request), "x"))
    assert answer.WhichOneof("response") == ("request_body" if of_request else "response_body")
    part = answer.request_body if of_request else answer.response_body
    streamed = part.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"\x00\xff", last)


def test_a_decision_that_answers_the_headers_is_the_same_but_for_its_place() -> None:
    reply = RouteTo("pool", ("10.0.0.1:80",), FEATURES)
    to_body = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x"))
    to_headers = ext_proc.ProcessingResponse.FromString(
        encode_reply(msgspec.structs.replace(reply, to=RequestHeaders), "x")
    )
    assert to_headers.request_headers.response == to_body.request_body.response
    assert to_headers.dynamic_metadata == to_body.dynamic_metadata


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Continue(RequestHeaders), "request_headers"),
        (PassOn(RequestHeaders, "x"), "request_headers"),
        (PassOn(RequestBody, "x"), "request_body"),
        (Continue(ResponseHeaders), "response_headers"),
        (Continue(ResponseBody), "response_body"),
        (Continue(Trailers, True), "request_trailers"),
        (Continue(Trailers, False), "response_trailers"),
    ],
)
def test_a_reply_that_changes_nothing_answers_the_message_it_is_for(reply: Continue | PassOn, kind: str) -> None:
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x-upstream-cluster"))
    assert answer.WhichOneof("response") == kind


def test_a_route_sets_the_header_clears_the_route_and_names_endpoints_in_order() -> None:
    reply = RouteTo("pool", ("10.0.0.1:80", "10.0.0.2:80"), FEATURES, alternatives=("10.0.0.2:80", "10.0.0.3:80"))
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x-where"))
    common = answer.request_body.response
    assert common.clear_route_cache
    (header,) = common.header_mutation.set_headers
    assert (header.header.key, header.header.raw_value, header.header.value) == ("x-where", b"pool", "")
    lb = answer.dynamic_metadata["envoy.lb"]
    assert lb["x-extproc-alternatives"] == "10.0.0.2:80,10.0.0.3:80"
    assert lb["x-gateway-destination-endpoint"] == "10.0.0.1:80,10.0.0.2:80"


def test_a_refusal_carries_status_body_and_retry_after() -> None:
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(Answer(503, b"{}", "not_ready", 3), "x"))
    immediate = answer.immediate_response
    assert (immediate.status.code, immediate.body) == (503, b"{}")
    assert {h.header.key: h.header.raw_value for h in immediate.headers.set_headers} == {
        "content-type": b"application/json",
        "retry-after": b"3",
    }


def test_a_wish_for_more_time_holds_that_and_nothing_else() -> None:
    """Envoy would take anything else for the reply that it waits for."""
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(MoreTime(61.5), "x"))
    assert answer.override_message_timeout.ToMilliseconds() == 61_500
    assert [field.name for field, _ in answer.ListFields()] == ["override_message_timeout"]


def entry_with(**usage: int) -> accesslog_pb2.HTTPAccessLogEntry:
    """An access-log entry as Envoy makes it of a routed request: our features ride in its metadata."""
    route = ext_proc.ProcessingResponse.FromString(encode_reply(RouteTo("pool", ("10.0.0.1:80",), FEATURES), "x"))
    entry = accesslog_pb2.HTTPAccessLogEntry()
    entry.response.response_code.value = 200
    common = entry.common_properties
    common.metadata.filter_metadata["extproc"].CopyFrom(route.dynamic_metadata["extproc"])
    for name, value in usage.items():
        common.metadata.filter_metadata["usage"][name] = value
    common.upstream_remote_address.socket_address.address = "10.0.0.1"
    common.upstream_remote_address.socket_address.port_value = 80
    common.upstream_request_attempt_count = 2
    common.duration.nanos = 500_000_000
    common.start_time.seconds, common.start_time.nanos = 1_000, 250_000_000
    common.response_flags.upstream_connection_failure = True
    common.custom_tags["ttft_us"] = "250000"
    common.custom_tags["dispatched_us"] = "-"
    return entry


def logged(*entries: accesslog_pb2.HTTPAccessLogEntry) -> list[Outcome]:
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.extend(entries)
    return decode_access_log(message.SerializeToString())


def test_an_outcome_brings_back_the_features_that_were_sent() -> None:
    (outcome,) = logged(entry_with(prompt_tokens=120, completion_tokens=30, cached_tokens=64))
    assert outcome == Outcome(
        features=FEATURES,
        address="10.0.0.1:80",
        status=200,
        flags=("upstream_connection_failure",),
        attempts=2,
        duration_s=0.5,
        ttft_s=0.25,
        routing_s=None,
        prompt_tokens=120,
        completion_tokens=30,
        cached_tokens=64,
        started_s=1_000.25,
    )


@pytest.mark.parametrize("kind", ["DownstreamStart", "DownstreamPeriodic"])
def test_entries_of_a_request_that_goes_on_are_no_outcomes(kind: str) -> None:
    """Envoy writes them if it is told to; with no usage yet and no status they would give all tokens back."""
    early = entry_with()
    early.common_properties.access_log_type = accesslog_pb2.AccessLogType.Value(kind)
    last = entry_with(prompt_tokens=120)
    last.common_properties.access_log_type = accesslog_pb2.AccessLogType.Value("DownstreamEnd")
    assert [outcome.prompt_tokens for outcome in logged(early, last)] == [120]


def test_what_envoy_did_not_see_is_unknown_and_not_zero() -> None:
    (outcome,) = logged(entry_with())
    assert (outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens) == (None, None, None)
    (bare,) = logged(accesslog_pb2.HTTPAccessLogEntry())
    assert bare == msgspec.structs.replace(
        bare, features=None, address="", ttft_s=None, prompt_tokens=None, started_s=None
    )


@pytest.mark.parametrize("count", [math.inf, -math.inf, math.nan])
def test_a_count_that_is_not_finite_is_unknown_and_costs_no_other_entry(count: float) -> None:
    """An engine may write it as a text, which Envoy's filters read as a number."""
    entry = entry_with(completion_tokens=30)
    entry.common_properties.metadata.filter_metadata["usage"]["prompt_tokens"] = count
    outcomes = logged(entry, entry_with(prompt_tokens=120))
    assert [each.prompt_tokens for each in outcomes] == [None, 120]
    assert outcomes[0].completion_tokens == 30


def test_what_others_write_into_our_namespace_is_no_error() -> None:
    entry = entry_with()
    entry.common_properties.metadata.filter_metadata["extproc"].fields["odd"].Clear()
    assert [each.features for each in logged(entry)] == [FEATURES]


@pytest.mark.parametrize("change", ["another layout", "number", "no JSON", "wrong type", "below 0", "nothing"])
def test_features_of_another_version_or_hand_are_no_error(change: str) -> None:
    """Nor do they cost the entries beside them."""
    entry = entry_with()
    told = entry.common_properties.metadata.filter_metadata["extproc"]
    layout, _, values = told["features"].partition(" ")
    match change:
        case "another layout":
            told["features"] = f"{int(layout, 16) ^ 1:08x} {values}"
        case "number":
            told["features"] = 1.0
        case "no JSON":
            told["features"] = told["features"][:-1]
        case "wrong type":
            told["features"] = f"{layout} " + values.replace("100", '"many"', 1)
        case "below 0":
            assert values.count(",20,") == 1  # tokens of the answer, which a counter would have to fall by
            told["features"] = f"{layout} " + values.replace(",20,", ",-20,")
        case "nothing":
            told.Clear()
    read = logged(entry, entry_with())
    assert [each.features for each in read] == [None, FEATURES]
    assert [each.features_unread for each in read] == [change != "nothing", False]


def test_features_keep_texts_of_any_script_and_length() -> None:
    """A model's name may be long: then its lengths take more than one byte, each."""
    for model in ("ein Modell mit Ä und 模型", "m" * 120, "m" * 20_000, 'a "quoted" \\ name'):
        told = msgspec.structs.replace(FEATURES, model=model)
        reply = RouteTo("pool", ("10.0.0.1:80",) * 200, told)
        answer = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x"))
        assert answer.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"].count("10.0.0.1:80") == 200
        assert read_features({"extproc": answer.dynamic_metadata["extproc"]}) == told


def test_more_headers_of_a_route_are_set_beside_the_cluster() -> None:
    """Over whatever the client sent."""
    reply = RouteTo("pool", ("10.0.0.1:80",), FEATURES, (("x-prefiller-host-port", "10.0.0.2:80"),))
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x-where"))
    options = answer.request_body.response.header_mutation.set_headers
    assert {option.header.key: option.header.raw_value for option in options} == {
        "x-where": b"pool",
        "x-prefiller-host-port": b"10.0.0.2:80",
    }
    assert len({option.append_action for option in options}) == 1


def test_more_headers_of_the_answer_replace_the_engines_own() -> None:
    """On an engine's answer by a mutation, on one of ours among its own headers."""
    headers = ((EXPLANATION_HEADER, "why"), ("x-ratelimit-limit-requests", "60"))
    reply = ext_proc.ProcessingResponse.FromString(encode_reply(Annotate(headers), "x"))
    options = reply.response_headers.response.header_mutation.set_headers
    assert [(each.header.key, each.header.raw_value.decode()) for each in options] == list(headers)
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert {option.append_action for option in options} == {overwrite}
    for more in (headers, ()):
        reply = ext_proc.ProcessingResponse.FromString(encode_reply(Answer(503, b"{}", "not_ready", headers=more), "x"))
        values = [(h.header.key, h.header.raw_value.decode()) for h in reply.immediate_response.headers.set_headers]
        assert values == [("content-type", "application/json"), *more]


def test_what_an_engine_says_in_our_name_is_taken_away_from_every_answer() -> None:
    """Whether we have something to say or not; what we say comes in its place."""
    ours = {EXPLANATION_HEADER, MODEL_HEADER}
    for reply in (Continue(ResponseHeaders), Annotate(((MODEL_HEADER, "m"),)), Annotate(((EXPLANATION_HEADER, "y"),))):
        answer = ext_proc.ProcessingResponse.FromString(encode_reply(reply, "x"))
        mutation = answer.response_headers.response.header_mutation
        told = {option.header.key for option in mutation.set_headers}
        assert told == ({name for name, _ in reply.headers} if isinstance(reply, Annotate) else set())
        assert set(mutation.remove_headers) == ours - told


def test_another_body_and_another_path_become_mutations_only_where_there_are_such() -> None:
    """An empty mutation would empty the body."""
    plain = RouteTo("pool", ("10.0.0.1:80",), features())
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(plain, "x-where"))
    assert not answer.request_body.response.HasField("body_mutation")
    named = msgspec.structs.replace(plain, path="/v2/models/m/generate", body=(b"{", memoryview(b"}")))
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(named, "x-where"))
    assert answer.request_body.response.body_mutation.body == b"{}"
    assert answer.request_body.response.clear_route_cache
    options = answer.request_body.response.header_mutation.set_headers
    assert {option.header.key: option.header.raw_value for option in options}[":path"] == b"/v2/models/m/generate"
    assert answer.dynamic_metadata == ext_proc.ProcessingResponse.FromString(encode_reply(plain, "x")).dynamic_metadata
    other = msgspec.structs.replace(named, to=RequestHeaders, body=None)
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(other, "x"))
    assert not answer.request_headers.response.HasField("body_mutation")


@pytest.mark.parametrize("body", [b"", b"x"])
def test_a_substitute_replaces_a_streamed_chunk(body: bytes) -> None:
    """By nothing, too."""
    answer = ext_proc.ProcessingResponse.FromString(encode_reply(Substitute(body), "x"))
    assert answer.request_body.response.body_mutation.WhichOneof("mutation") == "body"
    assert answer.request_body.response.body_mutation.body == body
