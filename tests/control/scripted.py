"""Engines that misbehave to the byte: raw HTTP/1.1 on a socket, as scripted, and a count of what they were asked."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HOST = "127.0.0.1"
OK = b'{"object": "chat.completion"}'


@dataclass(frozen=True)
class Exchange:
    """One request that a raw engine has read, and the way to its client. `number` counts those of its connection."""

    head: bytes
    body: bytes
    number: int
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Write and flush."""
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close with a TCP reset instead of an orderly end."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()


Act = Callable[[Exchange], Awaitable[bool]]
"""What an engine does with a request; whether it reads another one from the connection."""


@dataclass
class RawEngine:
    """Does `act` with every request. `early`: at the request's headers, without reading its body."""

    act: Act
    early: bool = False
    port: int = 0
    seen: list[bytes] = field(default_factory=list)  # bodies of the requests it was asked, b"" if `early`
    heads: list[bytes] = field(default_factory=list)

    @property
    def address(self) -> str:
        """As decisions name it."""
        return f"{HOST}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            number = 0
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                number += 1
                body = b"" if self.early else await _body(head, reader)
                self.heads.append(head)
                self.seen.append(body)
                if not await self.act(Exchange(head, body, number, writer)):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.partition(b":")[2]))
    if b"transfer-encoding: chunked" not in head.lower():
        return b""
    whole = bytearray()
    while size := int(await reader.readline(), 16):
        whole += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return bytes(whole)


@asynccontextmanager
async def running_raw(engine: RawEngine) -> AsyncIterator[RawEngine]:
    """Serve on a free port until the context is left; connections are cut then."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await engine.serve(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(connected, HOST, 0)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answers(status: str, body: bytes = OK, headers: str = "content-type: application/json\r\n") -> Act:
    """A whole answer, and on to the next request. `status`: such as `200 OK`."""
    length = "" if status[:3] in ("204", "304") else f"content-length: {len(body)}\r\n"
    data = f"HTTP/1.1 {status}\r\n{length}{headers}\r\n".encode() + (body if length else b"")
    return sends(data, go_on=True)


def sends(*parts: bytes, pause_s: float = 0.0, go_on: bool = False, cut: bool = False) -> Act:
    """These bytes with pauses between them; then the next request, a TCP reset (`cut`), or an orderly close."""

    async def act(exchange: Exchange) -> bool:
        for number, part in enumerate(parts):
            if number:
                await asyncio.sleep(pause_s)
            await exchange.send(part)
        if cut:
            await asyncio.sleep(0.2)  # let what was sent be read: a reset overtakes it
            exchange.reset()
        return go_on

    return act


async def resets(exchange: Exchange) -> bool:
    """No answer but a TCP reset."""
    exchange.reset()
    return False


async def closes(exchange: Exchange) -> bool:
    """No answer, and an orderly close: a process that ends."""
    return False


async def hangs(exchange: Exchange) -> bool:
    """No answer, ever."""
    await asyncio.sleep(3600)
    return False


def once_then(first: Act, later: Act) -> Act:
    """`first` with the first request of each connection, `later` with those that reuse it."""

    async def act(exchange: Exchange) -> bool:
        return await (first if exchange.number == 1 else later)(exchange)

    return act
