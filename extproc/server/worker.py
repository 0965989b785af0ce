"""One worker of `extproc serve --workers`: serves by what its parent writes to its stdin, and ends with it.

To the parent it says through its stdout that it serves, and where, or why it cannot; its log goes to stderr.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import uvloop

from extproc.addresses import UnixSocket
from extproc.config import ServeSettings
from extproc.errors import ExtprocError
from extproc.observe.logs import configure
from extproc.server.run import serve
from extproc.server.worker_words import CANNOT, SERVES, read_told

_ORPHAN_S = 3.0  # for a farewell; whoever starts the service anew wants its ports

log = logging.getLogger("extproc.serve")


def main() -> int:
    """Read settings, which only the parent can have written, and serve until SIGTERM or the parent's end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent reads the settings again, for all
    parent = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else that is printed may be taken for word to the parent
    settings = read_told(0)
    assert settings is not None
    assert settings.worker is not None
    configure(settings.logs, worker=settings.worker.number)
    orphaned = threading.Event()
    news = FromParent()
    threading.Thread(target=_hear_parent, args=(news, orphaned, settings), daemon=True).start()
    try:
        uvloop.run(serve(settings, lambda port: print(SERVES, port, file=parent), news))
    except ExtprocError as error:
        print(CANNOT, error, file=parent)
        return 2
    if orphaned.is_set():
        _tidy(settings)
    return 0


class FromParent:
    """Settings that the parent sends while the service runs; it has read them, and tells what became of that."""

    counts = None

    def __init__(self) -> None:
        self._told: deque[ServeSettings] = deque()  # two threads may use it at once
        self._heard = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def hear(self, settings: ServeSettings) -> None:
        """Have the service take them; called by another thread."""
        self._told.append(settings)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._heard.set)

    async def run(self, take: Callable[[ServeSettings], None]) -> NoReturn:
        """Hand over all in turn, until cancelled. Those that cannot be taken leave the ones before in force."""
        self._loop = asyncio.get_running_loop()
        while True:
            while self._told:
                try:
                    take(self._told.popleft())
                except Exception:  # those that follow may be better
                    log.exception("the parent's settings were not taken")
            await self._heard.wait()
            self._heard.clear()


def _hear_parent(news: FromParent, orphaned: threading.Event, settings: ServeSettings) -> None:
    """Wait for the parent's word, or its end, however that comes: the system closes its end of our stdin."""
    while (told := read_told(0)) is not None:
        news.hear(told)
    log.warning("the parent of this worker has ended")
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_ORPHAN_S)
    _tidy(settings)
    os._exit(1)


def _tidy(settings: ServeSettings) -> None:
    """The last of the orphans takes away the directory of their pages, which was the parent's to do."""
    assert isinstance(settings.pages, UnixSocket)
    with suppress(OSError):
        settings.pages.path.unlink(missing_ok=True)
        settings.pages.path.parent.rmdir()
