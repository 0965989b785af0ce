"""Simulations side by side: the same figures in the same order as one after another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.errors import ConfigError, ProcessError
from extproc.sim.fleet.builtin import mixed
from extproc.sim.fleet.spec import Conditions
from extproc.sim.jobs import Job, Result, work_all
from extproc.sim.policies.policy import Policy, Setting
from extproc.sim.report.slo import parse_slos
from extproc.sim.setup import Setup

ROOT = Path(__file__).parents[2]
POLICIES = ("extproc", "random", "dynamo_kv", "oracle", "round_robin")


def jobs(*policies: str, draws: bool = False) -> list[Job]:
    setups = [
        Setup(trace="t", traffic="rag?requests=80", fleet=mixed(), conditions=Conditions(seed=seed), load=0.8)
        for seed in (0, 1)
    ]
    slos = parse_slos([])
    return [Job(place, setup, name, slos, draws) for place, setup in enumerate(setups) for name in policies]


def untimed(results: list[Result]) -> list[Result]:
    return [replace(result, cpu_s=0.0) for result in results]


def apart(check: Callable[..., None], *arguments: object) -> None:
    """Make a check in a process of its own: processes are forked, and where tests have started threads they break."""
    call = f"from {__name__} import {check.__name__}; {check.__name__}{arguments!r}"
    command = [sys.executable, "-c", call]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def several_processes_give_what_one_gives(processes: int) -> None:
    asked = jobs(*POLICIES, draws=True)
    alone, together = list(work_all(asked, 1)), list(work_all(asked, processes))
    assert [(result.place, result.policy) for result in together] == [(job.place, job.policy) for job in asked]
    assert untimed(alone) == untimed(together)
    assert all(result.cpu_s > 0 for result in together)


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_give_what_one_gives(processes: int) -> None:
    """Every figure and every curve, in the order of the jobs."""
    apart(several_processes_give_what_one_gives, processes)


def test_curves_are_made_only_where_they_are_drawn() -> None:
    """They are large."""
    assert [result.curves for result in work_all(jobs("random")[:1], 1)] == [None]


def an_error_comes_back_as_it_was_told(processes: int) -> None:
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        list(work_all(jobs("random", "tests.sim.strangers:raises"), processes))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_comes_back_as_it_was_told(processes: int) -> None:
    """From another process, too."""
    apart(an_error_comes_back_as_it_was_told, processes)


def dies(setting: Setting) -> Policy:
    """Is killed, as the kernel does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def a_killed_process_is_told_of() -> None:
    with pytest.raises(ProcessError, match="killed"):
        list(work_all(jobs("random", f"{__name__}:dies"), 2))


def test_a_killed_process_is_told_of() -> None:
    """Rather than waited for."""
    apart(a_killed_process_is_told_of)
