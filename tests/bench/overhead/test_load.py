"""The load generator against small servers: what it sends arrives, and what goes wrong is counted by its kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from extproc.bench.overhead.headers import ECHO_HEADER
from extproc.bench.overhead.load import Load, Round
from extproc.demo.ports import free_port

GOOD = f"HTTP/1.1 200 OK\r\n{ECHO_HEADER}: pool\r\ncontent-length: 2\r\n\r\nok".encode()
UNDECIDED = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
CHUNKED = f"HTTP/1.1 200 OK\r\n{ECHO_HEADER}: pool\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n".encode()
FAILED = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull"


@asynccontextmanager
async def answering(answer: Callable[[int], bytes | None]) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that answers its n-th request with `answer(n)`, None: by hanging up. Its port, and the bodies."""
    bodies: list[bytes] = []
    serving: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.append(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                bodies.append(await reader.readexactly(length))
                got = answer(len(bodies))
                if got is None:
                    break
                writer.write(got)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], bodies
    finally:
        server.close()
        await asyncio.gather(*serving)


@pytest.mark.parametrize("answer", [GOOD, CHUNKED])
async def test_an_open_loop_sends_each_request_that_is_due(answer: bytes) -> None:
    """A Poisson process of the same seed has the same number of them, and each is told how late it was."""
    async with answering(lambda _: answer) as (port, bodies):
        wish = Round(port=port, body_bytes=1024, seconds=0.2, rate_rps=300.0, decided=True, seed=3)
        load = Load()
        first, again = await load.run(wish), await load.run(wish)
        load.close()
    assert first.sent == again.sent > 30
    assert not first.errors
    assert len(first.latencies_s) == len(first.late_s) == first.sent
    assert first.latencies_s == sorted(first.latencies_s)
    assert len(bodies) == first.sent + again.sent


async def test_an_open_loop_lasts_until_no_more_is_due() -> None:
    """Not to its last answer: the rate of answers would be more than that of requests, the fewer the more."""
    wish = Round(port=0, body_bytes=1024, seconds=0.5, rate_rps=4.0, decided=True, seed=1)
    async with answering(lambda _: GOOD) as (port, _):
        load = Load()
        found = await load.run(msgspec.structs.replace(wish, port=port))
        load.close()
    assert found.sent > 0
    assert found.elapsed_s >= wish.seconds


async def test_a_closed_loop_sends_as_many_as_are_answered() -> None:
    """Never more than there are clients under way; it ends by itself."""
    async with answering(lambda _: GOOD) as (port, bodies):
        load = Load()
        found = await load.run(Round(port=port, body_bytes=1024, seconds=30.0, clients=3, max_requests=50))
        load.close()
    assert len(found.latencies_s) == found.sent == len(bodies) == 50
    assert len(set(bodies)) == 50


@pytest.mark.parametrize(
    ("answer", "kind"), [(UNDECIDED, "undecided"), (FAILED, "status 503"), (None, "connection lost")]
)
async def test_what_goes_wrong_is_counted_by_its_kind(answer: bytes | None, kind: str) -> None:
    """Every third goes wrong, and the others are answered nevertheless."""
    async with answering(lambda number: GOOD if number % 3 else answer) as (port, _):
        load = Load()
        wish = Round(port=port, body_bytes=1024, seconds=30.0, clients=2, max_requests=30, decided=True)
        found = await load.run(wish)
        load.close()
    assert found.errors == {kind: 10}
    assert len(found.latencies_s) == 20


async def test_nobody_there_is_an_error_of_each_request() -> None:
    """And the round ends."""
    wish = Round(port=free_port(), body_bytes=1024, seconds=0.1, rate_rps=100.0)
    found = await Load().run(wish)
    assert found.errors == {"no connection": found.sent}
