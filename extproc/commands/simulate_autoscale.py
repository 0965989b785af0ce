"""`extproc simulate --suite autoscale`: what autoscalers cost, and what they let happen meanwhile."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from extproc.commands.simulate_wanted import autoscale_scenarios, chosen_policies, writable
from extproc.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from extproc.sim.jobs import Job, Result
    from extproc.sim.report.autoscale import Outcome


def run(
    args: argparse.Namespace,
    make: Callable[[Sequence[Job], argparse.Namespace], Iterable[Result]],
) -> int:
    """Simulate and show; `make` makes the runs. Raises ConfigError."""
    from extproc.sim.autoscale_suite import ROUTER
    from extproc.sim.jobs import Job
    from extproc.sim.report import autoscale as report
    from extproc.sim.report.slo import parse_slos

    named = chosen_policies(args, (ROUTER,))
    if len(named) != 1:
        raise ConfigError("the suite autoscale has one router below all autoscalers: name one --policy, or none")
    if args.plots:
        from extproc.sim.report.plots import load_matplotlib

        load_matplotlib()
        writable(args.plots)
    slos, scenarios = parse_slos(args.slo), autoscale_scenarios(args)
    jobs = [
        Job(place, scenario.setup, named[0] if args.policy else scenario.router, slos)
        for place, scenario in enumerate(scenarios)
    ]
    found = report.outcomes((scenarios[result.place], result.figures) for result in make(jobs, args))
    if args.plots:
        _draw(args, found)
    if args.json:
        print(json.dumps(report.as_json(found)))
        return 0
    print((report.markdown if args.markdown else report.text)(found))
    print("\n" + "\n".join(report.misses(found) or ["extproc misses no target."]))
    return 0


def _draw(args: argparse.Namespace, found: Sequence[Outcome]) -> None:
    from extproc.sim.report.autoscale_plot import autoscale_svg

    try:
        args.plots.write_text(autoscale_svg(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {args.plots}: {error.strerror or error}") from error
