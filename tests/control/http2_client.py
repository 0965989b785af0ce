"""One HTTP/2 request with headers as a liar would write them, or from a client that stops answering."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import h2.config
import h2.connection
import h2.events

HOST = "127.0.0.1"


async def ask2(
    port: int, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b""
) -> tuple[int, bytes]:
    """Status and body of the answer; (0, b"") if the stream was reset."""
    reader, writer = await asyncio.open_connection(HOST, port)
    config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    pseudo = [(":method", method), (":scheme", "http"), (":authority", "x"), (":path", path)]
    connection.send_headers(1, [*pseudo, *headers], end_stream=not body)
    if body:
        connection.send_data(1, body, end_stream=True)
    writer.write(connection.data_to_send())
    status, answer = 0, bytearray()
    try:
        async with asyncio.timeout(60):
            while data := await reader.read(65_536):
                for event in connection.receive_data(data):
                    match event:
                        case h2.events.ResponseReceived():
                            status = int(dict(event.headers)[b":status"])
                        case h2.events.DataReceived():
                            answer += event.data
                            connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                        case h2.events.StreamReset():
                            return 0, b""
                        case h2.events.StreamEnded():
                            return status, bytes(answer)
                writer.write(connection.data_to_send())
        return 0, b""
    finally:
        writer.close()


async def silent2(port: int, path: str, body: bytes) -> bool:
    """Send a request and answer nothing from then on, neither window updates nor pings; whether Envoy hangs up."""
    reader, writer = await asyncio.open_connection(HOST, port)
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", path)]
    connection.send_headers(1, pseudo)
    connection.send_data(1, body, end_stream=True)
    writer.write(connection.data_to_send())
    try:
        async with asyncio.timeout(30):
            while await reader.read(65_536):
                pass
        return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()


@asynccontextmanager
async def begun2(port: int, path: str, body: bytes, requests: int) -> AsyncIterator[None]:
    """So many requests on one connection, which breaks off at the end; nobody reads their answers."""
    reader, writer = await asyncio.open_connection(HOST, port)
    connection = h2.connection.H2Connection()
    connection.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", path)]
    try:
        for _ in range(requests):
            stream = connection.get_next_available_stream_id()
            connection.send_headers(stream, pseudo)
            while connection.local_flow_control_window(stream) < len(body):
                writer.write(connection.data_to_send())
                connection.receive_data(await reader.read(65_536))
            connection.send_data(stream, body, end_stream=True)
        writer.write(connection.data_to_send())
        await writer.drain()
        yield
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
