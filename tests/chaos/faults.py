"""What befalls a Redis: each fault is a deployment with a way to break it and a way to let it heal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from extproc.demo.ports import free_port
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire, ask, until, watched_by_sentinels


@dataclass(frozen=True, slots=True)
class Fault:
    """A running deployment at `url`, healthy until `begin` and after `end`."""

    url: str
    begin: Callable[[], Awaitable[None]]
    end: Callable[[], Awaitable[None]]


Deployment = Callable[[str, Path], AbstractAsyncContextManager[Fault]]


async def nothing() -> None:
    """Heals by itself."""


def in_thread(call: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """Make a blocking call one that can be awaited."""

    async def run() -> None:
        await asyncio.to_thread(call)

    return run


@asynccontextmanager
async def killed(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """The server dies; later another starts in its place, empty."""
    with RedisServer(kind, folder) as server:
        yield Fault(server.url, in_thread(server.stop), in_thread(server.start))


@asynccontextmanager
async def restarted_at_once(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """The server dies and is back, empty, before anybody gave it up."""
    with RedisServer(kind, folder) as server:

        def restart() -> None:
            server.stop()
            server.start()

        yield Fault(server.url, in_thread(restart), nothing)


@asynccontextmanager
async def frozen(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """SIGSTOP, SIGCONT: connections stay open and nothing answers."""
    with RedisServer(kind, folder) as server:
        yield Fault(server.url, in_thread(server.freeze), in_thread(server.thaw))


@asynccontextmanager
async def slow(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """Every answer takes four seconds, two in each direction."""
    with RedisServer(kind, folder) as server:
        async with Wire(server.port) as wire:

            async def delay() -> None:
                wire.delay_s = 2.0

            async def heal() -> None:
                wire.delay_s = 0.0

            yield Fault(wire.url, delay, heal)


@asynccontextmanager
async def loading(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """It is restarted with data that take it many seconds to load; it answers LOADING meanwhile."""
    # Both options are there for tests of the server itself: microseconds for each key, and how often it looks up.
    slowly = ("--dbfilename", "dump.rdb", "--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    with RedisServer(kind, folder, *slowly) as server:
        starts: list[asyncio.Task[None]] = []

        def fill_and_stop() -> None:
            for number in range(9):
                ask(server, "MSET", *(word for i in range(1000) for word in (f"k{number}-{i}", "v" * 50)))
            ask(server, "SAVE")
            server.stop()

        async def begin() -> None:
            await asyncio.to_thread(fill_and_stop)
            starts.append(asyncio.create_task(asyncio.to_thread(server.start, 60.0)))

        async def loaded() -> None:
            await asyncio.gather(*starts)

        try:
            yield Fault(server.url, begin, loaded)
        finally:
            await asyncio.gather(*starts)


@asynccontextmanager
async def read_only(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """It becomes the replica of a primary that cannot be reached: it answers, and nobody can write."""
    with RedisServer(kind, folder) as server:
        yield Fault(
            server.url,
            in_thread(lambda: ask(server, "REPLICAOF", "127.0.0.1", free_port())),
            in_thread(lambda: ask(server, "REPLICAOF", "NO", "ONE")),
        )


@asynccontextmanager
async def demoted(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """It becomes the replica of a living primary that holds nothing: its data go, and nobody can write."""
    (folder / "other").mkdir()
    with RedisServer(kind, folder) as server, RedisServer(kind, folder / "other") as other:
        yield Fault(
            server.url,
            in_thread(lambda: ask(server, "REPLICAOF", "127.0.0.1", other.port)),
            in_thread(lambda: ask(server, "REPLICAOF", "NO", "ONE")),
        )


@asynccontextmanager
async def failed_over(kind: str, folder: Path) -> AsyncIterator[Fault]:
    """The primary dies, and the sentinels put its replica in its place."""
    with watched_by_sentinels(kind, folder) as group:

        async def promoted() -> None:
            await until(lambda: group.told_primary() == group.replica.port)

        yield Fault(group.url, in_thread(group.primary.stop), promoted)


FAULTS: tuple[Deployment, ...] = (
    killed,
    restarted_at_once,
    frozen,
    slow,
    loading,
    read_only,
    demoted,
    failed_over,
)
