"""From a router's tally to the fleet's totals, through a real server that fails and comes back."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from extproc.adapters.redis_link import Link
from extproc.adapters.traffic_counts import Traffic, TrafficCounts
from extproc.core.admission.admission import Admission
from extproc.core.pricing.classes import ClassPolicy
from extproc.core.scaling.sight import Counts
from extproc.core.scaling.tally import Tally
from extproc.core.snapshot import Policy
from extproc.core.values.request import RequestClass
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.traffic_metrics import JudgedCollector
from extproc.server.holding import Holding
from extproc.server.traffic_keeper import TrafficKeeper
from extproc.server.views import held_by_model
from extproc.stream.errands import Hold
from tests.core.builders import features, router
from tests.core.scaling.test_tally import ended
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire

BASE = "extproc:{default}"


@dataclass
class One:
    """A router's tally with its keeper."""

    link: Link
    name: str = "one"
    held: Counter[str] = field(default_factory=Counter)
    tally: Tally = field(default_factory=lambda: Tally(ClassPolicy()))

    def __post_init__(self) -> None:
        counts = TrafficCounts(self.link, BASE, self.name)
        self.keeper = TrafficKeeper(self.tally, counts, lambda: self.held, interval_s=0.01)

    def come(self, number: int = 1) -> None:
        for _ in range(number):
            self.tally.routed(features(model="m"))

    async def turn(self, budget_s: float = 10.0) -> None:
        await self.keeper.try_turn(budget_s)

    def page(self) -> str:
        metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}))
        metrics.add(JudgedCollector(self.keeper.judged))
        return metrics.page().decode()


async def read(link: Link) -> Traffic:
    return await TrafficCounts(link, BASE).read()


async def requests(link: Link) -> float:
    return (await read(link)).counts.get("m", Counts()).requests


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[tuple[One, Link]]:
    async with Link(url) as link:
        yield One(link), link


async def test_what_is_new_is_told_and_who_waits_each_time(tmp_path: Path) -> None:
    """Also where nothing is new: else nobody would know that the router lives."""
    with RedisServer("valkey", tmp_path) as server:
        async with linked(server.url) as (one, link):
            one.come(3)
            one.held["m"] = 2
            await one.turn()
            one.held["m"] = 1
            await one.turn()
            one.come(1)
            await one.turn()
            seen = await read(link)
            assert (seen.counts["m"].requests, seen.held, seen.routers) == (4, {"m": 1}, 1)


async def test_what_comes_while_redis_is_away_is_told_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A Redis that has forgotten everything begins anew with that: what was told before is not told again."""
    with RedisServer("valkey", tmp_path) as server:
        async with linked(server.url) as (one, link):
            one.come(100)
            await one.turn()
            server.stop()
            for _ in range(3):
                one.come(2)
                await one.turn()
            server.start()
            one.come(1)
            await one.turn()
            assert await requests(link) == 7
            assert "died" not in caplog.text


async def test_a_word_that_comes_too_late_is_not_counted_twice(tmp_path: Path) -> None:
    """The server has done it, and the router has given up before it was answered."""
    with RedisServer("valkey", tmp_path) as server:
        async with Wire(server.port) as wire, linked(wire.url) as (one, link), Link(server.url) as reader:
            await one.turn()  # connects, and loads the script
            wire.delay_s = 0.3
            for number in range(1, 4):
                one.come(1)
                await one.turn(budget_s=0.4)
                assert await requests(reader) <= number
            wire.delay_s = 0.0
            await link.aclose()
            await one.turn()
            assert await requests(reader) == 3


async def test_a_router_that_ends_tells_the_rest(tmp_path: Path) -> None:
    """One that is followed by another takes nothing away."""
    with RedisServer("valkey", tmp_path) as server:
        async with Link(server.url) as link:
            for name in ("one", "two"):
                one = One(link, name)
                one.held["m"] = 1
                task = asyncio.create_task(one.keeper.run())
                await eventually(lambda: read(link), lambda seen: bool(seen.held))
                one.come(5)
                one.held.clear()
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                assert (await read(link)).held == {}
            assert await requests(link) == 10


async def test_judgements_are_shown_to_prometheus(tmp_path: Path) -> None:
    """By model; and for how long Redis was told nothing, once it was told anything."""
    with RedisServer("valkey", tmp_path) as server:
        async with linked(server.url) as (one, _):
            assert "extproc_counts_silence_seconds" not in one.page()
            for ttft_s in (1.0, 3.0):
                one.tally.ended(ended({"model": "m"}, ttft_s=ttft_s, duration_s=9.0))
            one.come(1)
            await one.turn()
            one.tally.ended(ended({"model": "m"}, completion_tokens=None))
            await one.turn()
            page = one.page()
            for name, value in (("judged", 3), ("late", 1), ("paced", 2), ("slow", 2)):
                assert f'extproc_{name}_answers_total{{model="m"}} {value}.0' in page
            silent_s = float(page.partition("\nextproc_counts_silence_seconds ")[2].split()[0])
            assert 0.0 <= silent_s < 60.0


async def test_both_ways_of_waiting_count_as_held() -> None:
    """For room, and for a model that is loaded nowhere."""
    made = router(policy=Policy(admission=Admission()))
    holding = Holding(made, lambda: 0.0, lambda: 0.0)
    for number, model in enumerate(("m", "m", "other")):
        holding.expect(Hold(str(number), RequestClass.BATCH, "", 100.0, model=model))
    for model in ("m", "cold"):
        made.cold.wishes.hold(model)
    assert held_by_model(made, holding) == {"m": 3, "other": 1, "cold": 1}
    holding.forget("1")
    made.cold.wishes.let_go("cold")
    assert held_by_model(made, holding) == {"m": 2, "other": 1}
    holding.close()
