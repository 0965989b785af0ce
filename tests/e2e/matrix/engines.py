"""Scripted engines: what each request asks of its answer stands in its header `x-script`; all that came is kept."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import orjson

from tests.e2e.matrix.clients import HOST

USAGE = {"prompt_tokens": 11, "completion_tokens": 7}
GZIP = gzip.compress(b"{}", mtime=0)
BROTLI = bytes.fromhex("8b00807b7d03")  # of {}, and nobody has to understand it
HTML = b"<html><h1>Bad Gateway</h1></html>"


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it reached an engine."""

    method: str
    path: str
    headers: dict[str, str]
    length: int
    digest: str


Script = Callable[["Engine", asyncio.StreamWriter, str], Awaitable[None]]


@dataclass
class Engine:
    """One HTTP/1.1 server. `seen` grows; `release` lets go what is held."""

    name: str
    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    held: int = 0
    hurt: bool = False  # it has given an answer that a router may hold against it
    release: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def address(self) -> str:
        """As the registry tells it."""
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, HOST, self.port, backlog=4096, limit=2**20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections from now on; running requests are cut off."""
        assert self._server is not None
        self.hurt = True
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while not writer.transport.is_closing():
                    await self._one(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        length, digest = 0, hashlib.sha256()
        if "chunked" in headers.get("transfer-encoding", ""):
            while size := int(await reader.readline(), 16):
                digest.update(await reader.readexactly(size))
                await reader.readexactly(2)
                length += size
            while await reader.readline() not in (b"\r\n", b""):
                pass
        else:
            length = int(headers.get("content-length", "0"))
            digest.update(await reader.readexactly(length))
        self.seen.append(Seen(method, path, headers, length, digest.hexdigest()))
        name, _, argument = headers.get("x-script", "json").partition(" ")
        self.hurt |= name in _HURTING
        await SCRIPTS[name](self, writer, argument)
        await writer.drain()


def _answer(writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, *more: str) -> None:
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(body)}", *more]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)


async def _json(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Tell who answered and what had come."""
    last = engine.seen[-1]
    body = {"engine": engine.name, "length": last.length, "digest": last.digest, "usage": USAGE}
    _answer(writer, 200, "application/json", orjson.dumps(body))


async def _status(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Answer with a status, as JSON, and what Retry-After is asked for."""
    status, _, retry = argument.partition(" ")
    more = (f"retry-after: {retry}",) if retry else ()
    _answer(writer, int(status), "application/json", b'{"of":"the engine"}', *more)


async def _limits(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Answer with limits of the engine's own."""
    _answer(writer, 200, "application/json", b"{}", "x-ratelimit-limit-requests: the engine's own")


async def _claims(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Answer with a header of its own."""
    name, _, value = argument.partition(" ")
    _answer(writer, 200, "application/json", b"{}", f"{name}: {value}")


async def _html(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    _answer(writer, int(argument), "text/html", HTML)


async def _encoded(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    body = GZIP if argument == "gzip" else BROTLI
    _answer(writer, 200, "application/json", body, f"content-encoding: {argument}")


async def _bare(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Answer without a body."""
    writer.write(f"HTTP/1.1 {argument} X\r\netag: e\r\n\r\n".encode())


async def _frames(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Send the stream that FRAMES has under this name, cut after so many bytes of its last part."""
    name, _, cut = argument.partition(" ")
    first, last = FRAMES[name]
    _begin_stream(writer)
    pieces = [first, last[: int(cut)], last[int(cut) :]] if cut else [first, last]
    for piece in filter(None, pieces):
        _chunk(writer, piece)
        await writer.drain()
        await asyncio.sleep(0.002)  # so that Envoy reads it apart
    writer.write(b"0\r\n\r\n")


async def _hold(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Begin a stream, which FRAMES may have under a name, and end it when all are released."""
    first, last = FRAMES[argument or "plain"]
    _begin_stream(writer)
    _chunk(writer, first)
    engine.held += 1
    try:
        await engine.release.wait()
    finally:
        engine.held -= 1
    _chunk(writer, last)
    writer.write(b"0\r\n\r\n")


async def _wait(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Answer once all are released."""
    await engine.release.wait()
    _answer(writer, 200, "application/json", b"{}")


async def _reset(engine: Engine, writer: asyncio.StreamWriter, argument: str) -> None:
    """Hang up: with `late`, after a part of the answer."""
    if argument == "late":
        _begin_stream(writer)
        _chunk(writer, FRAMES["plain"][0])
        await writer.drain()
        await asyncio.sleep(0.2)  # an Envoy that has not read it by then never sees it
    writer.transport.abort()


def _begin_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


SCRIPTS: dict[str, Script] = {
    "json": _json,
    "status": _status,
    "limits": _limits,
    "claims": _claims,
    "html": _html,
    "encoded": _encoded,
    "bare": _bare,
    "frames": _frames,
    "hold": _hold,
    "wait": _wait,
    "reset": _reset,
}

_HURTING = {"status", "html", "reset"}

_TOKEN = 'data: {"choices":[{"delta":{"content":"€"}}]}\n\n'.encode()
_LAST = b'{"usage":' + orjson.dumps(USAGE) + b"}"
# How a stream begins, and the part with its usage that may be cut.
FRAMES: dict[str, tuple[bytes, bytes]] = {
    "anthropic": (
        b'event: message_start\ndata: {"type":"message_start","message":'
        b'{"usage":{"input_tokens":11,"output_tokens":1}}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n',
    ),
    "plain": (_TOKEN, b"data: " + _LAST + b"\n\ndata: [DONE]\n\n"),
    "no-space": (_TOKEN, b"data:" + _LAST + b"\n\ndata:[DONE]\n\n"),
    "crlf": (_TOKEN.replace(b"\n", b"\r\n"), b"data: " + _LAST + b"\r\n\r\ndata: [DONE]\r\n\r\n"),
    "done-apart": (_TOKEN + b"data: " + _LAST + b"\n\n", b"data: [DONE]\n\n"),
    "no-done": (_TOKEN, b"data: " + _LAST + b"\n\n"),
}
