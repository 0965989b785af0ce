"""`extproc serve`: the service that Envoy asks where each request goes."""

from __future__ import annotations

import argparse
import os

from extproc.addresses import parse_endpoint
from extproc.commands.deciding_arguments import (
    add_deciding_arguments,
    operator_policy,
    policy,
    speed_priors,
    tokenizer_directories,
)
from extproc.commands.destination_arguments import destinations
from extproc.commands.intent_arguments import add_intent_arguments, intent_target
from extproc.commands.listen_arguments import access, add_listen_arguments, tls_files
from extproc.commands.numbers import count, seconds_or_zero
from extproc.commands.observe_arguments import (
    add_observing_arguments,
    log_settings,
    record_settings,
    tracing_settings,
)
from extproc.commands.redis_arguments import redis_settings
from extproc.commands.reloading import reloading, said
from extproc.commands.rollout_arguments import add_rollout_arguments
from extproc.commands.trust_arguments import trust
from extproc.config import ServeSettings, header_name
from extproc.config_file.load import OperatorPolicy
from extproc.core.limits.rules import Limits
from extproc.errors import ConfigError
from extproc.stream.rules import Destination, Rules

HELP = "run the ext_proc and access-log service"
EXAMPLE = "extproc serve --listen 127.0.0.1:9002 --redis-url redis://127.0.0.1:6379/0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the service."""
    settings = ServeSettings()
    parser.add_argument(
        "--listen",
        default="127.0.0.1:9002",
        metavar="HOST:PORT",
        help="where Envoy calls: ext_proc, access log, health; or unix:/path (default %(default)s; port 0 takes a free"
        " one)",
    )
    parser.add_argument(
        "--workers",
        type=count,
        default="1",
        metavar="N",
        help="processes that share the work, each with a door of its own: the ports from that of --listen on, or the "
        "sockets /path.0, /path.1 …; Envoy needs them all (default %(default)s)",
    )
    parser.add_argument(
        "--metrics-listen",
        default="127.0.0.1:9001",
        metavar="HOST:PORT",
        help="pages /metrics, /fleet, /decisions and /decisions/ID; or unix:/path (default %(default)s)",
    )
    parser.add_argument(
        "--cluster-header",
        default=settings.cluster_header,
        metavar="NAME",
        help="request header that names the upstream cluster (default %(default)s)",
    )
    parser.add_argument(
        "--destination",
        choices=tuple(Destination),
        default=Destination.CLUSTER,
        help="how a decision is made known. cluster: by --cluster-header, and endpoints in metadata; gateway: by the "
        "header x-gateway-destination-endpoint and metadata, for proxies of the Gateway API Inference Extension "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--body-limit-bytes",
        type=count,
        default=Rules.__dataclass_fields__["body_limit_bytes"].default,
        metavar="BYTES",
        help="of a request whose body Envoy does not buffer but sends in chunks; beyond it 413 (default %(default)s)",
    )
    parser.add_argument(
        "--no-instance",
        choices=("pass", "refuse"),
        default="pass",
        help="while no instance is known: pass requests on for Envoy to balance by itself,"
        " or refuse them with 503 and Retry-After (default %(default)s)",
    )
    parser.add_argument(
        "--drain-s",
        type=seconds_or_zero,
        default=settings.drain_s,
        metavar="S",
        help="seconds that running streams get after SIGTERM (default %(default)s)",
    )
    parser.add_argument(
        "--strict-limits",
        action="store_true",
        help="hold --max-in-flight and --max-queued over all routers together, at the price of a round trip to Redis"
        " for each request",
    )
    parser.add_argument(
        "--max-streams",
        type=count,
        default=settings.max_streams,
        metavar="N",
        help="requests under way at once; those beyond are left to Envoy, and counted (default %(default)s)",
    )
    add_rollout_arguments(parser)
    add_intent_arguments(parser)
    add_listen_arguments(parser)
    add_observing_arguments(parser)
    add_deciding_arguments(parser)


def rules(args: argparse.Namespace, operator: OperatorPolicy) -> Rules:
    """Return what is believed of requests and what is answered without an engine. Raises ConfigError."""
    if args.strict_limits and args.max_in_flight is None and args.max_queued is None:
        raise ConfigError("--strict-limits needs a limit: --max-in-flight or --max-queued")
    return Rules(
        trust=trust(args),
        answer_models=args.answer_models,
        refuse_unknown=args.no_instance == "refuse",
        strict=args.strict_limits,
        destination=Destination(args.destination),
        body_limit_bytes=args.body_limit_bytes,
        limits=limits(args, operator),
        rule_headers=operator.models.headers,
        traces=bool(args.otlp_endpoint),
        rollout_share=args.rollout_share,
    )


def limits(args: argparse.Namespace, operator: OperatorPolicy) -> Limits:
    """Return the limits of tenants and models. Raises ConfigError."""
    found = operator.limits
    if not args.tenant_header and any(rule.tenants is not None for rule in found.rules):
        raise ConfigError(f"{args.config}: limits of tenants need --tenant-header, which tells them apart")
    return found


def serve_settings(args: argparse.Namespace) -> ServeSettings:
    """All of a parsed command line, and of the file that it names. Raises ConfigError."""
    operator = operator_policy(args)
    settings = ServeSettings(
        listen=parse_endpoint(args.listen),
        pages=parse_endpoint(args.metrics_listen),
        workers=args.workers,
        access=access(args),
        tls=tls_files(args),
        destinations=destinations(args),
        max_streams=args.max_streams,
        redis=redis_settings(args),
        fleet=args.fleet,
        cluster_header=header_name(args.cluster_header),
        drain_s=args.drain_s,
        rules=rules(args, operator),
        tokenizers=tokenizer_directories(args),
        count_budget_s=args.count_budget_s,
        speed_priors=speed_priors(args.profiles),
        policy=policy(args, operator),
        intent_target=intent_target(args),
        said=said(args),
        logs=log_settings(args),
        tracing=tracing_settings(args),
        records=record_settings(args),
    )
    if settings.intent_target is not None and settings.policy.cold is None:
        raise ConfigError(
            "--intent-webhook needs a configuration file with a section cold: without it no model is cold"
        )
    return settings


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from extproc.server.grpc_sockets import read_directly

    read_directly(os.environ)  # before anything imports grpc

    import uvloop

    from extproc.observe.logs import configure
    from extproc.server.reload import in_force

    configure(log_settings(args))
    settings = serve_settings(args)
    news = reloading(args, settings, serve_settings, in_force, "extproc.serve")
    if settings.workers > 1:
        from extproc.server.workers import supervise

        uvloop.run(supervise(settings, news))
    else:
        from extproc.server.run import serve

        uvloop.run(serve(settings, news=news))
    return 0
