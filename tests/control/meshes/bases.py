"""Envoys as Istio and Envoy Gateway configure them, before our patches, with our typed resources taken in.

What comes over xDS there (routes, endpoints) is in place here, so that an Envoy without a control plane can run it.
Filters that only Istio's build of Envoy has (istio.alpn, istio.stats) are left out.
"""

from __future__ import annotations

import json
from typing import Any

Values = dict[str, Any]
HostPort = tuple[str, int]
NEIGHBOUR = "shop.example.com"  # another host of Istio's gateway, served by the same endpoints
Services = dict[HostPort, list[HostPort]]  # pods of Kubernetes' Services, by the Service's host and port

_EXT = "type.googleapis.com/envoy.extensions"
_MANAGER = f"{_EXT}.filters.network.http_connection_manager.v3.HttpConnectionManager"
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_UNLIMITED = 4_294_967_295


def _address(host_port: HostPort) -> Values:
    return {"socket_address": {"address": host_port[0], "port_value": host_port[1]}}


def _assignment(name: str, endpoints: list[HostPort]) -> Values:
    hosts = [{"endpoint": {"address": _address(each)}, "load_balancing_weight": 1} for each in endpoints]
    return {"cluster_name": name, "endpoints": [{"locality": {}, "load_balancing_weight": 1, "lb_endpoints": hosts}]}


def _bootstrap(listener: Values, clusters: list[Values], admin: HostPort) -> Values:
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def of_kind(resources: list[Values], kind: str) -> list[Values]:
    """The `spec`s of all resources of a kind."""
    return [each["spec"] for each in resources if each["kind"] == kind]


def _of_entry(entry: Values) -> tuple[HostPort, list[HostPort]]:
    (port,) = entry["ports"]
    endpoints = [(each["address"], each["ports"][port["name"]]) for each in entry["endpoints"]]
    return (entry["hosts"][0], port["number"]), endpoints


def istio(resources: list[Values], listen: HostPort, admin: HostPort, services: Services | None = None) -> Values:
    """An ingress gateway: names and settings as istiod writes them (1.2x, `istioctl proxy-config all -o yaml`)."""
    rules = {rule["host"]: rule["trafficPolicy"] for rule in of_kind(resources, "DestinationRule")}
    hosts_there = dict(services or {}) | dict(map(_of_entry, of_kind(resources, "ServiceEntry")))
    clusters = [_istio_cluster(host, port, rules[host], pods) for (host, port), pods in hosts_there.items()]
    (virtual_service,) = of_kind(resources, "VirtualService")
    (gateway,) = of_kind(resources, "Gateway")
    port = gateway["servers"][0]["port"]["number"]
    (rule,) = virtual_service["http"]
    to = rule["route"][0]["destination"]
    route = {
        "name": rule["name"],
        "match": {"prefix": "/"},
        "route": {
            "cluster": f"outbound|{to['port']['number']}||{to['host']}",
            "timeout": rule["timeout"],
            "retry_policy": _istio_retries(rule["retries"]),
            "max_grpc_timeout": "0s",
        },
    }
    hosts = [*virtual_service["hosts"], NEIGHBOUR]
    manager = {
        "@type": _MANAGER,
        "stat_prefix": f"outbound_0.0.0.0_{listen[1]}",
        "route_config": {
            "name": f"http.{listen[1]}",
            "virtual_hosts": [
                {"name": f"{host}:{port}", "domains": [host], "routes": [route], "include_request_attempt_count": True}
                for host in hosts
            ],
            "max_direct_response_body_size_bytes": 1_048_576,
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.cors",
                "typed_config": {"@type": f"{_EXT}.filters.http.cors.v3.Cors"},
            },
            {
                "name": "envoy.filters.http.fault",
                "typed_config": {"@type": f"{_EXT}.filters.http.fault.v3.HTTPFault"},
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXT}.filters.http.router.v3.Router"},
            },
        ],
        "http_protocol_options": {},
        "access_log": [
            {
                "name": "envoy.access_loggers.file",
                "typed_config": {"@type": f"{_EXT}.access_loggers.file.v3.FileAccessLog", "path": "/dev/null"},
            }
        ],
        "use_remote_address": True,
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"subject": True, "cert": True, "dns": True, "uri": True},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "stream_idle_timeout": "0s",
        "normalize_path": True,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
    }
    listener = {
        "name": f"0.0.0.0_{listen[1]}",
        "address": _address(listen),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
        "traffic_direction": "OUTBOUND",
    }
    return _bootstrap(listener, clusters, admin)


def _istio_retries(retries: Values) -> Values | None:
    if not retries["attempts"]:
        return None
    causes, _, status = retries["retryOn"].rpartition(",")
    previous_hosts = {"@type": f"{_EXT}.retry.host.previous_hosts.v3.PreviousHostsPredicate"}
    return {
        "retry_on": f"{causes},retriable-status-codes",
        "num_retries": retries["attempts"],
        "retriable_status_codes": [int(status)],
        "retry_host_predicate": [
            {"name": "envoy.retry_host_predicates.previous_hosts", "typed_config": previous_hosts}
        ],
        "host_selection_retry_max_attempts": "5",
    }


def _istio_cluster(host: str, port: int, policy: Values, endpoints: list[HostPort]) -> Values:
    name = f"outbound|{port}||{host}"
    ejection = policy["outlierDetection"]
    locality: Values = {"locality_weighted_lb_config": {}}
    if policy.get("loadBalancer", {}).get("localityLbSetting", {}).get("enabled") is False:
        locality = {}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": policy["connectionPool"]["tcp"]["connectTimeout"],
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": _UNLIMITED,
                    "max_pending_requests": _UNLIMITED,
                    "max_requests": _UNLIMITED,
                    "max_retries": _UNLIMITED,
                    "track_remaining": True,
                }
            ]
        },
        "outlier_detection": {
            "split_external_local_origin_errors": ejection["splitExternalLocalOriginErrors"],
            "consecutive_local_origin_failure": ejection["consecutiveLocalOriginFailures"],
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
            "interval": ejection["interval"],
            "base_ejection_time": ejection["baseEjectionTime"],
            "max_ejection_percent": ejection["maxEjectionPercent"],
        },
        "common_lb_config": locality | {"healthy_panic_threshold": {}},
        "typed_extension_protocol_options": {
            _HTTP_OPTIONS: {
                "@type": f"type.googleapis.com/{_HTTP_OPTIONS}",
                "common_http_protocol_options": {"idle_timeout": policy["connectionPool"]["http"]["idleTimeout"]},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        "load_assignment": _assignment(name, endpoints),
    }


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
        "@type": _MANAGER,
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
                    "@type": f"{_EXT}.http.early_header_mutation.header_mutation.v3.HeaderMutation",
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
                "typed_config": {"@type": f"{_EXT}.filters.http.router.v3.Router", "suppress_envoy_headers": True},
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
        "address": _address(listen),
        "default_filter_chain": {
            "name": name,
            "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
        },
        "max_connections_to_accept_per_socket_event": 1,
        "per_connection_buffer_limit_bytes": 32_768,
    }
    return _bootstrap(listener, clusters, admin)


def _extension_filter(service: str, processor: Values) -> Values:
    """What the product makes of an EnvoyExtensionPolicy (`internal/xds/translator/extproc.go`)."""
    bodies = {"Buffered": "BUFFERED", "Streamed": "STREAMED", "FullDuplexStreamed": "FULL_DUPLEX_STREAMED"}
    mode = processor["processingMode"]
    return {
        "name": f"envoy.filters.http.ext_proc/{service}",
        "disabled": True,
        "typed_config": {
            "@type": f"{_EXT}.filters.http.ext_proc.v3.ExternalProcessor",
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
                            "@type": f"{_EXT}.load_balancing_policies.least_request.v3.LeastRequest",
                            "locality_lb_config": {"locality_weighted_lb_config": {}},
                        },
                    }
                }
            ]
        },
        "per_connection_buffer_limit_bytes": 32_768,
        "load_assignment": _assignment(name, endpoints),
    }
    if http2:
        cluster["typed_extension_protocol_options"] = {
            _HTTP_OPTIONS: {
                "@type": f"type.googleapis.com/{_HTTP_OPTIONS}",
                "explicit_http_config": {"http2_protocol_options": {"initial_stream_window_size": 65_536}},
            }
        }
    return cluster


def consul(resources: list[Values], admin: HostPort, public: HostPort) -> Values:
    """The bootstrap of a sidecar, with the listener that Consul makes for callers, its TLS and intentions left out."""
    (resource,) = resources
    proxy = resource["service"]["connect"]["sidecar_service"]["proxy"]
    listeners = json.loads(f"[{proxy['config']['envoy_extra_static_listeners_json']}]")
    clusters = json.loads(f"[{proxy['config']['envoy_extra_static_clusters_json']}]")
    local = (proxy["local_service_address"], proxy["local_service_port"])
    clusters.append(
        {
            "name": "local_app",
            "type": "STATIC",
            "connect_timeout": "5s",
            "load_assignment": _assignment("local_app", [local]),
        }
    )
    tcp = {
        "@type": f"{_EXT}.filters.network.tcp_proxy.v3.TcpProxy",
        "stat_prefix": "public_listener",
        "cluster": "local_app",
    }
    public_listener = {
        "name": "public_listener",
        "address": _address(public),
        "filter_chains": [{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": tcp}]}],
    }
    bootstrap = _bootstrap(public_listener, clusters, admin)
    bootstrap["static_resources"]["listeners"] += listeners
    return bootstrap
