"""Requests of every kind to one running fleet, which they leave as it was: overload, cancelled, refused, broken off."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

import openai
import orjson
import pytest

from extproc.adapters.http_client import Answer
from extproc.demo.ports import HOST
from tests.e2e.conftest import Fleet
from tests.e2e.eventually import eventually
from tests.e2e.test_faults import CHAT, raw
from tests.e2e.test_routing import LONG

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_overloaded_holder_of_a_prefix_is_left_for_an_idle_instance(equals: Fleet) -> None:
    prompt = f"shared: {LONG}"
    await equals.ask(prompt)
    await asyncio.gather(*(equals.ask(prompt + f" {number}", max_tokens=200) for number in range(100)))
    share = Counter((await equals.chosen())[-100:])
    assert min(share["a"], share["b"]) >= 10


async def test_cancelled_streams_leave_nothing_in_flight(equals: Fleet) -> None:
    async def begin_and_leave(number: int) -> None:
        if number % 2:  # before the answer begins
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(equals.ask(LONG * 3 + str(number), max_tokens=500), 0.05)
            return
        stream = await equals.ask("x", max_tokens=2000, stream=True)
        async for _ in stream:
            break
        await stream.close()

    for start in range(0, 100, 20):
        await asyncio.gather(*(begin_and_leave(number) for number in range(start, start + 20)))

    async def in_flight() -> list[tuple[int, int | None]]:
        return [(row["in_flight"], row["running"]) for row in await equals.stack.fleet(equals.http)]

    assert await eventually(in_flight, lambda counts: counts == [(0, 0), (0, 0)])


async def refused(fleet: Fleet, body: bytes, status: int, code: str) -> None:
    answer = await fleet.http.post_json(f"{fleet.stack.routed_url}/v1/chat/completions", body)
    assert isinstance(answer, Answer)
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (status, code)


async def test_refusals_are_openai_shaped_and_bodies_of_any_size_arrive_whole(equals: Fleet) -> None:
    await refused(equals, b"null", 400, "invalid_request_body")
    await refused(equals, b'{"model": "x"', 400, "invalid_request_body")
    await refused(equals, b"", 400, "invalid_request_body")
    unknown = b'{"model": "nobody", "messages": [{"role": "user", "content": "x"}]}'
    await refused(equals, unknown, 404, "model_not_found")
    with pytest.raises(openai.NotFoundError):
        await equals.ask(model="nobody")
    for size in (31_000, 33_000, 128_000):
        answer = await equals.ask("x" * size)
        assert answer.usage.prompt_tokens > size / 5
    await _large_bodies(equals)


async def _large_bodies(fleet: Fleet) -> None:
    """Beyond the model's context but within every limit of framing: the answer is a 4xx that says so, never a 5xx."""
    for size in (1_000_000, 3_900_000, 4_200_000, 20_000_000):
        with pytest.raises(openai.BadRequestError) as caught:
            await fleet.ask("x" * size)
        assert "context" in str(caught.value)


async def test_a_post_without_a_body_is_answered(equals: Fleet) -> None:
    for headers in ("content-length: 0\r\n", "expect: 100-continue\r\ncontent-length: 0\r\n", ""):
        status, answer = await raw(equals.stack, "POST", "/v1/chat/completions", headers)
        assert status == 400
        assert b"invalid_request_error" in answer


async def test_uploads_that_never_finish_do_not_disturb_others(equals: Fleet) -> None:
    port = int(equals.stack.routed_url.rpartition(":")[2])
    slow = [socket.create_connection((HOST, port)) for _ in range(200)]
    try:
        for connection in slow:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n{")
        for _ in range(5):
            await equals.ask()
    finally:
        for connection in slow:
            connection.close()

    async def in_flight() -> int:
        return sum(row["in_flight"] for row in await equals.stack.fleet(equals.http))

    assert await eventually(in_flight, lambda count: count == 0) == 0


async def test_the_service_itself_never_dies_of_a_body(equals: Fleet) -> None:
    bodies = [
        b"\xff\xfe",
        b"[" * 10_000,
        b'{"model": "\\ud800"}',
        b'{"model": {"a": 1}, "messages": 3}',
        b'{"messages": [{"role": 1}], "model": "x", "stream": {}}',
        CHAT[:-1] + b', "stream": "true"}',
    ]
    for body in bodies:
        answer = await equals.http.post_json(f"{equals.stack.routed_url}/v1/chat/completions", body)
        assert isinstance(answer, Answer)
        assert answer.status in (200, 400, 404), answer
    await equals.ask()
    assert equals.stack.service.process.returncode is None
