"""Runs many simulations side by side, each in one process, and hands back what is to be shown of them."""

from __future__ import annotations

import multiprocessing
import os
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
from extproc.sim.results_file import ResultsFile
from extproc.sim.setup import Setup, run, workload

_CHUNK = 8  # jobs that a process takes at once
_LOOK_S = 1.0  # between two looks whether the parent lives


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
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(work, jobs, chunksize=max(1, min(_CHUNK, len(jobs) // processes)))
        except BrokenProcessPool:
            raise ProcessError("a simulating process was killed; if memory ran out, take fewer --jobs") from None


def resumed(jobs: Sequence[Job], processes: int, file: ResultsFile) -> Iterator[Result]:
    """The same, but of what the file holds; what it lacks is run, and added to it as it comes.

    Results from a file have no curves. Raises ConfigError and ProcessError as `work_all`, and ConfigError if the file
    cannot be written.
    """
    known = [file.find(job.setup, job.slos, job.policy) for job in jobs]
    fresh = work_all([job for job, found in zip(jobs, known, strict=True) if found is None], processes)
    for job, found in zip(jobs, known, strict=True):
        if found is not None:
            yield Result(job.place, job.policy, found[0], None, found[1])
            continue
        result = next(fresh)
        file.add(job.setup, job.slos, job.policy, result.figures, result.cpu_s)
        yield result


def _begin(parent: int) -> None:
    """Have a process end without a word, and with the one that started it.

    Ctrl-C goes to all processes of a terminal, and one traceback each would bury what was asked for. A parent that is
    killed cannot tell its children, which would wait for more work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1) if os.getppid() != parent else None)
    signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
