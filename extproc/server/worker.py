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
from extproc.server.siblings import word_path
from extproc.server.worker_words import CANNOT, SERVES, read_told

# Whoever starts the service anew wants its ports: so long an orphan's streams go on, then it says farewell to peers.
_ORPHAN_DRAIN_S, _ORPHAN_FAREWELL_S = 1.0, 5.0

log = logging.getLogger("extproc.serve")


def main() -> int:
    """Read settings, which only the parent can have written, and serve until SIGTERM or the parent's end."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent reads the settings again, for all
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    parent = os.dup(1)
    os.dup2(2, 1)  # nothing else that is printed may be taken for word to the parent
    settings = read_told(0)
    if settings is None:  # the parent has ended before it has said anything
        return 1
    assert settings.worker is not None
    configure(settings.logs, worker=settings.worker.number)
    orphaned, ended = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _end_early(orphaned, settings))  # until the service takes it
    news = FromParent()
    try:
        threading.Thread(target=_hear_parent, args=(news, orphaned, ended, settings), daemon=True).start()
        uvloop.run(_serve(settings, parent, news, ended))
    except ExtprocError as error:
        _say(parent, CANNOT, error)
        return 2
    finally:
        if orphaned.is_set():
            _tidy(settings)
    return 0


def _end_early(orphaned: threading.Event, settings: ServeSettings) -> NoReturn:
    """End where nothing is under way yet; an exception would come up anywhere, also amid the start of the loop."""
    if orphaned.is_set():
        _tidy(settings)
    os._exit(0)


async def _serve(settings: ServeSettings, parent: int, news: FromParent, ended: threading.Event) -> None:
    try:
        await serve(settings, lambda port: _say(parent, SERVES, port), news)
    finally:
        ended.set()


def _say(parent: int, word: str, what: object) -> None:
    with suppress(BrokenPipeError):  # one that has ended does not listen; another thread sees to that
        os.write(parent, f"{word} {what}\n".encode())


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


def _hear_parent(news: FromParent, orphaned: threading.Event, ended: threading.Event, settings: ServeSettings) -> None:
    """Wait for the parent's word, or its end, however that comes: the system closes its end of our stdin."""
    while (told := read_told(0)) is not None:
        news.hear(told)
    log.warning("the parent of this worker has ended")
    orphaned.set()
    os.kill(os.getpid(), signal.SIGTERM)
    if not ended.wait(_ORPHAN_DRAIN_S):
        os.kill(os.getpid(), signal.SIGINT)  # ends the drain
    time.sleep(_ORPHAN_FAREWELL_S)
    _tidy(settings)
    os._exit(1)


def _tidy(settings: ServeSettings) -> None:
    """The last of the orphans takes away the directory of their pages and of their word, which was the parent's to do.

    Also what one has left there that ends amid its streams.
    """
    assert isinstance(settings.pages, UnixSocket)
    assert settings.worker is not None
    with suppress(OSError):
        settings.pages.path.unlink(missing_ok=True)
        word_path(settings.worker, settings.worker.number).unlink(missing_ok=True)
        settings.worker.folder.rmdir()
