"""The HTTP client against real sockets that refuse, stall, break and answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from extproc.adapters import http_client
from extproc.adapters.http_client import Answer, Failure, FailureKind, HttpClient
from extproc.demo.ports import free_port

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[str]:
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(ConnectionError):
            await handler(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/page"
    finally:
        server.close()
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def answering(reply: bytes, close: bool = True) -> tuple[Handler, list[int]]:
    connections = [0]

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[0] += 1
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(reply)
            await writer.drain()
            if close:
                break
        writer.close()

    return handler, connections


async def test_an_answer_has_status_and_body_whatever_the_status() -> None:
    handler, _ = answering(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy")
    async with HttpClient() as client, listening(handler) as url:
        assert await client.get(url) == Answer(503, b"busy")


async def test_connections_are_kept_alive() -> None:
    handler, connections = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", close=False)
    async with listening(handler) as url, HttpClient() as client:
        for _ in range(3):
            assert await client.get(url) == Answer(200, b"ok")
        assert connections == [1]


async def test_a_refused_connection_is_told_as_such() -> None:
    async with HttpClient() as client:
        for host in ("127.0.0.1", "localhost"):
            failure = await client.get(f"http://{host}:{free_port()}/")
            assert isinstance(failure, Failure)
            assert failure.kind is FailureKind.REFUSED


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"])
async def test_silence_times_out(reply: bytes) -> None:
    handler, _ = answering(reply, close=False)
    async with HttpClient(timeout_s=0.2) as client, listening(handler) as url:
        assert await client.get(url) == Failure(FailureKind.TIMED_OUT)


async def test_how_long_a_call_may_take_can_be_set_anew() -> None:
    """Calls from then on have it; connections stay."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with HttpClient(timeout_s=0.1) as client, listening(slow) as url:
        assert await client.get(url) == Failure(FailureKind.TIMED_OUT)
        client.allow(60.0)
        assert await client.get(url) == Answer(200, b"ok")


@pytest.mark.parametrize("reply", [b"", b"SMTP ready\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"])
async def test_a_broken_answer_is_a_value(reply: bytes) -> None:
    handler, _ = answering(reply)
    async with HttpClient() as client, listening(handler) as url:
        failure = await client.get(url)
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.BROKEN
        assert failure.detail


async def test_a_page_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_BODY_BYTES", 1000)
    handler, _ = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000)
    async with HttpClient() as client, listening(handler) as url:
        assert await client.get(url) == Failure(FailureKind.BROKEN, "more than 1000 bytes")


async def test_what_is_no_url_is_a_value() -> None:
    async with HttpClient() as client:
        assert isinstance(await client.get("nonsense"), Failure)
