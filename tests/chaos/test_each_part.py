"""Each part in turn is killed and frozen under load: whoever was not at an engine that failed gets an answer.

`pytest -m chaos -s tests/chaos/test_each_part.py` prints what each fault cost; docs/faults.md has a table of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from extproc.core.fleet.events import DEFAULT_TTL_S
from tests.chaos.house import LONG_S, WORKERS, House, running_house
from tests.chaos.traffic import Traffic
from tests.e2e.eventually import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.asyncio(loop_scope="module")]

BEFORE = 100  # requests
DURING = 300  # while the part is away
AFTER = 100  # when all is well again
FROZEN_S = 6.0  # longer than an agent gives an engine, and than Envoy's check and a peer's word take


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls a part, or two of them at once."""

    part: str
    what: str  # killed, or frozen
    decides: bool = True  # the service does, all the while
    comes_back: bool = False  # without our starting it
    knows: bool = True  # of instances, whenever it decides, so that it passes no request on by itself

    @property
    def name(self) -> str:
        """As the test is called."""
        return f"{self.part.replace(' ', '_')}-{self.what}"

    @property
    def parts(self) -> list[str]:
        """One or two."""
        return self.part.split(" and ")


FAULTS = (
    Fault("worker 0", "killed", comes_back=True),
    Fault("worker 0", "frozen"),
    Fault("serve", "killed", decides=False),
    Fault("serve", "frozen"),  # the parent of the workers: it decides nothing
    Fault("agent", "killed"),
    Fault("agent", "frozen"),
    Fault("xds", "killed"),
    Fault("xds", "frozen"),
    Fault("redis", "killed"),
    Fault("redis", "frozen"),
    Fault("autoscale", "killed"),
    Fault("autoscale", "frozen"),
    Fault("a", "killed"),
    Fault("a", "frozen"),
    Fault("redis and xds", "killed"),  # a machine that both were on
    # Nothing is known anywhere then, until agents have published again.
    Fault("redis and serve", "killed", decides=False, knows=False),
    Fault("agent and xds", "killed"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    """One for all: each test leaves it as it found it, which is what is tested."""
    async with running_house(tmp_path_factory.mktemp("house")) as made:
        yield made


async def _hurt(house: House, fault: Fault) -> None:
    for part in fault.parts:
        match part, fault.what:
            case "redis", "killed":
                await asyncio.to_thread(house.redis.stop)
            case "redis", _:
                house.redis.freeze()
            case _, "killed":
                await house.kill(part)
            case _:
                house.freeze(part)


async def _heal(house: House, fault: Fault) -> None:
    for part in reversed(fault.parts):  # Redis last, and empty: nobody finds anything there when it starts
        match part, fault.what:
            case "redis", "killed":
                await asyncio.to_thread(house.redis.start)
            case "redis", _:
                house.redis.thaw()
            case _, "killed":
                if not fault.comes_back:
                    await house.start(part)
            case _:
                house.thaw(part)


async def _advises(house: House) -> None:
    """Wait until the autoscaler leads and says something new."""

    async def last() -> Any:
        page = await house.page("/recommendations", house.autoscaler_url)
        return page["recommendations"][0]["at_s"] if page and page["recommendations"] else None

    first = await eventually(last, lambda at_s: at_s is not None, LONG_S)
    await eventually(last, lambda at_s: at_s is not None and at_s != first, LONG_S)


async def _asked_again(house: House, engine: str, traffic: Traffic) -> None:
    """Wait until requests go to an engine that is back."""

    async def asked() -> bool:
        await traffic.more(20)
        port, now = house.engine_ports[engine], time.time()
        return any(each.host.endswith(f":{port}") and each.began_s > now - 2.0 for each in house.log.read().values())

    await eventually(asked, bool, LONG_S)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_a_part_fails_and_no_request_is_lost_with_it(house: House, fault: Fault) -> None:
    """Nothing fails that was not at an engine when that failed; all is as before when the part is back."""
    async with Traffic(house) as traffic:
        await traffic.more(BEFORE)
        at_s = time.time()
        await _hurt(house, fault)
        at_s = time.time() if fault.part in house.engine_ports else at_s
        try:
            await traffic.more(DURING)
            if fault.decides:
                await traffic.decided(at_s)
            if fault.what == "frozen":
                await asyncio.sleep(max(0.0, at_s + FROZEN_S - time.time()))
        finally:
            await _heal(house, fault)
        await asyncio.gather(house.well(), _advises(house))
        if fault.part in house.engine_ports:
            await _asked_again(house, fault.part, traffic)
        well_s = time.time()
        await traffic.more(AFTER)
        await traffic.decided(well_s)
    failing = fault.part if fault.part in house.engine_ports and fault.what == "killed" else ""
    toll = await traffic.toll(failing, at_s)
    print(f"\n{fault.name}: {toll}")  # noqa: T201
    assert toll.lost == 0, toll.words
    forgets = "agent" in fault.parts and well_s - at_s > DEFAULT_TTL_S  # on a starved machine its records run out
    assert toll.passed_on == 0 or forgets or not fault.knows
    await house.idle()
    assert len([await house.page(f"/fleet?worker={number}") for number in range(WORKERS)]) == WORKERS
