"""Guards what a request costs: the service's processor time beside the do-nothing service's, in one run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from extproc.bench.overhead.figures import FLOOR, OURS
from extproc.bench.overhead.plan import Cell, Plan, Streams
from extproc.bench.overhead.run import overhead
from extproc.bench.overhead.usage import family

SERVE = (sys.executable, "-m", "extproc", "serve")
# Processor time for each request of 4 KiB with 64 instances, times the floor's; what is used while nobody asks is left
# out. A machine that many share shows up to twice what an idle one does: caches are cold, and more code is run here.
MAX_CPU_RATIO = 6.0
# Following the fleet while nobody asks costs as much a second as so many requests cost the floor; usually 70 to 100.
MAX_FOLLOWING = 400.0
# A stream that waits for its engine, beyond one of the floor's; usually 5 to 10, with what is taken meanwhile anyway.
MAX_STREAM_KIB = 50.0


FEWEST = 300  # requests of each way that were decided; of fewer, what the fleet's news cost meanwhile is most of it
# Seconds of one way's round, and streams that are held before: on a busy machine less is done in a time, and a service
# does longer what it does once after its start, so that it is looked for longer.
LOOKS = ((0.5, 300), (2.0, 600), (8.0, 1200), (32.0, 2000))


@pytest.mark.long
async def test_a_request_costs_a_bounded_multiple_of_a_service_that_does_nothing() -> None:
    """Through a real Envoy with real Valkey and state that changes; ratios of processor time, never wall time.

    In the same run, following the fleet while nobody asks, and the memory of a stream. Chance may make a short look too
    dear, or too cheap; what is dear stays so however long it is looked at.
    """
    for seconds, streams in LOOKS:
        cells = (Cell(64, 1, 4096, None),)
        plan = Plan(cells, seconds=seconds, rounds=4, warm_up_s=0.5, clients=2, streams=(Streams(streams, 4096),))
        report = await overhead(plan, SERVE, ways=(FLOOR, OURS))
        assert report is not None
        (cell,), (held,) = report["cells"], report["streams"]
        decided = min(cell[name]["requests"] - cell[name]["errors"] for name in (FLOOR, OURS))
        if decided >= FEWEST and cell["over_floor"]["own_cpu_ratio"] < MAX_CPU_RATIO and within(cell, held):
            break
    assert decided >= FEWEST
    assert cell[FLOOR]["cpu_us_per_request"] > 0.0
    assert cell["over_floor"]["own_cpu_ratio"] < MAX_CPU_RATIO
    assert cell[OURS]["background_cpu_us_per_s"] > 0.0  # the fleet's state was followed
    assert following(cell) < MAX_FOLLOWING
    assert held[OURS]["held"] >= 0.9 * held["streams"]
    assert stream_kib(held, OURS) - stream_kib(held, FLOOR) < MAX_STREAM_KIB


def within(cell: dict[str, Any], held: dict[str, Any]) -> bool:
    """Whether following the fleet and a stream's memory are within their bounds."""
    kept = held[OURS]["held"] >= 0.9 * held["streams"] and held[FLOOR]["held"] > 0
    beyond = kept and stream_kib(held, OURS) - stream_kib(held, FLOOR) < MAX_STREAM_KIB
    return bool(beyond and following(cell) < MAX_FOLLOWING)


def following(cell: dict[str, Any]) -> float:
    """How many of the floor's requests a second of following the fleet costs as much as."""
    return float(cell[OURS]["background_cpu_us_per_s"] / cell[FLOOR]["cpu_us_per_request"])


def stream_kib(held: dict[str, Any], name: str) -> float:
    """Memory of one stream."""
    return float(held[name]["service_bytes_per_1000_streams"] / 1000 / 1024)


@pytest.mark.chaos
def test_an_interrupted_run_leaves_no_process_behind(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a measurement."""
    log = tmp_path / "log"
    with log.open("wb") as output:
        command = (sys.executable, "-m", "extproc", "bench", "--quick")
        process = subprocess.Popen(command, stderr=output, env={**os.environ, "TMPDIR": str(tmp_path)})
    try:
        while "4096 bytes" not in log.read_text():
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        started = family(process.pid)
        assert len(started) >= 9  # itself, Valkey, four Envoys, churn, generator, floor, service
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    finally:
        process.kill()
        process.wait()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("extproc-bench-*"))
