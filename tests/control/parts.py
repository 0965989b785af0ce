"""Scripted ends around a real Envoy: engines that record what reaches them, and a service that names endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from aiohttp import web
from grpc_health.v1 import health, health_pb2_grpc

from extproc.adapters import wire
from extproc.server.service import MAX_MESSAGE_BYTES
from extproc.stream.messages import Continue, RequestBody, RequestHeaders, ResponseHeaders, RouteTo, Trailers
from tests.core.builders import features

HOST = "127.0.0.1"
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Beyond 1,000 streams that Python has not looked at yet, gRPC would cancel some by chance.
    ("grpc.server.max_pending_requests", 100_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)
FEATURES = features(
    model="m",
    instance_key="i",
    stream=False,
    prompt_tokens=1,
    output_p50_tokens=1,
    output_p90_tokens=2,
    output_tokens=1,
    ttft_s=0.0,
    tpot_s=0.0,
    batch_requests=3,
    batch_tokens=4000.5,
    engine_waiting=1,
)


@dataclass
class ScriptedEngine:
    """Answers every request with `status`, and a body of `answer_bytes` or the request's own."""

    name: str
    status: int = 200
    answer_bytes: int = 0
    port: int = 0
    held: asyncio.Event | None = None  # no answer before it is set
    headers: dict[str, str] = field(default_factory=dict)  # of its answers
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)  # method, path, headers, body

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        seen = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((request.method, request.path, seen, body))
        if self.held is not None:
            await self.held.wait()
        answer = b"{" + b" " * self.answer_bytes + b"}" if self.answer_bytes else body
        kind = "application/json" if self.status == 200 else "text/html"
        return web.Response(
            status=self.status, body=answer, content_type=kind, headers={"x-engine": self.name} | self.headers
        )


@asynccontextmanager
async def running_engine(engine: ScriptedEngine) -> AsyncIterator[ScriptedEngine]:
    """Serve on a free port until the context is left."""
    app = web.Application(client_max_size=2**30)
    app.router.add_route("*", "/{path:.*}", engine.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, 0, backlog=4096)
        await site.start()
        engine.port = int(runner.addresses[0][1])
        yield engine
    finally:
        await runner.cleanup()


@asynccontextmanager
async def naming_service(
    cluster: str,
    endpoints: Sequence[str],
    headers: tuple[tuple[str, str], ...] = (),
    logged: asyncio.Queue[Any] | None = None,
) -> AsyncIterator[int]:
    """An ext_proc service, yielded as its port, that sends every request with a body to the same endpoints.

    What Envoy logs is put into `logged`.
    """

    route = RouteTo(cluster, tuple(endpoints), FEATURES, headers, alternatives=tuple(endpoints[1:]))
    async with running_service(naming(lambda: route), logged) as port:
        yield port


Process = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]
"""Messages of one ext_proc stream to replies, as bytes; the other argument is gRPC's context."""


def naming(route: Callable[[], RouteTo]) -> Process:
    """Replies as they should be, with `route()` for every body."""

    async def process(stream: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for data in stream:
            yield reply_to(data, route)

    return process


def reply_to(data: bytes, route: Callable[[], RouteTo]) -> bytes:
    """The right reply to a message."""
    message = wire.decode_message(data)
    match message:
        case RequestHeaders(last=True):
            reply: Any = Continue(RequestHeaders)
        case RequestBody():
            reply = route()
        case Trailers():
            reply = Continue(Trailers, message.of_request)
        case RequestHeaders() | ResponseHeaders():
            reply = Continue(type(message))
    return wire.encode_reply(reply, "x-upstream-cluster")


@asynccontextmanager
async def running_service(process: Process, logged: asyncio.Queue[Any] | None = None) -> AsyncIterator[int]:
    """An ext_proc service, yielded as its port. What Envoy logs is put into `logged`."""

    async def logs(stream: AsyncIterator[bytes], _context: Any) -> bytes:
        async for data in stream:
            if logged is not None:
                for entry in wire.decode_access_log(data):
                    logged.put_nowait(entry)
        return wire.access_log_answer()

    server = grpc.aio.server(options=SERVER_OPTIONS)
    handlers = (
        (wire.EXT_PROC_METHOD, grpc.stream_stream_rpc_method_handler(process)),
        (wire.ACCESS_LOG_METHOD, grpc.stream_unary_rpc_method_handler(logs)),
    )
    for (service, method), handler in handlers:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def raw(
    port: int, method: str, path: str, headers: str = "", body: bytes = b"", version: str = "1.1"
) -> tuple[int, bytes, bytes]:
    """Status, head and body of a request written by hand. The connection is closed at the end."""
    reader, writer = await asyncio.open_connection(HOST, port)
    length = f"content-length: {len(body)}\r\n" if body else ""
    writer.write(
        f"{method} {path} HTTP/{version}\r\nhost: x\r\nconnection: close\r\n{length}{headers}\r\n".encode() + body
    )
    async with asyncio.timeout(60):
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split(b" ", 2)[1]), head, answer
