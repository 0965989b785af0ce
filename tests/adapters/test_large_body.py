"""Large bodies are found in messages where protobuf would find them, and are not copied."""

from __future__ import annotations

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.wire import decode_message
from extproc.adapters.wire.large_body import LARGE_BYTES, large_body
from extproc.stream.messages import RequestBody

BODY = bytes(range(256)) * (LARGE_BYTES // 256)


def message(body: bytes = BODY, *, last: bool = True) -> ext_proc.ProcessingRequest:
    return ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=last))


@pytest.mark.parametrize("last", [True, False])
def test_a_large_body_is_a_view_of_its_message(last: bool) -> None:
    """With whatever Envoy says beside it, before or after."""
    made = message(last=last)
    made.attributes["envoy.filters.http.ext_proc"]["x"] = "y"
    made.metadata_context.filter_metadata["n"]["k"] = 1.0
    made.protocol_config.request_body_mode = 2
    data = made.SerializeToString()
    found = decode_message(data)
    assert isinstance(found, RequestBody)
    assert isinstance(found.body, memoryview)
    assert (bytes(found.body), found.last, found.body.obj is data) == (BODY, last, True)


def test_small_bodies_and_other_messages_are_left_to_protobuf() -> None:
    """An answer's body too, and an empty one beside large metadata."""
    assert large_body(message(BODY[:100]).SerializeToString()) is None
    answer = ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=BODY))
    assert large_body(answer.SerializeToString()) is None
    bare = message(b"")
    bare.attributes["n"]["k"] = "x" * LARGE_BYTES
    assert decode_message(bare.SerializeToString()) == RequestBody(b"")


def test_a_message_in_two_parts_is_left_to_protobuf_which_merges_them() -> None:
    """No Envoy writes such a one."""
    data = message(last=False).SerializeToString() + message(BODY + b"!").SerializeToString()
    assert large_body(data) is None
    assert decode_message(data) == RequestBody(BODY + b"!", last=True)


@given(st.binary(max_size=40), st.integers(0, 40), st.booleans())
def test_whatever_is_found_is_what_protobuf_finds(noise: bytes, at: int, in_front: bool) -> None:
    """Unless that finds the message broken elsewhere."""
    data = message().SerializeToString()
    at = at if in_front else len(data) - at
    data = data[:at] + noise + data[at:]
    found = large_body(data)
    if found is None:
        return
    try:
        told = ext_proc.ProcessingRequest.FromString(data)
    except Exception:  # protobuf's own, which has no common home across its backends
        return
    assert (bytes(found.body), found.last) == (told.request_body.body, told.request_body.end_of_stream)
