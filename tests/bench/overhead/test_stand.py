"""A round of a service whose processes come and go, and what of it counts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from extproc.bench.overhead.figures import OURS
from extproc.bench.overhead.generator import Generator
from extproc.bench.overhead.load import Answers
from extproc.bench.overhead.stand import Stand, Way
from extproc.bench.overhead.usage import family, lost
from extproc.demo.processes import Processes

SERVICE = (
    "trap 'sleep 60 & wait' USR1; sleep 60 & while :; do wait; sleep 0.01; done"  # a worker; more of them by signal
)


class Meanwhile:
    """Stands for the generator: all is answered, and something happens meanwhile."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens

    async def run(self, _what: object) -> Answers:
        self._happens()
        await asyncio.sleep(0.3)
        return Answers(sent=9, elapsed_s=1.0, latencies_s=[0.1] * 9, errors={}, late_s=[])


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Way]:
    """A service with one worker."""
    async with Processes(directory) as processes:
        service = await processes.start("serve", "sh", "-c", SERVICE)
        envoy = await processes.start("envoy", "sleep", "60")
        way = Way(1, 2, envoy, [service])
        for _ in range(1000):
            if len(way.service_pids()) > 1:
                break
            await asyncio.sleep(0.01)
        try:
            yield way
        finally:
            for pid in reversed(family(service.process.pid)):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("happens", "errors"), [("nothing", {}), ("worker", 9), ("new worker", {})])
async def test_a_round_in_which_a_worker_dies_has_failed(happens: str, errors: object, tmp_path: Path) -> None:
    """What it used is lost, so that the others' time would be too little for all that was answered."""
    async with running(tmp_path) as way:
        service, worker, *_ = way.service_pids()
        does = {
            "nothing": lambda: None,
            "worker": lambda: os.kill(worker, signal.SIGKILL),
            "new worker": lambda: os.kill(service, signal.SIGUSR1),
        }[happens]
        stand = Stand({OURS: way}, cast(Generator, cast(Any, Meanwhile(does))))
        spent = await stand.round(OURS, {"body_bytes": 1, "seconds": 1.0})
    if errors:
        assert spent.errors == {"a process of the service or its Envoy has ended": errors}
        assert not spent.latencies_s
        assert spent.service_us is None
    else:
        assert not spent.errors
        assert len(spent.latencies_s) == 9


def test_one_that_is_gone_is_missed_and_one_that_is_new_is_not() -> None:
    """Gone between the listing and the look, its time is 0."""
    assert not lost({1: 5.0, 2: 0.0}, {1: 5.0, 2: 0.0, 3: 1.0})
    assert lost({1: 5.0, 2: 0.0}, {1: 6.0})
    assert lost({1: 5.0}, {1: 0.0})
