"""The start and the end of the service: neither a slow Redis nor a part that died holds them up."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from extproc.adapters.bookings import Bookings
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import RedisSettings
from extproc.adapters.registry import Registry
from extproc.adapters.strict_bookings import StrictBookings
from extproc.adapters.tokenizers import Tokenizers
from extproc.addresses import UnixSocket
from extproc.config import ServeSettings
from extproc.core.admission.admission import Admission
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.demo.ports import HOST, free_port
from extproc.observe.live_gauges import Guards
from extproc.observe.metrics import Metrics
from extproc.server import run
from extproc.server.holding import Holding
from extproc.server.ladder import LadderWatch
from extproc.server.prefix_keeper import PrefixKeeper
from extproc.server.run import first_state
from extproc.server.tasks import begin, end
from extproc.server.views import gauges
from extproc.stream.errands import Place, TakePlace
from tests.core.builders import blocks, instance, router
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire

HEAD = blocks(1, 50)


class Start:
    """A router before its first request, beside a Redis that remembers what its instance holds."""

    def __init__(self, wire: Wire, made: Router, keeper: PrefixKeeper) -> None:
        self.wire, self.made, self.keeper = wire, made, keeper
        self.fleet_known, self.kv_known, self.stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def first_state(self) -> None:
        await first_state(self.fleet_known, self.kv_known, self.keeper, self.stop)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    with RedisServer("valkey", tmp_path) as server:
        async with Wire(server.port) as wire, Registry(wire.url) as registry:
            memory = PrefixMemory(registry.link, registry.base)
            before, made = router(instance("a")), router(instance("a"))
            before.prefixes.insert("a@1", HEAD, 1000)
            await PrefixKeeper(before, memory).write()
            yield Start(wire, made, PrefixKeeper(made, memory))


async def test_what_was_learned_is_read_though_what_engines_hold_is_not_yet_known(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "_FIRST_STATE_S", 1.0)
    start.fleet_known.set()
    await start.first_state()
    assert start.made.prefixes.matches(HEAD) == {"a@1": 50}
    assert "Redis is slow" in caplog.text


async def test_nothing_is_read_while_the_fleet_is_not_known(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "_FIRST_STATE_S", 0.5)
    await start.first_state()
    assert start.made.prefixes.matches(HEAD) == {}
    assert "serving without a fleet" in caplog.text


async def test_it_is_over_when_all_is_known(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_FIRST_STATE_S", 1000.0)
    start.fleet_known.set()
    start.kv_known.set()
    async with asyncio.timeout(60):
        await start.first_state()
    assert start.made.prefixes.matches(HEAD) == {"a@1": 50}


async def test_a_stop_is_heard_while_a_slow_redis_is_being_read(start: Start) -> None:
    start.wire.delay_s = 0.4
    start.fleet_known.set()
    waiting = asyncio.create_task(start.first_state())
    await asyncio.sleep(0.1)
    start.stop.set()
    await waiting
    assert start.made.prefixes.matches(HEAD) == {}


async def test_nobody_can_connect_before_all_is_known_and_warm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where somebody listens and nobody answers yet, Envoy would have each request wait for its message timeout."""
    place = (HOST, free_port())
    connected: list[bool] = []

    def connects(*_: object) -> None:
        with socket.socket() as client:
            connected.append(client.connect_ex(place) == 0)

    def serves(port: int) -> None:
        connects()
        assert port == place[1]
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run, "warm_up", connects)
    redis = RedisSettings(nodes=((HOST, 1),))  # nobody is there
    monkeypatch.setattr(run, "_FIRST_STATE_S", 0.0)
    pages = UnixSocket(tmp_path / "pages")
    await run.serve(ServeSettings(listen=place, pages=pages, redis=redis, drain_s=0.0), serves)
    assert connected == [False, True]


async def test_a_part_that_died_is_told_and_the_others_are_ended_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def dies() -> None:
        raise ZeroDivisionError

    tasks = [begin("first", dies()), begin("second", asyncio.Event().wait())]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "first died; serving on without it"
    ]
    await end(tasks)
    assert [task.cancelled() for task in tasks] == [False, True]


async def test_metrics_tell_what_strict_mode_could_not_settle_and_only_in_strict_mode() -> None:
    made, tokenizers = router(instance("a")), Tokenizers.load({}, budget_s=1.0)
    holding = Holding(made, lambda: 0.0, lambda: 0.0)
    async with Link("redis://127.0.0.1:1") as link:  # nobody is there
        bookings = Bookings(link, "extproc:{default}", "r1", made.ledger)
        strict = StrictBookings(link, "extproc:{default}", "r1")
        assert await strict.take(TakePlace("0", (Place("a@1", 1),))) == 0
        for known, told in ((strict, b"extproc_strict_unsettled_total 1.0"), (None, b"")):
            parts = (made, tokenizers, bookings, known, LadderWatch(made), Guards(), holding)
            page = Metrics(partial(gauges, *parts)).page()
            lines = [line for line in page.splitlines() if line.startswith(b"extproc_strict_unsettled_total")]
            assert lines == ([told] if told else [])
    tokenizers.close()


async def test_what_was_held_is_told_on_though_nobody_is_to_be_held_any_more() -> None:
    """Over several workers a count that went away and came back as it was would count twice."""
    tokenizers, told = Tokenizers.load({}, budget_s=1.0), []
    async with Link("redis://127.0.0.1:1") as link:  # nobody is there
        for policies in ((Policy(),), (Policy(admission=Admission()),), (Policy(admission=Admission()), Policy())):
            made = router(instance("a"))
            for policy in policies:
                made.use(policy)
            bookings = Bookings(link, "extproc:{default}", "r1", made.ledger)
            holding = Holding(made, lambda: 0.0, lambda: 0.0)
            parts = (made, tokenizers, bookings, None, LadderWatch(made), Guards(), holding)
            told.append(b"extproc_held_left_total{" in Metrics(partial(gauges, *parts)).page())
    tokenizers.close()
    assert told == [False, True, True]
