"""Simulations side by side: the same figures in the same order as one after another."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import cache

import pytest

from extproc.errors import ConfigError, ProcessError
from extproc.sim.fleet.builtin import mixed
from extproc.sim.fleet.spec import Conditions
from extproc.sim.jobs import Job, Result, work_all
from extproc.sim.policies.policy import Policy, Setting
from extproc.sim.report.slo import parse_slos
from extproc.sim.setup import Setup

POLICIES = ("extproc", "random", "dynamo_kv", "oracle", "round_robin")


def jobs(*policies: str, draws: bool = False) -> list[Job]:
    setups = [
        Setup(trace="t", traffic="chat?requests=80", fleet=mixed(), conditions=Conditions(seed=seed), load=0.8)
        for seed in (0, 1)
    ]
    slos = parse_slos([])
    return [Job(place, setup, name, slos, draws) for place, setup in enumerate(setups) for name in policies]


def untimed(results: list[Result]) -> list[Result]:
    return [replace(result, cpu_s=0.0) for result in results]


@cache
def one_after_another() -> list[Result]:
    """Of all policies."""
    return list(work_all(jobs(*POLICIES, draws=True), 1))


@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_give_what_one_gives(processes: int) -> None:
    """Every figure and every curve, in the order of the jobs."""
    asked = jobs(*POLICIES, draws=True)
    alone, together = one_after_another(), list(work_all(asked, processes))
    assert [(result.place, result.policy) for result in together] == [(job.place, job.policy) for job in asked]
    assert untimed(alone) == untimed(together)
    assert all(result.cpu_s > 0 for result in together)


def test_curves_are_made_only_where_they_are_drawn() -> None:
    """They are large."""
    assert [result.curves for result in work_all(jobs("random")[:1], 1)] == [None]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_comes_back_as_it_was_told(processes: int) -> None:
    """From another process, too."""
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        list(work_all(jobs("random", "tests.sim.strangers:raises"), processes))


def dies(setting: Setting) -> Policy:
    """Is killed, as the kernel does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_killed_process_is_told_of() -> None:
    """Rather than waited for."""
    with pytest.raises(ProcessError, match="killed"):
        list(work_all(jobs("random", f"{__name__}:dies"), 2))
