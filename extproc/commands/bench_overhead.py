"""The flags of `extproc bench` without a further word, which measures through a real Envoy, and what they ask for."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from extproc.commands.numbers import count, count_or_zero, seconds
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.bench.overhead.plan import Plan

_FASTEST = "max"
_WORKERS = "processes of the service (default: 1; and 2 on two cores or more, 4 and 128 KiB, 64 instances, not --quick)"
_Value = TypeVar("_Value")


def add_overhead_arguments(parser: argparse.ArgumentParser) -> None:
    """Which cells are measured, and how long."""
    group = parser.add_argument_group("overhead", "through a real Envoy; lists are separated by commas")
    add = group.add_argument
    add(
        "--quick",
        action="store_true",
        help="less than a minute: 4 KiB, 128 KiB, 1 MiB with 64 instances and one worker",
    )
    add("--body-bytes", type=several(count), metavar="LIST", help="sizes of requests (default: 1 KiB to 1 MiB)")
    add("--workers", type=several(count), metavar="LIST", help=_WORKERS)
    add(
        "--rate",
        type=several(_rate),
        metavar="LIST",
        help="requests a second, or 'max': as fast as answers come (default: 500, less for large bodies; and max)",
    )
    add("--seconds", type=seconds, metavar="S", help="of each round of each way (default: 2; with --quick 0.8)")
    add(
        "--clients",
        type=count,
        default=16,
        metavar="N",
        help="of each worker, where the rate is 'max': each waits for its answer before it asks again (default: 16)",
    )
    add(
        "--streams",
        type=count_or_zero,
        metavar="N",
        help="hold so many requests open at once, of each size of --body-bytes or of 4 KiB, for the memory that each "
        "takes; 0: none (default: 1000, fewer of large bodies; with --quick 0)",
    )
    add(
        "--serve",
        default=shlex.join([sys.executable, "-m", "extproc", "serve"]),
        metavar="COMMAND",
        help="starts the service that is measured, such as that of another version (default: this one's)",
    )


def run_overhead(args: argparse.Namespace) -> int:
    """Measure and print; 130 after Ctrl-C, 1 if all requests of a way failed. Raises ConfigError and ProcessError."""
    from extproc.bench.overhead.table import report_lines, unanswered

    try:
        from extproc.bench.overhead.run import overhead
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'extproc[demo]'") from None

    serve = shlex.split(args.serve)
    if not serve:
        raise ConfigError("--serve is empty: name the command that starts the service")
    report = asyncio.run(overhead(_plan(args), serve, say=lambda line: print(line, file=sys.stderr, flush=True)))
    if report is None:
        return 130
    print(json.dumps(report) if args.json else "\n".join(report_lines(report)))
    silent = list(unanswered(report))
    print(*silent, sep="\n", end="\n" if silent else "", file=sys.stderr)
    return 1 if silent else 0


def _plan(args: argparse.Namespace) -> Plan:
    from extproc.bench.overhead.plan import Wishes, plan, quick_plan

    wishes = Wishes(
        body_bytes=args.body_bytes or (),
        instances=args.instances or (),
        workers=args.workers or (),
        rates_rps=args.rate or (),
        seconds=args.seconds,
        rounds=args.rounds,
        clients=args.clients,
        streams=args.streams,
        cores=len(os.sched_getaffinity(0)),
    )
    return (quick_plan if args.quick else plan)(wishes)


def several(one: Callable[[str], _Value]) -> Callable[[str], tuple[_Value, ...]]:
    """An argparse type for values that are separated by commas."""

    def parse(text: str) -> tuple[_Value, ...]:
        return tuple(one(part.strip()) for part in text.split(","))

    return parse


def _rate(text: str) -> float | None:
    return None if text == _FASTEST else seconds(text)
