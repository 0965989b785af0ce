"""An hour's traffic in minutes leaves nothing behind: no memory, descriptors, threads, bookings or streams.

`pytest -m soak -s tests/chaos/test_soak.py`. EXTPROC_SOAK_REQUESTS (108,000: an hour of 30 a second) makes it longer.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
import pytest

from extproc.adapters.http_client import Answer, HttpClient
from extproc.adapters.registry import Registry
from extproc.core.prefixes.recent_prefixes import RECENT_S
from extproc.core.router import Router
from extproc.core.snapshot import Policy
from extproc.core.values.instance import Instance
from extproc.demo.processes import wait_for_line
from extproc.observe.live_gauges import Gauges
from extproc.observe.metrics import Metrics
from extproc.observe.observer import Observer
from extproc.server.service import Service
from extproc.server.shell import Shell
from extproc.stream.rules import Rules
from tests.chaos import telling_serve
from tests.chaos.fast_forward import ABORTED_SHARE, TENANT_HEADER, Fleet, driving
from tests.chaos.memory import Held, ask, growth, held
from tests.core.builders import instance, publish, router
from tests.e2e.eventually import eventually
from tests.processes import Processes
from tests.redis_server import RedisServer

pytestmark = pytest.mark.soak

REQUESTS = int(os.environ.get("EXTPROC_SOAK_REQUESTS", "108000"))
AT_ONCE = 48
ROUNDS = 36
# Until then what is bounded fills up: blocks of prefixes (`ENTRIES`), lengths of tenants, names in counters, the latest
# 200 decisions, 120 seconds of the dashboard, beginnings of prompts, and the allocator's pages with them.
WARM = ROUNDS // 2
LEAKING = 6  # more rounds in which a small object of each request is kept, to see that this would have been seen
ENTRIES = 2_000
# In use, over the second half. Whoever keeps anything of a request keeps an object of it.
MOST_OBJECTS_A_REQUEST = 0.25
MOST_MALLOC_BYTES_A_REQUEST = 25.0
MOST_RESIDENT_BYTES_A_REQUEST = 50.0
TRACED = 2_000
# By tracemalloc nothing swings: what is new is kept. Of one request in 200 the outcome never comes (fast_forward.py);
# what waits for it is some 600 bytes, up to a bound that is not reached here.
MOST_TRACED_BYTES_A_REQUEST = 12.0


async def _page(http: HttpClient, url: str) -> Any:
    answer = await http.get(url)
    assert isinstance(answer, Answer), answer
    return orjson.loads(answer.body)


@dataclass(frozen=True, slots=True)
class Growth:
    """By how much each request adds to what is held."""

    objects: float
    malloc_bytes: float
    resident_bytes: float

    @classmethod
    def over(cls, seen: Sequence[Held]) -> Growth:
        """From one look to the others."""
        return cls(*(growth(seen, attrgetter(each.name)) for each in fields(cls)))

    @property
    def in_use(self) -> tuple[bool, bool]:
        """Whether there is some, of Python's objects and of malloc's bytes."""
        return self.objects > MOST_OBJECTS_A_REQUEST, self.malloc_bytes > MOST_MALLOC_BYTES_A_REQUEST

    def __str__(self) -> str:
        """Return what is printed."""
        return (
            f"{self.objects:.3f} objects, {self.malloc_bytes:.1f} bytes of malloc's and "
            f"{self.resident_bytes:.1f} resident bytes a request"
        )


async def test_an_hour_of_traffic_leaves_nothing_behind(tmp_path: Path) -> None:
    """Half of the prompts are new, a tenth of the clients leave, engines restart, come and go; all is let go again."""
    with RedisServer("valkey", tmp_path) as server:
        async with Processes(tmp_path) as processes, Registry(server.url) as registry, HttpClient() as http:
            door = tmp_path / "door"
            flags = ("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--redis-url", server.url)
            own = ("--max-prefix-entries", str(ENTRIES), "--tenant-header", TENANT_HEADER)
            child = await processes.start(
                "serve", sys.executable, telling_serve.__file__, str(door), "serve", *flags, *own
            )
            found = await wait_for_line(child, r"ext_proc on port (\d+), pages on port (\d+)", 60.0)
            pages, pid = f"http://127.0.0.1:{found[2]}", child.process.pid
            fleet, seen = Fleet(registry), list[Held]()
            living = asyncio.create_task(fleet.live())
            began_s = time.monotonic()

            async def open_requests() -> dict[str, int]:
                rows = await _page(http, f"{pages}/fleet")
                return {row["id"]: row["in_flight"] for row in rows if row["in_flight"]}

            async def rounds(number: int) -> None:
                for _ in range(number):
                    await driver.requests(REQUESTS // ROUNDS, AT_ONCE)
                    await http.get(f"{pages}/metrics")
                    await eventually(open_requests, lambda now: not now)
                    seen.append(await asyncio.to_thread(held, pid, door, driver.sent))

            try:
                await eventually(lambda: _page(http, f"{pages}/fleet"), lambda rows: len(rows) >= 6)
                async with driving(int(found[1])) as driver:
                    await rounds(ROUNDS)
                    took_s, sent = time.monotonic() - began_s, driver.sent
                    await asyncio.to_thread(ask, door, b"leak")
                    await rounds(LEAKING)
            finally:
                living.cancel()
                await asyncio.gather(living, return_exceptions=True)
        before, warm = seen[:WARM], seen[WARM:ROUNDS]
        grown, leaked = Growth.over(warm), Growth.over(seen[ROUNDS:])
        print(  # noqa: T201
            f"\n{sent} requests in {took_s:.0f} s ({sent / took_s:.0f}/s), and some that leak; of all {driver.routed} "
            f"routed, {driver.aborted} left, {driver.undecided} undecided; {fleet.published} reports, "
            f"{fleet.restarts} restarts, {fleet.guests} guests\n"
            f"{warm[0].resident_bytes / 1e6:.1f} to {warm[-1].resident_bytes / 1e6:.1f} MB, {grown}; descriptors "
            f"{warm[0].descriptors} to {warm[-1].descriptors}, threads {warm[0].threads} to {warm[-1].threads}\n"
            f"leaking: {leaked}"
        )
        for name in ("resident_bytes", "malloc_bytes", "objects"):
            print(name, [getattr(each, name) for each in seen])  # noqa: T201
        assert driver.routed + driver.aborted == driver.sent
        assert driver.aborted >= 0.8 * ABORTED_SHARE * driver.sent
        assert grown.in_use == (False, False)
        assert grown.resident_bytes <= MOST_RESIDENT_BYTES_A_REQUEST
        assert leaked.in_use == (True, True)
        assert warm[-1].descriptors <= max(each.descriptors for each in before) + 2
        # gRPC's and asyncio's pools begin one more thread where all are busy at once, up to a bound of their own.
        assert warm[-1].threads <= max(each.threads for each in before) + 2


@asynccontextmanager
async def _listening(made: Router) -> AsyncIterator[int]:
    """The service in this process, on a free port, by the machine's clock."""
    observer = Observer(Metrics(lambda: Gauges({}, {}, 0.0, {})))
    service = Service(Shell(made, observer, time.monotonic, lambda: 0.5, "x-upstream-cluster", Rules()))
    port = service.bind(("127.0.0.1", 0))
    await service.start()
    yield port
    await service.stop(0.0)


async def _traced(made: Router, instances: Sequence[Instance]) -> tracemalloc.Snapshot:
    """What is in use once nothing is under way, reports have come, and what is kept of prompts has run out."""

    async def in_flight() -> dict[str, int]:
        return dict(made.ledger.in_flight())

    await eventually(in_flight, lambda now: not now)
    await asyncio.sleep(RECENT_S + 0.5)
    for each in instances:
        publish(made, each, time.monotonic())
    gc.collect()
    return tracemalloc.take_snapshot()


async def test_every_object_of_a_request_is_let_go() -> None:
    """By tracemalloc, in this process: once caches are full, thousands of requests leave no more memory in use."""
    tracemalloc.start()  # before anything is made: what is enlarged later would count whole
    try:
        instances, each = [instance(name) for name in "abc"], TRACED
        made = router(*instances, policy=Policy(max_prefix_entries=1_000), now=time.monotonic())
        async with _listening(made) as port, driving(port) as driver:
            await driver.requests(each, AT_ONCE)
            before = await _traced(made, instances)
            await driver.requests(each, AT_ONCE)
            after = await _traced(made, instances)
    finally:
        tracemalloc.stop()
    ours = (tracemalloc.Filter(True, "*/extproc/*"), tracemalloc.Filter(False, "*/tests/*"))
    grown = after.filter_traces(ours).compare_to(before.filter_traces(ours), "lineno")
    total = sum(line.size_diff for line in grown)
    print(f"\n{total / each:.1f} bytes a request", *grown[:8], sep="\n  ")  # noqa: T201
    assert driver.undecided == 0
    assert total / each <= MOST_TRACED_BYTES_A_REQUEST
