"""From wishes to load intents, a webhook and remembered starts, through a real server and a real HTTP endpoint."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from extproc.adapters.http_client import HttpClient
from extproc.adapters.intents import Intents
from extproc.adapters.registry import Registry
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.webhook import KEY_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, Target, Webhook
from extproc.cli import main
from extproc.core.fleet.fleet import Published
from extproc.core.models.cold import ColdPolicy, ColdRule, Source
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Lifecycle
from extproc.observe.cold_metrics import ColdCollector
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.server.cold_waits import ColdWaits
from extproc.server.intents_keeper import IntentsKeeper
from extproc.stream.errands import AwaitModel
from tests.core.builders import instance, publish
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer

POLICY = Policy(cold=ColdPolicy(usual=ColdRule(start_s=60.0), known=frozenset({"big"})))
SECRET = b"of both"
NOW_S = 1_700_000_000.0


@dataclass
class Endpoint:
    """Answers with these statuses, one after the other, then with 204."""

    statuses: list[int] = field(default_factory=list)
    seen: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.seen.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)


@asynccontextmanager
async def listening(*statuses: int) -> AsyncIterator[Endpoint]:
    endpoint, app = Endpoint(list(statuses)), web.Application()
    app.router.add_post("/wanted", endpoint.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/wanted"
        yield endpoint
    finally:
        await runner.cleanup()


@dataclass(frozen=True)
class One:
    """A router with its keeper."""

    router: Router
    keeper: IntentsKeeper
    intents: Intents
    http: HttpClient

    def wish(self, model: str = "big", loading: bool = False) -> None:
        self.router.cold.wishes.note(model, 60.0, loading)


@asynccontextmanager
async def keeping(
    url: str, name: str = "one", endpoint: Endpoint | None = None, budget_s: float = 20.0
) -> AsyncIterator[One]:
    router = Router(POLICY)
    async with Registry(url) as registry, HttpClient() as http:
        target = None if endpoint is None else Target(endpoint.url, SECRET)
        webhook = None if target is None else Webhook(target, http, lambda: NOW_S, budget_s)
        intents = Intents(registry.link, registry.base, name)
        memory = StartMemory(registry.link, registry.base)
        yield One(router, IntentsKeeper(router, intents, memory, "default", webhook, budget_s=20.0), intents, http)


async def test_wishes_become_an_intent_with_those_that_wait(tmp_path: Path) -> None:
    """Also in a turn in which nobody came; once nobody waits any more, that is said too."""
    with RedisServer("valkey", tmp_path) as server:
        async with keeping(server.url) as one:
            one.wish()
            one.wish()
            one.router.cold.wishes.hold("big")
            await one.keeper.turn()
            await one.keeper.turn()
            (intent,) = await one.intents.read()
            assert (intent.model, intent.requests, intent.waiting) == ("big", 2, 1)
            one.router.cold.wishes.let_go("big")
            await one.keeper.turn()
            (intent,) = await one.intents.read()
            assert (intent.requests, intent.waiting) == (2, 0)


async def test_wishes_outlive_an_outage(tmp_path: Path) -> None:
    """They are written when the server is back."""
    with RedisServer("valkey", tmp_path) as server:
        async with keeping(server.url) as one:
            server.stop()
            one.wish()
            await one.keeper.try_turn()
            one.wish()
            server.start()
            await one.keeper.turn()
            (intent,) = await one.intents.read()
            assert intent.requests == 2


async def test_an_intent_is_taken_back_when_the_model_is_served(tmp_path: Path) -> None:
    """By any router, and none that comes late writes it anew."""
    with RedisServer("valkey", tmp_path) as server:
        async with keeping(server.url) as one, keeping(server.url, "two") as two:
            one.wish()
            await one.keeper.turn()
            two.wish()
            publish(two.router, instance("new", models=("big",)), 0.0)
            await two.keeper.turn()
            assert await one.intents.read() == ()
            await two.keeper.turn()
            assert await one.intents.read() == ()


async def test_what_is_served_by_now_is_no_longer_told(tmp_path: Path) -> None:
    """It came between the request and the turn."""
    with RedisServer("valkey", tmp_path) as server:
        async with listening() as endpoint, keeping(server.url, "one", endpoint) as one:
            one.wish()
            publish(one.router, instance("new", models=("big",)), 0.0)
            for number, model in enumerate(("other", "third"), 1):
                one.wish(model)
                await one.keeper.turn()
                await eventually(_count("taken", one), lambda taken, least=number: taken >= least)
            assert {json.loads(body)["model"] for _, body in endpoint.seen} == {"other", "third"}


async def test_what_starts_took_outlives_the_last_instance_and_the_router(tmp_path: Path) -> None:
    """A router that never saw the model knows it, and when to come again: 9 of 10 starts were over by 70 s."""
    with RedisServer("valkey", tmp_path) as server:
        async with keeping(server.url) as one:
            for number, start_s in enumerate((40.0, 70.0)):
                publish(one.router, instance(str(number), models=("served",), start_s=start_s), 0.0)
            publish(one.router, instance("other", models=("slow",), start_s=9.0, lifecycle=Lifecycle.DRAINING), 0.0)
            await one.keeper.turn()
        async with keeping(server.url, "later") as later:
            assert later.router.cold.outlook("served", (), 0.0) is None
            await later.keeper.turn()
            outlook = later.router.cold.outlook("served", (), 0.0)
            assert outlook is not None
            assert (outlook.wait_s, outlook.source) == (70.0, Source.LEARNED)
            assert later.router.cold.outlook("slow", (), 0.0) is None


async def test_the_webhook_is_told_once_by_all_routers_together_and_signed(tmp_path: Path) -> None:
    """What it is told is enough to load the model. The signature is over the time and the body."""
    with RedisServer("valkey", tmp_path) as server:
        async with listening() as endpoint, keeping(server.url, "one", endpoint) as one:
            async with keeping(server.url, "two", endpoint) as two:
                for each in (one, two, one, two):
                    each.wish()
                    await each.keeper.turn()
                await eventually(_count("taken", one, two), lambda taken: taken == 1)
            ((headers, body),) = endpoint.seen
            told = json.loads(body)
            assert told["wanted_for_s"] >= 0.0
            assert {name: told[name] for name in told if name != "wanted_for_s"} == {
                "event": "model_wanted",
                "fleet": "default",
                "model": "big",
                "requests": 1,
                "waiting": 0,
                "expected_start_s": 60.0,
            }
            signed = f"{NOW_S:.0f}.".encode() + body
            assert headers[TIMESTAMP_HEADER] == f"{NOW_S:.0f}"
            assert headers[SIGNATURE_HEADER] == f"sha256={hmac.new(SECRET, signed, hashlib.sha256).hexdigest()}"
            assert headers["content-type"] == "application/json"


async def test_the_webhook_is_told_of_a_model_with_any_name(tmp_path: Path) -> None:
    """A header's value holds plain characters alone; the body tells the name as it is."""
    name = "org/模型\r\nx-more: 1"
    with RedisServer("valkey", tmp_path) as server:
        async with listening() as endpoint, keeping(server.url, "one", endpoint) as one:
            one.wish(name)
            await one.keeper.turn()
            await eventually(_count("taken", one), lambda taken: taken == 1)
            ((headers, body),) = endpoint.seen
            assert json.loads(body)["model"] == name
            assert headers[KEY_HEADER].startswith("default/org/%E6%A8%A1%E5%9E%8B%0D%0Ax-more:%201/")


async def test_a_webhook_that_fails_is_asked_again_with_the_same_key(tmp_path: Path) -> None:
    """For whoever took it the first time and only failed to say so."""
    with RedisServer("valkey", tmp_path) as server:
        async with listening(503, 429) as endpoint, keeping(server.url, "one", endpoint) as one:
            one.wish()
            await one.keeper.turn()
            await eventually(_count("taken", one), lambda taken: taken == 1)
            assert len(endpoint.seen) == 3
            assert len({headers[KEY_HEADER] for headers, _ in endpoint.seen}) == 1


@pytest.mark.parametrize(("status", "result"), [(404, "refused"), (500, "refused")])
async def test_a_webhook_that_does_not_take_it_is_asked_again_at_the_next_request(
    status: int, result: str, tmp_path: Path
) -> None:
    """Once within its budget, here: the claim on telling stays with the router that had it."""
    with RedisServer("valkey", tmp_path) as server:
        async with listening(status) as endpoint, keeping(server.url, "one", endpoint, budget_s=0.1) as one:
            one.wish()
            await one.keeper.turn()
            await eventually(_count(result, one), lambda number: number == 1)
            await one.keeper.turn()
            one.wish()
            await one.keeper.turn()
            await eventually(_count("taken", one), lambda taken: taken == 1)
            assert len(endpoint.seen) == 2


async def test_the_webhook_is_not_told_of_what_is_being_loaded(tmp_path: Path) -> None:
    """Somebody has followed the intent already; the intent itself stands until the model is served."""
    with RedisServer("valkey", tmp_path) as server:
        async with listening() as endpoint, keeping(server.url, "one", endpoint) as one:
            one.wish(loading=True)
            await one.keeper.turn()
            assert await one.intents.models() == ("big",)
            one.wish()
            await one.keeper.turn()
            await eventually(_count("taken", one), lambda taken: taken == 1)
            assert json.loads(endpoint.seen[0][1])["requests"] == 2


async def test_the_fleet_command_and_the_metrics_show_what_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table for people, JSON for programs, gauges for alerts."""
    with RedisServer("valkey", tmp_path) as server:
        async with keeping(server.url) as one:
            one.wish()
            await one.keeper.turn()
            page = Metrics(lambda: Gauges({}, {}, 0.0, {}))
            page.add(ColdCollector(one.keeper.counts))
            text = page.page().decode()
            assert 'extproc_cold_requests_total{model="big"} 1.0' in text
            assert 'extproc_load_intents{model="big"} 1.0' in text
        command = ["fleet", "--redis-url", server.url, "--intents"]
        assert await asyncio.to_thread(main, command) == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.split() == ["MODEL", "WANTED", "FOR", "LATEST", "REQUESTS", "WAITING"]
        assert row.split()[0] == "big"
        assert await asyncio.to_thread(main, [*command, "--json"]) == 0
        (shown,) = json.loads(capsys.readouterr().out)
        assert (shown["model"], shown["requests"], shown["waiting"]) == ("big", 1, 0)
        assert await asyncio.to_thread(main, [*command, "--fleet", "empty"]) == 0
        assert "no model is wanted" in capsys.readouterr().out


async def test_those_who_wait_are_woken_by_the_instance_and_by_nothing_else() -> None:
    """One that starts, or serves another model, wakes nobody. Who waits is counted while it does."""
    router = Router(POLICY)
    waits, wishes = ColdWaits(router, lag_s=0.0), router.cold.wishes
    held = [asyncio.create_task(waits.until_served(AwaitModel("big", time.monotonic() + 30.0))) for _ in range(3)]
    gone = asyncio.create_task(waits.until_served(AwaitModel("big", time.monotonic() + 30.0)))
    await asyncio.sleep(0)
    assert wishes.waiting["big"] == 4
    gone.cancel()
    for name, models, lifecycle in (("a", ("small",), Lifecycle.READY), ("b", ("big",), Lifecycle.LOADING)):
        waits.take(router.fleet.apply(_published(name, models, lifecycle), 0.0))
        await asyncio.sleep(0)
    assert not any(task.done() for task in held)
    assert wishes.waiting["big"] == 3
    waits.take(router.fleet.apply(_published("b", ("big",), Lifecycle.READY), 1.0))
    assert await asyncio.gather(*held) == [True, True, True]
    assert not wishes.waiting
    assert await waits.until_served(AwaitModel("other", time.monotonic() + 0.01)) is False
    assert not wishes.waiting


def _published(name: str, models: tuple[str, ...], lifecycle: Lifecycle) -> Published:
    return Published(instance=instance(name, models=models, lifecycle=lifecycle))


def _count(result: str, *of: One) -> Callable[[], Awaitable[int]]:
    async def read() -> int:
        return sum(each.keeper.told[result] for each in of)

    return read
