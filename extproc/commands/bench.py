"""`extproc bench`: what asking costs, step by step."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

HELP = "time the way from a request's body to the reply, or the prefix index, on one core and without a network"
EXAMPLE = "extproc bench --instances 64"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the measurement."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("request", "prefixes"),
        default="request",
        help="the way of a request, or memory and speed of the prefix index (default: %(default)s)",
    )
    parser.add_argument(
        "--instances", type=int, default=64, metavar="N", help="instances in the fleet (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=200, metavar="N", help="requests of each kind (default: %(default)s)"
    )
    parser.add_argument(
        "--entries", type=int, default=5_000_000, metavar="N", help="of the prefix index (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Measure and print medians."""
    return _prefixes(args) if args.what == "prefixes" else _request(args)


def _request(args: argparse.Namespace) -> int:
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


def _prefixes(args: argparse.Namespace) -> int:
    from extproc.bench.prefix_index import CHAIN_BLOCKS, prefix_costs

    costs = prefix_costs(args.instances, args.entries, args.rounds)
    if args.json:
        print(json.dumps(asdict(costs)))
        return 0
    print(f"{'memory':<34} {'entries':>10} {'bytes/entry':>12}   ({costs.instances} instances)")
    for memory in costs.memory:
        print(f"{memory.shape:<34} {memory.entries:>10} {memory.bytes_per_entry:>12.1f}")
    print(f"\n{f'a chain of {CHAIN_BLOCKS} blocks':<34} {'median':>10} {'p99':>12} {'longest':>12}")
    for step in costs.steps:
        print(f"{step.name:<34} {step.p50_s * 1e6:>7.0f} µs {step.p99_s * 1e6:>9.0f} µs {step.max_s * 1e6:>9.0f} µs")
    return 0
