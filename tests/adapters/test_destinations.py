"""Records of the registry that would have Envoy send prompts where it must not, whoever wrote them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.adapters import wire
from extproc.adapters.destinations import Destinations, Gate, Refusal, parse_clusters, parse_networks
from extproc.core.fleet.events import decode_instance
from extproc.core.pairs.hand_over import HandOver, hand_over_headers
from extproc.errors import ConfigError
from extproc.stream.messages import RouteTo
from tests.control.parts import FEATURES
from tests.core.builders import instance

TEN = Destinations(parse_networks("10.0.0.0/8, fd00:1::/32"), parse_clusters("pool-*,gpu-?"))


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("10.0.0.1:8000", None),
        ("127.0.0.1:8000", None),
        ("8.8.8.8:443", None),
        ("[fd00:1::1]:80", None),
        ("169.254.169.254:80", Refusal.ADDRESS),
        ("[::ffff:169.254.169.254]:80", Refusal.ADDRESS),
        ("[::ffff:a9fe:a9fe]:80", Refusal.ADDRESS),
        ("[fe80::1]:80", Refusal.ADDRESS),
        ("[fd00:ec2::254]:80", Refusal.ADDRESS),
        ("168.63.129.16:80", Refusal.ADDRESS),
        ("100.100.100.200:80", Refusal.ADDRESS),
        ("0.0.0.0:80", Refusal.NO_ADDRESS),
        ("[::]:80", Refusal.NO_ADDRESS),
        ("224.0.0.1:80", Refusal.NO_ADDRESS),
        ("255.255.255.255:80", Refusal.NO_ADDRESS),
        ("10.0.0.1:0", Refusal.NO_ADDRESS),
        ("10.0.0.1:65536", Refusal.NO_ADDRESS),
        ("999.0.0.1:80", Refusal.NO_ADDRESS),
        ("010.0.0.1:80", Refusal.NO_ADDRESS),
        ("metadata.google.internal:80", Refusal.NO_ADDRESS),
        ("[10.0.0.1]:80", Refusal.NO_ADDRESS),
        ("::1:80", Refusal.NO_ADDRESS),
    ],
)
def test_by_default_every_address_but_those_of_clouds_metadata_is_allowed(
    address: str, refusal: Refusal | None
) -> None:
    """In every way of writing them."""
    assert Destinations().refusal(instance("a", address=address)) is refusal


@pytest.mark.parametrize(
    ("address", "cluster", "refusal"),
    [
        ("10.200.0.1:80", "pool-a", None),
        ("[fd00:1:0:9::1]:80", "gpu-7", None),
        ("[::ffff:10.0.0.1]:80", "gpu-7", None),
        ("11.0.0.1:80", "pool-a", Refusal.ADDRESS),
        ("127.0.0.1:80", "pool-a", Refusal.ADDRESS),
        ("[fd00:2::1]:80", "pool-a", Refusal.ADDRESS),
        ("10.0.0.1:80", "gpu-77", Refusal.CLUSTER),
        ("10.0.0.1:80", "payments", Refusal.CLUSTER),
        ("10.0.0.1:80", "POOL-A", Refusal.CLUSTER),
    ],
)
def test_only_networks_and_clusters_that_are_named_are_allowed(
    address: str, cluster: str, refusal: Refusal | None
) -> None:
    """All others of both families are refused."""
    assert TEN.refusal(instance("a", address=address, cluster=cluster)) is refusal


@pytest.mark.parametrize("cluster", ["extproc", "xds"])
@pytest.mark.parametrize("patterns", ["", "*", "extproc,xds"])
def test_the_services_own_clusters_are_never_taken(cluster: str, patterns: str) -> None:
    """A prompt sent there would reach ourselves, whatever the operator allows."""
    allowed = Destinations(clusters=parse_clusters(patterns))
    assert allowed.refusal(instance("a", cluster=cluster)) is Refusal.CLUSTER


def test_a_network_named_on_purpose_is_allowed_though_it_is_link_local() -> None:
    """Some racks are wired so."""
    allowed = Destinations(parse_networks("169.254.8.0/24"))
    assert allowed.refusal(instance("a", address="169.254.8.1:80")) is None


@pytest.mark.parametrize("text", ["10.0.0.1/8", "ten", "10.0.0.0/33", "10.0.0.0/8;"])
def test_what_is_no_network_is_refused(text: str) -> None:
    """Before anything is started: a typing error must not open the gate."""
    with pytest.raises(ConfigError):
        parse_networks(text)


def test_a_record_is_told_of_once_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """Agents publish every second."""
    gate = Gate(TEN)
    for _ in range(5):
        assert not gate.admits(instance("a", address="8.8.8.8:80", cluster="pool-a"))
    assert not gate.admits(instance("b", address="8.8.8.8:80", cluster="pool-a"))
    assert gate.admits(instance("c", address="10.0.0.1:80", cluster="pool-a"))
    assert gate.refused == {Refusal.ADDRESS: 6}
    assert len(caplog.records) == 2


HOSTILE = st.one_of(
    st.text(max_size=30),
    st.text("pool-a,\r\n:/@ \x00é10.", max_size=20),
    st.sampled_from(
        [
            "a\r\nx-upstream-cluster: secret",
            "pool-a,10.9.9.9:80",
            "10.0.0.1:80,6.6.6.6:80",
            "10.0.0.1:80\n",
            "١٠.0.0.1:80",
            "10.0.0.1:８０",
            "10.0.0.1:80",
            "pool-a",
            "x" * 200,
        ]
    ),
)


@example(name="a", cluster="pool-a", address="10.0.0.1:80", tag="7")
@given(name=HOSTILE, cluster=HOSTILE, address=HOSTILE, tag=HOSTILE)
def test_nothing_of_a_hostile_record_reaches_envoy_but_one_allowed_address_and_one_name(
    name: str, cluster: str, address: str, tag: str
) -> None:
    """Neither a second header nor a second endpoint, by whatever stands in its fields."""
    record: dict[str, Any] = {
        "id": name,
        "incarnation": tag,
        "address": address,
        "cluster": cluster,
        "models": [tag],
        "lifecycle": "Ready",
        "tags": {"dynamo_worker_id": tag},
    }
    try:
        made = decode_instance(msgspec.json.encode(record))
    except ValueError:
        return
    if not Gate(TEN).admits(made):
        return
    for stack in HandOver:
        headers = hand_over_headers(stack, made, made)
        reply = RouteTo(made.cluster, (made.address,), FEATURES, headers)
        sent = ext_proc.ProcessingResponse.FromString(wire.encode_reply(reply, "x-upstream-cluster"))
        mutation = sent.request_body.response.header_mutation
        values = [option.header.raw_value for option in mutation.set_headers]
        assert len(values) == 1 + len(headers)
        assert all(value.isascii() and value.decode().isprintable() and b"," not in value for value in values)
        named = (
            sent.dynamic_metadata.fields["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value
        )
        assert named == made.address
        assert TEN.refusal(made) is None
