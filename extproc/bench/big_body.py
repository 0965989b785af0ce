"""How long one large prompt keeps all others waiting: through the service's own gRPC, beside one that does nothing.

A ticker on the service's event loop wakes up every millisecond, and is as late as any other request would be that comes
at that time. Large bodies come from a process of their own, one after the other, with a pause between them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import grpc
import grpc.aio
import orjson
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from extproc.adapters import wire
from extproc.adapters.body_reader import APART_BYTES, BodyReader
from extproc.bench.beside import beside
from extproc.bench.envoy_messages import chosen
from extproc.bench.request_path import bench_router
from extproc.errors import ProcessError
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import ExtProc
from extproc.server.service import MAX_MESSAGE_BYTES
from extproc.server.shell import Shell
from extproc.stream.messages import Continue, RequestBody, RequestHeaders
from extproc.stream.rules import Rules

BODY_BYTES = (16, APART_BYTES - 2048, 8 * 1024 * 1024)
_INSTANCES = 64
_KV_BLOCKS = 200_000  # the largest body has some 2 million tokens, and without room for it is refused
_TICK_S = 0.001
_PAUSE_S = 0.1
_WARM_UP = 3  # bodies that are not counted
_READ_WITHIN_S = 10.0  # others may have the processor; here all bodies are to be read
_OPTIONS = [("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.max_send_message_length", MAX_MESSAGE_BYTES)]

Process = Callable[[object, Any], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BigBody:
    """What others wait while one body is read, in seconds: the longest wait of each body, and these waits' median."""

    service: str  # floor: does nothing; at_once: reads on its loop; apart: reads in another process
    body_bytes: int
    bodies: int
    wait_p50_s: float
    wait_max_s: float
    reply_p50_s: float  # what the body's own request waits


async def big_bodies(rounds: int, sizes: Sequence[int] = BODY_BYTES) -> list[BigBody]:
    """Measure each service with each size, `rounds` bodies each.

    Raises ProcessError if one that decides does not route a request: what a refusal takes is no measure.
    """
    costs = []
    for size in sizes:
        for name, service in (("floor", _floor), ("at_once", _at_once), ("apart", _apart)):
            async with service() as process:
                decides = service is not _floor
                waits_s, replies_s = await _measured(process, size, rounds + _WARM_UP, decides=decides)
            costs.append(BigBody(name, size, rounds, median(waits_s), max(waits_s), median(replies_s)))
    return costs


def readable(costs: Sequence[BigBody]) -> str:
    """A table of it, in milliseconds."""
    lines = [f"{'body':>10} {'service':>9} {'others wait':>12} {'longest':>10} {'reply':>10}   (medians of bodies)"]
    for each in costs:
        times = f"{each.wait_p50_s * 1e3:>9.2f} ms {each.wait_max_s * 1e3:>7.2f} ms {each.reply_p50_s * 1e3:>7.2f} ms"
        lines.append(f"{each.body_bytes // 1024:>6} KiB {each.service:>9} {times}")
    return "\n".join(lines)


@asynccontextmanager
async def _floor() -> AsyncIterator[Process]:
    headers, body = (wire.encode_reply(Continue(kind), "") for kind in (RequestHeaders, RequestBody))

    async def process(_stream: object, context: Any) -> None:
        for answer in (headers, body):
            if await context.read() is grpc.aio.EOF:
                return
            await context.write(answer)
        while await context.read() is not grpc.aio.EOF:
            pass

    yield process


@asynccontextmanager
async def _at_once() -> AsyncIterator[Process]:
    yield _service(Rules(), None)


@asynccontextmanager
async def _apart() -> AsyncIterator[Process]:
    async with BodyReader(budget_s=_READ_WITHIN_S) as reader:
        yield _service(Rules(read_apart_bytes=APART_BYTES), reader)


def _service(rules: Rules, reader: BodyReader | None) -> Process:
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    read = None if reader is None else reader.read
    router = bench_router(_INSTANCES, kv_blocks=_KV_BLOCKS)
    return ExtProc(Shell(router, observer, lambda: 0.0, lambda: 0.5, "x-upstream-cluster", rules, read=read)).process


async def _measured(process: Process, size: int, bodies: int, *, decides: bool) -> tuple[list[float], list[float]]:
    """The longest lateness of the ticker during each body, and how long each reply took, without the first ones."""
    server = grpc.aio.server(options=_OPTIONS)
    service, method = wire.EXT_PROC_METHOD
    handlers = {method: grpc.stream_stream_rpc_method_handler(process)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    late_s: list[float] = []
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop, 0.0)
        ticker = asyncio.create_task(_tick(late_s))
        stack.push_async_callback(_ended, ticker)
        client = stack.enter_context(beside(_send, port, size, decides))
        await asyncio.to_thread(client.recv)
        waits_s, replies_s = list[float](), list[float]()
        for _ in range(bodies):
            await asyncio.sleep(_PAUSE_S)
            late_s.clear()
            client.send(None)
            took_s = await asyncio.to_thread(client.recv)
            if took_s is None:
                raise ProcessError(f"a body of {size} bytes was not routed: there is nothing to measure")
            replies_s.append(took_s)
            await asyncio.sleep(2 * _TICK_S)
            waits_s.append(max(late_s))
    return waits_s[_WARM_UP:], replies_s[_WARM_UP:]


async def _tick(late_s: list[float]) -> None:
    while True:
        due_s = time.perf_counter() + _TICK_S
        await asyncio.sleep(_TICK_S)
        late_s.append(time.perf_counter() - due_s)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _send(port: int, size: int, decides: bool, pipe: Connection) -> None:
    with suppress(EOFError):  # whoever measures was killed
        asyncio.run(_send_when_told(port, size, decides, pipe))


async def _send_when_told(port: int, size: int, decides: bool, pipe: Connection) -> None:
    """In a process of its own: one request each time that it is told to, and back how long its reply took.

    None in place of that if the service decides, and this was no decision for an instance.
    """
    headers, body = _messages(size)
    path = "/" + "/".join(wire.EXT_PROC_METHOD)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_OPTIONS) as channel:
        pipe.send(0.0)
        while True:
            await asyncio.to_thread(pipe.recv)
            call = channel.stream_stream(path)()
            await call.write(headers)
            await call.read()
            began_s = time.perf_counter()
            await call.write(body)
            reply = await call.read()
            took_s = time.perf_counter() - began_s
            await call.done_writing()
            pipe.send(took_s if not decides or chosen(reply) else None)


def _messages(size: int) -> tuple[bytes, bytes]:
    """Envoy's messages of one chat request whose body has about so many bytes."""
    headers, whole = ext_proc.ProcessingRequest(), ext_proc.ProcessingRequest()
    for key, value in ((":method", b"POST"), (":path", b"/v1/chat/completions")):
        headers.request_headers.headers.headers.add(key=key, raw_value=value)
    headers.protocol_config.request_body_mode = 2  # BUFFERED
    whole.request_body.body = large_body(size)
    whole.request_body.end_of_stream = True
    return headers.SerializeToString(), whole.SerializeToString()


def large_body(size: int) -> bytes:
    """A chat of about so many bytes, in turns of a thousand characters."""
    text = "all of it is text; " * 52
    turns = [{"role": "user", "content": f"{number} {text}"} for number in range(size // 1024 + 1)]
    return orjson.dumps({"model": "llama-3.1-8b", "messages": turns})
