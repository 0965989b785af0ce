"""Resources: the same clusters as in a written configuration, versions that tell content, nothing encoded twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import HealthStatus
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment

from extproc.control.config_source import Transport, config_source
from extproc.control.engine_clusters import instance_clusters, pool_cluster
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.control.xds.membership import Endpoint, Health
from extproc.control.xds.resources import CLUSTER, ENDPOINT, Resources, Snapshot

SETTINGS = EnvoySettings(xds=XdsSource(), health_path="/health", upstream_idle_s=3.0)
ADS = Transport.AGGREGATED


def endpoint(name: str, **changes: Any) -> Endpoint:
    plain = Endpoint("pool", name, name, ("10.0.0.1", 8000 + ord(name[0])), Health.HEALTHY)
    return replace(plain, **changes)


def snapshot(*endpoints: Endpoint, shape: Shape = Shape.POOL) -> Snapshot:
    return Resources(replace(SETTINGS, shape=shape)).snapshots(endpoints)[ADS]


def hosts(taken: Snapshot, pool: str = "pool") -> dict[tuple[str, int], HealthStatus]:
    assignment = ClusterLoadAssignment.parse(taken.resources[ENDPOINT][pool].body)
    assert assignment.cluster_name == pool
    found = {}
    for host in assignment.endpoints[0].lb_endpoints:
        assert host.endpoint is not None
        assert host.endpoint.address is not None
        address = host.endpoint.address.socket_address
        assert address is not None
        assert (address.address, address.port_value) not in found
        found[address.address, address.port_value] = host.health_status
    return found


def test_a_pool_is_the_cluster_of_a_written_configuration_but_for_its_endpoints() -> None:
    taken = snapshot(endpoint("a"), endpoint("b"))
    assert list(taken.resources[CLUSTER]) == ["pool"]
    published = Cluster.parse(taken.resources[CLUSTER]["pool"].body)
    written = pool_cluster("pool", [("10.0.0.1", 1)], SETTINGS)
    assert published.type is ClusterDiscoveryType.EDS
    assert published.eds_cluster_config is not None
    written.type, written.load_assignment = published.type, None
    written.eds_cluster_config = published.eds_cluster_config
    assert published == written


def test_an_instance_is_the_very_cluster_of_a_written_configuration() -> None:
    """It is put together from encoded parts."""
    taken = snapshot(endpoint("a"), endpoint("b", address=("2001:db8::1", 65535)), shape=Shape.INSTANCE)
    assert set(taken.resources[CLUSTER]) == {"pool", "a", "a/own", "b", "b/own"}
    for name, address in (("a", ("10.0.0.1", 8097)), ("b", ("2001:db8::1", 65535))):
        for written in instance_clusters(name, address, "pool", SETTINGS):
            assert Cluster.parse(taken.resources[CLUSTER][written.name].body) == written


def test_endpoints_have_the_health_that_is_told_of_them() -> None:
    members = [endpoint(name, health=health) for name, health in zip("abc", Health, strict=True)]
    assert hosts(snapshot(*members)) == {
        ("10.0.0.1", 8097): HealthStatus.HEALTHY,
        ("10.0.0.1", 8098): HealthStatus.DRAINING,
        ("10.0.0.1", 8099): HealthStatus.UNHEALTHY,
    }


def test_of_two_with_one_address_the_healthier_counts() -> None:
    """A renamed instance is known under both names for a while."""
    old = endpoint("a", health=Health.UNHEALTHY, address=("10.0.0.1", 1))
    assert hosts(snapshot(old, endpoint("b", address=("10.0.0.1", 1)))) == {("10.0.0.1", 1): HealthStatus.HEALTHY}


@pytest.mark.parametrize("number", [1, 2, 300])
def test_any_number_of_endpoints_is_encoded_as_protobuf_would(number: int) -> None:
    members = [endpoint(f"{i}", address=("10.0.0.1", i + 1)) for i in range(number)]
    taken = snapshot(*members)
    assert hosts(taken) == {("10.0.0.1", i + 1): HealthStatus.HEALTHY for i in range(number)}


def test_health_changes_a_pool_and_no_cluster_of_one_instance() -> None:
    """Else every drain would be a change of clusters."""
    well = snapshot(endpoint("a"), shape=Shape.INSTANCE)
    ill = snapshot(endpoint("a", health=Health.DRAINING), shape=Shape.INSTANCE)
    assert well.versions[CLUSTER] == ill.versions[CLUSTER]
    assert well.versions[ENDPOINT] != ill.versions[ENDPOINT]


def test_an_instance_published_under_the_pools_name_is_in_the_pool_alone() -> None:
    """Two clusters of one name would be refused."""
    taken = snapshot(endpoint("a", cluster="pool"), endpoint("b"), shape=Shape.INSTANCE)
    assert set(taken.resources[CLUSTER]) == {"pool", "b", "b/own"}
    assert len(hosts(taken)) == 2


def test_equal_fleets_have_equal_versions_in_any_process() -> None:
    """So an Envoy that comes to another control plane is sent nothing again."""
    one = snapshot(endpoint("a"), endpoint("b"), shape=Shape.INSTANCE)
    other = snapshot(endpoint("b"), endpoint("a"), shape=Shape.INSTANCE)
    assert one.versions == other.versions
    assert {name: each.version for name, each in one.resources[CLUSTER].items()} == {
        name: each.version for name, each in other.resources[CLUSTER].items()
    }


def test_a_cluster_says_where_its_endpoints_come_from_as_its_own_stream_needs_it() -> None:
    taken = Resources(SETTINGS).snapshots([endpoint("a")])
    for transport in Transport:
        cluster = Cluster.parse(taken[transport].resources[CLUSTER]["pool"].body)
        assert cluster.eds_cluster_config is not None
        assert cluster.eds_cluster_config.eds_config == config_source(transport)
    assert len({each.resources[ENDPOINT]["pool"] for each in taken.values()}) == 1


def test_what_has_not_changed_is_the_same_object() -> None:
    """It was encoded once, for every Envoy and every later push."""
    resources = Resources(replace(SETTINGS, shape=Shape.INSTANCE))
    before = resources.snapshots([endpoint("a"), endpoint("b")])[ADS].resources
    after = resources.snapshots([endpoint("a"), endpoint("b"), endpoint("c")])[ADS].resources
    for name in ("pool", "a", "a/own", "b", "b/own"):
        assert after[CLUSTER][name] is before[CLUSTER][name]
    assert after[ENDPOINT]["pool"] is not before[ENDPOINT]["pool"]


def test_the_version_of_a_type_is_told_by_names_and_contents() -> None:
    versions = [
        snapshot(*members, shape=Shape.INSTANCE).versions[CLUSTER]
        for members in (
            [endpoint("a")],
            [endpoint("a"), endpoint("b")],
            [endpoint("a", cluster="c")],
            [endpoint("a", address=("10.0.0.2", 1))],
        )
    ]
    assert len(set(versions)) == 4
