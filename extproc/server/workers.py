"""The parent of several workers: starts them, starts a dead one again, and passes the end on."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from extproc.addresses import Endpoint, UnixSocket, worker_endpoints
from extproc.config import ServeSettings, WorkerPlace
from extproc.errors import ConfigError, ProcessError
from extproc.observe.config_metrics import ConfigCollector
from extproc.server.binding import see_free
from extproc.server.reload import News
from extproc.server.tasks import Stop, begin, end
from extproc.server.worker_pages import WorkerPages
from extproc.server.worker_words import CANNOT, SERVES, told

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0  # before a dead worker is started again
_STEADY_S = 30.0  # who served for so long did not die of its start
GOODBYE_S = 15.0  # beyond the drain: health checks, the last streams, a slow Redis

log = logging.getLogger("extproc.serve")


class Worker:
    """One place among the workers: the process that fills it, and the next one after its death."""

    def __init__(self, settings: ServeSettings) -> None:
        assert settings.worker is not None
        self.number = settings.worker.number
        self.restarts = 0
        self.serving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first process serves; its exception says why that one could not."""
        self._settings = settings
        self._process: Process | None = None
        self._served_at_s: float | None = None
        self._ending = False
        self._said = ""

    @property
    def door(self) -> str:
        """Where Envoy finds it: a port, or a socket."""
        listen = self._settings.listen
        return str(listen) if isinstance(listen, UnixSocket) else str(listen[1])

    @property
    def pages(self) -> Path:
        """The Unix socket of its own pages."""
        assert isinstance(self._settings.pages, UnixSocket)
        return self._settings.pages.path

    async def run(self) -> None:
        """Keep a process in place until `end` is called; return at once if the first never serves."""
        pause_s = _SHORTEST_PAUSE_S
        while True:
            try:
                status = await self._live()
            except OSError as error:  # no memory, or no descriptors, for another process
                status, self._said = 1, f"it cannot be started: {error.strerror or error}"
            except Exception as error:
                log.exception("worker %d cannot be followed", self.number)
                status, self._said = 1, f"it cannot be followed: {error}"
            if self._ending:
                return
            await self._gone()
            if not self.serving.done():
                self.serving.set_exception(self._failure(status))
                return
            if self._served_at_s is not None and time.monotonic() - self._served_at_s > _STEADY_S:
                pause_s = _SHORTEST_PAUSE_S
            why = f": {self._said}" if self._said else ""
            log.error("worker %d ended with status %d%s; it starts again in %g s", self.number, status, why, pause_s)
            self.restarts += 1
            await asyncio.sleep(pause_s)
            if self._ending:
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def use(self, settings: ServeSettings) -> None:
        """Have this process, and those after it, go by other settings, but for what is its own."""
        own = self._settings
        self._settings = replace(settings, listen=own.listen, pages=own.pages, worker=own.worker)
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.write(told(self._settings))

    async def end(self, within_s: float) -> None:
        """Have the process drain and end; kill it if that takes longer than it may."""
        self._ending = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            log.error("worker %d has not ended within %g s; it is killed", self.number, within_s)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def hurry(self) -> None:
        """End the drain of a process that was told to end."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    async def _live(self) -> int:
        """The life of one process; returns its exit status, below 0 if a signal ended it."""
        self._served_at_s, self._said = None, ""
        # Not by fork: a process that has threads, such as gRPC's, must not be copied. The path is told, so that the
        # worker runs the very same code, wherever the parent was started.
        code = f"import sys; sys.path[:] = {sys.path!r}; from extproc.server.worker import main; sys.exit(main())"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        self._process = process
        if self._ending:
            process.terminate()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(told(self._settings))
            await process.stdin.drain()
        while line := await _line(process.stdout):
            self._hear(line.decode(errors="replace").strip())
        return await process.wait()

    async def _gone(self) -> None:
        """Kill the process if it runs though nobody follows it: its door is wanted for the next one."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == CANNOT:
            self._said = rest
        elif word == SERVES:
            self._served_at_s = time.monotonic()
            listen = self._settings.listen
            if not isinstance(listen, UnixSocket):  # a free port is kept for those who come after
                self._settings = replace(self._settings, listen=(listen[0], int(rest)))
            if self.serving.done():
                log.info("worker %d serves again", self.number)
            else:
                self.serving.set_result(None)

    def _failure(self, status: int) -> ConfigError | ProcessError:
        if self._said:
            return ConfigError(self._said)
        return ProcessError(f"worker {self.number} ended with status {status} before it served; see what it said above")


async def _line(stdout: asyncio.StreamReader) -> bytes:
    """The next line, b"" at the end. One that is longer than what is kept is no word of ours, and is passed over."""
    while True:
        with suppress(ValueError):
            return await stdout.readline()


async def supervise(settings: ServeSettings, news: News | None = None) -> None:
    """Serve by `settings.workers` processes until SIGTERM or SIGINT, then have them drain.

    `news` has other settings while they serve.

    Raises ConfigError if an address cannot be listened on, ProcessError if a worker dies before it has ever served.
    """
    doors = worker_endpoints(settings.listen, settings.workers)
    if settings.pages in doors and (isinstance(settings.pages, UnixSocket) or settings.pages[1]):
        raise ConfigError(
            f"{settings.workers} workers would take the address of --metrics-listen, {_text(settings.pages)}"
        )
    see_free(*doors)  # before any process begins: one that serves already would have to be drained for the last one
    stop = Stop()
    with tempfile.TemporaryDirectory(prefix="extproc-") as folder:  # for this user alone: mode 0700
        group = secrets.token_hex(2)
        workers = [
            Worker(_placed(settings, door, WorkerPlace(number=number, of=len(doors), group=group, folder=Path(folder))))
            for number, door in enumerate(doors)
        ]
        await _serve_by(workers, settings, stop, news)


def _placed(settings: ServeSettings, door: Endpoint, place: WorkerPlace) -> ServeSettings:
    return replace(settings, listen=door, pages=UnixSocket(place.folder / str(place.number)), worker=place)


def _text(where: Endpoint) -> str:
    return str(where) if isinstance(where, UnixSocket) else f"{where[0]}:{where[1]}"


async def _serve_by(workers: Sequence[Worker], settings: ServeSettings, stop: Stop, news: News | None) -> None:
    def take(new: ServeSettings) -> None:
        nonlocal settings
        settings = new
        for worker in workers:
            worker.use(new)

    counts = None if news is None else news.counts
    async with WorkerPages(workers, () if counts is None else (ConfigCollector(counts),)) as pages:
        pages_port = await pages.start(settings.pages, settings.access)
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(worker.run()) for worker in workers]
        tasks.append(asyncio.create_task(_hurry(workers, stop)))
        if news is not None:
            tasks.append(begin("settings", news.run(take)))
        try:
            if await _all_serve(workers, stop):
                doors = ", ".join(worker.door for worker in workers)
                where = settings.pages if isinstance(settings.pages, UnixSocket) else f"port {pages_port}"
                log.info("%d workers serve ext_proc on %s; pages on %s", len(workers), doors, where)
                await stop.wait()
                log.info("%d workers drain for up to %g s; Ctrl-C ends that", len(workers), settings.drain_s)
        finally:
            await asyncio.gather(*(worker.end(settings.drain_s + GOODBYE_S) for worker in workers))
            await end(tasks)


async def _hurry(workers: Sequence[Worker], stop: Stop) -> None:
    await stop.at_once.wait()
    for worker in workers:
        worker.hurry()


async def _all_serve(workers: Sequence[Worker], stop: asyncio.Event) -> bool:
    """Wait until all serve; False if the service is to stop before. Raises what keeps one of them from it."""
    stopping = asyncio.ensure_future(stop.wait())
    serving = asyncio.gather(*(worker.serving for worker in workers))
    await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        serving.result()
        return True
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving
    return False
