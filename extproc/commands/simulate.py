"""`extproc simulate`: what a routing policy would do to a workload on a fleet, on a virtual clock."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from extproc.commands.simulate_flags import add_flags, html_file, policies, setups
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from extproc.sim.jobs import Result
    from extproc.sim.report.slo import Slos
    from extproc.sim.report.suite_json import Cell
    from extproc.sim.setup import Setup

HELP = "replay a workload against a described fleet under one or more routing policies, on a virtual clock"
EXAMPLE = "extproc simulate --traffic 'chat?requests=2000' --fleet mixed --load 0.85"

_DRAWN_CELLS = 4  # of larger sets the page shows figures alone

add_arguments = add_flags


def run(args: argparse.Namespace) -> int:
    """Simulate and show."""
    from extproc.sim.report.slo import parse_slos

    if args.list:
        _print_policies(args)
        return 0
    slos = parse_slos(args.slo)
    page = html_file(args)
    wanted, named = setups(args), policies(args)
    results = _simulate(wanted, named, slos, args)
    cells = _cells(wanted, results)
    if args.json:
        from extproc.sim.report.suite_json import suite_json

        print(json.dumps(suite_json(cells)))
    else:
        _print_tables(cells)
    if args.timing:
        _tell_speeds(results)
    if page:
        _write_page(page, cells, results, slos)
    return 0


def _print_policies(args: argparse.Namespace) -> None:
    from extproc.sim.policies.catalog import described

    if args.json:
        print(json.dumps(dict(described())))
        return
    for name, text in described():
        print(f"{name:17} {text}")


def _simulate(
    setups: Sequence[Setup], policies: Sequence[str], slos: Slos, args: argparse.Namespace
) -> list[list[Result]]:
    """For each setup the results of its policies."""
    from extproc.sim.jobs import Job, work_all

    draws = args.html is not None and len(setups) <= _DRAWN_CELLS
    jobs = [Job(place, setup, name, slos, draws) for place, setup in enumerate(setups) for name in policies]
    results: list[list[Result]] = [[] for _ in setups]
    processes = args.jobs or os.cpu_count() or 1
    for result in _watched(work_all(jobs, processes), len(jobs)):
        results[result.place].append(result)
    return results


def _cells(setups: Sequence[Setup], results: Sequence[Sequence[Result]]) -> list[Cell]:
    from extproc.sim.report.suite_json import Cell, rows

    return [
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


def _tell_speeds(results: Iterable[Iterable[Result]]) -> None:
    """For each policy the requests that were simulated in a second of one core, over all runs."""
    requests: dict[str, int] = defaultdict(int)
    cpu_s: dict[str, float] = defaultdict(float)
    for made in results:
        for result in made:
            requests[result.policy] += result.figures.requests
            cpu_s[result.policy] += result.cpu_s
    for policy, count in requests.items():
        speed = count / max(cpu_s[policy], 1e-9)
        print(f"{policy:17} {speed:7.0f} requests/s ({count} in {cpu_s[policy]:.2f} s of one core)", file=sys.stderr)


def _write_page(path: Path, cells: Sequence[Cell], results: Sequence[Sequence[Result]], slos: Slos) -> None:
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
    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
