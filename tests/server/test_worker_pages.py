"""One metrics page over several workers, whoever asks for it and whatever a worker answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

from extproc.server.worker_pages import WorkerPages

Page = Callable[[], Awaitable[web.Response]]


@dataclass(frozen=True, slots=True)
class Worker:
    """One as its parent knows it."""

    number: int
    pages: Path
    restarts: int = 0


def counted(number: int) -> web.Response:
    """A page with one counter."""
    return web.Response(text=f"# HELP x_total X.\n# TYPE x_total counter\nx_total {number}.0\n")


async def nothing() -> web.Response:
    return web.Response(text="")


@asynccontextmanager
async def scraped(folder: Path, *pages: Page) -> AsyncIterator[Callable[[], Awaitable[str]]]:
    """Workers whose metrics pages are these; yields what reads the page over all of them."""
    workers = [Worker(number, folder / str(number)) for number in range(len(pages))]
    async with AsyncExitStack() as stack:
        for worker, page in zip(workers, pages, strict=True):

            async def answer(_request: web.Request, page: Page = page) -> web.Response:
                return await page()

            app = web.Application()
            app.router.add_get("/metrics", answer)
            runner = web.AppRunner(app, shutdown_timeout=0.01)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, str(worker.pages)).start()
        parent = await stack.enter_async_context(WorkerPages(workers))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = f"http://127.0.0.1:{await parent.start(('127.0.0.1', 0))}/metrics"

        async def read() -> str:
            async with session.get(url) as response:
                assert response.status == 200
                return await response.text()

        yield read


async def test_two_that_scrape_at_once_have_nothing_counted_twice(tmp_path: Path) -> None:
    """As a pair of Prometheus servers does. Of what both asked for, that of the first may come last."""
    asked = 0
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def counts() -> web.Response:
        nonlocal asked
        asked += 1
        return counted(asked)

    async def is_late_once() -> web.Response:
        if not waits.is_set():
            waits.set()
            await goes_on.wait()
        return web.Response(text="")

    async with scraped(tmp_path, counts, is_late_once) as read:
        first = asyncio.create_task(read())
        await waits.wait()
        second = asyncio.create_task(read())
        await asyncio.wait([second], timeout=1.0)
        goes_on.set()
        await asyncio.gather(first, second)
        assert f"x_total {asked + 1}.0\n" in await read()


async def test_a_worker_whose_page_fails_costs_neither_the_page_nor_its_own_counts(tmp_path: Path) -> None:
    """Those stay as it last told them, and go on from there."""
    pages = iter([counted(3), web.Response(status=500, text="it failed"), web.Response(status=500), counted(4)])

    async def told() -> web.Response:
        return next(pages)

    async with scraped(tmp_path, told, nothing) as read:
        for expected, answering in ((3, 2), (3, 1), (3, 1), (4, 2)):
            page = await read()
            assert f"x_total {expected}.0\n" in page
            assert f'extproc_workers{{state="answering"}} {answering}.0\n' in page
