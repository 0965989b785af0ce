"""Runs many simulations side by side, each in one process, and hands back what is to be shown of them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from extproc.errors import ProcessError
from extproc.sim.report.curves import Curves, curves
from extproc.sim.report.figures import Figures, figures
from extproc.sim.report.slo import Slos
from extproc.sim.setup import Setup, run, workload

_CHUNK = 8  # jobs that a process takes at once


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
    cpu_s: float  # that the replay took, of one core


def work(job: Job) -> Result:
    """Make one run. Raises ConfigError."""
    workload(job.setup)  # read or made once for all policies: it is no part of what one of them costs
    began_s = time.process_time()
    made = run(job.setup, job.policy)
    cpu_s = time.process_time() - began_s
    return Result(job.place, job.policy, figures(made, job.slos), curves(made) if job.draws else None, cpu_s)


def work_all(jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """Results in the order of `jobs`, as they come; jobs that stand together share their workload.

    Raises ConfigError as `work`, and ProcessError if a process is killed.
    """
    if processes == 1 or len(jobs) == 1:
        yield from map(work, jobs)
        return
    # Forked processes of a program that never started a thread are safe, and start at once.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_end_silently) as pool:
        try:
            yield from pool.map(work, jobs, chunksize=max(1, min(_CHUNK, len(jobs) // processes)))
        except BrokenProcessPool:
            raise ProcessError("a simulating process was killed; if memory ran out, take fewer --jobs") from None


def _end_silently() -> None:
    """Ctrl-C goes to all processes of a terminal, and one traceback each would bury what was asked for."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
