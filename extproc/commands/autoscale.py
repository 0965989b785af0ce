"""`extproc autoscale`: how many instances each pool should have, told to whoever asks, and done by a command."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import TYPE_CHECKING

from extproc.addresses import parse_endpoint
from extproc.commands.autoscale_table import as_table
from extproc.commands.deciding_arguments import operator_policy, speed_priors
from extproc.commands.destination_arguments import add_destination_arguments, destinations
from extproc.commands.listen_arguments import access, add_listen_arguments, tls_files
from extproc.commands.numbers import count, seconds, seconds_or_zero
from extproc.commands.observe_arguments import add_log_arguments, log_settings
from extproc.commands.redis_arguments import add_redis_arguments, redis_settings
from extproc.commands.reloading import reloading, said
from extproc.commands.webhook_arguments import add_webhook_arguments, webhook_target
from extproc.core.scaling.rules import ScalingRules
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.scaling_service.run import AutoscaleSettings

HELP = (
    "how many instances each pool should have: Prometheus, JSON, KEDA, a webhook, or started and stopped by a command"
)
EXAMPLE = """extproc autoscale --config extproc.yaml --once
  extproc autoscale --config extproc.yaml --keda-listen :9005"""

_EXEC = """start and stop instances with this program, called once for each with EXTPROC_ACTION=start or stop and more
in its environment, never through a shell; it asks for it and ends (docs/autoscale.md)"""
_ONCE = "look, print what is recommended, and end; it takes a tick, as rates are seen between two looks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags: the rules, who is told, who acts, and where things are."""
    add = parser.add_argument
    add(
        "--profiles",
        default="",
        metavar="FILE",
        help="speeds to begin with, as `extproc fleet --profiles --json` shows them (default: the built-in table)",
    )
    add(
        "--metrics-listen",
        default="127.0.0.1:9004",
        metavar="HOST:PORT",
        help="pages /recommendations, /metrics and /healthz; or unix:/path (default: %(default)s)",
    )
    add(
        "--keda-listen",
        default="",
        metavar="HOST:PORT",
        help="gRPC for KEDA's external scaler; or unix:/path (default: none)",
    )
    _add_acting(parser)
    add("--once", action="store_true", help=_ONCE)
    add("--json", action="store_true", help="with --once: as JSON instead of a table")
    add_listen_arguments(parser)
    add_destination_arguments(parser)
    add_redis_arguments(parser)


def _add_acting(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is done about it; only one replica acts, the leader")
    add = group.add_argument
    add("--exec", dest="program", default="", metavar="CMD", help=_EXEC)
    add(
        "--exec-timeout-s",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds that a call may take before it is ended (default: %(default)s)",
    )
    add("--exec-at-once", type=count, default=4, metavar="N", help="calls at a time (default: %(default)s)")
    add_webhook_arguments(parser)
    add(
        "--drain",
        action="store_true",
        help="let instances drain that are not needed, though somebody else stops them; with --exec or --webhook they"
        " always drain first. Not where KEDA scales: another one would go than the one that drains",
    )
    add("--dry-run", action="store_true", help="look and show, do nothing, and never lead")
    add(
        "--lease-s",
        type=seconds,
        default=9.0,
        metavar="S",
        help="seconds after which another replica follows a leader that is gone (default: %(default)s)",
    )
    add(
        "--settle-s",
        type=seconds_or_zero,
        default=10.0,
        metavar="S",
        help="seconds without acting after an outage or a change of leader, in which agents tell of themselves"
        " (default: %(default)s)",
    )
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or look once."""
    if args.json and not args.once:
        raise ConfigError("--json goes with --once; while it runs, GET /recommendations is JSON")
    settings = _settings(args)
    from extproc.scaling_service.pages import shown
    from extproc.scaling_service.run import in_force, look_once, run_autoscale

    if args.once:
        word = asyncio.run(look_once(settings))
        print(json.dumps(shown(word)) if args.json else as_table(word, args.fleet))
        return 0
    import uvloop

    from extproc.observe.logs import configure

    configure(log_settings(args))
    uvloop.run(run_autoscale(settings, reloading(args, settings, _settings, in_force, "extproc.autoscale")))
    return 0


def _settings(args: argparse.Namespace) -> AutoscaleSettings:
    from extproc.scaling_service.instance_command import parse_command
    from extproc.scaling_service.run import AutoscaleSettings

    operator = operator_policy(args)
    rules = operator.autoscale
    webhook = webhook_target(args)
    for flag, given in (("--exec", args.program), ("--webhook", webhook), ("--drain", args.drain)):
        if given and not (rules and rules.pools):
            raise ConfigError(f"{flag} needs a configuration file with a section autoscale that names the pools")
    return AutoscaleSettings(
        pages=parse_endpoint(args.metrics_listen),
        keda=parse_endpoint(args.keda_listen) if args.keda_listen else None,
        access=access(args),
        tls=tls_files(args),
        redis=redis_settings(args),
        fleet=args.fleet,
        destinations=destinations(args),
        rules=rules or ScalingRules(),
        classes=operator.classes,
        speed_priors=speed_priors(args.profiles),
        command=parse_command(args.program) if args.program else (),
        command_timeout_s=args.exec_timeout_s,
        commands_at_once=args.exec_at_once,
        webhook=webhook,
        drains=args.drain,
        dry_run=args.dry_run or args.once,
        lease_s=args.lease_s,
        settle_s=args.settle_s,
        said=said(args),
    )
