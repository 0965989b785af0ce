"""Work that runs beside a service for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

_TWICE_S = 0.5  # between two of Ctrl-C; what starts us may hand on the one that the terminal has sent us already

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


class Stop(asyncio.Event):
    """Set once this process gets SIGTERM or SIGINT, which end it no more from now on.

    `at_once` is set by a Ctrl-C after that: whoever sits at the terminal will not wait for the end in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.at_once = asyncio.Event()
        self._interrupted_at_s = -math.inf
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._take, number)

    def _take(self, number: signal.Signals) -> None:
        now_s = asyncio.get_running_loop().time()
        if number is signal.SIGINT:
            if self.is_set() and now_s - self._interrupted_at_s >= _TWICE_S:
                self.at_once.set()
            self._interrupted_at_s = now_s
        self.set()
