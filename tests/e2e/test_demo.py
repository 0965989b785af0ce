"""The demo as a newcomer runs it: figures that show the point, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from extproc.demo.run import print_invitation
from extproc.demo.stack import Stack
from extproc.demo.table import live_view

KINDS = ("start", "stop")


def children_of(pid: int) -> set[int]:
    """Processes that a process has started and that still run."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")  # each thread has its own
    return {int(child) for path in lists for child in path.read_text().split()}


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@contextmanager
def demo_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if name != "EXTPROC_REDIS_URL"}
    command = [sys.executable, "-m", "extproc", "demo", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.long
def test_the_sample_is_answered_faster_than_by_round_robin() -> None:
    with demo_process("--once") as demo:
        output, errors = demo.communicate(timeout=180)
    assert demo.returncode == 0, errors
    report = json.loads(output.splitlines()[-1])
    assert report["requests"] > 0
    assert report["failed"] == 0
    ours, plain = report["extproc"], report["round_robin"]
    assert ours["ttft_mean_s"] < plain["ttft_mean_s"]
    assert ours["e2e_mean_s"] < plain["e2e_mean_s"]
    assert ours["cached_token_share"] > plain["cached_token_share"]


def test_what_it_invites_to_try_is_of_a_fleet_of_its_own() -> None:
    """In the fleet of a shared Redis, real requests would go to its engines."""
    nothing: Any = None
    stack = Stack((), "redis://h:1/0", "http://h:2", "", "http://h:3", nothing, nothing, nothing)
    told = StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "which", lambda _name: "/somewhere/extproc")
        print_invitation(Console(file=told, width=40), stack)
    _, pages, _, curl, explain, fleet, top = told.getvalue().splitlines()
    assert pages == "  http://h:3/"
    assert curl.startswith("  curl http://h:2/v1/chat/completions ")
    assert explain == "  extproc explain last --pages http://h:3"
    assert fleet == "  extproc fleet drain h100-0 --redis-url redis://h:1/0 --fleet demo"
    assert top == "  extproc top --pages http://h:3"


def test_what_it_invites_to_try_runs_where_the_environment_is_not_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README starts it as `.venv/bin/extproc`: a bare `extproc` would not be found."""
    nothing: Any = None
    stack = Stack((), "redis://h:1/0", "http://h:2", "", "http://h:3", nothing, nothing, nothing)
    told = StringIO()
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    print_invitation(Console(file=told, width=40), stack)
    assert f"  {sys.executable} -m extproc explain last --pages http://h:3" in told.getvalue().splitlines()


def test_the_live_tables_fit_a_terminal_of_80_columns() -> None:
    """Nothing is cut or wrapped: `h100-0` and `h100-1` must be told apart at the first look."""
    hardware, ids = "h100_sxm", ("h100-0", "h100-1", "l40s-bf34cf7c")
    fleet = [
        {
            "id": each,
            "hardware": hardware,
            "lifecycle": "Draining",
            "in_flight": 123,
            "waiting": 123,
            "kv_usage": 1.0,
            "prefill_backlog_s": 0.999,
            "prefix_blocks": 12345,
            "age_s": 99.9,
        }
        for each in ids
    ]
    cost = {"queue_s": 0.999, "prefill_s": 0.999, "decode_s": 2.345}
    second = {"instance": ids[2], "cost": cost}
    decision = {
        "instance": ids[2],
        "cost": cost,
        "prompt_tokens": 123456,
        "cached_tokens": 123456,
        "alternatives": [second],
    }
    told = StringIO()
    Console(file=told, width=80).print(live_view(fleet, [decision], "serving"))
    assert "…" not in told.getvalue()
    assert sum(each in line for each in ids for line in told.getvalue().splitlines()) == len(ids) + 1
    assert "l40s-bf34cf7c 4.34 s" in told.getvalue()


def test_ctrl_c_leaves_no_process_behind() -> None:
    with demo_process() as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "Everything runs" in line:
                break
        children = children_of(demo.pid)
        assert len(children) >= 9  # Valkey, four engines, agent, service, two Envoys
        demo.send_signal(signal.SIGINT)
        demo.send_signal(signal.SIGINT)  # an impatient person presses it twice
        demo.communicate(timeout=60)
    assert not [pid for pid in children if runs(pid)]


@pytest.mark.soak
def test_engines_are_started_for_a_load_and_stopped_after_it_and_none_is_left_behind() -> None:
    """One swing: how long it takes is the machine's affair, that instances follow it both ways is not."""
    children: set[int] = set()
    with demo_process("--autoscale", "--once") as demo:
        assert demo.stderr is not None
        errors = []
        for line in demo.stderr:  # one a start or a stop
            errors.append(line)
            children |= children_of(demo.pid)
        output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 0, errors
    report = json.loads(output.splitlines()[-1])
    assert report["requests"] > 0
    assert report["failed"] == 0
    assert 0.0 <= report["within_slo"] <= 1.0
    assert report["most_ready"] > report["ready"] == 1
    started, stopped = ({each["instance"] for each in report["orders"] if each["action"] == kind} for kind in KINDS)
    assert started
    assert len(({"l40s-first"} | started) - stopped) == 1
    assert all(each["signal"] for each in report["orders"] if each["action"] == "start")
    assert len(children) >= 7  # Valkey, the first engine, agent, service, control plane, Envoy, autoscaler
    assert not [pid for pid in children if runs(pid)]
