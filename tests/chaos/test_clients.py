"""Clients that are slow or leave at any moment: others notice nothing, and nothing of them is left."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from tests.chaos.house import HOST, LONG_S, MODEL, House, running_house
from tests.chaos.traffic import Traffic
from tests.e2e.eventually import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="module")]

ABORTS, AT_ONCE = 3000, 100
SLOW = 200
SLOW_S = 8  # seconds of one byte each; then half of them send the rest, and half vanish
BESIDE_RPS = 50.0  # of clients that are well


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """One for all: what a test leaves behind is what is looked for."""
    async with running_house(tmp_path_factory.mktemp("house")) as made:
        yield made


def request(tokens: int, word: str = "x") -> bytes:
    """A streamed completion as it goes over the wire."""
    content = {"role": "user", "content": f"{word} " * 50}
    body = orjson.dumps({"model": MODEL, "messages": [content], "max_tokens": tokens, "stream": True})
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def engines_idle(house: House) -> None:
    """Wait until no engine has a request, by its own word."""

    async def busy() -> list[tuple[str, float]]:
        found = []
        for name, port in house.engine_ports.items():
            page = await house.http.get(f"http://{HOST}:{port}/metrics")
            for line in page.body.decode().splitlines():  # type: ignore[union-attr]
                if line.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting{")):
                    found.append((name, float(line.rpartition(" ")[2])))
        return [each for each in found if each[1]] if found else [("none answers", 1.0)]

    await eventually(busy, lambda now: not now, LONG_S)


async def _abort(house: House, chance: random.Random) -> str:
    """One request that its client leaves somewhere: within the request, before the answer, or within it."""
    data = request(chance.choice((5, 200)), f"{chance.random()}")
    moment = chance.choice(("in the head", "in the body", "at once", "before the answer", "in the answer"))
    reader, writer = await asyncio.open_connection(HOST, house.port)
    head = data.index(b"\r\n\r\n")
    sent = {"in the head": chance.randrange(1, head), "in the body": chance.randrange(head + 4, len(data) - 1)}
    writer.write(data[: sent.get(moment, len(data))])
    await writer.drain()
    if moment == "in the answer":
        await reader.read(1)
        for _ in range(chance.randrange(4)):
            await reader.read(200)
    elif moment != "at once":
        await asyncio.sleep(chance.random() * 0.03)
    if chance.random() < 0.5:
        writer.transport.abort()  # with what is unread, a reset
    else:
        writer.close()
    return moment


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(house: House) -> None:
    """Neither bookings nor streams nor work at engines; who stays gets each answer."""
    chance, moments = random.Random(1), Counter[str]()
    left = iter(range(ABORTS))

    async def leaver() -> None:
        for _ in left:
            moments[await _abort(house, chance)] += 1

    async with Traffic(house, BESIDE_RPS) as traffic:
        async with asyncio.TaskGroup() as leavers:
            for _ in range(AT_ONCE):
                leavers.create_task(leaver())
        await traffic.more(50)
    toll = await traffic.toll()
    print(f"\n{moments.total()} left, {dict(moments)}; beside them: {toll}")  # noqa: T201
    assert moments.total() == ABORTS
    assert toll.lost == 0, toll.words
    assert toll.passed_on == 0
    await house.idle()
    await engines_idle(house)


async def _slow_writer(house: House, number: int) -> str:
    data = request(4)
    head = data.index(b"\r\n\r\n") + 4
    reader, writer = await asyncio.open_connection(HOST, house.port)
    writer.write(data[:head])
    for at in range(head, head + SLOW_S):
        writer.write(data[at : at + 1])
        await asyncio.sleep(1.0)
    if number % 2:
        writer.transport.abort()
        return "left"
    writer.write(data[head + SLOW_S :])
    async with asyncio.timeout(LONG_S):
        answer = await reader.read()
    writer.close()
    return "whole" if answer.startswith(b"HTTP/1.1 200") and b"[DONE]" in answer else f"{answer[:200]!r}"


async def _slow_reader(house: House, number: int) -> str:
    """Takes some 2 KB a second of an answer of 1,200 tokens, which is more than sockets hold."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (HOST, house.port))
    await loop.sock_sendall(connection, request(1200, f"{number}"))
    answer = bytearray()
    with connection:
        for _ in range(SLOW_S):
            answer += await loop.sock_recv(connection, 2048)
            await asyncio.sleep(1.0)
        async with asyncio.timeout(LONG_S):
            while data := await loop.sock_recv(connection, 1 << 16):
                answer += data
    return "whole" if b"[DONE]" in answer else f"{answer[-200:]!r}"


async def test_slow_clients_get_their_answers_and_hold_nobody_up(house: House) -> None:
    """A byte a second is enough; a body that is not whole yet is booked nowhere, and is forgotten with its client."""
    async with Traffic(house, BESIDE_RPS) as traffic:
        await traffic.more(20)
        async with asyncio.TaskGroup() as clients:
            writers = [clients.create_task(_slow_writer(house, number)) for number in range(SLOW)]
            readers = [clients.create_task(_slow_reader(house, number)) for number in range(SLOW // 4)]
        await traffic.more(50)
    toll = await traffic.toll()
    wrote, read = Counter(task.result() for task in writers), Counter(task.result() for task in readers)
    print(f"\nslow writers {dict(wrote)}, slow readers {dict(read)}; beside them: {toll}")  # noqa: T201
    assert wrote == {"whole": SLOW // 2, "left": SLOW // 2}
    assert read == {"whole": SLOW // 4}
    assert toll.lost == 0, toll.words
    assert toll.passed_on == 0
    await house.idle()
    await engines_idle(house)
