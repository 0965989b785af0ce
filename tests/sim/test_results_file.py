"""Results on file: what is there is not run again, unless what it came from has changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.core.pricing.slo import Slo
from extproc.core.values.request import RequestClass
from extproc.errors import ConfigError
from extproc.sim import jobs as jobs_module
from extproc.sim import results_file
from extproc.sim.fleet.builtin import mixed
from extproc.sim.fleet.spec import Conditions
from extproc.sim.jobs import Job, Result, resumed, work
from extproc.sim.report.slo import DEFAULT_SLOS
from extproc.sim.results_file import ResultsFile, inputs_digest
from extproc.sim.setup import Setup

SETUP = Setup(trace="t", traffic="rag?requests=40", fleet=mixed(), conditions=Conditions(), load=0.8)
JOBS = [
    Job(place, replace(SETUP, conditions=Conditions(seed=place)), policy, DEFAULT_SLOS)
    for place in (0, 1)
    for policy in ("extproc", "random")
]


@pytest.fixture(name="worked")
def _worked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Policies that were really run, in order."""
    found: list[str] = []

    def counted(job: Job) -> Result:
        found.append(job.policy)
        return work(job)

    monkeypatch.setattr(jobs_module, "work", counted)
    return found


def test_what_is_on_file_is_not_run_again(tmp_path: Path, worked: list[str]) -> None:
    """And reads the same to the last digit, in the order of the jobs."""
    path = tmp_path / "results.jsonl"
    first = list(resumed(JOBS, 1, ResultsFile(path)))
    assert worked == ["extproc", "random"] * 2
    assert list(resumed(JOBS, 1, ResultsFile(path))) == first
    assert worked == ["extproc", "random"] * 2
    assert [result.place for result in first] == [0, 0, 1, 1]


def test_a_half_written_line_is_cut_off_and_run_again(tmp_path: Path, worked: list[str]) -> None:
    """Whatever a kill left of it; the others stay."""
    path = tmp_path / "results.jsonl"
    whole = list(resumed(JOBS, 1, ResultsFile(path)))
    lines = path.read_bytes().splitlines(keepends=True)
    for left in (1, 30, len(lines[-1]) - 1):
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
        del worked[:]
        assert [r.figures for r in resumed(JOBS, 1, ResultsFile(path))] == [r.figures for r in whole]
        assert worked == ["random"]
        assert len(list(map(json.loads, path.read_bytes().splitlines()))) == len(JOBS)


def test_only_what_other_code_made_is_run_anew(
    tmp_path: Path, worked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours has changed, the rival has not."""
    path = tmp_path / "results.jsonl"
    list(resumed(JOBS, 1, ResultsFile(path)))
    del worked[:]
    real = results_file.digest_of
    monkeypatch.setattr(
        results_file, "digest_of", lambda policy, scaler: "changed" if policy == "extproc" else real(policy, scaler)
    )
    list(resumed(JOBS, 1, ResultsFile(path)))
    assert worked == ["extproc", "extproc"]
    del worked[:]
    monkeypatch.setattr(results_file, "digest_of", real)
    list(resumed(JOBS, 1, ResultsFile(path)))
    assert not worked, "what the former code made is still there"


def test_a_policy_from_outside_is_always_run(tmp_path: Path, worked: list[str]) -> None:
    """Its sources are not ours to follow."""
    path = tmp_path / "results.jsonl"
    outside = [Job(0, SETUP, "extproc.sim.policies.textbook:random", DEFAULT_SLOS)]
    for _ in range(2):
        list(resumed(outside, 1, ResultsFile(path)))
    assert len(worked) == 2
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "other",
    [
        replace(SETUP, load=0.9),
        replace(SETUP, traffic="rag?requests=41"),
        replace(SETUP, fleet=replace(mixed(), instances=mixed().instances[1:])),
        replace(SETUP, conditions=Conditions(seed=1)),
        replace(SETUP, conditions=Conditions(peer_delay_s=0.5)),
        replace(SETUP, requests=7),
        replace(SETUP, load=None, rate_rps=3.0),
    ],
)
def test_whatever_a_result_depends_on_is_in_its_digest(other: Setup) -> None:
    """But a name that is only shown is not."""
    assert inputs_digest(other, DEFAULT_SLOS, "random") != inputs_digest(SETUP, DEFAULT_SLOS, "random")
    shown = replace(other, trace="another name")
    assert inputs_digest(shown, DEFAULT_SLOS, "random") == inputs_digest(other, DEFAULT_SLOS, "random")


def test_policies_and_objectives_are_in_it_too() -> None:
    """Goodput is counted with them."""
    slos = {**DEFAULT_SLOS, RequestClass.BATCH: Slo(ttft_s=1.0)}
    digests = {inputs_digest(SETUP, s, p) for s in (slos, DEFAULT_SLOS) for p in ("random", "extproc")}
    assert len(digests) == 4


def test_a_file_counts_by_its_content(tmp_path: Path) -> None:
    """It may lie elsewhere, and must not have changed; in a mix as well."""

    def digest(name: str, text: str, form: str) -> str:
        path = tmp_path / name
        path.write_text(text)
        os.utime(path, ns=(len(text), len(text)))
        return inputs_digest(replace(SETUP, traffic=form.format(path)), DEFAULT_SLOS, "random")

    for form in ("{}", "log:{}?seed=2", "60% chat + 40% log:{}"):
        first = digest("a.jsonl", "one", form)
        assert digest("b.jsonl", "one", form) == first
        assert digest("a.jsonl", "other", form) != first


def test_a_file_counts_by_its_content_however_its_path_is_written(tmp_path: Path) -> None:
    """Also where that is not how paths are shown: else its results would outlive it."""
    path = tmp_path / "log.jsonl"
    setup = replace(SETUP, traffic=f"mooncake:{tmp_path}//log.jsonl")
    digests = set()
    for length in (10, 11):
        path.write_text(f'{{"timestamp": 0, "input_length": {length}, "output_length": 5, "hash_ids": [1]}}\n')
        os.utime(path, ns=(length, length))
        digests.add(inputs_digest(setup, DEFAULT_SLOS, "extproc"))
    assert len(digests) == 2


@pytest.mark.parametrize("text", ['{"cells": []}\n', '{"cells": [', "a,b\n1,2\n"])
def test_a_file_of_anything_else_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    """A person may mistake the JSON for it."""
    path = tmp_path / "suite.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"suite\.json, line 1: no result"):
        ResultsFile(path)
    assert path.read_text() == text


def test_a_place_that_cannot_be_written_is_told_before_anything_is_run(tmp_path: Path) -> None:
    """In one line."""
    with pytest.raises(ConfigError, match="cannot write"):
        ResultsFile(tmp_path / "nowhere" / "results.jsonl")


@pytest.mark.long
def test_a_suite_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """With SIGKILL and two processes, which end as well; then all is as if nothing had happened."""
    path = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "extproc", "simulate", "--traffic", "rag", "--requests", "30", "--json"]
    command += ["--policy", "random,least_kv,lmetric,extproc", "--seeds", "4", "--jobs", "2"]
    whole = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout
    running = subprocess.Popen([*command, "--resume", str(path)], stdout=subprocess.DEVNULL, start_new_session=True)
    while not (path.exists() and path.stat().st_size):
        assert running.poll() is None
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    while _alive(running.pid):
        time.sleep(0.05)
    kept = path.read_bytes().count(b"\n")
    again = subprocess.run([*command, "--resume", str(path)], check=True, capture_output=True, timeout=300)
    assert again.stdout == whole
    assert kept > 0
    assert path.read_bytes().count(b"\n") == 16


def _alive(group: int) -> bool:
    """Whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
