"""The scripts of the limits over real servers compute what `core.limits.gcra` says, whatever the course of events."""

from __future__ import annotations

import asyncio
import random

import pytest

from extproc.adapters.redis_link import Link
from extproc.adapters.redis_scripts import Script
from extproc.core.limits.gcra import EMPTY, Level, charged, settled, wait_us
from tests.redis_server import RedisServer

BASE = "extproc:{default}"
LAST_BATCH = f"{BASE}:limit:batch:r1"
CHARGE, SETTLE = Script("limits.lua"), Script("settle.lua")
CAPACITIES_US = {"small": 700.0, "large": 40_000.0, "hour": 3600e6}
# An hour's bucket is soon full and stays so: what is refused does not hang on how long a call takes.
SCALES_US = {"small": 700.0, "large": 700.0, "hour": 3600e6}


class Course:
    """The same events for the scripts and for the plain form; times are those that the server tells."""

    def __init__(self, link: Link, seed: int) -> None:
        self.link = link
        self.chance = random.Random(seed)
        self.levels = dict.fromkeys(CAPACITIES_US, EMPTY)
        self.made: list[tuple[str, float, int]] = []
        self.allowed = self.refused = self.batch = 0

    async def charge(self) -> None:
        names = self.chance.sample(sorted(CAPACITIES_US), self.chance.choice((1, 2)))
        costs = [self.chance.choice((0.1, 1.0, 3.3)) * SCALES_US[name] * self.chance.random() for name in names]
        arguments: list[str | float] = ["r1", 3000]
        for name, cost_us in zip(names, costs, strict=True):
            arguments += [repr(cost_us), repr(CAPACITIES_US[name])]
        keys = [f"{BASE}:routers", *(f"{BASE}:limit:{name}" for name in names)]
        allowed, now_us, *found = await self.link.run(CHARGE, keys, arguments)
        waits = [
            wait_us(self.levels[name], now_us, cost_us, CAPACITIES_US[name])
            for name, cost_us in zip(names, costs, strict=True)
        ]
        assert allowed == (not any(waits))
        self.allowed, self.refused = self.allowed + allowed, self.refused + (not allowed)
        if allowed:
            for name, cost_us in zip(names, costs, strict=True):
                self.levels[name] = charged(self.levels[name], now_us, cost_us)
                self.made.append((name, cost_us, now_us))
        for name, wait, left, told in zip(names, waits, found[::2], found[1::2], strict=True):
            assert abs(told - wait) <= 1
            assert abs(left - self.levels[name].left_us(now_us)) <= 1

    async def settle(self) -> None:
        if not self.made:
            return
        name, cost_us, at_us = self.made.pop(self.chance.randrange(len(self.made)))
        change_us = cost_us * self.chance.choice((-1.0, -0.5, 0.7, 2.0))
        self.batch += 1
        arguments: list[str | float] = [self.batch, repr(change_us), at_us]
        now_us = await self.link.run(SETTLE, [LAST_BATCH, f"{BASE}:limit:{name}"], arguments)
        self.levels[name] = settled(self.levels[name], now_us, change_us, at_us)

    async def agree(self) -> None:
        """The server has what the plain form has."""
        for name, level in self.levels.items():
            told = await self.link.command("HGETALL", f"{BASE}:limit:{name}")
            fields = dict(zip(told[::2], map(float, told[1::2]), strict=True))
            assert Level(fields.get(b"empty", 0.0), fields.get(b"since", 0.0)) == level


@pytest.mark.parametrize("seed", range(4))
async def test_the_scripts_do_what_the_plain_form_says(server: RedisServer, seed: int) -> None:
    """To the microsecond; one refused charge leaves all buckets as they were."""
    async with Link(server.url) as link:
        course = Course(link, seed)
        for _ in range(250):
            await course.chance.choice((course.charge, course.charge, course.settle))()
            if course.chance.random() < 0.1:
                await asyncio.sleep(course.chance.random() * 0.01)
        await course.agree()
        assert course.allowed > 10
        assert course.refused > 10


async def test_a_bucket_is_forgotten_soon_after_it_is_empty(server: RedisServer) -> None:
    """Tenants that come once leave nothing behind."""
    async with Link(server.url) as link:
        key = f"{BASE}:limit:requests:a:*"
        await link.run(CHARGE, [f"{BASE}:routers", key], ["r1", 3000, 2e6, 9e6])
        assert 1000 < await link.command("PTTL", key) <= 3000
        await link.run(SETTLE, [LAST_BATCH, key], [1, 3e6, 0])
        assert 3000 < await link.command("PTTL", key) <= 6000


async def test_a_batch_that_comes_again_is_not_settled_again(server: RedisServer) -> None:
    """Nor one that a later one has overtaken: rather nothing is given back than the same twice."""
    async with Link(server.url) as link:
        key = f"{BASE}:limit:tokens:a:*"
        await link.run(CHARGE, [f"{BASE}:routers", key], ["r1", 3000, 500e6, 900e6])
        full_us = await level_us(link, key)
        for batch in (2, 2, 1):
            await link.run(SETTLE, [LAST_BATCH, key], [batch, -100e6, 4e15])
        assert await level_us(link, key) == full_us - 100e6
        await link.run(SETTLE, [LAST_BATCH, key], [3, -100e6, 4e15])
        assert await level_us(link, key) == full_us - 200e6
        assert 0 < await link.command("PTTL", LAST_BATCH) <= 60_000


@pytest.mark.parametrize("change_us", ["1e300", "inf"])
async def test_an_absurd_use_spoils_neither_its_bucket_nor_its_batch(server: RedisServer, change_us: str) -> None:
    """It is forgotten in the end, and what comes after it is settled."""
    async with Link(server.url) as link:
        keys = [f"{BASE}:limit:tokens:{name}:*" for name in "ab"]
        await link.run(SETTLE, [LAST_BATCH, *keys], [1, change_us, 0, 5e6, 0])
        assert await link.command("PTTL", keys[0]) > 0
        assert 5000 < await link.command("PTTL", keys[1]) <= 6000


async def level_us(link: Link, key: str) -> float:
    fields = await link.command("HGETALL", key)
    return float(dict(zip(fields[::2], fields[1::2], strict=True))[b"empty"])
