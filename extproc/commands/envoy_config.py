"""`extproc envoy-config`: the Envoy side as configuration, complete or in fragments."""

from __future__ import annotations

import argparse
import json

from extproc.config import environment, header_name, host_port
from extproc.control.settings import EnvoySettings, Shape, Upstream
from extproc.errors import ConfigError

HELP = "print a complete Envoy bootstrap, or just the fragments for an existing mesh"
EXAMPLE = "extproc envoy-config --backend gpu-0=10.0.0.1:8000 --backend gpu-1=10.0.0.2:8000 > envoy.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags: where things are, and what the operator chooses."""
    add = parser.add_argument
    add(
        "--backend",
        action="append",
        required=True,
        metavar="[CLUSTER/]ID=IP:PORT",
        help="an instance; repeat for each. CLUSTER is its pool (default: pool)",
    )
    add(
        "--extproc",
        action="append",
        metavar="HOST:PORT",
        help="a worker of `extproc serve`; repeat for each (default: 127.0.0.1:9002)",
    )
    add("--listen", default="0.0.0.0:8080", metavar="HOST:PORT", help="where clients connect (default: %(default)s)")
    add("--admin", default="127.0.0.1:9901", metavar="HOST:PORT", help="Envoy's admin page (default: %(default)s)")
    add(
        "--shape",
        choices=("pool", "instance"),
        default="pool",
        help="pool: a cluster a pool, a retry goes to our second choice; instance: a cluster an instance, "
        "host names allowed (default: %(default)s)",
    )
    add(
        "--cluster-header",
        default=environment("CLUSTER_HEADER", "x-upstream-cluster"),
        metavar="NAME",
        help="header that carries the decision (default: %(default)s)",
    )
    add(
        "--fail-closed",
        action="store_true",
        help="without a decision answer 503; otherwise Envoy balances by itself over the first pool",
    )
    add(
        "--message-timeout-s",
        type=float,
        default=0.25,
        metavar="S",
        help="seconds that a decision may take before Envoy goes on without it (default: %(default)s)",
    )
    add(
        "--body-limit-bytes",
        type=int,
        default=64 * 1024 * 1024,
        metavar="BYTES",
        help="larger request bodies get 413 (default: %(default)s)",
    )
    add(
        "--stream-idle-timeout-s",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds of silence that end a stream (default: %(default)s)",
    )
    add(
        "--no-sse-usage",
        action="store_true",
        help="leave out sse_to_metadata, which Envoy calls work in progress: no token counts of streamed answers",
    )
    add(
        "--fragment",
        choices=("bootstrap", "filters", "routes", "clusters"),
        default="bootstrap",
        help="what to print (default: %(default)s)",
    )
    add("--json", action="store_true", help="JSON instead of YAML; Envoy reads both")


def run(args: argparse.Namespace) -> int:
    """Print the configuration."""
    from extproc.adapters.yaml_files import dump
    from extproc.control.bootstrap import fragment

    settings = EnvoySettings(
        upstreams=tuple(parse_upstream(text) for text in args.backend),
        workers=tuple(host_port(text) for text in args.extproc or ("127.0.0.1:9002",)),
        listen=host_port(args.listen),
        admin=host_port(args.admin),
        shape=Shape(args.shape),
        cluster_header=header_name(args.cluster_header),
        fail_closed=args.fail_closed,
        message_timeout_s=args.message_timeout_s,
        body_limit_bytes=args.body_limit_bytes,
        stream_idle_timeout_s=args.stream_idle_timeout_s,
        sse_usage=not args.no_sse_usage,
    )
    values = fragment(args.fragment, settings)
    print(json.dumps(values, indent=2) if args.json else dump(values), end="\n" if args.json else "")
    return 0


def parse_upstream(text: str) -> Upstream:
    """`[CLUSTER/]ID=IP:PORT`. Raises ConfigError."""
    name, equals, address = text.partition("=")
    cluster, _, instance_id = name.rpartition("/")
    if not equals or not instance_id:
        raise ConfigError(f"'{text}' is not [CLUSTER/]ID=IP:PORT")
    return Upstream(instance_id, host_port(address), cluster or "pool")
