"""How the service ends for whoever sits at its terminal: in order by Ctrl-C, at once by a second one."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import grpc.aio
import pytest

from extproc.demo.processes import wait_for_line
from extproc.server.tasks import Stop
from tests.processes import Processes
from tests.redis_server import RedisServer
from tests.server.test_service import headers, process

LONG_S = 60.0  # never reached by a machine that works
ANYWHERE = "127.0.0.1:0"
INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("told", "at_once"),
    [
        ([(0.0, TERM)], False),
        ([(0.0, INT)], False),
        ([(0.0, INT), (0.1, INT)], False),  # the terminal's, and the same again by who has started us
        ([(0.0, INT), (0.1, INT), (0.2, INT)], False),
        ([(0.0, INT), (2.0, INT)], True),
        ([(0.0, TERM), (0.1, INT)], True),
        ([(0.0, TERM), (9.0, TERM)], False),  # of a supervisor, which kills when it has waited enough
    ],
)
async def test_a_second_interrupt_is_another_one_if_it_comes_later(
    told: list[tuple[float, signal.Signals]], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them ask for the end."""
    stop = Stop()
    try:
        for now_s, number in told:
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda now_s=now_s: 1000.0 + now_s, raising=False)
            stop._take(number)
            assert stop.is_set()
        assert stop.at_once.is_set() is at_once
    finally:
        monkeypatch.undo()
        for number in (TERM, INT):
            asyncio.get_running_loop().remove_signal_handler(number)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_second_ctrl_c_does_not_wait_for_requests_that_run(tmp_path: Path, workers: str) -> None:
    """One runs, and would for an hour."""
    with RedisServer("valkey", tmp_path) as server:
        async with Processes(tmp_path) as processes:
            places = ("--listen", ANYWHERE, "--metrics-listen", ANYWHERE, "--workers", workers, "--drain-s", "3600")
            child = await processes.start_extproc("serve", "serve", *places, "--redis-url", server.url)
            await wait_for_line(child, r"serv\S* ext_proc on .*pages on port", LONG_S)
            found = await wait_for_line(child, r"(?:worker 0: )?serving ext_proc on port (\d+)", LONG_S)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{found[1]}") as channel:
                call = process(channel)
                await call.write(headers())
                assert await call.read()
                child.process.send_signal(INT)
                await wait_for_line(child, r"draining for up to 3600 s; Ctrl-C ends that", LONG_S)
                async with asyncio.timeout(LONG_S):
                    while child.process.returncode is None:
                        await asyncio.sleep(0.6)
                        child.process.send_signal(INT)
            assert await child.process.wait() == 0
            assert "killed" not in child.output()
