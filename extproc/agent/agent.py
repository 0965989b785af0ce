"""Runs beside backends: keeps one publisher for each backend that its source lists, and ends them all when stopped."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from extproc.adapters.http_client import HttpClient
from extproc.adapters.kv_log import KvLog
from extproc.agent.backend import unknown_hardware
from extproc.agent.publisher import Ending, Publisher, Surroundings
from extproc.agent.recall import LastRecords
from extproc.agent.starts_file import StartsFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from extproc.adapters.registry import Registry
    from extproc.agent.backend import Backend
    from extproc.agent.settings import AgentSettings
    from extproc.agent.sources import Source

log = logging.getLogger("extproc.agent")


@dataclass(slots=True)
class Orders:
    """What an agent is to do; `changed` is set where that is another, or where the source is to be read at once."""

    source: Source
    settings: AgentSettings
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, source: Source, settings: AgentSettings) -> None:
        """Do something else from now on."""
        self.source, self.settings = source, settings
        self.changed.set()


async def run_agent(orders: Orders, registry: Registry, stopping: asyncio.Event) -> None:
    """Publish all backends of the source until `stopping` is set; then drain them or not, as the settings say."""
    settings = orders.settings
    starts_file = StartsFile(settings.state_file)
    # No common limit of connections: backends that stall would keep the others from being looked at.
    unlimited = HttpClient(settings.patience_s, connections=0)
    async with unlimited as client, asyncio.TaskGroup() as group:
        around = Surroundings(
            client,
            registry,
            LastRecords(registry),
            starts_file.load(),
            starts_file,
            None,
            KvLog(registry.link, registry.base),
            settings,
        )
        crew = _Crew(around, group)
        while not stopping.is_set():
            around.use(orders.settings)
            source = orders.source
            backends = await source.read()
            if backends is not None:
                crew.become(backends)
            await _either(stopping, orders.changed, source.every_s)
            orders.changed.clear()
        crew.end(Ending.DRAIN if orders.settings.drain_on_stop else Ending.STAY)


class _Crew:
    """The publishers at work, by the id of their backend."""

    def __init__(self, around: Surroundings, group: asyncio.TaskGroup) -> None:
        self._around = around
        self._group = group
        self._publishers: dict[str, Publisher] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # the last of each id, ended or not
        self._warned: set[str] = set()

    def become(self, backends: Sequence[Backend]) -> None:
        """Begin, change and end publishers, so that there is one for each of `backends`."""
        wanted = {backend.name: backend for backend in backends}
        for warning in unknown_hardware(backends):
            if warning not in self._warned:
                log.warning("%s", warning)
            self._warned.add(warning)
        for name in self._publishers.keys() - wanted.keys():
            self._publishers.pop(name).end(Ending.STOP)
        for name, backend in wanted.items():
            publisher = self._publishers.get(name)
            if publisher is not None and _same_server(publisher.backend, backend):
                publisher.backend = backend
                continue
            if publisher is not None:
                publisher.end(Ending.STAY)
            self._begin(backend)

    def end(self, ending: Ending) -> None:
        """Let all end."""
        for publisher in self._publishers.values():
            publisher.end(ending)

    def _begin(self, backend: Backend) -> None:
        name = backend.name
        self._publishers[name] = publisher = Publisher(backend, self._around)
        self._tasks = {other: task for other, task in self._tasks.items() if not task.done()}
        self._tasks[name] = self._group.create_task(_follow(self._tasks.get(name), publisher))


async def _follow(before: asyncio.Task[None] | None, publisher: Publisher) -> None:
    """Run a publisher once the one before it, of the same id, has ended."""
    if before is not None:
        await asyncio.wait([before])
    await publisher.run()


def _same_server(one: Backend, other: Backend) -> bool:
    compared = [(backend.url, backend.engine, backend.address, backend.kv_events) for backend in (one, other)]
    return compared[0] == compared[1]


async def _either(stopping: asyncio.Event, again: asyncio.Event, within_s: float | None) -> None:
    """Wait until one of the two is set, at most `within_s`."""
    waits = [asyncio.ensure_future(event.wait()) for event in (stopping, again)]
    try:
        with suppress(TimeoutError):
            await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
