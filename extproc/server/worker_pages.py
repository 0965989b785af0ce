"""The pages of several workers as those of one service: each worker is asked, and what they tell is put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, Self

import orjson
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from extproc.adapters.http_client import Answer, HttpClient
from extproc.observe.dashboard.merged import merged_held, merged_overview
from extproc.observe.merged_metrics import MergedMetrics
from extproc.observe.observer import AT
from extproc.observe.recent import LAST
from extproc.server.dashboard_pages import add_dashboard
from extproc.server.http_pages import HttpPages
from extproc.server.tasks import end
from extproc.server.worker_views import merged_decisions, merged_fleet

ANSWER_S = 2.0  # that a worker has for a page; who is later is left out
_TEXT = {"content-type": "text/plain; version=0.0.4"}


class Asked(Protocol):
    """A worker, as far as its pages go."""

    @property
    def number(self) -> int:
        """Which of them it is, from 0 on."""

    @property
    def restarts(self) -> int:
        """How often its process was started again."""

    @property
    def pages(self) -> Path:
        """Unix socket of its own pages."""


class WorkerPages(HttpPages):
    """GET /metrics, /fleet, /held, /decisions, /decisions/ID, /readyz over all workers; any page of one by `?worker=N`.

    /healthz is the parent's own. One worker that takes requests makes all ready: Envoy leaves out the others by itself.

    A page that is none of these is the first worker's. Use as a context manager.
    """

    def __init__(self, workers: Sequence[Asked], besides: Sequence[Collector] = ()) -> None:
        """`besides` are metrics that the parent tells itself."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/decisions/{id}", self._decision)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        for path, merge in (
            ("/fleet", merged_fleet),
            ("/held", merged_held),
            ("/decisions", merged_decisions),
            ("/overview", merged_overview),
        ):
            app.router.add_get(path, self._merging(merge))
        add_dashboard(app)
        app.router.add_get("/{any:.*}", self._one)
        super().__init__(app)
        self._workers, self._besides = workers, besides
        self._clients = {worker.number: HttpClient(ANSWER_S, ANSWER_S, socket=worker.pages) for worker in workers}
        self._merged = MergedMetrics()
        self._lives = dict.fromkeys(self._clients, 0)  # restarts, as of the pages that are merged
        self._open = AsyncExitStack()
        self._taking: asyncio.Task[Collection[int]] | None = None

    async def __aenter__(self) -> Self:
        """Be able to ask."""
        for client in self._clients.values():
            await self._open.enter_async_context(client)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the listener, if there is one, and all connections."""
        await self.stop()
        if self._taking is not None:
            await end((self._taking,))
        await self._open.aclose()

    async def _ask(self, path: str, of: Sequence[Asked] | None = None) -> dict[int, Answer]:
        """What workers answer who answer in time, by their numbers."""
        asked = [worker.number for worker in (self._workers if of is None else of)]
        answers = await asyncio.gather(*(self._clients[number].get(f"http://worker{path}") for number in asked))
        return {number: answer for number, answer in zip(asked, answers, strict=True) if isinstance(answer, Answer)}

    def _named(self, request: web.Request) -> Sequence[Asked] | None:
        """The worker that `?worker=N` names, None if none is named."""
        name = request.query.get("worker")
        return None if name is None else [each for each in self._workers if str(each.number) == name]

    async def _one(self, request: web.Request) -> web.Response:
        """A page as one worker shows it: the one that is named, else the first that answers."""
        named = self._named(request)
        for worker in self._workers if named is None else named:
            for answer in (await self._ask(request.raw_path, [worker])).values():
                return web.Response(body=answer.body, status=answer.status, headers=_kind_of(answer.body))
        return _nobody()

    async def _alive(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n") if self._named(request) is None else await self._one(request)

    async def _ready(self, request: web.Request) -> web.Response:
        if self._named(request) is not None:
            return await self._one(request)
        answers = await self._ask("/readyz")
        ready = sum(answer.status == web.HTTPOk.status_code for answer in answers.values())
        return web.Response(text=f"{ready} of {len(self._workers)} ready\n", status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        if self._named(request) is not None:
            return await self._one(request)
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take())
        answering = await asyncio.shield(self._taking)
        return web.Response(body=self._merged.page(answering) + self._of_workers(len(answering)), headers=_TEXT)

    async def _take(self) -> Collection[int]:
        """Merge what workers have counted by now; returns who answered.

        Once at a time, whoever asks: a page that comes after a later one of the same worker looks as if all of that
        worker's counters had begun anew.
        """
        lives = {worker.number: worker.restarts for worker in self._workers}
        answers = {number: each for number, each in (await self._ask("/metrics")).items() if each.status == 200}
        for worker in self._workers:
            number = worker.number
            if worker.restarts != self._lives[number]:
                self._merged.end(number)
                self._lives[number] = worker.restarts
            if number in answers and worker.restarts == lives[number]:
                self._merged.take(number, answers[number].body)
        return answers.keys()

    def _of_workers(self, answering: int) -> bytes:
        registry = CollectorRegistry()
        registry.register(WorkersCollector(self._workers, answering))
        for collector in self._besides:
            registry.register(collector)
        return generate_latest(registry)

    def _merging(self, merge: Callable[[Any], Any]) -> Callable[[web.Request], Any]:
        async def page(request: web.Request) -> web.Response:
            if self._named(request) is not None:
                return await self._one(request)
            answers = await self._ask(request.path)
            views = [orjson.loads(answer.body) for answer in answers.values() if answer.status == 200]
            return _json(merge(views)) if views else _nobody()

        return page

    async def _decision(self, request: web.Request) -> web.Response:
        """Whoever decided knows why; of the latest of each worker the latest."""
        if self._named(request) is not None:
            return await self._one(request)
        answers = await self._ask(request.rel_url.raw_path)
        if not answers:
            return _nobody()
        known = [orjson.loads(answer.body) for answer in answers.values() if answer.status == 200]
        if not known:
            return _json({"error": "no such request among the latest decisions of any worker"}, status=404)
        latest = max(known, key=_made_s) if request.match_info["id"] == LAST else known[0]
        return _json(latest)


class WorkersCollector:
    """What the parent itself tells of its workers."""

    def __init__(self, workers: Sequence[Asked], answering: int) -> None:
        self._workers = workers
        self._answering = answering

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        """For `prometheus_client`."""
        workers = GaugeMetricFamily(
            "extproc_workers", "Worker processes by whether they answered just now.", labels=["state"]
        )
        workers.add_metric(["answering"], self._answering)
        workers.add_metric(["silent"], len(self._workers) - self._answering)
        restarts = CounterMetricFamily(
            "extproc_worker_restarts", "Times that a dead worker was started again.", labels=["worker"]
        )
        for worker in self._workers:
            restarts.add_metric([str(worker.number)], worker.restarts)
        return [workers, restarts]


def _made_s(told: dict[str, Any]) -> float:
    """When a worker made its latest decision."""
    return float(told.pop(AT, 0.0))


def _kind_of(body: bytes) -> dict[str, str]:
    """Content type of a page that is passed on: our pages are JSON, HTML or plain text."""
    kinds = {b"{": "application/json", b"[": "application/json", b"<": "text/html; charset=utf-8"}
    return {"content-type": kinds.get(body[:1], "text/plain; version=0.0.4")}


def _nobody() -> web.Response:
    return _json({"error": "no worker answers"}, status=503)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json", status=status)
