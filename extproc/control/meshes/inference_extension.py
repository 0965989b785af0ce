"""Gateway API Inference Extension: the service as the endpoint picker of an InferencePool, for any gateway of its kind.

The gateway configures its own ext_proc and its own clusters; the header and metadata by which we name endpoints are the
extension's. So nothing of Envoy's is in here.
"""

from __future__ import annotations

from typing import Any

from extproc.control.meshes.parts import Resource, resource
from extproc.control.meshes.place import MeshPlace

_NAME = "extproc"
_GRPC_PORT = 9002
_PAGES_PORT = 9001
_LABELS = {"app": _NAME}


def inference_resources(place: MeshPlace, *, fail_closed: bool = False) -> list[Resource]:
    """The service, the pool that asks it, and a route to the pool. `fail_closed`: no answers while it is down."""
    return [_service(place), _deployment(place), _pool(place, fail_closed), _http_route(place)]


def _service(place: MeshPlace) -> Resource:
    # Envoy must speak HTTP/2 to it, which gateways learn from here.
    port = {"name": "grpc-ext-proc", "port": _GRPC_PORT, "appProtocol": "kubernetes.io/h2c"}
    return resource("v1", "Service", _NAME, place.namespace, {"selector": _LABELS, "ports": [port]})


def _deployment(place: MeshPlace) -> Resource:
    arguments = [
        *("serve", "--destination", "gateway"),
        *("--listen", f"0.0.0.0:{_GRPC_PORT}", "--metrics-listen", f"0.0.0.0:{_PAGES_PORT}"),
        *("--redis-url", place.redis_url),
    ]
    container = {
        "name": _NAME,
        "image": place.image,
        "args": arguments,
        "ports": [
            {"name": "grpc-ext-proc", "containerPort": _GRPC_PORT},
            {"name": "metrics", "containerPort": _PAGES_PORT},
        ],
        "readinessProbe": {"grpc": {"port": _GRPC_PORT, "service": "readiness"}, "periodSeconds": 2},
        "livenessProbe": {
            "grpc": {"port": _GRPC_PORT, "service": "liveness"},
            "periodSeconds": 10,
            "failureThreshold": 6,
        },
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 65_532},
    }
    # Streams that are under way get the time that the containers of docker-compose.yml get.
    pod = {"terminationGracePeriodSeconds": 40, "containers": [container]}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": _LABELS},
        "template": {"metadata": {"labels": _LABELS}, "spec": pod},
    }
    return resource("apps/v1", "Deployment", _NAME, place.namespace, spec)


def _pool(place: MeshPlace, fail_closed: bool) -> Resource:
    picker = {
        "name": _NAME,
        "port": {"number": _GRPC_PORT},
        "failureMode": "FailClose" if fail_closed else "FailOpen",
    }
    spec = {
        "selector": {"matchLabels": place.selector},
        "targetPorts": [{"number": place.target_port}],
        "endpointPickerRef": picker,
    }
    return resource("inference.networking.k8s.io/v1", "InferencePool", place.gateway, place.namespace, spec)


def _http_route(place: MeshPlace) -> Resource:
    to_pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": place.gateway}
    # No limit on an answer's time: Gateway API's "0s".
    rule = {"backendRefs": [to_pool], "timeouts": {"request": "0s"}}
    spec: dict[str, Any] = {"parentRefs": [{"name": place.gateway}]}
    if place.domain != "*":
        spec["hostnames"] = [place.domain]
    return resource(
        "gateway.networking.k8s.io/v1", "HTTPRoute", place.gateway, place.namespace, spec | {"rules": [rule]}
    )
