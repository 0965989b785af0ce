"""`extproc demo`: everything on this machine, with sample traffic and a live table."""

from __future__ import annotations

import argparse
import asyncio
import json

from extproc.commands.numbers import port
from extproc.errors import ProcessError

HELP = "run everything on this machine: Valkey, engines, agent, service, Envoy, sample traffic, a live table"
EXAMPLE = """extproc demo --once
  extproc demo --autoscale"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the demo."""
    parser.add_argument(
        "--once", action="store_true", help="exit after the sample; prints one JSON object as the last line"
    )
    parser.add_argument(
        "--autoscale",
        action="store_true",
        help="another demo: a load that swings, and engines that `extproc autoscale` has started and stopped for it;"
        " with --once for one swing",
    )
    parser.add_argument(
        "--redis-url",
        default=None,
        metavar="URL",
        help="use this server (default: an embedded Valkey)",
    )
    parser.add_argument(
        "--port", type=port, default=0, metavar="N", help="port that Envoy listens on (default: a free one)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; 1 if a request of the sample failed."""
    try:
        from extproc.demo.run import DemoSettings, demo
    except ModuleNotFoundError as error:
        raise ProcessError(f"{error.name} is missing: pip install 'extproc[demo]'") from None
    settings = DemoSettings(once=args.once, redis_url=args.redis_url, port=args.port, autoscale=args.autoscale)
    report = asyncio.run(demo(settings))
    if not args.once:
        return 0
    if report is None:
        return 130
    print(json.dumps(report))
    return 1 if report["failed"] else 0
