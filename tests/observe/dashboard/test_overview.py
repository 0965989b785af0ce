"""`/overview` and `/fleet` of a real service: what the dashboard and `extproc top` read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import orjson
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from msgspec.structs import replace

from extproc.adapters.bookings import Bookings
from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.redis_link import Link
from extproc.adapters.scaling_memory import ScalingMemory
from extproc.core.router import Router
from extproc.core.values.instance import Lifecycle, Load
from extproc.core.values.outcome import Outcome
from extproc.observe.dashboard.watch import Watch
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.admin import Admin
from extproc.server.advice import Advice
from extproc.server.ladder import LadderWatch
from extproc.server.overview import Overview
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.server.views import fleet_view, served
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router
from tests.observe.dashboard import pages
from tests.server.test_service import headers, process

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


class Clock:
    """The time is what a test says."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class Running:
    """A service with its pages; `observer` is told of outcomes as by the access log."""

    made: Router
    clock: Clock
    observer: Observer
    url: str
    channel: grpc.aio.Channel
    http: HttpClient

    async def decide(self, model: str = MODEL) -> None:
        """Send one request, whose answer is to be streamed, through the service."""
        content = {"model": model, "messages": [{"role": "user", "content": "x"}], "stream": True}
        asked = ext_proc.HttpBody(body=orjson.dumps(content), end_of_stream=True)
        call = process(self.channel)
        for message in (headers(), ext_proc.ProcessingRequest(request_body=asked).SerializeToString()):
            await call.write(message)
            await call.read()
        await call.done_writing()
        await call.read()

    async def page(self, path: str) -> Any:
        """A page as it was told."""
        answer = await self.http.get(self.url + path)
        assert isinstance(answer, Answer)
        assert answer.status == 200, path
        return orjson.loads(answer.body)


@asynccontextmanager
async def running(made: Router) -> AsyncIterator[Running]:
    clock = Clock()
    watch = Watch(clock)
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})), partial(served, made), watch=watch)
    service = Service(Shell(made, observer, clock, lambda: 0.0, "x-upstream-cluster", Rules()))
    ladder = LadderWatch(made)
    async with Link("redis://127.0.0.1:1") as link:  # nobody is there
        bookings = Bookings(link, "extproc:{f}", "r1", made.ledger)
        advice = Advice(ScalingMemory(link, "extproc:{f}"))
        overview = Overview("f", made, observer, watch, ladder, service.holding, bookings, advice)
        admin = Admin(
            observer.page,
            lambda: fleet_view(made, ladder, clock(), watch.lately),
            observer.recent,
            observer.explain,
            service.holding.view,
            overview,
        )
        pages_port, port = await admin.start(("127.0.0.1", 0)), service.bind(("127.0.0.1", 0))
        await service.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel, HttpClient() as http:
            yield Running(made, clock, observer, f"http://127.0.0.1:{pages_port}", channel, http)
        await service.stop(0.0)
        await admin.stop()


def outcome(running: Running, **changes: Any) -> Outcome:
    """What became of the latest request, as it was believed."""
    features = next(running.observer._recent.newest()).features
    assert features is not None
    assert features.stream
    known = Outcome(
        features=features, address=running.made.fleet.members()[0].instance.address, status=200, flags=(), attempts=1,
        duration_s=1.1, ttft_s=0.2, routing_s=0.1, prompt_tokens=100, completion_tokens=11, cached_tokens=50,
    )  # fmt: skip
    return replace(known, **changes)


@pytest.fixture
async def service() -> AsyncIterator[Running]:
    async with running(router(instance("a"), instance(HOSTILE, lifecycle=Lifecycle.LOADING, load=Load()))) as made:
        yield made


async def test_an_overview_tells_of_requests_and_what_became_of_them(service: Running) -> None:
    """One is routed, ends, and shows in rates, hits and the list; the predicted times beside what came."""
    await service.decide()
    service.clock.now += 0.5
    service.observer.finished(outcome(service))
    service.clock.now += 0.5
    told = await service.page("/overview")
    assert (told["fleet"], told["uptime_s"] >= 0.0, told["autoscaler"], told["admission"]) == ("f", True, None, False)
    rates = told["rates"]
    assert (rates["routed_per_s"], rates["finished_per_s"], rates["output_tokens_per_s"]) == (1.0, 1.0, 11.0)
    assert (rates["cached_share"], round(rates["ttft_s"], 6)) == (0.5, 0.1)
    (row,) = told["decisions"]
    assert (row["instance"], row["model"], row["age_s"], row["reason"]) == ("a", MODEL, 1.0, None)
    (point,) = told["calibration"]
    assert (point["instance"], round(point["ttft_s"], 6), round(point["tpot_s"], 6)) == ("a", 0.1, 0.09)
    (hit,) = told["hits"]
    assert (hit["instance"], hit["requests"], hit["checked_tokens"], hit["cached_tokens"]) == ("a", 1, 100, 50)


async def test_a_row_has_its_outcome_once_it_is_known(service: Running) -> None:
    """Before that it is null: it runs."""
    await service.decide()
    assert (await service.page("/overview"))["decisions"][0]["outcome"] is None
    service.observer.finished(outcome(service, status=503, attempts=2))
    (row,) = service.observer.rows(10)
    assert (row["outcome"]["status"], row["outcome"]["attempts"]) == (503, 2)
    assert service.observer._watch is not None
    assert service.observer._watch.calibration() == []  # something else was timed


async def test_requests_that_go_nowhere_are_rows_too(service: Running) -> None:
    """With the reason, and the number of those that were out."""
    await service.decide("another")
    told = await service.page("/overview")
    (row,) = told["decisions"]
    assert (row["instance"], row["reason"], row["rejected"]) == (None, "model_not_served", 2)
    service.clock.now += 1.0
    assert service.observer._watch is not None
    assert service.observer._watch.lately.rates(service.clock.now)["refused_per_s"] == 1.0


async def test_the_fleet_tells_rates_and_speeds_and_what_is_unknown(service: Running) -> None:
    """An instance that does not tell its load has none, not 0; hostile names come as they are, as JSON."""
    await service.decide()
    service.clock.now += 1.0
    rows = {row["id"]: row for row in await service.page("/fleet")}
    assert rows.keys() == {"a", HOSTILE}
    assert (rows["a"]["routed_per_s"], rows[HOSTILE]["routed_per_s"]) == (1.0, 0.0)
    assert rows["a"]["prefill_tokens_per_s"] > 1000
    assert 0 < rows["a"]["tpot_s"] < 1
    assert (rows[HOSTILE]["running"], rows[HOSTILE]["kv_usage"]) == (None, None)


async def test_an_overview_is_worked_out_at_most_twice_a_second(service: Running) -> None:
    """A wall of screens costs no more than one."""
    uptimes_s = []
    for passed_s in (0.0, 0.3, 0.3, 0.3):
        service.clock.now += passed_s
        uptimes_s.append(round((await service.page("/overview"))["uptime_s"], 6))
    assert uptimes_s == [0.0, 0.0, 0.6, 0.6]


async def test_degradation_and_the_silence_of_redis_are_told(service: Running) -> None:
    """Nobody has heard Redis here."""
    told = await service.page("/overview")
    assert {each["rung"] for each in told["degraded"]} >= {"redis_stale"}
    assert all(each["detail"] for each in told["degraded"])


async def test_what_is_made_up_for_the_browser_has_the_fields_that_a_service_tells(service: Running) -> None:
    """Else the suite of the browser, which runs seldom, would hold the page against what nobody tells."""
    await service.decide()
    service.clock.now += 0.5
    service.observer.finished(outcome(service))
    told, made_up = await service.page("/overview"), pages.overview()
    (row,), (other, *_) = told["decisions"], made_up["decisions"]
    (point,), (plotted, *_) = told["calibration"], made_up["calibration"]
    reasons, explained = await service.page(f"/decisions/{row['id']}"), pages.explanation("x")
    pairs = [
        (told, made_up),
        (told["rates"], made_up["rates"]),
        (told["curves"], made_up["curves"]),
        (row, other),
        (row["outcome"], other["outcome"]),
        (point, plotted),
        ((await service.page("/fleet"))[0], pages.instance_row(0)),
        (reasons, explained),
        (reasons["request"], explained["request"]),
        (reasons["options"][0], explained["options"][0]),
        (reasons["options"][0]["terms_s"], explained["options"][0]["terms_s"]),
        (reasons["rejected"][0], explained["rejected"][0]),
    ]
    assert [set(real) ^ set(fake) for real, fake in pairs] == [set()] * len(pairs)
