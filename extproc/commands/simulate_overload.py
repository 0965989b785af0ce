"""`extproc simulate --suite overload`: runs its scenarios, and shows who was served well when there was too much."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from extproc.commands.simulate_wanted import chosen_policies, overload_scenarios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from extproc.sim.jobs import Job, Result


def run(
    args: argparse.Namespace,
    make: Callable[[Sequence[Job], argparse.Namespace], Iterable[Result]],
) -> int:
    """Simulate and show; `make` makes the runs. Raises ConfigError."""
    from extproc.sim.jobs import Job
    from extproc.sim.overload import WEIGHTED
    from extproc.sim.policies.catalog import overloaded
    from extproc.sim.report import overload as report
    from extproc.sim.report.slo import parse_slos

    slos, scenarios = parse_slos(args.slo), overload_scenarios(args)
    named = chosen_policies(args, overloaded())
    jobs = [
        Job(place, scenario.setup, name, slos)
        for place, scenario in enumerate(scenarios)
        for name in (scenario.policies or named)
        if not scenario.policies or "extproc_admission" in named
    ]
    found = report.outcomes((scenarios[result.place], result.policy, result.figures) for result in make(jobs, args))
    missed = report.misses(found, [name for name in named if name == "extproc_admission"] + [WEIGHTED])
    if args.json:
        print(json.dumps({"outcomes": report.as_json(found), "misses": missed}))
        return 0
    print((report.markdown if args.markdown else report.text)(found))
    print("\n" + "\n".join(missed or ["extproc_admission misses no target."]))
    return 0
