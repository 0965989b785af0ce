"""What answering is spent on, by a clock that ticks whenever somebody looks at it."""

from __future__ import annotations

import itertools
import re

import grpc.aio

from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.core.builders import instance, router
from tests.server.test_service import body, headers, process


async def phases(rules: Rules) -> dict[str, tuple[int, float]]:
    """How often each phase was counted, and the seconds in all, after one request."""
    ticks = itertools.count()
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    service = Service(Shell(router(instance("a")), observer, lambda: float(next(ticks)), lambda: 0.0, "x", rules))
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = process(channel)
        for message in (headers(), body()):
            await call.write(message)
            assert await call.read()
        await call.done_writing()
    await service.stop(0.0)
    page = observer.page().decode()
    found = re.findall(r'^extproc_phase_seconds_(count|sum)\{phase="(\w+)"\} (.*)$', page, re.MULTILINE)
    values = {(phase, what): float(value) for what, phase, value in found}
    return {phase: (int(values[phase, "count"]), values[phase, "sum"]) for phase, what in values if what == "count"}


async def test_each_phase_is_counted_once_a_request() -> None:
    """Over both of its messages: each is read in one tick and looked at in one; the answer is made in another."""
    assert await phases(Rules()) == {"read": (1, 2.0), "decide": (1, 2.0), "encode": (1, 1.0)}


async def test_an_errand_is_a_phase_of_its_own() -> None:
    """Here a body that is to be read elsewhere, where nobody reads it; what is decided after that is not part of it."""
    found = await phases(Rules(read_apart_bytes=1))
    assert found == {"read": (1, 2.0), "decide": (1, 3.0), "encode": (1, 1.0), "errand": (1, 1.0)}
