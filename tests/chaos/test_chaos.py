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
from prometheus_client.parser import text_string_to_metric_families

from extproc.adapters.http_client import Answer, HttpClient
from extproc.core.degradation import Rung
from extproc.demo.processes import Child, Processes
from extproc.demo.stack import EngineSpec, Stack, running_stack, start_engines
from tests.chaos.faults import FAULTS, Deployment
from tests.chaos.load import Load
from tests.e2e.eventually import eventually
from tests.redis_server import KINDS, RedisServer, binary

pytestmark = pytest.mark.chaos

ENGINES = (EngineSpec("a", "h100_sxm"), EngineSpec("b", "h100_sxm"))
EXPECTED_SHARE = 0.99  # on a starved machine Envoy may have to go on without an answer, after 250 ms
LONGER_THAN_RECORDS_LIVE_S = 12.0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    if binary(str(request.param)) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@dataclass(frozen=True, slots=True)
class Watched:
    """A stack under load, and what its service tells of itself."""

    stack: Stack
    processes: Processes
    http: HttpClient
    load: Load

    async def requests(self) -> dict[str, int]:
        """How many were routed, passed on and answered so far."""
        totals: dict[str, int] = {}
        for labels, value in await self._samples("extproc_requests_total"):
            totals[labels["action"]] = totals.get(labels["action"], 0) + int(value)
        return totals

    async def decided_upon(self) -> float:
        """Share of what was answered that the service had routed, to the few that are under way."""
        requests = await self.requests()
        assert set(requests) == {"routed"}
        return requests["routed"] / self.load.answered

    async def rungs(self) -> frozenset[Rung]:
        """The rungs that the router stands on."""
        return frozenset(Rung(labels["rung"]) for labels, value in await self._samples("extproc_degraded") if value)

    async def entered(self) -> frozenset[Rung]:
        """The rungs that the router has stood on at any time."""
        samples = await self._samples("extproc_degradations_total")
        return frozenset(Rung(labels["rung"]) for labels, value in samples if value)

    async def known(self) -> set[str]:
        """Ids of the instances that have a fresh report."""
        return {row["id"] for row in await self.stack.fleet(self.http) if row["age_s"] < 2.0}

    def agent(self) -> Child:
        """The agent's process."""
        return next(child for child in self.processes.children if child.name == "agent")

    async def _samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        answer = await self.http.get(f"{self.stack.pages_url}/metrics")
        assert isinstance(answer, Answer), answer
        families = text_string_to_metric_families(answer.body.decode())
        return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


@asynccontextmanager
async def under_load(redis_url: str, folder: Path) -> AsyncIterator[Watched]:
    """Run engines, agent, service and Envoy with a steady load; at the end no request may have failed."""
    async with Processes(folder) as processes, HttpClient(timeout_s=60.0) as http:
        engines = await start_engines(processes, ENGINES)
        async with running_stack(processes, folder, engines, redis_url) as stack:
            async with Load(http, stack.routed_url) as load:
                await load.more(200)
                yield Watched(stack, processes, http, load)
                await load.more(200)
            assert load.answers == {"ok": load.sent}
            print(f"\n{load.sent} requests, {load.rps:.0f} a second, none failed")  # noqa: T201


@pytest.mark.parametrize("deployment", FAULTS, ids=lambda deployment: deployment.__name__)
async def test_whatever_befalls_redis_requests_are_decided_upon(
    deployment: Deployment, kind: str, tmp_path: Path
) -> None:
    """None fails, none is merely passed on; the degraded state shows while it lasts, and goes by itself."""
    async with deployment(kind, tmp_path) as fault, under_load(fault.url, tmp_path) as watched:
        assert await watched.rungs() == frozenset()
        await fault.begin()
        await eventually(watched.rungs, lambda rungs: rungs == {Rung.REDIS_STALE})
        await asyncio.sleep(LONGER_THAN_RECORDS_LIVE_S)
        before = await watched.requests()
        await watched.load.more(200)
        assert (await watched.requests())["routed"] >= before["routed"] + 100
        await fault.end()
        await eventually(watched.rungs, lambda rungs: not rungs)
        await eventually(watched.known, lambda known: known == {"a", "b"})
        await watched.load.more(200)
        assert await watched.entered() == {Rung.REDIS_STALE}
        share = await watched.decided_upon()
        print(f"\n{share:.2%} decided upon", end="")  # noqa: T201
        assert share >= EXPECTED_SHARE
        output = watched.stack.service.output()
        assert output.count("degraded, redis_stale: ") == output.count("no longer redis_stale, ") > 0


async def test_a_frozen_agent_leads_down_the_ladder_and_up_again(tmp_path: Path) -> None:
    """Its instances go stale, are dropped, and requests go on by Envoy's own balancing until it thaws."""
    with RedisServer("valkey", tmp_path) as server:
        async with under_load(server.url, tmp_path) as watched:
            agent = watched.agent().process.pid
            os.kill(agent, signal.SIGSTOP)
            try:
                await eventually(watched.rungs, lambda rungs: rungs == {Rung.INSTANCE_STALE})
                await watched.load.more(50)
                assert set(await watched.requests()) == {"routed"}
                last = {Rung.INSTANCE_DROPPED, Rung.NO_INSTANCE}
                await eventually(watched.rungs, lambda rungs: rungs == last)
                await watched.load.more(200)
                assert (await watched.requests())["passed_on"] >= 100
            finally:
                os.kill(agent, signal.SIGCONT)
            await eventually(watched.rungs, lambda rungs: not rungs)
            before = await watched.requests()
            await watched.load.more(200)
            after = await watched.requests()
            assert after["passed_on"] == before["passed_on"]
            assert after["routed"] >= before["routed"] + 100
