"""What a restart of the agent does to its backends: nothing, unless it is asked to drain them."""

from __future__ import annotations

import pytest

from extproc.adapters.registry import Registry
from extproc.agent.backend import Backend
from extproc.agent.sources import given
from extproc.core.values.instance import Lifecycle
from tests.agent.backends import ScriptedBackend
from tests.agent.harness import agent, eventually, watching
from tests.redis_server import RedisServer
from tests.sim import engines


async def test_an_agent_that_does_not_drain_leaves_the_last_record(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """It lives on for its TTL, and routers see it grow old."""
    async with backend, watching(server) as seen:
        async with agent(server, given([Backend(url=backend.url)]), drain_on_stop=False):
            await seen.is_lifecycle(Lifecycle.READY)
        async with Registry(server.url) as registry:
            (last,) = (await registry.state()).records
    assert last.instance.lifecycle is Lifecycle.READY
    assert last.ttl_s > 0
    assert {instance.lifecycle for instance in seen.history} == {Lifecycle.READY}


async def test_an_engine_that_does_not_tell_its_start_keeps_its_incarnation_over_a_restart_of_the_agent(
    server: RedisServer,
) -> None:
    """Here the simulated engine; ledger and prefixes stay with it."""
    async with engines.running() as engine, watching(server) as seen:
        source = given([Backend(url=engine.url, id="gpu-0")])
        for _ in range(3):
            before = len(seen.history)
            async with agent(server, source, drain_on_stop=False):
                await eventually(lambda: len(seen.history) > before + 1)  # noqa: B023
    assert {instance.lifecycle for instance in seen.history} == {Lifecycle.READY}
    assert len({instance.incarnation for instance in seen.history}) == 1


@pytest.mark.parametrize("told", [True, False], ids=["by its start", "by its counters"])
async def test_an_engine_that_restarted_while_no_agent_looked_is_another_incarnation(
    server: RedisServer, backend: ScriptedBackend, told: bool
) -> None:
    """Told by what it says now against what the last record says."""
    backend.started = 1000.0 if told else None
    backend.work_done = 500
    source = given([Backend(url=backend.url)])
    async with backend, watching(server) as seen:
        async with agent(server, source, drain_on_stop=False):
            before = await seen.until(lambda instance: instance.work_done == 500)
        backend.started = 2000.0 if told else None
        backend.work_done = 600 if told else 20
        async with agent(server, source, drain_on_stop=False):
            after = await seen.until(lambda instance: instance.work_done == backend.work_done)
    assert after.incarnation != before.incarnation


async def test_a_restarted_agent_does_not_lose_what_it_cannot_see_at_first(
    server: RedisServer, backend: ScriptedBackend
) -> None:
    """An engine that answers late stays ready, with its last known load, which grows old."""
    backend.running = 7
    source = given([Backend(url=backend.url)])
    async with backend, watching(server) as seen:
        async with agent(server, source, drain_on_stop=False):
            await seen.until(lambda instance: instance.load.running == 7)
        before = len(seen.history)
        backend.stalled |= {"/health", "/metrics", "/v1/models", "/version"}
        async with agent(server, source, drain_on_stop=False):
            await eventually(lambda: any(told.age_s > 0 for told in seen.history[before:]))
            first = next(told for told in seen.history[before:] if told.age_s > 0)  # not the first agent's last word
    assert (first.lifecycle, first.models, first.load.running) == (Lifecycle.READY, ("tiny",), 7)
    assert first.incarnation == "1000.00"


async def test_nothing_is_published_before_the_last_record_could_be_read(
    server: RedisServer, backend: ScriptedBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Else an outage of the registry at the agent's start would give the engine a new incarnation."""
    server.stop()
    source = given([Backend(url=backend.url)])
    async with backend, agent(server, source, drain_on_stop=False):
        await eventually(lambda: "cannot publish" in caplog.text)
        assert backend.probes == 0
        server.start()
        async with watching(server) as seen:
            await seen.is_lifecycle(Lifecycle.READY)
