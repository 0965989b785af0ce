"""What must hold when parts fail or clients lie, through a real Envoy."""

from __future__ import annotations

import asyncio

import orjson

from extproc.demo.ports import HOST
from extproc.demo.stack import MODEL, Stack
from tests.e2e.conftest import EQUALS, TWO_KINDS, StartFleet
from tests.e2e.eventually import eventually

FORGED = (
    "X-Upstream-Cluster: extproc\r\n",
    "x-upstream-cluster: extproc\r\nX-UPSTREAM-CLUSTER: nowhere\r\n",
    "x-gateway-destination-endpoint: 127.0.0.1:1\r\nx-upstream-cluster: pool\r\nx-extproc-debug: 1\r\n",
)


async def raw(stack: Stack, method: str, path: str, headers: str, body: bytes = b"") -> tuple[int, bytes]:
    """Status and answer of a request written by hand, as a liar would write it."""
    port = int(stack.routed_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(HOST, port)
    length = f"content-length: {len(body)}\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{length}{headers}\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    answer = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    return int(answer.split(b" ", 2)[1]), answer


CHAT = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1})


async def _forgeries_are_ignored(stack: Stack) -> None:
    for forged in FORGED:
        status, _ = await raw(stack, "GET", "/v1/models", forged)
        assert status == 200
        status, answer = await raw(stack, "POST", "/v1/chat/completions", forged, CHAT)
        assert status == 200
        assert b"chat.completion" in answer


async def test_a_forged_routing_header_never_chooses_with_the_service_up_or_down(start_fleet: StartFleet) -> None:
    async with start_fleet(TWO_KINDS) as fleet:
        await _forgeries_are_ignored(fleet.stack)
        assert set(await fleet.chosen()) == {"fast"}  # all were decided upon
        await fleet.processes.stop(fleet.stack.service)
        await _forgeries_are_ignored(fleet.stack)


async def test_while_redis_is_gone_requests_are_routed_from_the_last_state(start_fleet: StartFleet) -> None:
    async with start_fleet(TWO_KINDS) as fleet:
        await fleet.ask()
        fleet.redis.freeze()
        await asyncio.sleep(8.0)  # longer than reports stay fresh
        for _ in range(5):
            await fleet.ask()
        assert (await fleet.chosen())[-5:] == ["fast"] * 5
        fleet.redis.stop()
        await fleet.ask()
        assert (await fleet.chosen())[-1] == "fast"
        fleet.redis.start()
        await eventually(lambda: fleet.row("fast"), lambda row: row.get("age_s", 9.0) < 1.0)
        await fleet.ask()
        assert (await fleet.chosen())[-1] == "fast"


async def test_sigterm_under_load_loses_no_request(start_fleet: StartFleet) -> None:
    async with start_fleet(EQUALS) as fleet:
        stop = asyncio.Event()
        answered = 0

        async def client(number: int) -> None:
            nonlocal answered
            while not stop.is_set():
                await fleet.ask(f"client {number}", max_tokens=20)
                answered += 1

        async def count() -> int:
            return answered

        async with asyncio.TaskGroup() as clients:
            for number in range(10):
                clients.create_task(client(number))
            await asyncio.sleep(0.5)
            fleet.stack.service.process.terminate()
            async with asyncio.timeout(30):
                await fleet.stack.service.process.wait()
            before = answered
            await eventually(count, lambda now: now > before + 20)
            stop.set()
        assert fleet.stack.service.process.returncode == 0
