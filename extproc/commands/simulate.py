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

from extproc.commands import autoscale_part, simulate_autoscale, simulate_overload
from extproc.commands.simulate_flags import add_flags
from extproc.commands.simulate_wanted import html_file, policies, setups
from extproc.errors import ConfigError
from extproc.named_files import readable

if TYPE_CHECKING:
    from extproc.sim.jobs import Job, Result
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
    if args.markdown and not (args.standing or args.suite or args.quick):
        raise ConfigError("--markdown tells how extproc stands in a suite: give --suite, or --standing and its JSON")
    if args.standing:
        _show(args, _cells_of(args.standing), tables=False)
        return 0
    autoscale_part.refuse_elsewhere(args)
    if args.plots and args.suite != "autoscale":
        raise ConfigError("--plots draws what the suite autoscale found: of all else --html FILE makes a page")
    if args.suite in ("overload", "autoscale"):
        if args.html:
            raise ConfigError(f"the suite {args.suite} makes no page: leave --html away, or take --markdown or --json")
        if args.suite == "overload":
            return simulate_overload.run(args, _made)
        return simulate_autoscale.run(args, _made)
    slos = parse_slos(args.slo)
    page = html_file(args)
    wanted, named = setups(args), policies(args)
    results = _simulate(wanted, named, slos, args)
    cells = _cells(wanted, results)
    _show(args, cells)
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
    from extproc.sim.jobs import Job

    draws = args.html is not None and len(setups) <= _DRAWN_CELLS and not args.resume
    jobs = [Job(place, setup, name, slos, draws) for place, setup in enumerate(setups) for name in policies]
    results: list[list[Result]] = [[] for _ in setups]
    for result in _made(jobs, args):
        results[result.place].append(result)
    return results


def _made(jobs: Sequence[Job], args: argparse.Namespace) -> Iterator[Result]:
    """Results of the jobs in their order, from a file as far as it has them."""
    from extproc.sim.jobs import resumed, work_all
    from extproc.sim.results_file import ResultsFile

    processes = args.jobs or os.cpu_count() or 1
    made = resumed(jobs, processes, ResultsFile(args.resume)) if args.resume else work_all(jobs, processes)
    return _watched(made, len(jobs))


def _cells(setups: Sequence[Setup], results: Sequence[Sequence[Result]]) -> list[Cell]:
    from extproc.sim.report.suite_json import Cell, rows

    return [
        Cell(
            trace=setup.trace,
            fleet=setup.fleet.name,
            load=setup.load,
            state_delay_s=setup.conditions.state_delay_s,
            replicas=setup.conditions.replicas,
            seeds=(setup.conditions.seed,),
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


def _cells_of(path: Path) -> list[Cell]:
    """Cells of an earlier run's JSON."""
    from extproc.sim.report.suite_json import read_suite

    with readable(path):
        data = path.read_bytes()
    try:
        return read_suite(json.loads(data))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{path}: not the JSON of extproc simulate, with cells and policies") from error


def _show(args: argparse.Namespace, cells: Sequence[Cell], *, tables: bool = True) -> None:
    """Print what came out; how ours stands only of a suite, which was made to tell."""
    from extproc.sim.report.seeds import over_seeds
    from extproc.sim.report.standing_shown import (
        policies_markdown,
        standing_json,
        standing_markdown,
        standing_text,
    )
    from extproc.sim.report.suite_json import suite_json
    from extproc.sim.standings import standings

    middle = over_seeds(cells)
    stands = standings(middle) if args.standing or args.suite or args.quick else []
    if not stands and (args.standing or args.markdown):
        raise ConfigError(
            "there is nothing to hold extproc against: run a suite with it and at least one rival, "
            "that refuses nothing unless extproc_admission is there"
        )
    if args.json:
        told = {each.key: standing_json(each.found) for each in stands}
        print(json.dumps(suite_json(cells, middle) | told))
    elif args.markdown:
        pages = [standing_markdown(each.found, middle, each.who, each.rival) for each in stands]
        print("\n\n".join([*pages, policies_markdown(middle)]))
    else:
        parts = [_tables(middle)] if tables else []
        print("\n\n".join([*parts, *(standing_text(each.found, middle, each.who, each.rival) for each in stands)]))


def _tables(cells: Sequence[Cell]) -> str:
    from extproc.sim.report.table import cell_table, suite_table

    return "\n\n".join(map(cell_table, cells)) if len(cells) <= _DRAWN_CELLS else suite_table(cells)


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
    from extproc.sim.report.seeds import over_seeds

    details = [
        Detail(cell=cell, curves=[result.curves for result in made if result.curves is not None])
        for cell, made in zip(cells, results, strict=True)
        if all(result.curves for result in made)
    ]
    report = Report(
        title="Simulated routing policies",
        command=shlex.join(["extproc", *sys.argv[1:]]),
        cells=over_seeds(cells),
        details=details,
        slos=slos,
    )
    try:
        path.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
