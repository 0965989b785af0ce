"""What a request costs the service's process between gRPC's bytes and the core, beside a processor that does nothing.

Both are gRPC servers in processes of their own, asked in turns by this one, which says what Envoy says. Each tells its
own processor time. What a decision costs alone is told by `bench decide`, reading a body by `bench request`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import grpc
import grpc.aio
import orjson

from extproc.adapters import wire
from extproc.bench.beside import beside
from extproc.bench.envoy_messages import access_log, chosen, conversation, nothing_replies
from extproc.bench.request_path import BODY_BYTES, _body, bench_instance, bench_router
from extproc.bench.shell_steps import Step, shell_steps
from extproc.core.fleet.events import Published
from extproc.core.router import Router
from extproc.core.scaling.tally import Tally
from extproc.observe.dashboard.watch import Watch
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.grpc_sockets import read_directly
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.server.views import served
from extproc.server.warm_start import quiet_collector
from extproc.stream.rules import Rules

_TURNS = 40  # of each, taken in turns, so that whatever else the machine does weighs on both alike
_REQUESTS = 200  # of each turn
_AT_ONCE = 8
_HELD = 2_000  # streams that wait for their engine
_ENTRIES = 16  # of one message of the access log: Envoy flushes it every 50 ms, or at 16 KiB
_NOBODY = "10.255.255.1:80"
_USAGE = ("extproc.bench.Usage", "Read")
_REPORT_S = 1.0
_MiB = 128 * 1024 * 1024
_LONG = [("grpc.max_receive_message_length", _MiB), ("grpc.max_send_message_length", _MiB)]


@dataclass(frozen=True, slots=True)
class ShellCost:
    """Of one request: processor seconds of the process, and memory while its engine computes."""

    body_bytes: int
    instances: int
    floor_s: float
    whole_s: float
    beyond_s: float  # median of the differences, turn by turn
    cyclic_objects: float  # that the garbage collector had to find: what is in no cycle goes by itself
    floor_held_bytes: float  # resident memory of one waiting stream
    whole_held_bytes: float


@dataclass(frozen=True, slots=True)
class ShellReport:
    """Whole requests of each size, and the steps of the smallest."""

    costs: tuple[ShellCost, ...]
    steps: tuple[Step, ...]


def shell_report(instances: int, rounds: int, sizes: tuple[int, ...] = BODY_BYTES[:2]) -> ShellReport:
    """Measure bodies of such sizes with a fleet of that many instances, and the steps over `rounds` requests."""
    costs = []
    for size in sizes:
        with _process("floor", instances) as floor_port, _process("whole", instances) as whole_port:
            costs.append(asyncio.run(_measured(size, instances, floor_port, whole_port)))
    steps = shell_steps(bench_shell(bench_router(instances, time.monotonic())), rounds, sizes[0])
    return ShellReport(tuple(costs), steps)


@dataclass(frozen=True, slots=True)
class _Usage:
    cpu_s: float
    resident_bytes: int
    cyclic_objects: int  # since the start


async def _measured(size: int, instances: int, *ports: int) -> ShellCost:
    floor, whole = (_Client(port, _body(size)) for port in ports)
    both = (floor, whole)
    for client in both:
        await client.requests(_REQUESTS)
    costs: list[list[float]] = [[], []]
    before = await whole.usage(b"yes")
    for _ in range(_TURNS):
        for each, client in zip(costs, both, strict=True):
            each.append(await client.cost_s(_REQUESTS))
    cyclic_objects = ((await whole.usage(b"yes")).cyclic_objects - before.cyclic_objects) / (_TURNS * _REQUESTS)
    held = [await client.held_bytes(_HELD) for client in both]
    for client in both:
        await client.close()
    beyond_s = median(ours - theirs for theirs, ours in zip(*costs, strict=True))
    return ShellCost(size, instances, median(costs[0]), median(costs[1]), beyond_s, cyclic_objects, *held)


class _Client:
    """Envoy, as far as one of the servers can tell."""

    def __init__(self, port: int, body: bytes) -> None:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=_LONG)
        self._process = self._channel.stream_stream("/" + "/".join(wire.EXT_PROC_METHOD))
        self._usage = self._channel.unary_unary("/" + "/".join(_USAGE))
        self._log = self._channel.stream_unary("/" + "/".join(wire.ACCESS_LOG_METHOD))()
        self._messages = conversation(body, _NOBODY)
        self._answers: dict[str, bytes] = {}  # by who answers
        self._replies: list[tuple[bytes, str]] = []  # to bodies, and who answers then

    async def usage(self, looks_for_cycles: bytes = b"") -> _Usage:
        return _Usage(**orjson.loads(await self._usage(looks_for_cycles)))

    async def cost_s(self, requests: int) -> float:
        """Processor seconds of one of so many requests."""
        before = await self.usage()
        await self.requests(requests)
        return ((await self.usage()).cpu_s - before.cpu_s) / requests

    async def requests(self, number: int) -> None:
        """So many requests, some at once, and what became of them."""

        async def some() -> None:
            for _ in range(number // _AT_ONCE):
                await self._ended(*await self._routed())

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
        await self._tell()

    async def held_bytes(self, number: int) -> float:
        """Resident memory of one of so many streams whose engine has not answered yet."""
        before = await self.usage()
        calls: list[Any] = []
        while len(calls) < number:
            calls += await asyncio.gather(*(self._routed() for _ in range(50)))
        after = await self.usage()
        for call in calls:
            await self._ended(*call)
        await self._tell()
        return (after.resident_bytes - before.resident_bytes) / number

    async def _routed(self) -> tuple[Any, str]:
        call = self._process()
        for message in self._messages[:2]:
            await call.write(message)
            reply = await call.read()
        upstream = chosen(reply) or _NOBODY
        self._replies.append((reply, upstream))
        return call, upstream

    async def _ended(self, call: Any, upstream: str) -> None:
        answer = self._answers.get(upstream)
        if answer is None:
            answer = self._answers[upstream] = conversation(b"", upstream)[2]
        for message in (answer, self._messages[3]):
            await call.write(message)
            await call.read()
        call.cancel()  # as Envoy ends each stream

    async def _tell(self) -> None:
        replies, self._replies = self._replies, []
        for start in range(0, len(replies), _ENTRIES):
            await self._log.write(access_log(replies[start : start + _ENTRIES]))

    async def close(self) -> None:
        await self._log.done_writing()
        await self._log
        await self._channel.close()


@contextmanager
def _process(what: str, instances: int) -> Iterator[int]:
    """A server of that kind for as long as the context is open; its port."""
    own = dict(os.environ)
    if what != "floor":
        read_directly(os.environ)  # as `serve` does
    with beside(_serve, what, instances) as child:
        os.environ.clear()
        os.environ.update(own)
        yield child.recv()


def _serve(what: str, instances: int, control: Connection) -> None:
    import uvloop  # noqa: PLC0415  (only this process runs it)

    uvloop.run(_floor(control) if what == "floor" else _whole(instances, control))


async def _floor(control: Connection) -> None:
    replies = nothing_replies()

    async def process(stream: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        async for data in stream:
            yield replies[data[0]]

    async def log(stream: AsyncIterator[bytes], _context: Any) -> bytes:
        async for _ in stream:
            pass
        return b""

    server = grpc.aio.server(options=_LONG)
    _add(server, wire.EXT_PROC_METHOD, grpc.stream_stream_rpc_method_handler(process))
    _add(server, wire.ACCESS_LOG_METHOD, grpc.stream_unary_rpc_method_handler(log))
    _add(server, _USAGE, grpc.unary_unary_rpc_method_handler(_usage))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    control.send(port)
    await _end_of_parent(control)
    await server.stop(0.0)


async def _whole(instances: int, control: Connection) -> None:
    router = bench_router(instances, time.monotonic())
    service = Service(bench_shell(router))
    service.add(*_USAGE, grpc.unary_unary_rpc_method_handler(_usage))
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    quiet_collector()  # as `serve` does
    reports = asyncio.create_task(_reports(router, instances))
    control.send(port)
    await _end_of_parent(control)
    reports.cancel()
    await service.stop(0.0)


async def _end_of_parent(control: Connection) -> None:
    """Whoever measures kills this process when all is said; one that is killed itself leaves nobody behind."""
    with suppress(EOFError):
        await asyncio.to_thread(control.recv)


def bench_shell(router: Router) -> Shell:
    """What `serve` gives the service, but for Redis."""
    metrics = Metrics(lambda: Gauges({}, {}, 0.0, {}))
    observer = Observer(metrics, partial(served, router), Tally(router.policy.classes), Watch(time.monotonic))
    return Shell(router, observer, time.monotonic, random.random, "x-upstream-cluster", Rules())


async def _reports(router: Router, instances: int) -> None:
    """The fleet's engines tell their state as often as agents do, or they would count as silent."""
    while True:
        await asyncio.sleep(_REPORT_S)
        for number in range(instances):
            router.take(router.fleet.apply(Published(instance=bench_instance(number)), time.monotonic()))


def _add(server: grpc.aio.Server, method: tuple[str, str], handler: Any) -> None:
    service, name = method
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))


async def _usage(looks_for_cycles: bytes, _context: Any) -> bytes:
    with open("/proc/self/statm") as statm:  # noqa: ASYNC230  (memory, not a disk)
        pages = int(statm.read().split()[1])
    if looks_for_cycles:
        gc.collect()
    collected = sum(generation["collected"] for generation in gc.get_stats())
    return orjson.dumps(
        {
            "cpu_s": time.process_time(),
            "resident_bytes": pages * resource.getpagesize(),
            "cyclic_objects": collected,
        }
    )


def readable(report: ShellReport) -> str:
    """Two tables."""
    lines = [
        f"{'body':>10} {'instances':>9} {'floor':>9} {'whole':>9} {'beyond':>9}   held: {'floor':>6} {'whole':>13}"
    ]
    for each in report.costs:
        lines.append(
            f"{each.body_bytes // 1024:>6} KiB {each.instances:>9} {each.floor_s * 1e6:>6.0f} µs "
            f"{each.whole_s * 1e6:>6.0f} µs {each.beyond_s * 1e6:>6.0f} µs {each.floor_held_bytes / 1024:>9.1f} KiB "
            f"{each.whole_held_bytes / 1024:>9.1f} KiB   {each.cyclic_objects:.1f} objects in cycles"
        )
    lines += ["", *(f"{step.name:<22} {step.took_s * 1e6:>7.1f} µs" for step in report.steps)]
    return "\n".join(lines)
