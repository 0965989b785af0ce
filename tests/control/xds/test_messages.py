"""Discovery messages on the wire, as the typed messages of the API read and write them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from envoy_data_plane.envoy.config.core.v3 import Extension, Node
from envoy_data_plane.envoy.service.discovery.v3 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from envoy_data_plane.envoy.service.discovery.v3 import Resource as NamedResource
from envoy_data_plane.google.protobuf import Any as AnyMessage
from envoy_data_plane.google.rpc import Status
from hypothesis import given
from hypothesis import strategies as st

from extproc.control.xds.messages import Encoder, MessageError, decode
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resource
from extproc.control.xds.stream import Request, Response

NODE = Node(id="front-1", cluster="extproc", extensions=[Extension(name=f"filter-{n}") for n in range(300)])
A, B = Resource(CLUSTER, "a", b"one"), Resource(CLUSTER, "b", b"x" * 300)


def test_a_delta_request_is_read() -> None:
    message = DeltaDiscoveryRequest(
        type_url=CLUSTER,
        node=NODE,
        resource_names_subscribe=["*", "a"],
        resource_names_unsubscribe=["b"],
        initial_resource_versions={"a": "1", "c": "2"},
        response_nonce="7",
    )
    assert decode(bytes(message), delta=True) == Request(
        type_url=CLUSTER,
        nonce="7",
        subscribe=("*", "a"),
        unsubscribe=("b",),
        versions={"a": "1", "c": "2"},
        node="front-1",
    )


def test_a_request_for_the_state_of_the_world_is_read() -> None:
    message = DiscoveryRequest(
        type_url=ENDPOINT, node=NODE, resource_names=["pool"], version_info="v", response_nonce="7"
    )
    assert decode(bytes(message), delta=False) == Request(
        type_url=ENDPOINT, nonce="7", subscribe=("pool",), version="v", node="front-1"
    )


@pytest.mark.parametrize("words", ["no such policy", ""])
def test_a_refusal_has_envoys_words_even_if_it_says_nothing(words: str) -> None:
    """That there is an error makes it one, not what it says."""
    for delta, message in (
        (True, DeltaDiscoveryRequest(error_detail=Status(code=3, message=words))),
        (False, DiscoveryRequest(error_detail=Status(code=3, message=words))),
    ):
        assert decode(bytes(message), delta=delta).error == words
        assert decode(b"", delta=delta).error is None


def test_on_a_stream_of_one_type_the_type_need_not_be_named() -> None:
    assert decode(b"", delta=True, type_url=CLUSTER).type_url == CLUSTER
    assert decode(bytes(DeltaDiscoveryRequest(type_url=ENDPOINT)), delta=True, type_url=CLUSTER).type_url == ENDPOINT


@given(st.binary(max_size=40), st.booleans())
def test_bytes_are_a_request_or_refused_as_none(data: bytes, delta: bool) -> None:
    with suppress(MessageError):
        assert isinstance(decode(data, delta=delta), Request)


def test_a_delta_response_is_what_the_typed_message_would_be() -> None:
    response = Response(type_url=CLUSTER, nonce="3", version="v", resources=(A, B), removed=("c", "d"))
    assert DeltaDiscoveryResponse.parse(Encoder().encode(response, delta=True)) == DeltaDiscoveryResponse(
        type_url=CLUSTER,
        system_version_info="v",
        nonce="3",
        removed_resources=["c", "d"],
        resources=[
            NamedResource(name=each.name, version=each.version, resource=AnyMessage(type_url=CLUSTER, value=each.body))
            for each in (A, B)
        ],
    )


def test_a_response_of_the_state_of_the_world_is_what_the_typed_message_would_be() -> None:
    response = Response(type_url=CLUSTER, nonce="3", version="v", resources=(A, B))
    assert DiscoveryResponse.parse(Encoder().encode(response, delta=False)) == DiscoveryResponse(
        type_url=CLUSTER,
        version_info="v",
        nonce="3",
        resources=[AnyMessage(type_url=CLUSTER, value=each.body) for each in (A, B)],
    )


def test_two_responses_that_differ_by_their_nonce_are_put_together_once() -> None:
    encoder = Encoder()
    bodies = {
        encoder.encode(Response(type_url=CLUSTER, nonce=nonce, version="v", resources=(A,)), delta=True)
        for nonce in ("1", "2", "3")
    }
    assert len(bodies) == 3
    assert encoder.counts == (1, 2)
    encoder.encode(Response(type_url=CLUSTER, nonce="1", version="v", resources=(A,)), delta=False)
    assert encoder.counts == (2, 2)
