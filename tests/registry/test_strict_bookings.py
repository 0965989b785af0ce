"""Strict mode over real servers: no limit is ever passed, and counts are right again after whatever goes wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest
import redis.asyncio as aioredis

from extproc.adapters.redis_link import Link
from extproc.adapters.redis_settings import parse
from extproc.adapters.strict_bookings import StrictBookings
from extproc.stream.errands import Place, TakePlace
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire

LONG_S = 30.0  # never reached by a machine that works
BASE = "extproc:{default}"


@asynccontextmanager
async def router(
    url: str, name: str, *, budget_s: float = LONG_S, heartbeat_s: float = 0.2
) -> AsyncIterator[StrictBookings]:
    async with Link(replace(parse(url), timeout_s=0.5)) as link:
        made = StrictBookings(link, BASE, name, budget_s=budget_s, heartbeat_s=heartbeat_s, lease_s=3 * heartbeat_s)
        task = asyncio.create_task(made.run())
        try:
            yield made
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def counts(url: str, key: str) -> dict[str, int]:
    """Open requests on an instance by router, as Redis has them."""
    async with aioredis.Redis.from_url(url) as raw:
        found = await raw.hgetall(f"{BASE}:open:{key}")
    return {name.decode(): int(count) for name, count in found.items()}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def reserve(made: StrictBookings, request_id: str, places: Sequence[Place]) -> Place | None:
    number = await made.take(TakePlace(request_id, tuple(places)))
    return None if number is None else places[number]


async def test_routers_that_ask_at_once_never_pass_a_limit_together(server: RedisServer) -> None:
    """Each request gets the best place that is left; those beyond all limits get none."""
    places = [Place("a@1", 10), Place("b@1", 5)]
    async with AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(router(server.url, f"r{number}")) for number in range(4)]
        asked = [reserve(each, f"{number}", places) for number in range(10) for each in routers]
        taken = Counter(place.key if place else None for place in await asyncio.gather(*asked))
        assert taken == {"a@1": 10, "b@1": 5, None: 25}
        assert (await reserve(routers[0], "unlimited", [places[0], Place("b@1")])) == Place("b@1")


async def test_a_place_is_free_again_when_its_request_has_ended(server: RedisServer) -> None:
    """Ends travel in batches; ending twice ends once."""
    async with router(server.url, "r1") as first, router(server.url, "r2") as second:
        place = Place("a@1", 2)
        assert [await reserve(first, str(number), [place]) for number in range(3)] == [place, place, None]
        first.release("0")
        first.release("0")

        async def second_has_it() -> bool:
            return await reserve(second, "next", [place]) is not None

        await until(second_has_it)
        assert await reserve(second, "one too many", [place]) is None


async def test_a_router_that_dies_gives_back_what_it_had_with_its_lease(server: RedisServer) -> None:
    """And one that lives keeps its place for as long as its request runs."""
    place = Place("a@1", 2)
    async with router(server.url, "alive") as alive:
        assert await reserve(alive, "long", [place]) == place
        async with router(server.url, "dies") as dies:
            assert await reserve(dies, "0", [place]) == place

        async def free() -> bool:
            return await reserve(alive, "second", [place]) is not None

        await until(free)
        assert await counts(server.url, "a@1") == {"alive": 2}
        await asyncio.sleep(1.0)  # longer than any lease
        assert await reserve(alive, "third", [place]) is None


async def test_without_redis_it_is_the_first_place_and_counts_are_right_when_it_is_back(server: RedisServer) -> None:
    """No request waits longer than the budget, and none is refused."""
    places = [Place("a@1", 1), Place("b@1", 1)]
    async with router(server.url, "r1", budget_s=0.3) as made:
        assert await reserve(made, "0", places) == places[0]
        server.stop()
        assert [await reserve(made, str(number), places) for number in (1, 2)] == [places[0]] * 2
        assert made.unsettled == 2
        made.release("0")
        server.start()

        async def right() -> bool:
            return await counts(server.url, "a@1") == {"r1": 2}

        await until(right)
        assert await reserve(made, "3", places) == places[1]


async def test_calls_that_are_cut_off_leave_no_count_behind(server: RedisServer) -> None:
    """Whether the server had taken the place by then is not known; what is stated afterwards is."""
    places = [Place("a@1", 1000), Place("b@1", 1000)]
    async with router(server.url, "r1", budget_s=0.001) as made:
        server.freeze()
        await asyncio.gather(*(reserve(made, str(number), places) for number in range(20)))
        server.thaw()
        assert made.unsettled == 20
        for number in range(20):
            made.release(str(number))

        async def nothing() -> bool:
            return not await counts(server.url, "a@1") and not await counts(server.url, "b@1")

        await asyncio.sleep(0.3)  # in which whatever was under way has arrived
        await until(nothing)


async def test_a_request_that_is_aborted_while_its_place_is_being_taken_leaves_no_count_behind(
    server: RedisServer,
) -> None:
    """Redis has taken the place, the answer is on its way, and nobody will be there to give the place back.

    Nor does it wait for a heartbeat, or for the end of the lease, until the place is free again.
    """
    place = Place("a@1", 1)
    async with (
        Wire(server.port) as wire,
        router(wire.url, "r1", heartbeat_s=1000.0) as made,
        router(server.url, "r2") as other,
    ):
        await asyncio.sleep(0.3)  # its first statement is out
        wire.delay_s = 0.15
        asked = asyncio.create_task(reserve(made, "0", [place]))

        async def taken() -> bool:
            return await counts(server.url, "a@1") == {"r1": 1}

        await until(taken)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        made.release("0")

        async def other_has_it() -> bool:
            return await reserve(other, "1", [place]) is not None

        await until(other_has_it)
        assert await counts(server.url, "a@1") == {"r2": 1}
        assert made.unsettled == 0
