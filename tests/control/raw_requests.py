"""Requests cut into the very pieces that a test wants, over HTTP/1.1 and HTTP/2, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import h2.connection
import h2.events

HOST = "127.0.0.1"
Trailers = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Answered:
    """Status and body of an answer."""

    status: int
    body: bytes


async def http1(port: int, path: str, pieces: Sequence[bytes], *, pause_s: float = 0.0, headers: str = "") -> Answered:
    """POST a body of known length, piece by piece, each in a write of its own; the head is in that of the first.

    With a pause, each comes by itself, and the head as well.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    length = sum(map(len, pieces))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
    first, *rest = pieces
    if pause_s:
        writer.write(head.encode())
        await asyncio.sleep(pause_s)
        writer.write(first)
    else:
        writer.write(head.encode() + first)
    await writer.drain()
    for piece in rest:
        if pause_s:
            await asyncio.sleep(pause_s)
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(60):
        answer = (await reader.read()).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    writer.close()
    answer_head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in answer_head:
        body = _unchunked(body)
    return Answered(int(answer_head.split(b" ", 2)[1]), body)


async def http2(
    port: int, path: str, pieces: Sequence[bytes], *, pause_s: float = 0.0, trailers: Trailers = ()
) -> Answered:
    """POST a body in DATA frames of exactly these pieces, and an empty one that ends it unless trailers do."""
    reader, writer = await asyncio.open_connection(HOST, port)
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    stream = connection.get_next_available_stream_id()
    pseudo = ((":method", "POST"), (":path", path), (":scheme", "http"), (":authority", "x"))
    connection.send_headers(stream, (*pseudo, ("content-length", str(sum(map(len, pieces))))))
    writer.write(connection.data_to_send())
    seen = _Seen()
    for piece in pieces:
        if pause_s:
            await asyncio.sleep(pause_s)
        for start in range(0, max(1, len(piece)), connection.max_outbound_frame_size):
            part = piece[start : start + connection.max_outbound_frame_size]
            while connection.local_flow_control_window(stream) < len(part) and not seen.over:
                await seen.read(reader, connection, writer)
            if seen.over:
                break
            connection.send_data(stream, part)
            writer.write(connection.data_to_send())
    if not seen.over and trailers:
        connection.send_headers(stream, trailers, end_stream=True)
    elif not seen.over:
        connection.end_stream(stream)
    writer.write(connection.data_to_send())
    async with asyncio.timeout(60):
        while not seen.over:
            await seen.read(reader, connection, writer)
    writer.close()
    return Answered(seen.status, bytes(seen.body))


class _Seen:
    """What has come of an HTTP/2 answer so far."""

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.over = False

    async def read(
        self, reader: asyncio.StreamReader, connection: h2.connection.H2Connection, writer: asyncio.StreamWriter
    ) -> None:
        """Take in what the peer sends next."""
        data = await reader.read(65_536)
        if not data:
            self.over = True
        for event in connection.receive_data(data) if data else []:
            if isinstance(event, h2.events.ResponseReceived):
                self.status = int(dict(event.headers)[b":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.body += event.data
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset | h2.events.ConnectionTerminated):
                self.over = True
        writer.write(connection.data_to_send())


def _unchunked(body: bytes) -> bytes:
    whole = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return bytes(whole)
