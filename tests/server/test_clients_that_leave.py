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
from extproc.observe.metrics import Gauges, Metrics
from extproc.observe.observer import Observer
from extproc.server.ext_proc import Shell
from extproc.server.service import Service
from extproc.stream.rules import Rules
from tests.core.builders import MODEL, instance, router
from tests.e2e.eventually import eventually
from tests.memory_in_use import malloc_bytes

ROUNDS, CALLS, AT_ONCE = 5, 500, 20


# What gRPC kept of each was 96 bytes of malloc's: of a status to one that is gone always, and of a read that was
# cancelled of every fifth or so.
@pytest.mark.parametrize(("said", "most_bytes_a_call"), [(1, 48.0), (4, 8.0)])
async def test_a_call_that_its_client_leaves_keeps_no_memory(said: int, most_bytes_a_call: float) -> None:
    """Neither ours nor gRPC's, which keeps some of what it has begun for a stream and cannot end."""
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    made = router(instance("a"), now=time.monotonic())
    service = Service(Shell(made, observer, time.monotonic, lambda: 0.5, "x-upstream-cluster", Rules()))
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    body = b'{"model":"%s","messages":[{"role":"user","content":"hi"}]}' % MODEL.encode()
    messages = conversation(body, "127.0.0.1:1")[:said]
    in_use = []

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream("/" + "/".join(wire.EXT_PROC_METHOD))

        async def leave() -> None:
            call = method()
            for message in messages:
                await call.write(message)
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
    assert min(grown) <= most_bytes_a_call, grown  # each round would have grown
