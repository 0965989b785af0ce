"""Encoded messages as plain values: what the library makes of them, many times as fast, and nothing unknown."""

from __future__ import annotations

from datetime import timedelta

import pytest
from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import HealthStatus, Metadata
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment, LbEndpoint
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.google.protobuf import Any as AnyMessage
from hypothesis import given
from hypothesis import strategies as st

from extproc.control.render import render
from extproc.control.service_clusters import extproc_cluster
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.control.xds.json_form import FormError, json_form
from extproc.control.xds.membership import Endpoint, Health
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resources, encoded_field

TYPES: dict[str, type[Message]] = {CLUSTER: Cluster, ENDPOINT: ClusterLoadAssignment}


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize("health_path", ["", "/health"])
def test_every_resource_looks_as_the_library_shows_it(shape: Shape, health_path: str) -> None:
    settings = EnvoySettings(xds=XdsSource(), shape=shape, health_path=health_path)
    endpoints = [Endpoint("pool", f"i{n}", f"i{n}", ("10.0.0.1", 80 + n), health) for n, health in enumerate(Health)]
    endpoints.append(Endpoint("pool", "six", "six", ("fd00::1", 80), Health.HEALTHY))
    for transport, snapshot in Resources(settings).snapshots(endpoints).items():
        for type_url, message in TYPES.items():
            for resource in snapshot.resources[type_url].values():
                shown = render(message.parse(resource.body))
                assert json_form(resource.body, message) == shown, (transport, resource.name)


@pytest.mark.parametrize(
    "message",
    [
        extproc_cluster([("10.0.0.1", 9002), ("host.example", 9003)]),
        Cluster(connect_timeout=timedelta(seconds=1, microseconds=2500)),
        Cluster(connect_timeout=timedelta(milliseconds=1), cleanup_interval=timedelta(hours=100)),
        Cluster(per_connection_buffer_limit_bytes=0),
        Cluster(),
        LbEndpoint(health_status=HealthStatus.TIMEOUT, load_balancing_weight=2**32 - 1),
    ],
    ids=["the service", "microseconds", "milliseconds", "wrapped numbers", "nothing", "numbers"],
)
def test_other_messages_look_as_the_library_shows_them(message: Message) -> None:
    assert json_form(bytes(message), type(message)) == render(message)


def test_an_enumeration_in_a_oneof_is_shown_by_its_name() -> None:
    assert json_form(bytes(Cluster(type=ClusterDiscoveryType.STATIC)), Cluster) == {"type": "STATIC"}


UNKNOWN = b"\xfa\x7f\x03abc"  # field 2047
NESTED = encoded_field(Cluster, "load_assignment", UNKNOWN)
PACKED = bytes(AnyMessage(type_url=CLUSTER, value=UNKNOWN))
OF_NO_TYPE = bytes(AnyMessage(type_url="type.googleapis.com/nobody.knows.This", value=b""))


def in_any(packed: bytes) -> bytes:
    """A cluster with an option that is packed."""
    entry = b"\x0a\x01x\x12" + bytes([len(packed)]) + packed
    return encoded_field(Cluster, "typed_extension_protocol_options", entry)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (UNKNOWN, "Cluster has no field 2047"),
        (NESTED, "ClusterLoadAssignment has no field 2047"),
        (in_any(PACKED), "Cluster has no field 2047"),
        (in_any(OF_NO_TYPE), r"nothing is known of the type 'type.googleapis.com/nobody.knows.This'"),
        (b"\x10\x63", "type has no value 99"),
        (b"\x0a\x05ab", "a Cluster is cut off"),
        (b"\x0a\x02\xff\xfe", "the value of name is no string"),
        (b"\x08\x01", "the value of name is no string"),
        (b"\xff", "broken bytes of a Cluster"),
        (b"\x0b", "broken bytes of a Cluster"),
    ],
)
def test_what_the_type_does_not_know_is_an_error(body: bytes, said: str) -> None:
    """At any depth; Envoy leaves such things out of a file without a word."""
    with pytest.raises(FormError, match=said):
        json_form(bytes(Cluster(name="x")) + body, Cluster)


@given(st.binary(max_size=60))
def test_any_bytes_are_values_or_an_error(body: bytes) -> None:
    for message in (Cluster, ClusterLoadAssignment, Metadata, Listener):
        try:
            json_form(body, message)
        except FormError:
            continue
