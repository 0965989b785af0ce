"""What Istio and Envoy Gateway do with patches, on plain values.

After Istio's `pilot/pkg/networking/core/envoyfilter` (MERGE is a merge of protobuf messages: lists are appended, what
is set replaces) and Envoy Gateway's `internal/xds/translator/jsonpatch.go` (each place that the JSONPath finds, then
the JSON pointer from there; containers on the way to what is added are made).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

Values = dict[str, Any]

_ONE_OF = ({"cluster", "cluster_header", "weighted_clusters"}, {"route", "direct_response", "redirect"})


def merged(base: Values, patch: Values) -> Values:
    """Two messages of one type."""
    result = dict(base)
    for group in _ONE_OF:
        if group & patch.keys():
            result = {key: value for key, value in result.items() if key not in group - patch.keys()}
    for key, value in patch.items():
        old = result.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = merged(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            result[key] = old + value
        else:
            result[key] = value
    return result


def with_envoy_filter(bootstrap: Values, envoy_filter: Values) -> Values:
    """A bootstrap as a gateway's Envoy has it once Istio has applied an EnvoyFilter. Each patch must find its place."""
    result = copy.deepcopy(bootstrap)
    for patch in envoy_filter["spec"]["configPatches"]:
        assert patch["match"]["context"] == "GATEWAY"
        assert _apply(result["static_resources"], patch), patch
    return result


def _apply(resources: Values, patch: Values) -> int:
    """How many places the patch was applied to."""
    value, operation = patch["patch"]["value"], patch["patch"]["operation"]
    match patch["applyTo"], operation:
        case "CLUSTER", "ADD":
            resources["clusters"].append(value)
            return 1
        case "CLUSTER", "MERGE":
            where = patch["match"]["cluster"]
            return _merge_all(
                resources["clusters"], value, _named(f"outbound|{where['portNumber']}||{where['service']}")
            )
        case "NETWORK_FILTER", "MERGE":
            name = patch["match"]["listener"]["filterChain"]["filter"]["name"]
            return sum(_merge_all(filters, value, _named(name)) for filters in _network_filters(resources))
        case "HTTP_FILTER", _:
            name = patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"]
            chains = [manager["http_filters"] for manager in managers(resources)]
            if operation == "MERGE":
                return sum(_merge_all(chain, value, _named(name)) for chain in chains)
            assert operation == "INSERT_BEFORE"
            for chain in chains:
                chain.insert([each["name"] for each in chain].index(name), value)
            return len(chains)
        case "VIRTUAL_HOST", "MERGE":
            name = patch["match"]["routeConfiguration"]["vhost"]["name"]
            return sum(_merge_all(hosts, value, _named(name)) for hosts in _virtual_hosts(resources))
        case "HTTP_ROUTE", "INSERT_FIRST":
            name = patch["match"]["routeConfiguration"]["vhost"]["name"]
            hosts = [host for hosts in _virtual_hosts(resources) for host in hosts if host["name"] == name]
            for host in hosts:
                host["routes"].insert(0, value)
            return len(hosts)
    raise AssertionError(f"no such patch: {patch['applyTo']} {operation}")


def _named(name: str) -> Any:
    return lambda each: each["name"] == name


def _merge_all(items: list[Values], value: Values, wanted: Any) -> int:
    places = [index for index, each in enumerate(items) if wanted(each)]
    for index in places:
        items[index] = merged(items[index], value)
    return len(places)


def _network_filters(resources: Values) -> Iterator[list[Values]]:
    for listener in resources["listeners"]:
        for chain in [*listener.get("filter_chains", ()), listener.get("default_filter_chain")]:
            if chain is not None:
                yield chain["filters"]


def managers(resources: Values) -> list[Values]:
    """The HttpConnectionManagers of all listeners."""
    return [each["typed_config"] for filters in _network_filters(resources) for each in filters]


def _virtual_hosts(resources: Values) -> Iterator[list[Values]]:
    for manager in managers(resources):
        yield manager["route_config"]["virtual_hosts"]


def with_patch_policy(bootstrap: Values, policy: Values) -> Values:
    """A bootstrap as the product's Envoy has it once an EnvoyPatchPolicy was applied. Each must find its resource."""
    result = copy.deepcopy(bootstrap)
    resources = result["static_resources"]
    of_type = {
        "Cluster": resources["clusters"],
        "Listener": resources["listeners"],
        "RouteConfiguration": [manager["route_config"] for manager in managers(resources)],
    }
    for patch in policy["spec"]["jsonPatches"]:
        named = [each for each in of_type[patch["type"].rpartition(".")[2]] if each["name"] == patch["name"]]
        assert len(named) == 1, f"{patch['type']} {patch['name']}"
        operation = patch["operation"]
        assert operation["op"] == "add"
        places = list(_found(named[0], operation["jsonPath"])) if "jsonPath" in operation else named
        assert places, operation["jsonPath"]
        for place in places:
            _add(place, operation["path"], operation["value"])
    return result


def _found(value: Any, path: str) -> Iterator[Values]:
    """Two forms of JSONPath: `$.KEY[*]`, and `$..KEY[?(@.name=='NAME')]`."""
    everything = re.fullmatch(r"\$\.(\w+)\[\*\]", path)
    if everything:
        yield from value[everything[1]]
        return
    named = re.fullmatch(r"\$\.\.(\w+)\[\?\(@\.name=='([^']+)'\)\]", path)
    assert named is not None, path
    yield from _deep(value, named[1], named[2])


def _deep(value: Any, key: str, name: str) -> Iterator[Values]:
    if isinstance(value, dict):
        if isinstance(value.get(key), list):
            yield from (each for each in value[key] if each.get("name") == name)
        for each in value.values():
            yield from _deep(each, key, name)
    elif isinstance(value, list):
        for each in value:
            yield from _deep(each, key, name)


def _add(place: Values, pointer: str, value: Any) -> None:
    *way, last = pointer.removeprefix("/").split("/")
    at: Any = place
    for index, step in enumerate(way):
        following = (*way, last)[index + 1]
        made: Any = [] if following == "-" or following.isdigit() else {}
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, made)
    if isinstance(at, list):
        at.insert(len(at) if last == "-" else int(last), value)
    else:
        at[last] = value
