"""Streams that are reset, as Envoy does with each that it needs no more, leave no memory in the service's process."""

from __future__ import annotations

import asyncio
import gc
import time
from itertools import pairwise

import grpc.aio
import pytest

from extproc.adapters import wire
from extproc.bench.envoy_messages import conversation
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import ExtProc
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router
from tests.e2e.eventually import eventually
from tests.memory_in_use import malloc_bytes

ROUNDS, CALLS, AT_ONCE = 5, 500, 20

# What gRPC kept of each was 96 bytes of malloc's.
MOST_BYTES_A_CALL = 48.0


class Reading:
    """A stream's context whose second message never comes, as far as its reader lives to see."""

    def __init__(self, *messages: bytes) -> None:
        self._messages = list(messages)
        self.reads: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waits, self.ended = asyncio.Event(), asyncio.Event()

    async def read(self) -> object:
        if self._messages:
            return self._messages.pop(0)
        self.waits.set()
        await self.reads
        self.ended.set()
        return grpc.aio.EOF

    async def write(self, _: bytes) -> None:
        """Nobody looks at what is answered."""

    def invocation_metadata(self) -> None:
        return None


def shell() -> Shell:
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    made = router(instance("a"), now=time.monotonic())
    return Shell(made, observer, time.monotonic, lambda: 0.5, "x-upstream-cluster", Rules())


async def test_what_grpc_reads_is_brought_to_its_end_though_the_call_is_cancelled() -> None:
    """Else it keeps what it took for the read: 96 bytes of every fifth or so of the streams that Envoy resets."""
    body = b'{"model":"%s","messages":[{"role":"user","content":"hi"}]}' % MODEL.encode()
    context = Reading(*conversation(body, "127.0.0.1:1")[:2])
    call = asyncio.create_task(ExtProc(shell()).process(None, context))
    await context.waits.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    context.reads.set_result(None)
    await context.ended.wait()


async def test_a_call_that_its_client_leaves_keeps_no_memory() -> None:
    """Neither ours nor gRPC's, which keeps some of a status that it cannot send any more."""
    service = Service(shell())
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    first, *_ = conversation(b"{}", "127.0.0.1:1")
    in_use = []

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream("/" + "/".join(wire.EXT_PROC_METHOD))

        async def leave() -> None:
            call = method()
            await call.write(first)
            assert await call.read()
            call.cancel()

        await leave()
        await asyncio.sleep(0.1)
        before = len(asyncio.all_tasks()) + 2  # of the server itself, which now and then has one more
        for _ in range(ROUNDS):
            for _ in range(CALLS // AT_ONCE):
                await asyncio.gather(*(leave() for _ in range(AT_ONCE)))
            await eventually(tasks, lambda now: now <= before)
            gc.collect()
            in_use.append(malloc_bytes())
    await service.stop(0.0)
    grown = [(after - before) / CALLS for before, after in pairwise(in_use)]
    assert min(grown) <= MOST_BYTES_A_CALL, grown  # each round would have grown
