"""An Envoy as Envoy Gateway configures it, with our typed resources taken in and before our EnvoyPatchPolicy."""

from __future__ import annotations

from tests.control.meshes.bases import (
    EXT,
    HTTP_OPTIONS,
    MANAGER,
    HostPort,
    Services,
    Values,
    address_of,
    assignment,
    bootstrap_of,
)


def envoy_gateway(
    resources: list[Values], listen: HostPort, admin: HostPort, services: Services | None = None
) -> Values:
    """A Gateway's Envoy: names and settings as in the product's own test data (`internal/xds/translator/testdata`)."""
    by_kind = {each["kind"]: each for each in resources}
    namespace = by_kind["HTTPRoute"]["metadata"]["namespace"]
    gateway, route = by_kind["Gateway"]["metadata"]["name"], by_kind["HTTPRoute"]["metadata"]["name"]
    name = f"{namespace}/{gateway}/{by_kind['Gateway']['spec']['listeners'][0]['name']}"
    backends = {
        each["metadata"]["name"]: [(end["ip"]["address"], end["ip"]["port"]) for end in each["spec"]["endpoints"]]
        for each in resources
        if each["kind"] == "Backend"
    }

    def behind(reference: Values) -> list[HostPort]:
        if reference["kind"] == "Backend":
            return backends[reference["name"]]
        host = f"{reference['name']}.{reference.get('namespace', namespace)}.svc.cluster.local"
        return (services or {})[host, reference["port"]]

    policy = by_kind["EnvoyExtensionPolicy"]
    service = f"envoyextensionpolicy/{namespace}/{policy['metadata']['name']}/extproc/0"
    (processor,) = policy["spec"]["extProc"]
    clusters = [_gateway_cluster(service, behind(processor["backendRefs"][0]), http2=True)]
    routes = []
    for index, rule in enumerate(by_kind["HTTPRoute"]["spec"]["rules"]):
        cluster = f"httproute/{namespace}/{route}/rule/{index}"
        clusters.append(_gateway_cluster(cluster, behind(rule["backendRefs"][0])))
        headers = [
            {"name": each["name"], "string_match": {"exact": each["value"]}}
            for match in rule.get("matches", ())
            for each in match["headers"]
        ]
        routes.append(
            {
                "name": f"{cluster}/match/0/*",
                "match": {"prefix": "/", "headers": headers},
                "route": {
                    "cluster": cluster,
                    "timeout": by_kind["BackendTrafficPolicy"]["spec"]["timeout"]["http"]["requestTimeout"],
                    "upgrade_configs": [{"upgrade_type": "websocket"}],
                },
                "typed_per_filter_config": {
                    f"envoy.filters.http.ext_proc/{service}": {
                        "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                        "config": {},
                    }
                },
            }
        )
    early = by_kind["ClientTrafficPolicy"]["spec"]["headers"]["earlyRequestHeaders"]
    times = by_kind["ClientTrafficPolicy"]["spec"]["timeout"]["http"]
    mutations = [{"remove": each} for each in early["remove"]]
    mutations += [
        {"remove_on_match": {"key_matcher": {each["type"].lower(): each["value"], "ignore_case": True}}}
        for each in early["removeOnMatch"]
    ]
    manager = {
        "@type": MANAGER,
        "stat_prefix": "http-10080",
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "http2_protocol_options": {
            "initial_connection_window_size": 1_048_576,
            "initial_stream_window_size": 65_536,
            "max_concurrent_streams": 100,
        },
        "early_header_mutation_extensions": [
            {
                "name": "envoy.http.early_header_mutation.header_mutation",
                "typed_config": {
                    "@type": f"{EXT}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": mutations,
                },
            }
        ],
        "request_timeout": times["requestReceivedTimeout"],
        "stream_idle_timeout": times["streamIdleTimeout"],
        "http_filters": [
            _extension_filter(service, processor),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{EXT}.filters.http.router.v3.Router", "suppress_envoy_headers": True},
            },
        ],
        "merge_slashes": True,
        "normalize_path": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
        "route_config": {
            "name": name,
            "ignore_port_in_host_matching": True,
            "virtual_hosts": [{"name": f"{name}/*", "domains": ["*"], "routes": routes}],
        },
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": True,
    }
    listener = {
        "name": name,
        "address": address_of(listen),
        "default_filter_chain": {
            "name": name,
            "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
        },
        "max_connections_to_accept_per_socket_event": 1,
        "per_connection_buffer_limit_bytes": 32_768,
    }
    return bootstrap_of(listener, clusters, admin)


def _extension_filter(service: str, processor: Values) -> Values:
    """What the product makes of an EnvoyExtensionPolicy (`internal/xds/translator/extproc.go`)."""
    bodies = {"Buffered": "BUFFERED", "Streamed": "STREAMED", "FullDuplexStreamed": "FULL_DUPLEX_STREAMED"}
    mode = processor["processingMode"]
    return {
        "name": f"envoy.filters.http.ext_proc/{service}",
        "disabled": True,
        "typed_config": {
            "@type": f"{EXT}.filters.http.ext_proc.v3.ExternalProcessor",
            "failure_mode_allow": processor["failOpen"],
            "grpc_service": {"envoy_grpc": {"cluster_name": service, "authority": "extproc"}, "timeout": "10s"},
            "message_timeout": _protobuf_time(processor["messageTimeout"]),
            "metadata_options": {"receiving_namespaces": {"untyped": processor["metadata"]["writableNamespaces"]}},
            "processing_mode": {
                "request_header_mode": "SEND",
                "request_body_mode": bodies[mode["request"]["body"]],
                "request_trailer_mode": "SKIP",
                "response_header_mode": "SEND",
                "response_trailer_mode": "SKIP",
            },
            "request_attributes": mode["request"]["attributes"],
            "response_attributes": mode["response"]["attributes"],
        },
    }


def _protobuf_time(text: str) -> str:
    """A time of Kubernetes' as protobuf's JSON writes it."""
    return f"{int(text[:-2]) / 1000}s" if text.endswith("ms") else text


def _gateway_cluster(name: str, endpoints: list[HostPort], *, http2: bool = False) -> Values:
    cluster: Values = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "circuit_breakers": {"thresholds": [{"max_retries": 1024, "max_requests": 100_000}]},
        "common_lb_config": {},
        "dns_lookup_family": "V4_PREFERRED",
        "ignore_health_on_host_removal": True,
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.least_request",
                        "typed_config": {
                            "@type": f"{EXT}.load_balancing_policies.least_request.v3.LeastRequest",
                            "locality_lb_config": {"locality_weighted_lb_config": {}},
                        },
                    }
                }
            ]
        },
        "per_connection_buffer_limit_bytes": 32_768,
        "load_assignment": assignment(name, endpoints),
    }
    if http2:
        cluster["typed_extension_protocol_options"] = {
            HTTP_OPTIONS: {
                "@type": f"type.googleapis.com/{HTTP_OPTIONS}",
                "explicit_http_config": {"http2_protocol_options": {"initial_stream_window_size": 65_536}},
            }
        }
    return cluster
