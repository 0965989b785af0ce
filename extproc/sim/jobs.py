"""Runs many simulations side by side, each in one process, and hands back what is to be shown of them."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from extproc.sim.report.curves import Curves, curves
from extproc.sim.report.figures import Figures, figures
from extproc.sim.report.slo import Slos
from extproc.sim.setup import Setup, run


@dataclass(frozen=True, slots=True)
class Job:
    """One run to be made; `place` is that of its setup."""

    place: int
    setup: Setup
    policy: str
    slos: Slos
    draws: bool = False  # whether the curves are wanted, too


@dataclass(frozen=True, slots=True)
class Result:
    """What is left of a run: a few numbers."""

    place: int
    policy: str
    figures: Figures
    curves: Curves | None


def work(job: Job) -> Result:
    """Make one run. Raises ConfigError."""
    made = run(job.setup, job.policy)
    return Result(job.place, job.policy, figures(made, job.slos), curves(made) if job.draws else None)


def work_all(jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """Results as they come, in the order of `jobs`; jobs that stand together share their workload."""
    if processes == 1 or len(jobs) == 1:
        yield from map(work, jobs)
        return
    # Forked processes of a program that never started a thread are safe, and start at once.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(work, jobs, chunksize=max(1, min(8, len(jobs) // processes)))
