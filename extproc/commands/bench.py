"""`extproc bench`: what asking costs, step by step."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

HELP = "time the way from a request's body to the reply, on one core and without a network"
EXAMPLE = "extproc bench --instances 64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the measurement."""
    parser.add_argument(
        "--instances", type=int, default=64, metavar="N", help="instances in the fleet (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=200, metavar="N", help="requests of each size (default: %(default)s)"
    )
    parser.add_argument(
        "--redis-cost",
        metavar="URL",
        help="measure instead what a fleet costs this Redis: memory, commands, processor; writes a fleet of its own",
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure and print medians."""
    if args.redis_cost:
        return _redis_cost(args.redis_cost, args.instances, args.json)
    from extproc.bench.request_path import request_path

    timings = list(request_path(args.instances, args.rounds))
    if args.json:
        print(json.dumps([asdict(timing) for timing in timings]))
        return 0
    print(f"{'body':>10} {'instances':>9} {'understand':>12} {'reply':>12}   (medians of {args.rounds})")
    for timing in timings:
        print(
            f"{timing.body_bytes // 1024:>6} KiB {timing.instances:>9} "
            f"{timing.understand_s * 1e6:>9.0f} µs {timing.reply_s * 1e6:>9.0f} µs"
        )
    return 0


def _redis_cost(url: str, instances: int, as_json: bool) -> int:
    import asyncio

    from extproc.bench.redis_cost import readable, redis_cost

    cost = asyncio.run(redis_cost(url, instances, seconds=10.0))
    print(json.dumps(asdict(cost)) if as_json else readable(cost))
    return 0
