"""`extproc envoy-config`: the Envoy side as configuration, complete or in fragments."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from extproc.addresses import Endpoint, host_port, worker_endpoints
from extproc.commands.endpoints import endpoint, worker
from extproc.commands.mesh_arguments import add_mesh_arguments, as_json, mesh_place
from extproc.commands.numbers import count
from extproc.commands.retry_arguments import add_retry_arguments, retries
from extproc.commands.service_tls_arguments import add_service_tls_arguments, service_tls
from extproc.commands.xds_arguments import add_xds_arguments, xds_source
from extproc.config import header_name
from extproc.control.meshes.place import Mesh
from extproc.control.scope import parse_scope
from extproc.control.settings import (
    EnvoySettings,
    RequestBodies,
    RetryOn,
    Shape,
    Upstream,
)
from extproc.core.pairs.hand_over import HandOver
from extproc.errors import ConfigError

# That Envoy and the service must agree on.
AS_SERVICE = frozenset({"cluster_header", "hand_over", "max_hold_s", "workers"})
HELP = "print a complete Envoy bootstrap, or just the fragments or resources for an existing mesh"
EXAMPLE = """extproc envoy-config --backend gpu-0=10.0.0.1:8000 --backend gpu-1=10.0.0.2:8000 > envoy.yaml
  extproc envoy-config --xds 127.0.0.1:18000 > envoy.yaml"""

# As in extproc.control.bootstrap, which takes long to import.
_FRAGMENTS = (
    "bootstrap",
    "filter",
    "route",
    "clusters",
    "xds",
    "sds-ca",
    "sds-identity",
)
_OUTPUT = """what to print (default: %(default)s). filter: the fields that an existing HttpConnectionManager needs,
header stripping and access log included; route: its route_config; clusters: the pools, instances and the service;
xds: with --xds, the node and dynamic_resources of a bootstrap;
sds-ca and sds-identity: the files of --extproc-tls-sds"""
_SHAPE = """pool: a cluster a pool; instance: a cluster an instance, and pools for retries and
what comes without a decision, each agent then publishes its backend with --cluster ID (default: %(default)s); with
--xds the one that `extproc xds` has"""
_FAIL_CLOSED = """answer 503 to completions without a decision; otherwise Envoy balances them over the first pool. With
DOMAIN, /PATH or DOMAIN/PATH (a path's beginning; *.DOMAIN for all below it) only there; repeat for each"""
_RETRY_ON = """refused: what no instance has begun to compute (no connection, 429, 503) goes to the next; failed: also
what one broke down at before its answer began (connection lost, 500, 502, 504) (default: %(default)s)"""
_BODIES = """how requests' bodies reach the service. buffered: whole; full-duplex: chunk by chunk, handed back after the
decision; streamed: chunk by chunk, kept by Envoy; docs/envoy.md says what each costs (default: %(default)s)"""
_BACKEND = """an instance; repeat for each. CLUSTER is its pool (default: pool); the first pool takes what comes without
a decision. A host name is looked up by Envoy every few seconds: decisions then reach it only if the agent publishes an
address that the name resolves to, otherwise Envoy balances by itself"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags: where things are, what the operator chooses, what is printed."""
    _add_places(parser)
    _add_choices(parser)
    _add_limits(parser)
    add_retry_arguments(parser)
    add_xds_arguments(parser)
    add_service_tls_arguments(parser)
    add_mesh_arguments(parser)
    parser.add_argument("--fragment", choices=_FRAGMENTS, default="bootstrap", help=_OUTPUT)
    parser.add_argument("--json", action="store_true", help="JSON instead of YAML; Envoy reads both")


def _add_places(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--backend", action="append", metavar="[CLUSTER/]ID=IP:PORT", help=_BACKEND)
    add(
        "--extproc",
        action="append",
        metavar="HOST:PORT",
        help="where `extproc serve` listens, or its unix:/path; repeat for each (default: 127.0.0.1:9002)",
    )
    add(
        "--workers",
        type=count,
        default=1,
        metavar="N",
        help="of each `extproc serve`, as its --workers says: all their addresses are Envoy's to choose from (default: "
        "%(default)s)",
    )
    add("--listen", default="0.0.0.0:8080", metavar="HOST:PORT", help="where clients connect (default: %(default)s)")
    add(
        "--admin",
        default="127.0.0.1:9901",
        metavar="HOST:PORT",
        help="Envoy's admin page, which can also stop it: no public address; 'off' for none (default: %(default)s)",
    )


def _add_choices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shape", choices=("pool", "instance"), default="pool", help=_SHAPE)
    add("--body-mode", choices=tuple(RequestBodies), default=RequestBodies.BUFFERED, help=_BODIES)
    add(
        "--cluster-header",
        default="x-upstream-cluster",
        metavar="NAME",
        help="header that carries the decision (default: %(default)s)",
    )
    add(
        "--hand-over",
        choices=tuple(HandOver),
        default=HandOver.NONE,
        help="serving stack whose headers name the partner of a prefill/decode pair (default: %(default)s)",
    )
    add(
        "--fail-closed",
        action="append",
        nargs="?",
        const="",
        metavar="WHERE",
        help=_FAIL_CLOSED,
    )
    add("--retry-on", choices=tuple(RetryOn), default=RetryOn.FAILED, help=_RETRY_ON)
    add(
        "--no-json-usage",
        action="store_true",
        help="leave out json_to_metadata, which holds JSON answers back until they are whole: no token counts of them",
    )
    add(
        "--no-sse-usage",
        action="store_true",
        help="leave out sse_to_metadata, which Envoy calls work in progress: no token counts of streamed answers",
    )
    add(
        "--health-path",
        default="",
        metavar="PATH",
        help="such as /health: Envoy itself asks the pools' instances, and balances over those that answer 200 "
        "what comes without a decision (default: only connection failures count)",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    limits: tuple[tuple[str, Callable[[str], float], str, str], ...] = (
        ("message-timeout-s", float, "S", "seconds that a decision may take before Envoy goes on without it"),
        ("max-hold-s", float, "S", "seconds for which `extproc serve --max-hold-s` may hold a request, or more"),
        ("request-timeout-s", float, "S", "seconds that a client has to send its whole request, then 408"),
        ("stream-idle-timeout-s", float, "S", "seconds of silence that end a stream"),
        (
            "try-idle-timeout-s",
            float,
            "S",
            "seconds of silence of one instance that end a try; an answer in one piece is silent until it is whole",
        ),
        ("keepalive-s", float, "S", "seconds of silence after which clients and hosts must show that they are there"),
        (
            "upstream-idle-s",
            float,
            "S",
            "seconds until Envoy closes an idle connection to an instance; less than its own",
        ),
        ("body-limit-bytes", int, "BYTES", "requests beyond it get 413; JSON answers 500, unless --no-json-usage"),
        ("max-connections", count, "N", "clients' connections at once"),
        (
            "max-heap-bytes",
            count,
            "BYTES",
            "memory of Envoy; near it, the largest streams are reset and new requests get 503",
        ),
    )
    for name, kind, unit, text in limits:
        value = EnvoySettings.__dataclass_fields__[name.replace("-", "_")].default
        shown = "no limit" if value is None else "%(default)s"
        parser.add_argument(f"--{name}", type=kind, default=value, metavar=unit, help=f"{text} (default: {shown})")


def run(args: argparse.Namespace) -> int:
    """Print the configuration; what it means that a backend has no address goes to stderr."""
    from extproc.adapters.yaml_files import dump
    from extproc.control.bootstrap import fragment

    mesh = Mesh(args.mesh)
    if mesh is not Mesh.PLAIN:
        resources = _resources(mesh, args)
        print(as_json(resources) if args.json else "---\n".join(map(dump, resources)), end="\n" if args.json else "")
        return 0
    values = fragment(args.fragment, _with_notice(settings_from(args)))
    print(json.dumps(values, indent=2) if args.json else dump(values), end="\n" if args.json else "")
    return 0


def _resources(mesh: Mesh, args: argparse.Namespace) -> list[dict[str, Any]]:
    """What to apply to a mesh. Raises ConfigError."""
    from extproc.control.meshes.inference_extension import inference_resources
    from extproc.control.meshes.resources import mesh_resources

    if args.fragment != "bootstrap":
        raise ConfigError(f"--fragment is of a plain Envoy's configuration: leave it out with --for {mesh}")
    place = mesh_place(args)
    if mesh is Mesh.INFERENCE_EXTENSION:
        _refuse_of_envoy(args)
        if args.workers > 1:
            raise ConfigError("an InferencePool asks one port of its endpoint picker: run replicas in place of workers")
        return inference_resources(place, fail_closed=args.fail_closed)
    return mesh_resources(mesh, _with_notice(settings_from(args)), place)


# What an InferencePool and its route depend on; the gateway's own controller configures its Envoy.
_OF_A_POOL = frozenset(
    "mesh namespace gateway domain selector target_port image redis_url fail_closed workers json config".split()
)


def _refuse_of_envoy(args: argparse.Namespace) -> None:
    """Raise ConfigError for a flag that would change nothing. What the file says may be there for other kinds."""
    for dest, source in args.sources.items():
        if source == "flag" and dest not in _OF_A_POOL:
            flag = f"--{dest.replace('_', '-')}"
            raise ConfigError(
                f"{flag} means nothing with --for {args.mesh}: its gateway configures Envoy, engines have --selector"
            )


def _with_notice(settings: EnvoySettings) -> EnvoySettings:
    if settings.named_hosts and settings.shape is Shape.POOL:
        names = ", ".join(settings.named_hosts)
        notice = (
            f"warning: {names}: decisions name IP addresses, so the agents must publish what Envoy resolves this to"
        )
        print(f"extproc envoy-config: {notice} (`extproc agent --address IP:PORT`)", file=sys.stderr)
    return settings


def settings_from(args: argparse.Namespace) -> EnvoySettings:
    """The parsed command line as settings. Raises ConfigError."""
    closed = args.fail_closed or ()
    return EnvoySettings(
        upstreams=tuple(parse_upstream(text) for text in args.backend or ()),
        xds=xds_source(args),
        pool=args.pool,
        workers=_workers(args),
        tls=service_tls(args),
        listen=host_port(args.listen),
        admin=None if args.admin == "off" else host_port(args.admin),
        shape=Shape(args.shape),
        body_mode=RequestBodies(args.body_mode),
        cluster_header=header_name(args.cluster_header),
        hand_over=HandOver(args.hand_over),
        fail_closed="" in closed,
        fail_closed_at=tuple(parse_scope(text) for text in closed if text),
        retry_on=RetryOn(args.retry_on),
        **retries(args),
        try_idle_timeout_s=args.try_idle_timeout_s,
        keepalive_s=args.keepalive_s,
        message_timeout_s=args.message_timeout_s,
        max_hold_s=args.max_hold_s,
        request_timeout_s=args.request_timeout_s,
        stream_idle_timeout_s=args.stream_idle_timeout_s,
        upstream_idle_s=args.upstream_idle_s,
        body_limit_bytes=args.body_limit_bytes,
        json_usage=not args.no_json_usage,
        sse_usage=not args.no_sse_usage,
        health_path=args.health_path,
        max_connections=args.max_connections,
        max_heap_bytes=args.max_heap_bytes,
    )


def _workers(args: argparse.Namespace) -> tuple[Endpoint, ...]:
    services = [worker(text) for text in args.extproc or ("127.0.0.1:9002",)]
    return tuple(door for service in services for door in worker_endpoints(service, args.workers))


def parse_upstream(text: str) -> Upstream:
    """`[CLUSTER/]ID=IP:PORT`. Raises ConfigError."""
    name, equals, address = text.partition("=")
    cluster, slash, instance_id = name.rpartition("/")
    if not equals or not instance_id or (slash and not cluster):
        raise ConfigError(f"'{text}' is not [CLUSTER/]ID=IP:PORT")
    return Upstream(instance_id, endpoint(address), cluster or "pool")
