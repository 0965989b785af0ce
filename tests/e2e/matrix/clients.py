"""Clients that cut, frame and forge a request as they are told, over HTTP/1.1 and HTTP/2: one connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import h2.connection
import h2.events
import h2.exceptions
import orjson

HOST = "127.0.0.1"
CHAT_PATH = "/v1/chat/completions"
PATIENCE_S = 120.0  # only a hang lasts so long

Headers = Sequence[tuple[str, str]]


class Http(StrEnum):
    """What the client speaks."""

    HTTP1 = "http1"
    HTTP2 = "http2"


class Framing(StrEnum):
    """How the end of a request's body is told."""

    LENGTH = "length"
    CHUNKED = "chunked"  # in HTTP/2: no content-length, the end of the stream
    NONE = "none"  # neither length nor body


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request; every one of `pieces` is a write (HTTP/1.1) or DATA frames (HTTP/2) of its own."""

    method: str = "POST"
    path: str = CHAT_PATH
    headers: Headers = ()
    pieces: Sequence[bytes] = ()
    framing: Framing = Framing.LENGTH
    trailers: Headers = ()
    version: str = "1.1"  # of HTTP/1

    @property
    def length(self) -> int:
        """Of the body, in bytes."""
        return sum(map(len, self.pieces))


@dataclass(slots=True)
class Got:
    """An answer. `whole`: it came to its proper end."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = False
    interim: list[int] = field(default_factory=list)  # statuses 1xx before it

    @property
    def error(self) -> dict[str, Any]:
        """The error object; fails unless the answer is JSON in OpenAI's shape."""
        assert self.headers.get("content-type") == "application/json", self
        error: dict[str, Any] = orjson.loads(self.body)["error"]
        assert {"message", "type", "param", "code"} == error.keys(), self
        return error


async def send(http: Http, port: int, ask: Ask, on_head: Callable[[Got], None] = lambda got: None) -> Got:
    """The answer to a request. `on_head` is called when its headers are there. Fails if it takes minutes."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=2**20)
    try:
        async with asyncio.timeout(PATIENCE_S):
            speak = _http2 if http is Http.HTTP2 else _http1
            return await speak(reader, writer, ask, on_head)
    finally:
        writer.close()


async def _http1(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: Ask, on_head: Callable[[Got], None]
) -> Got:
    lines = [f"{ask.method} {ask.path} HTTP/{ask.version}", "host: x", "connection: close"]
    if ask.framing is Framing.LENGTH:
        lines.append(f"content-length: {ask.length}")
    elif ask.framing is Framing.CHUNKED:
        lines.append("transfer-encoding: chunked")
    lines += [f"{name}: {value}" for name, value in ask.headers]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def upload() -> None:
        with suppress(ConnectionError):  # who refuses early may hang up
            for piece in ask.pieces:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if ask.framing is Framing.CHUNKED else piece)
                await writer.drain()
            if ask.framing is Framing.CHUNKED:
                trailers = "".join(f"{name}: {value}\r\n" for name, value in ask.trailers)
                writer.write(b"0\r\n" + trailers.encode() + b"\r\n")

    uploading = asyncio.create_task(upload())
    try:
        return await _read1(reader, on_head)
    finally:
        uploading.cancel()
        await asyncio.wait([uploading])


async def _read1(reader: asyncio.StreamReader, on_head: Callable[[Got], None]) -> Got:
    got = Got()
    with suppress(asyncio.IncompleteReadError, ConnectionError):  # broken off: what came so far is the answer
        while got.status < 200:
            if got.status:
                got.interim.append(got.status)
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
            got.status = int(first.split(" ")[1])
        got.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        on_head(got)
        if "chunked" in got.headers.get("transfer-encoding", ""):
            while size := int(await reader.readuntil(b"\r\n"), 16):
                got.body += await reader.readexactly(size)
                await reader.readexactly(2)
            got.whole = True
        elif "content-length" in got.headers and got.status != 304:
            got.body = await reader.readexactly(int(got.headers["content-length"]))
            got.whole = True
        else:
            got.body = await reader.read()
            got.whole = True
    return got


async def _http2(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ask: Ask, on_head: Callable[[Got], None]
) -> Got:
    line = _Http2Line(reader, writer, on_head)
    connection = line.connection
    connection.initiate_connection()
    connection.increment_flow_control_window(2**24)
    stream = connection.get_next_available_stream_id()
    pseudo = [(":method", ask.method), (":path", ask.path), (":scheme", "http"), (":authority", "x")]
    length = [("content-length", str(ask.length))] if ask.framing is Framing.LENGTH else []
    headers = [*pseudo, *length, *((name.lower(), value) for name, value in ask.headers)]
    no_body = not ask.pieces and not ask.trailers
    connection.send_headers(stream, headers, end_stream=no_body)
    await line.flush()
    with suppress(h2.exceptions.ProtocolError, ConnectionError):  # who refuses early may reset the stream
        if not no_body:
            await line.upload(stream, ask.pieces)
            if ask.trailers:
                connection.send_headers(stream, ask.trailers, end_stream=True)
            else:
                connection.end_stream(stream)
            await line.flush()
    while not line.over:
        await line.read()
    return line.got


class _Http2Line:
    """An HTTP/2 connection with one stream, and what has come of its answer so far."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, on_head: Callable[[Got], None]
    ) -> None:
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="latin-1"))
        self.got = Got()
        self.over = False
        self._reader, self._writer, self._on_head = reader, writer, on_head

    async def flush(self) -> None:
        """Send what is due."""
        self._writer.write(self.connection.data_to_send())
        await self._writer.drain()

    async def upload(self, stream: int, pieces: Sequence[bytes]) -> None:
        """Send a body as far as the peer takes it."""
        for piece in pieces:
            start = 0
            while start < len(piece) and not self.over:
                window = self.connection.local_flow_control_window(stream)
                part = piece[start : start + min(window, self.connection.max_outbound_frame_size)]
                if not part:
                    await self.read()
                    continue
                self.connection.send_data(stream, part)
                start += len(part)
                await self.flush()

    async def read(self) -> None:
        """Take in what the peer sends next."""
        data = await self._reader.read(2**18)
        if not data:
            self.over = True
            return
        for event in self.connection.receive_data(data):
            match event:
                case h2.events.InformationalResponseReceived():
                    self.got.interim.append(int(dict(event.headers)[":status"]))
                case h2.events.ResponseReceived():
                    headers = dict(event.headers)
                    self.got.status = int(headers.pop(":status"))
                    self.got.headers = headers
                    self._on_head(self.got)
                case h2.events.DataReceived():
                    self.got.body += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.StreamEnded():
                    self.got.whole = self.over = True
                case h2.events.StreamReset() | h2.events.ConnectionTerminated():
                    self.over = True
        await self.flush()
