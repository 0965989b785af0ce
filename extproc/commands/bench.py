"""`extproc bench`: what asking costs, step by step."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from extproc.commands.bench_flags import OVERHEAD, USED, refuse_unused
from extproc.commands.bench_overhead import add_overhead_arguments, run_overhead, several
from extproc.commands.numbers import count
from extproc.errors import ConfigError

HELP = "measure what asking costs: through a real Envoy beside a service that does nothing, or step by step"
EXAMPLE = """extproc bench --quick
  extproc bench --body-bytes 4096 --instances 64 --rate 200,500,max
  extproc bench request --instances 64"""
_INSTANCES, _ROUNDS = 64, 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the measurement."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=(OVERHEAD, *sorted(_REPORTS)),
        default=OVERHEAD,
        help="overhead: through a real Envoy, beside Envoy alone and beside a service that does nothing; "
        "request: from a body to the reply, on one core and without a network; decide: the decision alone, over "
        "32, 64 and 1,000 instances; prefixes: memory and speed of the "
        "prefix index; redis: what a fleet costs its Redis; push: how soon a router knows what an agent published; "
        "replicas: how soon one router counts another's choice; limits: what a request pays to be held against limits; "
        "shell: the service's processor time beside a gRPC server that does nothing, and each of its steps; "
        "big-body: how long one large prompt keeps all others waiting; records: bytes of a decision record and what "
        "it takes to write, over 8, 100 and 1,000 instances "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--instances",
        type=several(count),
        metavar="LIST",
        help=f"instances in the fleet (default: {_INSTANCES}; of overhead: 8,64,1000, with --quick 64)",
    )
    parser.add_argument(
        "--rounds",
        type=count,
        metavar="N",
        help="requests of each kind, and of overhead rounds of each cell "
        f"(default: {_ROUNDS}; of overhead: 5, with --quick 3)",
    )
    parser.add_argument(
        "--entries", type=count, default=5_000_000, metavar="N", help="of the prefix index (default: %(default)s)"
    )
    parser.add_argument(
        "--redis-url",
        metavar="URL",
        help="server for `redis`, `push`, `replicas`, `limits`; a fleet of its own is written there",
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    add_overhead_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure and print. Raises ConfigError."""
    refuse_unused(args.what, args.sources)
    if args.what == OVERHEAD:
        return run_overhead(args)
    if len(args.instances or ()) > 1:
        raise ConfigError(f"bench {args.what} takes one number of --instances")
    args.instances = (args.instances or (_INSTANCES,))[0]
    args.rounds = args.rounds or _ROUNDS
    if "redis_url" in USED[args.what] and not args.redis_url:
        raise ConfigError(f"bench {args.what} needs --redis-url, such as redis://127.0.0.1:6379/0")
    _REPORTS[args.what](args)
    return 0


def _request(args: argparse.Namespace) -> None:
    from extproc.bench.request_path import request_path

    timings = list(request_path(args.instances, args.rounds))
    if args.json:
        return _print_json(timings)
    head = f"{'body':>10} {'instances':>9} {'understand':>12} {'reply':>12} {'full duplex':>12}"
    print(f"{head} {'rename':>10} {'search':>10}   (medians of {args.rounds})")
    for timing in timings:
        print(
            f"{timing.body_bytes // 1024:>6} KiB {timing.instances:>9} "
            f"{timing.understand_s * 1e6:>9.0f} µs {timing.reply_s * 1e6:>9.0f} µs {timing.duplex_s * 1e6:>9.0f} µs "
            f"{timing.rename_s * 1e6:>7.0f} µs {timing.search_s * 1e6:>7.0f} µs"
        )


def _decide(args: argparse.Namespace) -> None:
    from extproc.bench.decide_time import decide_times

    timings = list(decide_times(args.rounds))
    if args.json:
        return _print_json(timings)
    head = f"{'instances':>9} {'holders':>8} {'decide':>10} {'after a report':>15} {'told':>11}"
    print(f"{head}   (medians of {args.rounds})")
    for each in timings:
        times = f"{each.decide_s * 1e6:>7.0f} µs {each.after_report_s * 1e6:>12.0f} µs {each.told_s * 1e6:>8.0f} µs"
        print(f"{each.instances:>9} {each.holders:>8} {times}")


def _prefixes(args: argparse.Namespace) -> None:
    from extproc.bench.prefix_index import CHAIN_BLOCKS, prefix_costs

    costs = prefix_costs(args.instances, args.entries, args.rounds)
    if args.json:
        return _print_json(costs)
    print(f"{'memory':<34} {'entries':>10} {'bytes/entry':>12}   ({costs.instances} instances)")
    for memory in costs.memory:
        print(f"{memory.shape:<34} {memory.entries:>10} {memory.bytes_per_entry:>12.1f}")
    print(f"\n{f'a chain of {CHAIN_BLOCKS} blocks':<34} {'median':>10} {'p99':>12} {'longest':>12}")
    for step in costs.steps:
        print(f"{step.name:<34} {step.p50_s * 1e6:>7.0f} µs {step.p99_s * 1e6:>9.0f} µs {step.max_s * 1e6:>9.0f} µs")


def _redis(args: argparse.Namespace) -> None:
    from extproc.bench.redis_cost import readable, redis_cost

    cost = asyncio.run(redis_cost(args.redis_url, args.instances, seconds=10.0))
    if args.json:
        return _print_json(cost)
    print(readable(cost))


def _push(args: argparse.Namespace) -> None:
    from extproc.bench.push import push

    seen = asyncio.run(push(args.redis_url))
    if args.json:
        return _print_json(seen)
    print(f"{seen.known} of {seen.published} changes known, {seen.rate_per_s:.0f} a second")
    print(f"median {seen.p50_s * 1e3:.2f} ms, p99 {seen.p99_s * 1e3:.2f} ms, longest {seen.longest_s * 1e3:.2f} ms")


def _replicas(args: argparse.Namespace) -> None:
    from extproc.bench.visibility import RATES_PER_S, visibility

    seen = [asyncio.run(visibility(args.redis_url, rate, int(rate * 3 + 100))) for rate in RATES_PER_S]
    if args.json:
        return _print_json(seen)
    print(f"{'requests/s':>10} {'median':>9} {'p99':>9} {'longest':>9} {'lost':>5}   CPU that tells, that listens")
    for each in seen:
        print(
            f"{each.rate_per_s:>10.0f} {each.p50_s * 1e3:>6.1f} ms {each.p99_s * 1e3:>6.1f} ms "
            f"{each.longest_s * 1e3:>6.1f} ms {each.bookings - each.seen:>5}   "
            f"{each.teller_cpu_share:.1%}, {each.listener_cpu_share:.1%} of a core"
        )


def _limits(args: argparse.Namespace) -> None:
    from extproc.bench.limit_cost import limit_costs

    costs = asyncio.run(limit_costs(args.redis_url, args.rounds))
    if args.json:
        return _print_json(costs)
    print(f"{'limits of a request':<36} {'median':>9} {'p99':>9} {'PING median':>12} {'processor of Redis':>20}")
    for each in costs:
        print(
            f"{each.limits:<36} {each.p50_s * 1e6:>6.0f} µs {each.p99_s * 1e6:>6.0f} µs {each.ping_s * 1e6:>9.0f} µs "
            f"{each.redis_s * 1e6:>11.0f} µs a call"
        )


def _shell(args: argparse.Namespace) -> None:
    from extproc.bench.shell_cost import readable, shell_report

    report = shell_report(args.instances, args.rounds)
    return _print_json(report) if args.json else print(readable(report))


def _big_body(args: argparse.Namespace) -> None:
    from extproc.bench.big_body import big_bodies, readable

    costs = asyncio.run(big_bodies(args.rounds))
    return _print_json(costs) if args.json else print(readable(costs))


def _records(args: argparse.Namespace) -> None:
    from extproc.bench.record_cost import record_costs

    costs = list(record_costs(args.rounds))
    if args.json:
        return _print_json(costs)
    print(f"{'instances':>9} {'recorded':>9} {'a record':>12} {'if whole':>12} {'looking':>11} {'writing':>11}")
    for each in costs:
        print(
            f"{each.instances:>9} {each.share:>9.0%} {each.record_bytes / 1000:>9.1f} kB "
            f"{each.seen_bytes / 1000:>9.1f} kB {each.look_s * 1e3:>8.2f} ms {each.write_s * 1e3:>8.2f} ms"
        )


def _print_json(report: Any) -> None:
    """One result as an object, several as an array."""
    print(json.dumps([asdict(each) for each in report] if isinstance(report, Sequence) else asdict(report)))


_REPORTS = {
    "request": _request,
    "decide": _decide,
    "prefixes": _prefixes,
    "redis": _redis,
    "push": _push,
    "replicas": _replicas,
    "limits": _limits,
    "shell": _shell,
    "big-body": _big_body,
    "records": _records,
}
