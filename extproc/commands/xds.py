"""`extproc xds`: the control plane, clusters and endpoints from the registry to every Envoy that asks, or as files."""

from __future__ import annotations

import argparse

from extproc.addresses import parse_endpoint
from extproc.commands.destination_arguments import add_destination_arguments, destinations
from extproc.commands.listen_arguments import access, add_listen_arguments, tls_files
from extproc.commands.numbers import seconds, seconds_or_zero
from extproc.commands.observe_arguments import add_log_arguments, log_settings
from extproc.commands.redis_arguments import add_redis_arguments, redis_settings
from extproc.commands.retry_arguments import add_retry_arguments, retries
from extproc.control.settings import EnvoySettings, Shape, XdsSource
from extproc.errors import ConfigError

HELP = "xDS control plane: clusters and endpoints from the registry"
EXAMPLE = """extproc xds --listen 127.0.0.1:18000 --redis-url redis://127.0.0.1:6379/0
  extproc xds --write /var/lib/extproc/xds"""

_SHAPE = """pool: a cluster a pool, as agents name it, with its instances as endpoints; instance: a cluster an instance,
as agents name it (--cluster ID), and one pool of all, for what comes without a decision (default: %(default)s)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags: where things are, what the clusters are like, when an instance is given up."""
    add = parser.add_argument
    add(
        "--listen",
        default="127.0.0.1:18000",
        metavar="HOST:PORT",
        help="where Envoys call, and health checks; or unix:/path (default: %(default)s; port 0 takes a free one)",
    )
    add(
        "--write",
        default="",
        metavar="DIR",
        help="write files for Envoys that watch DIR (`envoy-config --xds-files`), and serve no gRPC",
    )
    add(
        "--write-seen-as",
        default="",
        metavar="DIR",
        help="the same directory as Envoy sees it, if that is another path, as in a container",
    )
    add(
        "--metrics-listen",
        default="127.0.0.1:18001",
        metavar="HOST:PORT",
        help="pages /metrics and /xds; or unix:/path (default: %(default)s)",
    )
    add("--shape", choices=tuple(Shape), default=Shape.POOL, help=_SHAPE)
    add("--pool", default="pool", metavar="NAME", help="the pool of all in the shape instance (default: %(default)s)")
    add(
        "--forget-after-s",
        type=seconds_or_zero,
        default=60.0,
        metavar="S",
        help="seconds that an instance stays known, as unhealthy, after its record ran out (default: %(default)s)",
    )
    add(
        "--settle-s",
        type=seconds_or_zero,
        default=5.0,
        metavar="S",
        help="seconds that agents get to come back, if the registry is empty at the start (default: %(default)s)",
    )
    add(
        "--upstream-idle-s",
        type=seconds,
        default=EnvoySettings.__dataclass_fields__["upstream_idle_s"].default,
        metavar="S",
        help="seconds until Envoy closes an idle connection to an instance; less than its own (default: %(default)s)",
    )
    add(
        "--health-path",
        default="",
        metavar="PATH",
        help="such as /health: Envoy itself asks the pools' instances as well (default: the agents' word counts)",
    )
    add_retry_arguments(parser)
    add_listen_arguments(parser)
    add_destination_arguments(parser)
    add_redis_arguments(parser)
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    import uvloop

    if args.write_seen_as and not (args.write and args.write_seen_as.startswith("/")):
        raise ConfigError("--write-seen-as is the whole path by which Envoy sees the directory of --write")
    from extproc.observe.logs import configure
    from extproc.server.xds_run import XdsSettings, run_xds

    configure(log_settings(args))
    envoy = EnvoySettings(
        xds=XdsSource(),
        shape=Shape(args.shape),
        pool=args.pool,
        upstream_idle_s=args.upstream_idle_s,
        health_path=args.health_path,
        **retries(args),
    )
    settings = XdsSettings(
        listen=parse_endpoint(args.listen),
        write=args.write,
        write_seen_as=args.write_seen_as,
        pages=parse_endpoint(args.metrics_listen),
        access=access(args),
        tls=tls_files(args),
        destinations=destinations(args),
        redis=redis_settings(args),
        fleet=args.fleet,
        envoy=envoy,
        forget_after_s=args.forget_after_s,
        settle_s=args.settle_s,
    )
    uvloop.run(run_xds(settings))
    return 0
