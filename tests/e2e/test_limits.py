"""Through a real Envoy: more requests than the service takes, uploads that never finish, headers without end."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.control.parts import HOST, raw
from tests.e2e.eventually import eventually
from tests.e2e.secure import CHAT, PATH, Secured, running

SLOW = 1000


def resident_bytes() -> int:
    """Memory of this process, which the service is part of."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def open_streams(secured: Secured) -> int:
    return secured.stat("cluster.extproc.upstream_rq_active")


async def test_requests_beyond_the_limit_are_left_to_envoy_and_counted(tmp_path: Path) -> None:
    """They fail open; those that are under way go on, and their end makes room again."""
    async with running(tmp_path, max_streams=3) as secured:
        await secured.healthy()
        secured.engine.held = asyncio.Event()
        first = [asyncio.create_task(secured.ask()) for _ in range(3)]
        await eventually(lambda: _seen(secured), lambda seen: seen == 3)
        beyond = [asyncio.create_task(raw(secured.port, "POST", PATH, body=CHAT)) for _ in range(5)]
        await eventually(lambda: _seen(secured), lambda seen: seen == 8)
        assert secured.service.refused_streams >= 5
        assert sum("x-upstream-cluster" in headers for _, _, headers, _ in secured.engine.seen) == 3
        secured.engine.held.set()
        assert {result[0] for result in await asyncio.gather(*first, *beyond)} == {200}
        refused = secured.service.refused_streams
        assert await secured.ask() == (200, True)
        assert secured.service.refused_streams == refused
        await secured.nothing_in_flight()


async def _seen(secured: Secured) -> int:
    return len(secured.engine.seen)


@pytest.mark.long
async def test_a_thousand_uploads_that_never_finish_cost_little_memory_and_nobody_else(tmp_path: Path) -> None:
    """Envoy holds what came of them, up to the limit of a body; the service has seen their headers and no more."""
    piece = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"x" * 16_000
    head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 30000000\r\n\r\n".encode()
    async with running(tmp_path, request_timeout_s=12.0) as secured:
        await secured.healthy()
        assert await secured.ask() == (200, True)
        before = resident_bytes()

        async def begin() -> asyncio.StreamWriter:
            _, writer = await asyncio.open_connection(HOST, secured.port)
            writer.write(head + piece)
            return writer

        writers = [writer for _ in range(10) for writer in await asyncio.gather(*(begin() for _ in range(SLOW // 10)))]
        await eventually(lambda: open_streams(secured), lambda number: number >= SLOW)
        assert await secured.ask() == (200, True)
        assert resident_bytes() - before < 100_000_000  # with the clients of this test, in the same process
        await eventually(lambda: open_streams(secured), lambda number: number < 10, 120.0)  # Envoy gives them up
        assert len(secured.engine.seen) == 2
        await secured.nothing_in_flight()
        for writer in writers:
            writer.close()


@pytest.mark.parametrize(
    "headers", ["".join(f"x-a{number}: 1\r\n" for number in range(200)), f"x-large: {'y' * 70_000}\r\n"]
)
async def test_headers_without_end_are_refused_before_the_service_sees_them(headers: str, tmp_path: Path) -> None:
    """By their number and their size. Envoy answers itself, and need not have read all that is sent."""
    async with running(tmp_path) as secured:
        await secured.healthy()
        reader, writer = await asyncio.open_connection(HOST, secured.port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\n{headers}\r\n".encode())
        answer = b""
        with suppress(ConnectionError):
            answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert answer[:12] in (b"", b"HTTP/1.1 431")
        assert not secured.engine.seen
        assert await secured.ask() == (200, True)
        assert len(secured.observer.recent()) == 1
