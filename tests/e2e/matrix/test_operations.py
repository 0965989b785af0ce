"""Known fault O2: the service ends, is killed and comes back under load; clients are to notice nothing."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.e2e.eventually import eventually
from tests.e2e.matrix.cells import Building, Cell
from tests.e2e.matrix.clients import Got, Http
from tests.e2e.matrix.engines import FRAMES

CLIENTS = 6


class Load:
    """Clients that ask again and again: small bodies and longer ones, in pieces."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells
        self._over = False
        self.answers: list[Got] = []

    async def client(self, number: int) -> None:
        """One of them."""
        cell = self._cells[number % len(self._cells)]
        body = cell.chat(30_000 * (number // 2 % 3))
        while not self._over:
            self.answers.append(await cell.ask([body[:40], body[40:]]))
            await asyncio.sleep(0.02)  # what is at stake is that there always are requests, not how many

    async def more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answers) + count

        async def number() -> int:
            return len(self.answers)

        await eventually(number, lambda now: now >= wanted, 60.0)

    def end(self) -> None:
        """Let the clients end with the answers that they wait for."""
        self._over = True


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.chaos)])
async def test_the_service_ends_and_comes_back_under_load(building: Building, number: signal.Signals) -> None:
    """By SIGTERM no request fails; by SIGKILL none does in BUFFERED. Running streams go on.

    In FULL_DUPLEX_STREAMED SIGKILL cuts the streams that are running. Requests fail with 503 whose body was on its way
    to the service, and new ones until Envoy's check notices.
    """
    cells = [Cell(building, http) for http in Http]
    service = building.house.service
    assert service is not None
    load = Load(cells)
    engine = building.family.first
    engine.release = asyncio.Event()
    streams = [asyncio.create_task(cell.script("hold", model=cell.family.sole_model)) for cell in cells]

    async def held() -> int:
        return engine.held

    await eventually(held, lambda now: now == len(streams), 60.0)
    async with asyncio.TaskGroup() as clients:
        for index in range(CLIENTS):
            clients.create_task(load.client(index))
        try:
            await load.more(50)
            service.process.send_signal(number)
            async with asyncio.timeout(60):
                status = await service.process.wait()
            await load.more(50)
            await building.house.start_service()
            await building.healthy()
            await load.more(50)
        finally:
            load.end()
            engine.release.set()
            running = await asyncio.gather(*streams)
    first, last = FRAMES["plain"]
    cut = number is signal.SIGKILL and not cells[0].holds_bodies
    whole = (200, first if cut else first + last, not cut)
    assert [(got.status, got.body, got.whole) for got in running] == [whole] * len(cells)
    assert status == (0 if number is signal.SIGTERM else -number)
    statuses = Counter(got.status for got in load.answers)
    if cut:
        assert statuses.keys() <= {200, 503}, statuses
    else:
        assert statuses.keys() == {200}, statuses
    await cells[0].until_decided()
