"""Load intents on real servers, with the rights of `redis/users.acl`: several routers, one record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from extproc.adapters.intents import LONGEST_LIFE_S, SHORTEST_LIFE_S, Intents
from extproc.adapters.registry import Registry
from extproc.adapters.start_memory import STARTS_KEPT, StartMemory
from extproc.errors import RegistryError
from tests.redis_server import RedisServer
from tests.registry.test_users import ACL, GuardedServer, login

BASE = "extproc:{default}"


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[RedisServer]:
    with GuardedServer(kind, tmp_path, "--aclfile", str(ACL)) as started:
        yield started


@dataclass(frozen=True)
class Routers:
    one: Intents
    two: Intents
    operator: Intents  # who may only look
    memory: StartMemory
    raw: aioredis.Redis  # who may do everything


@asynccontextmanager
async def routers(server: RedisServer) -> AsyncIterator[Routers]:
    async with (
        Registry(login(server, "router")) as router,
        Registry(login(server, "operator")) as operator,
        aioredis.Redis.from_url(server.url, username="operator", password="operator-secret") as raw,
    ):
        yield Routers(
            Intents(router.link, router.base, "one"),
            Intents(router.link, router.base, "two"),
            Intents(operator.link, operator.base),
            StartMemory(router.link, router.base),
            raw,
        )


async def test_an_intent_sums_up_what_all_routers_say(server: RedisServer) -> None:
    """Since when is the first one's word, how many wait is the latest word of each."""
    async with routers(server) as made:
        await made.one.want("big", 3, 2, 60.0)
        await asyncio.sleep(0.05)
        await made.two.want("big", 4, 1, 60.0)
        wanted = await made.one.want("big", 0, 1, 60.0)
        assert wanted.requests == 7
        assert wanted.age_s >= 0.05
        (intent,) = await made.operator.read()
        assert (intent.model, intent.requests, intent.waiting) == ("big", 7, 2)
        assert intent.latest_s - intent.since_s == pytest.approx(wanted.age_s, abs=0.01)
        assert await made.operator.models() == ("big",)
        long_ago_ms = (intent.latest_s - 20.0) * 1000
        await made.raw.hset(f"{BASE}:intent:big", "waiting:dead", f"9 {long_ago_ms:.0f}")
        assert (await made.operator.read())[0].waiting == 2  # a router that died holds nothing


async def test_only_one_router_tells_others_of_it_until_its_time_is_up(server: RedisServer) -> None:
    """Whoever does not mean to tell takes nobody's turn."""
    async with routers(server) as made:
        told = await asyncio.gather(*(each.want("big", 1, 0, 9.0, claim_s=30.0) for each in (made.one, made.two) * 5))
        assert sum(wanted.tell for wanted in told) == 1
        assert not (await made.one.want("other", 1, 0, 9.0)).tell
        assert (await made.two.want("other", 1, 0, 9.0, claim_s=0.05)).tell
        await asyncio.sleep(0.1)
        assert (await made.one.want("other", 1, 0, 9.0, claim_s=30.0)).tell


async def test_an_intent_ends_by_itself_and_its_end_only_moves_on(server: RedisServer) -> None:
    """Who was told to come again in an hour must find it; a word on who waits must not shorten that."""
    async with routers(server) as made:
        await made.one.want("big", 1, 0, 1.0)
        assert await made.raw.pttl(f"{BASE}:intent:big") <= SHORTEST_LIFE_S * 1000
        await made.one.want("big", 1, 0, 3600.0)
        await made.one.want("big", 0, 1, 0.0)
        assert await made.raw.pttl(f"{BASE}:intent:big") > 3500_000
        (intent,) = await made.operator.read()
        assert intent.ends_s - intent.latest_s == pytest.approx(3600.0, abs=5.0)
        await made.raw.pexpire(f"{BASE}:intent:big", 1)
        await made.one._link.command("ZADD", f"{BASE}:intents", round(intent.latest_s * 1000), "big")
        await asyncio.sleep(0.05)
        assert await made.operator.read() == ()
        assert await made.operator.models() == ()


async def test_a_start_of_unbelievable_length_stops_nobodys_intents(server: RedisServer) -> None:
    """Whatever an instance says of its start, what Redis is told is a number that it takes."""
    async with routers(server) as made:
        await made.one.want("big", 1, 0, 1e300)
        assert await made.operator.models() == ("big",)
        assert 0 < await made.raw.pttl(f"{BASE}:intent:big") <= LONGEST_LIFE_S * 1000


async def test_what_cannot_be_read_of_starts_is_left_out(server: RedisServer) -> None:
    """Whoever wrote it: the others are remembered all the same."""
    async with routers(server) as made:
        known = await made.memory.write({}, ["big"], {"big": {"a@1": 30.0}}, {})
        nonsense = {b"\xff\xfe": b'{"served_at_s": 9e12}', "x": b"[]", "y": b'{"served_at_s": 1e999}', "z": b"\x00"}
        await made.raw.hset(f"{BASE}:starts", mapping=nonsense)
        assert await made.memory.read(60.0) == known


async def test_the_first_router_that_sees_the_model_served_takes_the_intent_back(server: RedisServer) -> None:
    """It learns for how long the model was wanted and cold. A late word on who waits brings nothing back."""
    async with routers(server) as made:
        await made.one.want("big", 1, 1, 60.0, cold=False)
        await asyncio.sleep(0.05)
        await made.one.want("big", 1, 1, 60.0)
        took = [await made.one.fulfil("big"), await made.two.fulfil("big")]
        assert took[0] is not None
        assert 0.0 <= took[0] < 30.0
        assert took[1] is None
        await made.two.want("big", 0, 0, 60.0)
        assert await made.operator.models() == ()
        assert await made.raw.exists(f"{BASE}:intent:big") == 0


async def test_of_a_model_that_somebody_was_loading_all_the_time_no_wait_is_learned(server: RedisServer) -> None:
    """Its start had begun before anybody asked: the time would be too short."""
    async with routers(server) as made:
        await made.one.want("big", 5, 0, 60.0, cold=False)
        assert await made.one.fulfil("big") is None
        assert await made.operator.models() == ()


async def test_starts_are_remembered_over_routers_and_for_as_long_as_asked(server: RedisServer) -> None:
    """Whole waits go before engines' starts; the same start is not counted twice, the oldest are forgotten."""
    async with routers(server) as made:
        memory = made.memory
        known = await memory.write({}, ["big", "small"], {"big": {"a@1": 30.0}}, {})
        known = await memory.write(known, ["big"], {"big": {"a@1": 30.0, "b@1": 50.0}}, {})
        found = await memory.read(60.0)
        assert found == known
        assert found["big"].durations_s == (30.0, 50.0)
        assert found["small"].durations_s == ()
        many = {f"c@{number}": float(number) for number in range(STARTS_KEPT + 5)}
        known = await memory.write(found, ["big"], {"big": many}, {})
        assert len(known["big"].starts) == STARTS_KEPT
        await memory.write(known, ["big"], {}, {"big": {"1": 200.0}})
        assert (await memory.read(60.0))["big"].durations_s == (200.0,)
        await asyncio.sleep(0.05)
        assert await memory.read(0.01) == {}


async def test_starts_of_however_many_models_are_written_in_one_round_trip(server: RedisServer) -> None:
    """Adapters are models too: one after the other a thousand of them would take longer than a router waits."""
    async with routers(server) as made:
        memory, commands = made.memory, list[str]()
        memory._link.on_command = lambda name, took_s, failed: commands.append(name)
        served = [f"adapter-{number}" for number in range(300)]
        known = await memory.write({}, served, {"adapter-7": {"x@1": 5.0}}, {})
        assert commands.count("HSET") == 1
        assert len(commands) < 5
        assert await memory.read(60.0) == known
        assert set(known) == set(served)
        assert await memory.write(known, (), {}, {}) == known


async def test_words_of_another_version_are_left_out(server: RedisServer) -> None:
    """Rather than that nothing is known."""
    async with routers(server) as made:
        await made.one.want("big", 1, 0, 60.0)
        await made.one.want("odd", 1, 0, 60.0)
        await made.raw.hset(f"{BASE}:intent:odd", "requests", "many")
        assert [intent.model for intent in await made.operator.read()] == ["big"]
        await made.memory.write({}, ["big"], {}, {})
        await made.raw.hset(f"{BASE}:starts", "odd", "?")
        assert set(await made.memory.read(60.0)) == {"big"}


async def test_an_agent_may_not_say_what_is_wanted(server: RedisServer) -> None:
    """It needs no right to."""
    async with Registry(login(server, "agent")) as agent:
        with pytest.raises(RegistryError):
            await Intents(agent.link, agent.base, "agent").want("big", 1, 0, 9.0)
