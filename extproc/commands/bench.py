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
        "--redis-url",
        metavar="URL",
        help="time instead how long a choice of one router takes to be counted by another, through this Redis",
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure and print medians."""
    if args.redis_url:
        return _visibility(args.redis_url, args.json)
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


def _visibility(url: str, as_json: bool) -> int:
    import asyncio

    from extproc.bench.visibility import RATES_PER_S, visibility

    seen = [asyncio.run(visibility(url, rate_per_s, int(rate_per_s * 3 + 100))) for rate_per_s in RATES_PER_S]
    if as_json:
        print(json.dumps([asdict(each) for each in seen]))
        return 0
    print(f"{'requests/s':>10} {'median':>9} {'p99':>9} {'longest':>9} {'lost':>5}   CPU that tells, that listens")
    for each in seen:
        print(
            f"{each.rate_per_s:>10.0f} {each.p50_s * 1e3:>6.1f} ms {each.p99_s * 1e3:>6.1f} ms "
            f"{each.longest_s * 1e3:>6.1f} ms {each.bookings - each.seen:>5}   "
            f"{each.teller_cpu_share:.1%}, {each.listener_cpu_share:.1%} of a core"
        )
    return 0
