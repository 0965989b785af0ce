"""Known faults S1 to S3: no client chooses; without a decision traffic flows or is refused; many streams at once."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import product
from pathlib import Path

import pytest

from extproc.control.settings import Shape
from tests.e2e.eventually import eventually
from tests.e2e.matrix.cells import Building, Cell, Door, same
from tests.e2e.matrix.clients import Ask, Framing, Got, Http, send
from tests.e2e.matrix.engines import FRAMES

MANY = [pytest.param(300, id="300"), pytest.param(2000, id="2000", marks=pytest.mark.chaos)]


CROWD = 100


def memory_kib(cell: Cell) -> dict[str, int]:
    """Resident memory of the service and of Envoy."""
    assert cell.house.service is not None
    pids = {"service": cell.house.service.process.pid, "Envoy": cell.building.envoy.pid}
    pages = {name: Path(f"/proc/{pid}/statm").read_text().split()[1] for name, pid in pids.items()}
    return {name: int(count) * os.sysconf("SC_PAGE_SIZE") // 1024 for name, count in pages.items()}


def forgeries(cell: Cell) -> list[list[tuple[str, str]]]:
    """Headers of clients that want to choose: to an instance, to the service itself, to nowhere."""
    wanted = cell.family.cluster(cell.family.second)
    return [
        [("x-upstream-cluster", wanted)],
        [("X-Upstream-Cluster", wanted)],
        [("X-UPSTREAM-CLUSTER", "extproc"), ("x-upstream-cluster", wanted)],
        [("x-upstream-cluster", "nowhere"), ("x-upstream-cluster", f"{wanted},{wanted}")],
        [("x-gateway-destination-endpoint", cell.family.second.address), ("X-ExtProc-Cluster", wanted)],
    ]


@pytest.mark.parametrize("door", Door)
async def test_a_forged_header_never_chooses(cell: Cell, door: Door) -> None:
    """On a POST that is decided upon and on one that is not, on a GET, with the service up and down."""
    for headers in forgeries(cell):
        got = await cell.ask(None, door, headers=headers)
        if door is Door.DOWN_CLOSED:
            assert (got.status, got.error["code"]) == (503, "router_unavailable")
            assert cell.took() == []
        else:
            assert got.status == 200, got
            _ = cell.undecided() if door is Door.DOWN else cell.decided()
        for method, path, pieces in (("GET", "/v1/models", []), ("POST", "/v1/files", [b"x"])):
            framing = Framing.LENGTH if pieces else Framing.NONE
            got = await cell.ask(pieces, door, method=method, path=path, framing=framing, headers=headers)
            assert got.status == 200, got
            cell.undecided()


async def test_without_the_service_a_post_with_a_body_flows_or_is_refused(cell: Cell) -> None:
    """As the operator chose: small and large bodies, of known length and not."""
    for size in (0, 200_000, 5_000_000):
        body = cell.chat(size)
        for framing in (Framing.LENGTH, Framing.CHUNKED):
            got = await cell.ask([body[:50], body[50:]], Door.DOWN, framing=framing)
            assert got.status == 200, got
            assert same(cell.undecided(), body)
            got = await cell.ask([body[:50], body[50:]], Door.DOWN_CLOSED, framing=framing)
            assert (got.status, got.error["code"]) == (503, "router_unavailable")
            assert cell.took() == []


async def test_a_decision_for_an_instance_that_envoy_does_not_know(cell: Cell) -> None:
    """A pool serves it with another one of its endpoints; a cluster that is not there is 503 in the shape of OpenAI."""
    got = await cell.ask([cell.chat(model=cell.family.unknown_model)])
    if cell.family.shape is Shape.POOL:
        assert got.status == 200, got
        (seen,) = cell.took(cell.family.first, cell.family.second)
        assert seen.headers["x-upstream-cluster"] == "decided"
    else:
        assert (got.status, got.error["code"]) == (503, "gateway_error")
        assert cell.took() == []
    await cell.until_idle()


async def test_while_the_service_hangs_no_request_does(building: Building) -> None:
    """In BUFFERED they go on without it, or are refused, after the message timeout.

    FULL_DUPLEX_STREAMED has no such timeout: what begins before Envoy's check finds out may end with its connection,
    in 503. From then on both modes go on without it.
    """
    cells = [Cell(building, http) for http in Http]
    service = building.house.service
    assert service is not None
    service.process.send_signal(signal.SIGSTOP)
    try:
        for cell, door in product(cells, (Door.QUICK, Door.QUICK_CLOSED)):
            got = await cell.ask(None, door)
            if cell.holds_bodies:
                _assert_undecided(cell, door, got)
            else:
                assert got.status in (200, 503, 504), got
                cell.took(cell.family.open)
        await building.healthy(False)
        for cell, door in product(cells, (Door.QUICK, Door.QUICK_CLOSED)):
            await _until_undecided(cell, door)
    finally:
        service.process.send_signal(signal.SIGCONT)
    await building.healthy()
    await cells[0].until_decided()


async def test_a_service_that_hangs_before_the_answer_begins(building: Building) -> None:
    """The engine's answer waits for the service no longer than the message timeout.

    Then it goes on in BUFFERED. FULL_DUPLEX_STREAMED cannot fail open any more: 503 or 504.
    """
    cells = [Cell(building, http) for http in Http]
    service, engine = building.house.service, building.family.first
    assert service is not None
    await building.house.renew(building.family)
    engine.release = asyncio.Event()
    asked = [asyncio.create_task(cell.script("wait", Door.QUICK, cell.family.sole_model)) for cell in cells]

    async def number() -> int:
        return len(engine.seen)

    try:
        await eventually(number, lambda now: now == len(asked), 60.0)
        service.process.send_signal(signal.SIGSTOP)
        engine.release.set()
        answers = await asyncio.gather(*asked)
    finally:
        service.process.send_signal(signal.SIGCONT)
    for got in answers:
        if cells[0].holds_bodies:
            assert (got.status, got.body, got.whole) == (200, b"{}", True)
        else:
            assert got.status in (503, 504), got
            assert got.error["type"] == "server_error"
    await building.healthy()
    await cells[0].until_decided()


async def _until_undecided(cell: Cell, door: Door) -> None:
    """Envoy's threads hear of the check's result up to a second later: until then FULL_DUPLEX_STREAMED gives 503."""

    async def ask() -> Got:
        return await cell.ask(None, door)

    got = await eventually(ask, lambda got: got.status == (503 if door is Door.QUICK_CLOSED else 200), 60.0)
    _assert_undecided(cell, door, got)


def _assert_undecided(cell: Cell, door: Door, got: Got) -> None:
    if door is Door.QUICK_CLOSED:
        assert (got.status, got.error["code"]) == (503, "router_unavailable")
        assert cell.took() == []
    else:
        assert got.status == 200, got
        cell.undecided()


@pytest.mark.parametrize("count", MANY)
async def test_many_slow_streams_are_held_at_once(cell: Cell, count: int) -> None:
    """None fails, each has its decision, and in the end nothing is in flight. -s tells what memory they take.

    They come in crowds, of which each waits for the one before: a thousand at the same moment can keep a service on a
    busy machine from answering Envoy's check in time.
    """
    engines = cell.family.first, cell.family.second
    for engine in engines:
        engine.release = asyncio.Event()
    before = memory_kib(cell)
    ask = Ask(pieces=[cell.chat(4_000)], headers=[("x-script", "hold")])
    clients: list[asyncio.Task[Got]] = []

    async def held() -> int:
        ended = [client.result() for client in clients if client.done()]
        assert not ended, ended[0]
        return sum(engine.held for engine in engines)

    try:
        while len(clients) < count:
            for _ in range(min(CROWD, count - len(clients))):
                clients.append(asyncio.create_task(send(cell.http, cell.building.ports[Door.MAIN], ask)))
            await eventually(held, lambda now: now == len(clients), 60.0)
        assert await cell.house.in_flight(cell.family) == count
        each = {name: (kib - before[name]) / count for name, kib in memory_kib(cell).items()}
        told = ", ".join(f"{name} {kib:.1f} KiB a stream" for name, kib in each.items())
        print(f"\n{count} streams: {told}", end=" ")  # noqa: T201
    finally:
        for engine in engines:
            engine.release.set()
        answers = await asyncio.gather(*clients)
    assert {(got.status, got.body, got.whole) for got in answers} == {(200, b"".join(FRAMES["plain"]), True)}
    assert not cell.family.open.seen
    await cell.until_idle()
