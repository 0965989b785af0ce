"""Under steady traffic through a real Envoy, whatever befalls Redis or an agent is no client's failure.

Not run by default: `pytest -m chaos -s` shows how many requests a second this machine managed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from extproc.adapters.http_client import HttpClient
from extproc.core.fleet.degradation import Rung
from extproc.demo.stack import EngineSpec, Stack, running_stack, start_engines
from tests.chaos.faults import FAULTS, Deployment, killed
from tests.chaos.load import Load
from tests.chaos.pages import Pages
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer

pytestmark = pytest.mark.chaos

ENGINES = (EngineSpec("a", "h100_sxm"), EngineSpec("b", "h100_sxm"))
# Shorter than by default, so that less is waited for; longer than a report takes through the wire of `slow`: 4 s.
RECORDS_LIVE_S = 6.0
LONGER_THAN_RECORDS_LIVE_S = 7.0
# Requests that are routed while the fault lasts. By number and not by share: on a starved machine Envoy goes on without
# an answer after 250 ms. A router that passes requests on by itself is told by its own count, which must be 0.
DECIDED = 100


# What is peculiar to a kind of server is how it ends and comes back; the rest is the same protocol.
CASES = [pytest.param("valkey", each, id=f"valkey-{each.__name__}") for each in FAULTS]
CASES += [pytest.param("redis", killed, id="redis-killed")]


@dataclass(frozen=True, slots=True)
class Watched:
    """A stack under load, and what its service tells of itself."""

    stack: Stack
    agent_pid: int
    pages: Pages
    load: Load


@pytest.fixture(autouse=True)
def _short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXTPROC_AGENT_TTL_S", str(RECORDS_LIVE_S))


@asynccontextmanager
async def under_load(redis_url: str, folder: Path) -> AsyncIterator[Watched]:
    """Run engines, agent, service and Envoy with a steady load; at the end no request may have failed."""
    async with Processes(folder) as processes, HttpClient(timeout_s=60.0, connect_timeout_s=30.0) as http:
        engines = await start_engines(processes, ENGINES)
        async with running_stack(processes, folder, engines, redis_url, compared=False) as stack:
            agent = next(child for child in processes.children if child.name == "agent")
            async with Load(http, stack.routed_url) as load:
                await load.more(200)
                yield Watched(stack, agent.process.pid, Pages(stack, http), load)
            assert load.answers == {"ok": load.sent}
            print(f"\n{load.sent} requests, {load.rps:.0f} a second, none failed", end=" ")  # noqa: T201


@pytest.mark.parametrize(("kind", "deployment"), CASES, indirect=["kind"])
async def test_whatever_befalls_redis_requests_are_decided_upon(
    deployment: Deployment, kind: str, tmp_path: Path
) -> None:
    """None fails, none is merely passed on; the degraded state shows while it lasts, and goes by itself."""
    async with deployment(kind, tmp_path) as fault, under_load(fault.url, tmp_path) as watched:
        pages, load = watched.pages, watched.load
        assert await pages.rungs() == frozenset()
        entered = await pages.entered()
        first, sent = await pages.requests(), load.sent
        await fault.begin()
        await eventually(pages.rungs, lambda rungs: rungs == {Rung.REDIS_STALE})
        await asyncio.sleep(LONGER_THAN_RECORDS_LIVE_S)
        before = await pages.requests()
        await load.more(200)
        await eventually(pages.requests, lambda now: now["routed"] >= before["routed"] + DECIDED)
        await fault.end()
        await eventually(pages.rungs, lambda rungs: not rungs)
        await eventually(pages.known, lambda known: known == {"a", "b"})
        before = await pages.requests()
        await eventually(pages.requests, lambda now: now["routed"] >= before["routed"] + DECIDED)
        await load.end()
        last = await pages.requests()
        assert set(last) == {"routed"}
        share = (last["routed"] - first["routed"]) / (load.sent - sent)
        print(f"\n{share:.2%} were decided upon", end="; ")  # noqa: T201
        assert set(await pages.entered() - entered) == {Rung.REDIS_STALE}
        output = watched.stack.service.output()
        assert output.count("degraded, redis_stale: ") == output.count("no longer redis_stale, ") > 0


async def test_a_frozen_agent_leads_down_the_ladder_and_up_again(tmp_path: Path) -> None:
    """Its instances go stale, are dropped, and requests go on by Envoy's own balancing until it thaws."""
    with RedisServer("valkey", tmp_path) as server:
        async with under_load(server.url, tmp_path) as watched:
            pages, load = watched.pages, watched.load
            os.kill(watched.agent_pid, signal.SIGSTOP)
            try:
                await eventually(pages.rungs, lambda rungs: rungs == {Rung.INSTANCE_STALE})
                await load.more(50)
                assert set(await pages.requests()) == {"routed"}
                last = {Rung.INSTANCE_DROPPED, Rung.NO_INSTANCE}
                await eventually(pages.rungs, lambda rungs: rungs == last)
                await load.more(200)
                assert (await pages.requests())["passed_on"] >= 100
            finally:
                os.kill(watched.agent_pid, signal.SIGCONT)
            await eventually(pages.rungs, lambda rungs: not rungs)
            before = await pages.requests()
            await load.more(200)
            after = await eventually(pages.requests, lambda now: now["routed"] >= before["routed"] + DECIDED)
            assert after["passed_on"] == before["passed_on"]
