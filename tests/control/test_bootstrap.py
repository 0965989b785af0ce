"""The generated Envoy configuration: accepted by the real Envoy, and holding what the design rests on."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.addresses import UnixSocket
from extproc.api.paths import ROUTED_DIALECTS, endpoint_for
from extproc.cli import main
from extproc.control.bootstrap import bootstrap, fragment
from extproc.control.plain import round_robin
from extproc.control.scope import Scope
from extproc.control.settings import EnvoySettings, RequestBodies, RetryOn, Shape, TlsToService, Upstream, XdsSource
from extproc.core.pairs.hand_over import HandOver
from extproc.errors import ConfigError
from extproc.server.service import MAX_MESSAGE_BYTES
from tests.envoy_process import validation_error

UPSTREAMS = (Upstream("a", ("10.0.0.1", 8000)), Upstream("b", ("10.0.0.2", 8000)))
SETTINGS = EnvoySettings(upstreams=UPSTREAMS)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shape": Shape.INSTANCE},
        {"shape": Shape.INSTANCE, "upstreams": (Upstream("a", ("engine.example", 8000)),)},
        {"fail_closed": True},
        {"body_mode": RequestBodies.FULL_DUPLEX},
        {"body_mode": RequestBodies.STREAMED},
        {"sse_usage": False},
        {"admin": None},
        {"workers": (("127.0.0.1", 9002), ("127.0.0.1", 9012))},
        {"workers": (("extproc.example", 9002),)},
        {"upstreams": (*UPSTREAMS, Upstream("c", ("::1", 8000), "large"))},
        {"cluster_header": "x-where", "body_limit_bytes": 65_536, "message_timeout_s": 0.05},
        {"listen": ("::", 8080)},
        {"upstreams": (Upstream("a", ("engine.example", 8000)), UPSTREAMS[1])},
        {"json_usage": False, "sse_usage": False, "health_path": "/health"},
        {"max_connections": 10_000, "max_heap_bytes": 2**31},
        {"hand_over": HandOver.LLM_D},
        {"hand_over": HandOver.DYNAMO},
        {"hand_over": HandOver.DYNAMO, "cluster_header": "y" * 40},
        {"retries": 5, "retry_on": RetryOn.REFUSED, "retry_budget_percent": 0.0, "try_idle_timeout_s": 60.0},
        {"retries": 5, "shape": Shape.INSTANCE, "keepalive_s": 0.5},
        {"retries": 0, "shape": Shape.INSTANCE},
        {"max_hold_s": 0.001, "message_timeout_s": 30.0},
        {"fail_closed_at": (Scope("a.example"), Scope("*.b.example", "/v1"), Scope(path="/batch"))},
        {"fail_closed": True, "fail_closed_at": (Scope("a.example", "/x" * 500),)},
    ],
)
def test_envoy_accepts_every_combination(changes: dict[str, Any], tmp_path: Path) -> None:
    assert not validation_error(bootstrap(replace(SETTINGS, **changes)), tmp_path)


def test_envoy_accepts_the_plain_balancer(tmp_path: Path) -> None:
    assert not validation_error(round_robin(("127.0.0.1", 8080), [("127.0.0.1", 8000)]), tmp_path)


def manager_of(settings: EnvoySettings) -> dict[str, Any]:
    listener = bootstrap(settings)["static_resources"]["listeners"][0]
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def test_routing_headers_are_stripped_before_the_route_is_chosen() -> None:
    manager = manager_of(replace(SETTINGS, cluster_header="x-where"))
    mutations = manager["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
    removed = {mutation.get("remove") for mutation in mutations}
    assert "x-where" in removed
    prefixes = {each["remove_on_match"]["key_matcher"]["prefix"] for each in mutations if "remove_on_match" in each}
    assert prefixes == {"x-extproc-", "x-gateway-destination-endpoint", "x-envoy-"}


def test_no_response_body_is_sent_to_the_service() -> None:
    mode = manager_of(SETTINGS)["http_filters"][0]["typed_config"]["processing_mode"]
    assert mode == {
        "request_header_mode": "SEND",
        "response_header_mode": "SEND",
        "request_body_mode": "BUFFERED",
        "response_trailer_mode": "SEND",
    }


def test_every_namespace_we_write_is_received() -> None:
    options = manager_of(SETTINGS)["http_filters"][0]["typed_config"]["metadata_options"]
    assert options["receiving_namespaces"]["untyped"] == ["envoy.lb", "extproc"]


def test_fail_closed_refuses_what_needs_a_decision_and_nothing_else() -> None:
    routes = manager_of(replace(SETTINGS, fail_closed=True))["route_config"]["virtual_hosts"][0]["routes"]
    refusal = routes[-2]
    assert refusal["direct_response"]["status"] == 503
    error = json.loads(refusal["direct_response"]["body"]["inline_string"])["error"]
    assert error["code"] == "router_unavailable"
    assert routes[-1]["route"]["cluster"] == "pool"


def test_scopes_of_the_command_line_are_those_of_the_routes(capsys: pytest.CaptureFixture[str]) -> None:
    """`--fail-closed` alone is everything, with a place just that."""
    command = ["envoy-config", "--backend", "a=10.0.0.1:8000", "--fragment", "route", "--json"]
    refusals = {}
    for where in ((), ("--fail-closed",), ("--fail-closed", "/b"), ("--fail-closed", "/b", "--fail-closed", "x.y/c")):
        assert main([*command, *where]) == 0
        hosts = json.loads(capsys.readouterr().out)["virtual_hosts"]
        refusals[where[1::2] or ("everything",) * len(where)] = {
            host["domains"][0]: sum(route.get("direct_response", {}).get("status") == 503 for route in host["routes"])
            for host in hosts
        }
    assert main([*command, "--fail-closed", "a b"]) == 2
    assert refusals[()] == {"*": 0}
    assert refusals[("everything",)] == {"*": len(ROUTED_DIALECTS)}
    assert refusals[("/b",)] == {"*": len(ROUTED_DIALECTS)}
    assert refusals["/b", "x.y/c"] == {"x.y": 2 * len(ROUTED_DIALECTS), "*": len(ROUTED_DIALECTS)}


def test_each_pool_and_in_its_shape_each_instance_has_a_cluster() -> None:
    upstreams = (*UPSTREAMS, Upstream("c", ("10.0.0.3", 1), "large"))
    settings = {shape: replace(SETTINGS, upstreams=upstreams, shape=shape) for shape in Shape}
    names = {shape: [cluster["name"] for cluster in fragment("clusters", each)] for shape, each in settings.items()}
    assert names[Shape.POOL] == ["pool", "large", "extproc"]
    instances = ["a/own", "a", "b/own", "b", "c/own", "c"]
    assert names[Shape.INSTANCE] == ["pool", "large", *instances, "extproc"]
    alone = fragment("clusters", replace(settings[Shape.INSTANCE], retries=0))
    assert [cluster["name"] for cluster in alone] == ["pool", "large", "a", "b", "c", "extproc"]


def test_hosts_given_by_name_are_looked_up_and_addresses_are_not() -> None:
    upstreams = (*UPSTREAMS, Upstream("c", ("engine.example", 1), "named"))
    settings = replace(SETTINGS, upstreams=upstreams, workers=(("extproc.example", 9002),))
    types = {cluster["name"]: cluster["type"] for cluster in fragment("clusters", settings)}
    assert types == {"pool": "STATIC", "named": "STRICT_DNS", "extproc": "STRICT_DNS"}


def test_a_decision_is_retried_as_often_as_it_names_alternatives_and_no_more() -> None:
    """The route with most comes first; the last one has none, and matches whatever the decision names."""
    for shape, first in ((Shape.POOL, ".+,.+,.+"), (Shape.INSTANCE, ".+,.+")):
        routes = manager_of(replace(SETTINGS, shape=shape))["route_config"]["virtual_hosts"][0]["routes"]
        decided = [route for route in routes if "cluster_header" in route.get("route", {})]
        assert [route["route"].get("retry_policy", {}).get("num_retries") for route in decided] == [2, 1, None]
        (matcher,) = decided[0]["match"]["dynamic_metadata"]
        assert matcher["value"]["string_match"]["safe_regex"]["regex"] == first
        assert "dynamic_metadata" not in decided[2]["match"]


def test_no_stream_is_ended_by_its_length() -> None:
    manager = manager_of(SETTINGS)
    assert not {"max_stream_duration", "common_http_protocol_options"} & set(manager)
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert {route["route"]["timeout"] for route in routes if "route" in route} == {"0s"}


def test_an_answer_of_an_engine_never_ejects_it() -> None:
    outliers = fragment("clusters", SETTINGS)[0]["outlier_detection"]
    enforced = {key for key, percent in outliers.items() if key.startswith("enforcing") and percent}
    assert enforced == {"enforcing_consecutive_local_origin_failure"}
    assert outliers["split_external_local_origin_errors"]


def test_in_fail_closed_just_what_the_service_routes_by_is_refused_without_a_decision() -> None:
    routes = manager_of(replace(SETTINGS, fail_closed=True))["route_config"]["virtual_hosts"][0]["routes"]
    refusals = [route for route in routes if route.get("direct_response", {}).get("status") == 503]
    patterns = [re.compile(route["match"]["safe_regex"]["regex"]) for route in refusals]
    names = (
        "chat/completions",
        "completions",
        "chat//completions/",
        "messages",
        "messages/count_tokens",
        "responses",
        "embeddings",
        "audio/transcriptions",
        "rerank",
        "generate",
        "models",
        "files",
    )
    for path in (f"{prefix}/{name}" for prefix in ("", "/v1", "/gateway/openai/v1") for name in names):
        refused = any(pattern.fullmatch(path) for pattern in patterns)
        assert refused == (endpoint_for("POST", path) is not None), path


def test_the_filter_fragment_brings_its_safety_along() -> None:
    fields = fragment("filter", SETTINGS)
    assert {"early_header_mutation_extensions", "access_log", "http_filters"} <= set(fields)
    assert "route_config" not in fields


@pytest.mark.parametrize("limit", [65_536, 2_000_000, 100_000_000])
def test_no_buffer_or_window_lifts_the_body_limit(limit: int) -> None:
    settings = replace(SETTINGS, body_limit_bytes=limit)
    listener = bootstrap(settings)["static_resources"]["listeners"][0]
    manager = manager_of(settings)
    assert manager["route_config"]["virtual_hosts"][0]["request_body_buffer_limit"] in (limit, str(limit))
    assert listener["per_connection_buffer_limit_bytes"] <= limit
    assert manager["http2_protocol_options"]["initial_stream_window_size"] <= limit


def test_breakers_leave_room_for_two_thousand_streams() -> None:
    for cluster in fragment("clusters", SETTINGS):
        assert cluster["circuit_breakers"]["thresholds"][0]["max_requests"] > 2000


@pytest.mark.parametrize(
    "changes",
    [
        {"upstreams": ()},
        {"workers": ()},
        {"upstreams": (UPSTREAMS[0], UPSTREAMS[0])},
        {"upstreams": (Upstream("a b", ("10.0.0.1", 1)),)},
        {"upstreams": (Upstream("a", ("10.0.0.1", 1), "extproc"),)},
        {"upstreams": (Upstream("pool", ("10.0.0.1", 1)),), "shape": Shape.INSTANCE},
        {"message_timeout_s": float("nan")},
        {"max_hold_s": -1.0},
        {"stream_idle_timeout_s": 0.0},
        {"body_limit_bytes": 0},
        {"body_limit_bytes": MAX_MESSAGE_BYTES},
        {"max_connections": 0},
        {"retries": -1},
        {"retries": 6},
        {"retry_budget_percent": 101.0},
        {"try_idle_timeout_s": 0.0},
        {"keepalive_s": float("inf")},
        {"health_path": "health"},
        {"cluster_header": "y" * 41},
        {"workers": (UnixSocket(Path("/run/a.sock")), ("extproc.example", 9002))},
        {"upstreams": (), "xds": XdsSource(servers=(("xds.example", 18000), UnixSocket(Path("/run/x.sock"))))},
    ],
)
def test_what_envoy_would_refuse_or_misread_is_refused_first(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        replace(SETTINGS, **changes)


def test_the_command_prints_yaml_and_json_of_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["envoy-config", "--backend", "a=10.0.0.1:8000", "--backend", "large/b=10.0.0.2:8000"]
    assert main(arguments) == 0
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == as_yaml
    assert main([*arguments, "--fragment", "route"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["virtual_hosts"]


@pytest.mark.parametrize(
    "backend", ["a", "a=b", "=1.2.3.4:1", "a=1.2.3.4:99999", "a=0.0.0.0:1", "a=1.2.3.4:0", "/a=1.2.3.4:1"]
)
def test_a_backend_that_cannot_be_read_is_one_line_and_status_2(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["envoy-config", "--backend", backend]) == 2
    assert capsys.readouterr().err.count("\n") == 1


SERVICE_TLS = TlsToService(ca="/tls/ca.crt", certificate="/tls/tls.crt", key="/tls/tls.key", name="extproc.llm.svc")


@pytest.mark.parametrize("name", ["extproc.llm.svc", "10.0.0.9", "spiffe://cluster.local/ns/llm/sa/extproc"])
def test_the_services_certificate_is_held_against_its_name_of_whatever_kind(name: str) -> None:
    """Only a DNS name is also asked for."""
    socket = bootstrap(replace(SETTINGS, tls=replace(SERVICE_TLS, name=name)))["static_resources"]["clusters"][-1]
    context = socket["transport_socket"]["typed_config"]
    (expected,) = context["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    kind = {"e": "DNS", "1": "IP_ADDRESS", "s": "URI"}[name[0]]
    assert expected == {"san_type": kind, "matcher": {"exact": name}}
    assert context.get("sni") == (name if kind == "DNS" else None)


def test_secrets_name_files_and_watch_their_directory_and_hold_no_key() -> None:
    """One secret a file: Envoy takes no more."""
    settings = replace(SETTINGS, tls=replace(SERVICE_TLS, sds_directory="/sds"))
    (identity,) = fragment("sds-identity", settings)["resources"]
    assert identity["tls_certificate"] == {
        "certificate_chain": {"filename": "/tls/tls.crt"},
        "private_key": {"filename": "/tls/tls.key"},
        "watched_directory": {"path": "/tls"},
    }
    (authority,) = fragment("sds-ca", settings)["resources"]
    assert authority["validation_context"]["watched_directory"] == {"path": "/tls"}


def test_a_worker_behind_a_socket_is_a_pipe() -> None:
    """Beside others behind ports."""
    workers = (UnixSocket(Path("/run/x.sock")), ("127.0.0.1", 9002))
    cluster = bootstrap(replace(SETTINGS, workers=workers))["static_resources"]["clusters"][-1]
    (locality,) = cluster["load_assignment"]["endpoints"]
    addresses = [each["endpoint"]["address"] for each in locality["lb_endpoints"]]
    assert [list(address) for address in addresses] == [["pipe"], ["socket_address"]]
    assert addresses[0]["pipe"] == {"path": "/run/x.sock"}
    assert cluster.get("type", "STATIC") == "STATIC"
