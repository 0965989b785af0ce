"""An Envoy as istiod configures a gateway's, with our typed resources taken in and before our EnvoyFilter."""

from __future__ import annotations

from tests.control.meshes.bases import (
    EXT,
    HTTP_OPTIONS,
    MANAGER,
    NEIGHBOUR,
    UNLIMITED,
    HostPort,
    Services,
    Values,
    address_of,
    assignment,
    bootstrap_of,
    of_kind,
)


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
        "@type": MANAGER,
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
                "typed_config": {"@type": f"{EXT}.filters.http.cors.v3.Cors"},
            },
            {
                "name": "envoy.filters.http.fault",
                "typed_config": {"@type": f"{EXT}.filters.http.fault.v3.HTTPFault"},
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{EXT}.filters.http.router.v3.Router"},
            },
        ],
        "http_protocol_options": {},
        "access_log": [
            {
                "name": "envoy.access_loggers.file",
                "typed_config": {"@type": f"{EXT}.access_loggers.file.v3.FileAccessLog", "path": "/dev/null"},
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
        "address": address_of(listen),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
        "traffic_direction": "OUTBOUND",
    }
    return bootstrap_of(listener, clusters, admin)


def _istio_retries(retries: Values) -> Values | None:
    if not retries["attempts"]:
        return None
    causes, _, status = retries["retryOn"].rpartition(",")
    previous_hosts = {"@type": f"{EXT}.retry.host.previous_hosts.v3.PreviousHostsPredicate"}
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
                    "max_connections": UNLIMITED,
                    "max_pending_requests": UNLIMITED,
                    "max_requests": UNLIMITED,
                    "max_retries": UNLIMITED,
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
            HTTP_OPTIONS: {
                "@type": f"type.googleapis.com/{HTTP_OPTIONS}",
                "common_http_protocol_options": {"idle_timeout": policy["connectionPool"]["http"]["idleTimeout"]},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        "load_assignment": assignment(name, endpoints),
    }
