"""Runs an agent inside a test, and watches what a router would see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from extproc.adapters.registry import Registry
from extproc.agent.agent import Orders, run_agent
from extproc.agent.backend import Backend
from extproc.agent.settings import AgentSettings
from extproc.agent.sources import Source, given
from extproc.core.fleet.fleet import Fleet
from extproc.core.values.instance import Instance, Lifecycle
from tests.redis_server import RedisServer

PERIOD_S = 0.05
LONG_S = 30.0  # never reached by a machine that works


class Seen:
    """What a router sees of the fleet while an agent runs."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.history: list[Instance] = []

    def one(self) -> Instance | None:
        """The only instance there is."""
        members = self.fleet.members()
        return members[0].instance if members else None

    def get(self, name: str) -> Instance | None:
        """The instance of that id."""
        member = self.fleet.get(name)
        return member and member.instance

    async def until(self, condition: Callable[[Instance], bool]) -> Instance:
        async with asyncio.timeout(LONG_S):
            while (instance := self.one()) is None or not condition(instance):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return instance

    async def is_lifecycle(self, lifecycle: Lifecycle) -> Instance:
        return await self.until(lambda instance: instance.lifecycle is lifecycle)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition as long as a very slow machine may need."""
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def watching(server: RedisServer) -> AsyncIterator[Seen]:
    """A router's view of the fleet."""
    seen = Seen()
    async with Registry(server.url) as watched:
        watcher = asyncio.create_task(
            watched.watch(seen.fleet, lambda change: seen.history.extend(m.instance for m in change.reported))
        )
        try:
            yield seen
        finally:
            watcher.cancel()


@asynccontextmanager
async def agent(
    server: RedisServer, source: Source, *, again: asyncio.Event | None = None, **settings: Any
) -> AsyncIterator[asyncio.Event]:
    """An agent alone; leaving ends it as SIGTERM would, and waits for it."""
    stopping = asyncio.Event()
    told = AgentSettings(**{"period_s": PERIOD_S, "grace_s": 0, **settings})
    async with Registry(server.url) as registry:
        task = asyncio.create_task(run_agent(Orders(source, told, again or asyncio.Event()), registry, stopping))
        try:
            yield stopping
        finally:
            stopping.set()
            await asyncio.wait_for(task, LONG_S)


@asynccontextmanager
async def running_agent(
    server: RedisServer, *backends: Backend, **settings: Any
) -> AsyncIterator[tuple[Seen, asyncio.Event]]:
    """An agent and a watcher."""
    async with watching(server) as seen, agent(server, given(backends), **settings) as stopping:
        yield seen, stopping
