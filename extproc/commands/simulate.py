"""`extproc simulate`: what a routing policy would do to a workload on a fleet, on a virtual clock."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.commands.numbers import count, seconds, seconds_or_zero, share
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.sim.fleet.spec import FleetSpec
    from extproc.sim.jobs import Result
    from extproc.sim.report.slo import Slos
    from extproc.sim.report.suite_json import Cell
    from extproc.sim.setup import Setup

HELP = "replay a workload against a described fleet under one or more routing policies, on a virtual clock"
EXAMPLE = "extproc simulate --traffic 'chat?requests=2000' --fleet mixed --load 0.85"

_TRACES = "EXTPROC_TRACES"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of a simulation, of a suite, and of what is shown of them."""
    what = parser.add_argument_group("what is simulated")
    what.add_argument(
        "--traffic",
        default="day?requests=2000",
        metavar="WORKLOAD",
        help="chat, rag, agents, documents, batch or day with options as in 'chat?requests=2000&seed=3'; "
        "mooncake:PATH, azure:PATH, agentic:PATH, log:PATH or a path; a mix as in '60%% chat + 40%% rag' "
        "(default: %(default)s)",
    )
    what.add_argument("--requests", type=count, metavar="N", help="as many of a recorded workload (default: all)")
    what.add_argument(
        "--fleet",
        default="mixed",
        metavar="FLEET",
        help="uniform, mixed, a fleet file, or what `extproc fleet --json` printed (default: %(default)s)",
    )
    what.add_argument(
        "--like", default="", metavar="MODEL", help="model whose step times stand for those of a live fleet's models"
    )
    what.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="extproc, oracle, a rival by name, package.module:factory, `all`; repeat or separate by commas "
        "(default: extproc, least_request, llm_d_default, dynamo_kv_tuned, oracle)",
    )
    what.add_argument(
        "--load", type=seconds, metavar="SHARE", help="of the fleet's capacity for this workload, such as 0.85"
    )
    what.add_argument("--rate", type=seconds, metavar="RPS", help="requests a second (default: as recorded)")
    what.add_argument("--seed", type=int, default=0, metavar="N", help="first seed (default: %(default)s)")
    what.add_argument("--seeds", type=count, default=1, metavar="N", help="as many seeds, one after the other")
    seen = parser.add_argument_group("what routers see of it")
    seen.add_argument(
        "--state-delay", type=seconds_or_zero, default=0.2, metavar="S", help="age at which load reports arrive"
    )
    seen.add_argument("--state-period", type=seconds, default=0.2, metavar="S", help="time between two reports")
    seen.add_argument("--state-loss", type=share, default=0.0, metavar="SHARE", help="of reports that never arrive")
    seen.add_argument("--cache-delay", type=seconds_or_zero, default=0.05, metavar="S", help="of KV events")
    seen.add_argument("--replicas", type=count, default=1, metavar="N", help="routers that share the traffic")
    seen.add_argument("--peer-delay", type=seconds_or_zero, default=0.01, metavar="S", help="between routers")
    suite = parser.add_argument_group("suites")
    suite.add_argument("--suite", choices=["standard"], help="a fixed set of workloads, fleets, loads and conditions")
    suite.add_argument("--quick", action="store_true", help="a small part of the suite, in under a minute")
    suite.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help=f"public traces (default: ${_TRACES}; docs/traffic.md tells where from)",
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument(
        "--slo", action="append", default=[], metavar="CLASS=TTFT,ITL", help="such as interactive=2,0.05"
    )
    shown.add_argument("--json", action="store_true", help="JSON instead of tables")
    shown.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots")
    shown.add_argument("--list", action="store_true", help="list the policies and exit")
    parser.add_argument("--jobs", type=count, metavar="N", help="processes (default: one for each core)")


def run(args: argparse.Namespace) -> int:
    """Simulate and show."""
    from extproc.sim.policies.catalog import described
    from extproc.sim.report.slo import parse_slos

    if args.list:
        for name, text in described():
            print(f"{name:17} {text}")
        return 0
    slos = parse_slos(args.slo)
    setups = list(_suite(args) if args.suite or args.quick else _single(args))
    policies = _policies(args)
    cells, details = _simulate(setups, policies, slos, args)
    if args.json:
        from extproc.sim.report.suite_json import suite_json

        print(json.dumps(suite_json(cells)))
    else:
        _print_tables(cells)
    if args.html:
        _write_page(args, cells, details, slos)
    return 0


def _single(args: argparse.Namespace) -> Iterator[Setup]:
    """The one workload that the flags describe, once for each seed."""
    from extproc.sim.fleet.spec import Conditions
    from extproc.sim.setup import Setup

    if args.load and args.rate:
        raise ConfigError("--load and --rate say the same in two ways: give one of them")
    fleet = _fleet(args)
    for seed in range(args.seed, args.seed + args.seeds):
        conditions = Conditions(
            state_period_s=args.state_period,
            state_delay_s=args.state_delay,
            state_loss=args.state_loss,
            cache_delay_s=args.cache_delay,
            replicas=args.replicas,
            peer_delay_s=args.peer_delay,
            seed=seed,
        )
        yield Setup(
            trace=args.traffic,
            traffic=args.traffic,
            fleet=fleet,
            conditions=conditions,
            load=args.load,
            rate_rps=args.rate,
            requests=args.requests,
        )


def _suite(args: argparse.Namespace) -> Iterator[Setup]:
    from extproc.sim import suite
    from extproc.sim.traffic.sources import known_traces

    directory = args.traces or (Path(os.environ[_TRACES]) if os.environ.get(_TRACES) else None)
    traces = known_traces(directory) if directory else {}
    if directory and not traces:
        raise ConfigError(f"{directory} holds none of the public traces; docs/traffic.md names their files")
    cells = suite.quick if args.quick else suite.standard
    for seed in range(args.seed, args.seed + args.seeds):
        yield from cells(traces, seed)


def _fleet(args: argparse.Namespace) -> FleetSpec:
    from extproc.sim.fleet.builtin import BUILTIN
    from extproc.sim.fleet.file import read

    if args.fleet in BUILTIN:
        return BUILTIN[args.fleet]()
    return read(Path(args.fleet), like=args.like)


def _policies(args: argparse.Namespace) -> list[str]:
    """Names in the order given, each once; checked before any work begins."""
    from extproc.sim.policies.catalog import DEFAULTS, load, names

    if args.policy is None:
        wanted = list(names()) if args.suite or args.quick else list(DEFAULTS)
    else:
        wanted = [name for given in args.policy for name in given.split(",")]
    chosen = list(dict.fromkeys(part for name in wanted for part in (names() if name == "all" else [name])))
    for name in chosen:
        load(name)
    return chosen


def _simulate(
    setups: Sequence[Setup], policies: Sequence[str], slos: Slos, args: argparse.Namespace
) -> tuple[list[Cell], list[list[Result]]]:
    """Cells of all setups, and for each of them the results of its policies."""
    from extproc.sim.jobs import Job, work_all
    from extproc.sim.report.suite_json import Cell, rows

    draws = args.html is not None and len(setups) <= _DRAWN_CELLS
    jobs = [Job(place, setup, name, slos, draws) for place, setup in enumerate(setups) for name in policies]
    results: list[list[Result]] = [[] for _ in setups]
    processes = args.jobs or os.cpu_count() or 1
    for result in _watched(work_all(jobs, processes), len(jobs)):
        results[result.place].append(result)
    cells = [
        Cell(
            trace=setup.trace,
            fleet=setup.fleet.name,
            load=setup.load,
            state_delay_s=setup.conditions.state_delay_s,
            replicas=setup.conditions.replicas,
            seed=setup.conditions.seed,
            policies=rows({result.policy: result.figures for result in made}),
        )
        for setup, made in zip(setups, results, strict=True)
    ]
    return cells, results


_DRAWN_CELLS = 4  # of larger sets the page shows figures alone


def _watched(results: Iterable[Result], number: int) -> Iterator[Result]:
    """The same, with a line of progress where somebody looks."""
    watched = sys.stderr.isatty() and number > 1
    for done, result in enumerate(results, start=1):
        if watched:
            print(f"\r{done} of {number} runs", end="" if done < number else "\n", file=sys.stderr, flush=True)
        yield result


def _print_tables(cells: Sequence[Cell]) -> None:
    from extproc.sim.report.table import cell_table, suite_table

    if len(cells) <= _DRAWN_CELLS:
        print("\n\n".join(map(cell_table, cells)))
    else:
        print(suite_table(cells))


def _write_page(
    args: argparse.Namespace, cells: Sequence[Cell], results: Sequence[Sequence[Result]], slos: Slos
) -> None:
    from extproc.sim.report.page import Detail, Report, page

    details = [
        Detail(cell=cell, curves=[result.curves for result in made if result.curves is not None])
        for cell, made in zip(cells, results, strict=True)
        if all(result.curves for result in made)
    ]
    report = Report(
        title="Simulated routing policies",
        command=shlex.join(["extproc", *sys.argv[1:]]),
        cells=cells,
        details=details,
        slos=slos,
    )
    args.html.write_text(page(report), encoding="utf-8")
