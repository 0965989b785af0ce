"""Work that runs beside a service for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

log = logging.getLogger("extproc.serve")


def begin(name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Run something beside the service. It ought never to end: if it dies, the log says so at once."""

    def ended(task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("%s died; serving on without it", name, exc_info=error)

    task = asyncio.create_task(work, name=name)
    task.add_done_callback(ended)
    return task


async def end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel all and wait until they have ended, however each of them does."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def beside(name: str, work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run something as `begin` does, for as long as the context is open."""
    task = begin(name, work)
    try:
        yield
    finally:
        await end([task])


def told_to_stop() -> asyncio.Event:
    """Set once this process gets SIGTERM or SIGINT, which end it no more from now on."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
