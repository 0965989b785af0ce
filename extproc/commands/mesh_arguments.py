"""Flags of `envoy-config` for meshes: which one, and the names of things in it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from extproc.control.meshes.place import Mesh, MeshPlace
from extproc.errors import ConfigError

_DEFAULTS = MeshPlace()

_FOR = """whose configuration to print (default: %(default)s). plain: of an Envoy of your own; the others: resources to
apply to a mesh that runs already, see docs"""
_SERVICES = """for istio and envoy-gateway: --backend POOL/ID=SERVICE:PORT, one a pool, and --extproc SERVICE:PORT name
Services of Kubernetes, whose pods come and go, instead of instances"""
_SELECTOR = """label of the engines' pods, for inference-extension; repeat for each (default: app=vllm)"""


def add_mesh_arguments(parser: argparse.ArgumentParser) -> None:
    """`--for`, and what goes with it."""
    parser.add_argument("--for", dest="mesh", choices=tuple(Mesh), default=Mesh.PLAIN, help=_FOR)
    group = parser.add_argument_group("names in a mesh, with --for")
    add = group.add_argument
    add("--namespace", default=_DEFAULTS.namespace, help="of all resources (default: %(default)s)")
    add(
        "--gateway",
        default=_DEFAULTS.gateway,
        metavar="NAME",
        help="of the Gateway, its route and the InferencePool; in Consul of the service (default: %(default)s)",
    )
    add(
        "--gateway-class",
        default=_DEFAULTS.gateway_class,
        metavar="NAME",
        help="GatewayClass of the Gateway, for envoy-gateway (default: %(default)s)",
    )
    add("--domain", default=_DEFAULTS.domain, help="host name that clients ask for (default: %(default)s)")
    add("--services", action="store_true", help=_SERVICES)
    add("--selector", action="append", metavar="LABEL=VALUE", help=_SELECTOR)
    add(
        "--target-port",
        type=int,
        default=_DEFAULTS.target_port,
        metavar="PORT",
        help="of the engines' pods, for inference-extension (default: %(default)s)",
    )
    add("--image", default=_DEFAULTS.image, help="of extproc, for inference-extension (default: %(default)s)")
    add(
        "--redis-url",
        default=_DEFAULTS.redis_url,
        metavar="URL",
        help="the registry as the service reaches it, for inference-extension (default: %(default)s)",
    )


def mesh_place(args: argparse.Namespace) -> MeshPlace:
    """The parsed names. Raises ConfigError."""
    return MeshPlace(
        namespace=args.namespace,
        gateway=args.gateway,
        gateway_class=args.gateway_class,
        domain=args.domain,
        services=args.services,
        selector=_labels(args.selector) or _DEFAULTS.selector,
        target_port=args.target_port,
        image=args.image,
        redis_url=args.redis_url,
    )


def _labels(texts: list[str] | None) -> dict[str, str]:
    labels = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"'{text}' is not LABEL=VALUE")
        labels[name] = value
    return labels


def as_json(resources: list[dict[str, Any]]) -> str:
    """Resources as one JSON text: a List for `kubectl`, or the one thing there is."""
    listed = {"apiVersion": "v1", "kind": "List", "items": resources}
    return json.dumps(listed if len(resources) > 1 else resources[0], indent=2)
