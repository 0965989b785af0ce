"""Through a real Envoy: requests for which there is no room are held, let go when there is, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.api.caller import Trust
from extproc.control.settings import RequestBodies, Shape
from extproc.core.admission.admission import Admission
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.request import RequestClass
from extproc.stream.rules import Rules
from tests.control.deciding import CHAT, HELLO, Deciding, deciding
from tests.control.parts import HOST, raw
from tests.core.builders import MODEL, router
from tests.e2e.eventually import eventually

TIMEOUT_S = 0.25  # after which Envoy goes on undecided if it is not asked for more
LONG = "x-class: batch\r\n"  # whoever watches gives up before a test has seen anything
RULES = Rules(
    trust=Trust(class_header="x-class", priority_header="x-priority", tenant_header="x-tenant", explain_header="x-why")
)
MODES = pytest.mark.parametrize("mode", RequestBodies)
SHAPES = pytest.mark.parametrize("shape", Shape)
DIALECTS = {
    "openai": (CHAT, HELLO),
    "anthropic": (
        "/v1/messages",
        orjson.dumps({"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}),
    ),
}


def admitting(**admission: Any) -> Callable[..., Router]:
    """What makes a router with these rules, each of whose instances has one place."""
    return partial(router, policy=Policy(max_in_flight=1, admission=Admission(**admission), stale_after_s=3600.0))


@asynccontextmanager
async def full(folder: Path, **settings: Any) -> AsyncIterator[Deciding]:
    """One instance with one place, which is taken until the test sets `chosen.held`."""
    changes: dict[str, Any] = {"rules": RULES, "make": admitting(), "message_timeout_s": TIMEOUT_S} | settings
    async with deciding(folder, **changes) as setup:
        setup.chosen.held = asyncio.Event()
        first = asyncio.create_task(ask(setup, b"first"))
        await eventually(served(setup), lambda seen: len(seen) == 1)
        yield setup
        setup.chosen.held.set()
        assert (await first)[0] == 200
        await setup.until_nothing_is_in_flight()
        assert len(setup.service.holding) == 0


async def ask(setup: Deciding, text: bytes, headers: str = LONG, path: str = CHAT) -> tuple[int, bytes, bytes]:
    return await raw(setup.port, "POST", path, headers, HELLO.replace(b"hello", text))


def served(setup: Deciding) -> Callable[[], Awaitable[list[str]]]:
    """What the instance was asked, in order; nothing may have come to it, or to the other, undecided."""

    async def read() -> list[str]:
        assert not setup.other.seen
        return [orjson.loads(body)["messages"][0]["content"] for *_, body in setup.chosen.seen]

    return read


def held(setup: Deciding) -> Callable[[], Awaitable[int]]:
    async def read() -> int:
        return len(setup.service.holding)

    return read


async def stats(setup: Deciding) -> dict[str, int]:
    found = await asyncio.to_thread(setup.envoy.stats)
    return {name.rpartition("ext_proc.")[2]: value for name, value in found.items() if "ext_proc." in name}


@MODES
@SHAPES
async def test_a_request_is_held_beyond_the_message_timeout_and_let_go_when_another_ends(
    mode: RequestBodies, shape: Shape, tmp_path: Path
) -> None:
    """Envoy is asked for more time once; in `full-duplex` it counts none, and is not asked."""
    async with full(tmp_path, body_mode=mode, shape=shape) as setup:
        second = asyncio.create_task(ask(setup, b"second", LONG + "x-why: 1\r\n"))
        await eventually(held(setup), lambda number: number == 1)
        await asyncio.sleep(4 * TIMEOUT_S)
        assert await served(setup)() == ["first"]
        assert setup.chosen.held is not None
        setup.chosen.held.set()
        status, head, answer = await second
        assert (status, orjson.loads(answer)["messages"][0]["content"]) == (200, "second")
        assert b"held=" in head.lower()
        counted = await stats(setup)
        assert counted["override_message_timeout_received"] == (0 if mode is RequestBodies.FULL_DUPLEX else 1)
        assert counted["override_message_timeout_ignored"] == counted["message_timeouts"] == 0


async def test_the_more_urgent_goes_first_and_then_the_tenant_that_had_less(tmp_path: Path) -> None:
    """Seen where they arrive: each makes room for the next."""
    async with full(tmp_path) as setup:
        waiting = []
        for tenant, priority, text in (("a", 0, "a1"), ("a", 0, "a2"), ("a", 0, "a3"), ("b", 0, "b1"), ("b", -5, "b2")):
            headers = f"{LONG}x-tenant: {tenant}\r\nx-priority: {priority}\r\n"
            waiting.append(asyncio.create_task(ask(setup, text.encode(), headers)))
            await eventually(held(setup), lambda number: number == len(waiting))
        assert setup.chosen.held is not None
        setup.chosen.held.set()
        assert {result[0] for result in await asyncio.gather(*waiting)} == {200}
        order = (await served(setup)())[1:]
        assert order[0] == "b2"
        assert order.index("b1") < order.index("a3")
        assert [text for text in order if text[0] == "a"] == ["a1", "a2", "a3"]


@pytest.mark.parametrize("dialect", DIALECTS)
@MODES
@SHAPES
async def test_what_cannot_be_served_in_time_is_refused_in_the_clients_own_form(
    dialect: str, mode: RequestBodies, shape: Shape, tmp_path: Path
) -> None:
    """With when to come again, and to those who may know it with the reason."""
    path, body = DIALECTS[dialect]
    rules = admitting(max_hold_s=dict.fromkeys(RequestClass, 2 * TIMEOUT_S))
    async with full(tmp_path, body_mode=mode, shape=shape, make=rules) as setup:
        status, head, answer = await raw(setup.port, "POST", path, LONG + "x-why: 1\r\n", body)
        assert status == 503
        fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:])
        assert 1 <= int(fields["retry-after"]) <= 60
        assert fields["content-type"] == "application/json"
        assert "held_too_long" in fields["x-extproc-explanation"]
        error = orjson.loads(answer)["error"]
        if dialect == "anthropic":
            assert error["type"] == "overloaded_error"
        else:
            assert (error["type"], error["code"]) == ("server_error", "overloaded")
        assert await served(setup)() == ["first"]


async def test_who_finds_no_room_to_wait_is_refused_at_once(tmp_path: Path) -> None:
    async with full(tmp_path, make=admitting(max_held_requests=1)) as setup:
        second = asyncio.create_task(ask(setup, b"second"))
        await eventually(held(setup), lambda number: number == 1)
        status, _, answer = await ask(setup, b"third")
        assert (status, orjson.loads(answer)["error"]["code"]) == (503, "overloaded")
        assert setup.chosen.held is not None
        setup.chosen.held.set()
        assert (await second)[0] == 200


@MODES
async def test_what_is_beyond_the_most_streams_is_refused_and_does_not_go_past_who_is_held(
    mode: RequestBodies, tmp_path: Path
) -> None:
    """Without admission it would go on undecided. What is no inference still does."""
    async with full(tmp_path, body_mode=mode, max_streams=2) as setup:
        second = asyncio.create_task(ask(setup, b"second"))
        await eventually(held(setup), lambda number: number == 1)
        status, head, answer = await ask(setup, b"third")
        assert (status, orjson.loads(answer)["error"]["code"]) == (503, "overloaded")
        assert b"retry-after" in head
        assert setup.service.refused_streams == 1
        assert (await raw(setup.port, "GET", "/v1/files"))[0] == 200
        setup.other.seen.clear()
        assert setup.chosen.held is not None
        setup.chosen.held.set()
        assert (await second)[0] == 200


@MODES
async def test_a_client_that_leaves_while_it_is_held_leaves_nothing_behind(mode: RequestBodies, tmp_path: Path) -> None:
    """Its turn goes to the next."""
    async with full(tmp_path, body_mode=mode) as setup:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{LONG}content-length: {len(HELLO)}\r\n\r\n".encode()
        writers = []
        for _ in range(5):
            _, writer = await asyncio.open_connection(HOST, setup.port)
            writer.write(head + HELLO)
            writers.append(writer)
        await eventually(held(setup), lambda number: number == 5)
        for writer in writers:
            writer.close()
        await eventually(held(setup), lambda number: number == 0)
        assert setup.service.holding.left == {RequestClass.BATCH: 5}
        assert setup.router.wake_at_s == float("inf")
        assert setup.chosen.held is not None
        setup.chosen.held.set()
        assert (await ask(setup, b"next"))[0] == 200
        assert await served(setup)() == ["first", "next"]


@MODES
async def test_a_service_that_ends_refuses_whom_it_holds(mode: RequestBodies, tmp_path: Path) -> None:
    """If there is no room before its time to drain is over; an end without an answer would let them on undecided."""
    async with full(tmp_path, body_mode=mode) as setup:
        waiting = [asyncio.create_task(ask(setup, b"waiting")) for _ in range(5)]
        await eventually(held(setup), lambda number: number == 5)
        await setup.service.drain()
        late = asyncio.create_task(ask(setup, b"late"))
        await eventually(held(setup), lambda number: number == 6)
        await setup.service.stop(2 * TIMEOUT_S)
        results = await asyncio.gather(*waiting, late)
        assert {status for status, *_ in results} == {503}
        assert {orjson.loads(answer)["error"]["code"] for *_, answer in results} == {"overloaded"}
        assert await served(setup)() == ["first"]


async def test_a_body_that_is_still_coming_when_the_service_ends_is_not_cut(tmp_path: Path) -> None:
    """In `full-duplex` Envoy has let go of it: the request is refused, not sent on without its body."""
    async with full(tmp_path, body_mode=RequestBodies.FULL_DUPLEX) as setup:
        reader, writer = await asyncio.open_connection(HOST, setup.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(HELLO)}\r\n\r\n".encode() + HELLO[:9])
        await eventually(lambda: streams(setup), lambda number: number == 2)
        await setup.service.stop(0.0)
        assert (await asyncio.wait_for(reader.readline(), 60)).split()[1] == b"503"
        writer.close()
        assert await served(setup)() == ["first"]


async def streams(setup: Deciding) -> int:
    found = await asyncio.to_thread(setup.envoy.stats, "cluster.extproc.upstream_rq_active")
    return sum(found.values())


async def test_a_service_that_drains_lets_go_whom_it_can(tmp_path: Path) -> None:
    async with full(tmp_path) as setup:
        second = asyncio.create_task(ask(setup, b"second"))
        await eventually(held(setup), lambda number: number == 1)
        await setup.service.drain()
        stopped = asyncio.create_task(setup.service.stop(60.0))
        assert setup.chosen.held is not None
        setup.chosen.held.set()
        assert (await second)[0] == 200
        await stopped


async def test_an_envoy_that_allows_no_more_time_is_told_of(tmp_path: Path) -> None:
    """It ignores what it is asked for and goes on undecided: seen in its counter, and here as clients that left."""

    def change(ext_proc: dict[str, Any]) -> None:
        ext_proc["max_message_timeout"] = "5s"

    async with full(tmp_path, change=change) as setup:
        assert (await ask(setup, b"second"))[0] == 200
        assert [orjson.loads(body)["messages"][0]["content"] for *_, body in setup.other.seen] == ["second"]
        setup.other.seen.clear()
        await eventually(held(setup), lambda number: number == 0)
        assert setup.service.holding.left.total() == 1
        assert (await stats(setup))["override_message_timeout_ignored"] == 1
