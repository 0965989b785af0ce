"""Routers' counts on real servers, with the rights of `redis/users.acl`: sums outlive routers, held requests do not."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pytest
import redis.asyncio as aioredis

from extproc.adapters.registry import Registry
from extproc.adapters.traffic_counts import WORD_LIFE_S, TrafficCounts
from extproc.cli import main
from extproc.core.scaling.sight import Counts
from extproc.errors import RegistryError
from tests.redis_server import RedisServer
from tests.registry.deployments import CutWire
from tests.registry.test_users import ACL, GuardedServer, login

BASE = "extproc:{default}"
TOTALS, ROUTERS = f"{BASE}:traffic", f"{BASE}:traffic-routers"
SOME = Counts(
    requests=5, shed=1, prompt_tokens=1_000_000_000_000_001, cached_tokens=700, answers=4, output_tokens=90,
    judged=4, late=2, slow=1, paced=3,
)  # fmt: skip
HOUR_MS = 3600_000


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[RedisServer]:
    with GuardedServer(kind, tmp_path, "--aclfile", str(ACL)) as started:
        yield started


@dataclass(frozen=True)
class Told:
    one: TrafficCounts
    two: TrafficCounts
    reader: TrafficCounts
    raw: aioredis.Redis  # to write what no program of ours does

    async def ago(self, ms: float) -> int:
        """Time of the server, ms."""
        seconds, microseconds = await self.raw.time()
        return round(seconds * 1000 + microseconds / 1000 - ms)


@asynccontextmanager
async def telling(server: RedisServer) -> AsyncIterator[Told]:
    async with (
        Registry(login(server, "router")) as router,
        Registry(login(server, "autoscaler")) as autoscaler,
        aioredis.Redis.from_url(server.url, username="router", password="router-secret") as raw,
    ):
        yield Told(
            TrafficCounts(router.link, router.base, "one"),
            TrafficCounts(router.link, router.base, "two"),
            TrafficCounts(autoscaler.link, autoscaler.base),
            raw,
        )


def times(number: int, counts: Counts) -> Counts:
    return Counts(**{name: number * value for name, value in asdict(counts).items()})


async def test_totals_are_sums_over_all_routers_and_all_batches(server: RedisServer) -> None:
    """Whatever a model is called; numbers are whole up to the last token."""
    name = "a model/with spaces:and {braces} … and an é"
    async with telling(server) as made:
        assert (await made.reader.read()).counts == {}
        for batch in (1, 2):
            await made.one.add(batch, {name: SOME, "other": Counts(requests=1)}, {name: 2, "other": 0})
        await made.two.add(1, {name: SOME}, {name: 3, "third": 1})
        seen = await made.reader.read()
        assert seen.counts == {name: times(3, SOME), "other": Counts(requests=2)}
        assert seen.held == {name: 5, "third": 1}
        assert seen.routers == 2


async def test_a_batch_that_comes_again_is_added_once(server: RedisServer) -> None:
    """Also late, after others; what the router holds now is taken all the same."""
    async with telling(server) as made:
        for held in (4, 3):
            await made.one.add(1, {"m": SOME}, {"m": held})
        assert (await made.reader.read()).held == {"m": 3}
        await made.one.add(2, {"m": SOME}, {})
        await made.one.add(1, {"m": SOME}, {})
        assert (await made.reader.read()).counts == {"m": times(2, SOME)}


async def test_a_connection_that_breaks_behind_the_script_adds_nothing_twice(kind: str, tmp_path: Path) -> None:
    """The client sends it again by itself, and so does the caller who got an error."""
    with RedisServer(kind, tmp_path) as server:
        async with CutWire(server.port) as wire, Registry(wire.url) as registry, Registry(server.url) as reader:
            counts = TrafficCounts(registry.link, registry.base, "one")
            await counts.add(1, {"m": SOME}, {})
            wire.armed = counts._count.sha1
            await counts.add(2, {"m": SOME}, {})
            assert wire.cut == 2
            assert (await TrafficCounts(reader.link, reader.base).read()).counts == {"m": times(2, SOME)}


async def test_of_a_router_that_was_killed_the_counts_stay_and_the_held_requests_go(server: RedisServer) -> None:
    """It says nothing of either; its lease ends by the server's clock."""
    async with telling(server) as made:
        await made.one.add(1, {"m": SOME}, {"m": 7})
        await made.two.add(1, {"m": SOME}, {"m": 1})
        silent_ms = await made.ago(WORD_LIFE_S * 1000 + 1)
        await made.raw.hset(ROUTERS, "one", f'1 {silent_ms} {{"m":7}}')
        seen = await made.reader.read()
        assert (seen.counts, seen.held, seen.routers) == ({"m": times(2, SOME)}, {"m": 1}, 1)
        await made.raw.hset(ROUTERS, "one", f'1 {await made.ago(HOUR_MS + 1000)} {{"m":7}}')
        await made.two.add(2, {}, {})
        assert await made.raw.hgetall(ROUTERS) == {b"two": (await made.raw.hgetall(ROUTERS))[b"two"]}


async def test_a_router_that_begins_anew_under_another_name_adds_to_what_it_had_counted(server: RedisServer) -> None:
    """Its batches begin at 1 again."""
    async with telling(server) as made:
        await made.one.add(1, {"m": SOME}, {"m": 7})
        await made.one.add(2, {"m": SOME}, {})
        await made.two.add(1, {"m": SOME}, {})
        seen = await made.reader.read()
        assert (seen.counts, seen.held, seen.routers) == ({"m": times(3, SOME)}, {}, 2)


async def test_with_no_router_left_nothing_is_known_of_the_load(server: RedisServer) -> None:
    """Which is something else than that there is none."""
    async with telling(server) as made:
        await made.one.add(1, {"m": SOME}, {})
        await made.raw.hset(ROUTERS, "one", f"1 {await made.ago(WORD_LIFE_S * 1000 + 1)} {{}}")
        seen = await made.reader.read()
        assert (seen.counts, seen.routers) == ({"m": SOME}, 0)


async def test_how_old_counts_are_is_told_by_the_routers_that_tell_regularly(server: RedisServer) -> None:
    """One that has ended a moment ago does not make them old; where all are silent, it is since the last word."""
    async with telling(server) as made:
        await made.one.add(1, {"m": SOME}, {})
        assert 0.0 <= (await made.reader.read()).age_s <= 3.0
        for ages_ms, least_s, below_s in (((1000, 2000, 9000), 1.49, 4.0), ((5000, 14_000), 4.99, 9.5)):
            await made.raw.hdel(ROUTERS, *await made.raw.hkeys(ROUTERS))
            for age_ms in ages_ms:
                await made.raw.hset(ROUTERS, f"r{age_ms}", f"1 {await made.ago(age_ms)} {{}}")
            assert least_s <= (await made.reader.read()).age_s < below_s


async def test_models_that_nobody_asks_for_any_more_are_forgotten_and_invented_ones_sooner(server: RedisServer) -> None:
    """A name that was never served is anybody's invention."""
    async with telling(server) as made:
        for name, age_h, counts in (
            ("served", 23, "5 4 0"), ("long ago", 25, "5 4 0"), ("invented", 2, "5 5 0"), ("wanted", 0.5, "5 5 0")
        ):  # fmt: skip
            await made.raw.hset(TOTALS, name, f"{await made.ago(age_h * HOUR_MS)} {counts}")
        await made.one.add(1, {}, {})
        assert set((await made.reader.read()).counts) == {"served", "wanted"}
        assert await made.raw.pttl(TOTALS) > 0
        assert await made.raw.pttl(ROUTERS) > 0


async def test_there_is_room_for_a_thousand_models(server: RedisServer) -> None:
    """Those that are known are counted on; what comes beyond is not."""
    async with telling(server) as made:
        await made.one.add(1, {f"m{number}": Counts(requests=1) for number in range(1200)}, {})
        await made.one.add(2, {f"m{number}": Counts(requests=1) for number in range(1200)}, {})
        counts = (await made.reader.read()).counts
        assert len(counts) == 1000
        assert counts["m0"].requests == 2


async def test_what_cannot_be_read_is_left_out(server: RedisServer) -> None:
    """Of an older version some numbers are missing, of a newer one there are more; nonsense is nothing."""
    async with telling(server) as made:
        now_ms = await made.ago(0)
        await made.one.add(1, {"m": SOME}, {"m": 1})
        words = {"older": f"{now_ms} 3 1", "newer": f"{now_ms} {'1 ' * 30}", "odd": "many", b"\xff": f"{now_ms} 1"}
        await made.raw.hset(TOTALS, mapping=words)
        routers = {"x": "?", "y": f"1 {now_ms} []", "z": f"1 {now_ms} " + '{"m":"?"}', b"\xfe": f"1 {now_ms} " + "{"}
        await made.raw.hset(ROUTERS, mapping=routers)
        seen = await made.reader.read()
        assert seen.counts["older"] == Counts(requests=3, shed=1)
        assert seen.counts["newer"] == Counts(**dict.fromkeys(asdict(SOME), 1.0))
        assert {"odd", "\xff"}.isdisjoint(seen.counts)
        assert (seen.held, seen.routers) == ({"m": 1}, 1)
        await made.one.add(2, {"m": SOME, "odd": SOME}, {})
        assert (await made.reader.read()).counts["m"] == times(2, SOME)


async def test_an_agent_neither_counts_nor_looks(server: RedisServer) -> None:
    """It needs no right to."""
    async with Registry(login(server, "agent")) as agent:
        with pytest.raises(RegistryError):
            await TrafficCounts(agent.link, agent.base, "agent").add(1, {"m": SOME}, {})
        with pytest.raises(RegistryError):
            await TrafficCounts(agent.link, agent.base).read()


async def test_the_operator_is_shown_what_was_counted(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table and as JSON."""
    async with telling(server) as made:
        flags = ["fleet", "--redis-url", server.url.replace("//", "//operator:operator-secret@"), "--traffic"]
        assert await asyncio.to_thread(main, flags) == 0
        assert "nothing was counted yet in fleet 'default'; 0 routers tell" in capsys.readouterr().out
        counts = Counts(requests=10, shed=1, prompt_tokens=1000, cached_tokens=250, judged=8, late=2)
        await made.one.add(1, {"m": counts}, {"m": 3, "cold": 1})
        assert await asyncio.to_thread(main, flags) == 0
        head, cold, row, last = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert dict(zip(head, row, strict=True)) == {
            "MODEL": "m", "REQUESTS": "10", "SHED": "1", "HELD": "3", "PROMPT": "100", "CACHED": "25.0%",
            "OUTPUT": "-", "LATE": "25.0%", "SLOW": "-",
        }  # fmt: skip
        assert cold == ["cold", "0", "0", "1", *"-----"]
        assert last == ["1", "router", "tells"]
        assert await asyncio.to_thread(main, [*flags, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["routers"] == 1
        assert shown["models"]["m"] == asdict(counts) | {"held": 3}


def test_the_page_of_the_registry_names_the_numbers_in_the_order_in_which_they_are_written() -> None:
    """Whoever reads them in Redis has nothing else to tell them apart."""
    page = (Path(__file__).parents[2] / "docs/registry-schema.md").read_text()
    part = page.partition("## What routers count")[2].partition("\n## ")[0]
    heads = [row.split("|")[1] for row in part.splitlines() if row.startswith("| `")]
    told = [name for head in heads for name in re.findall(r"`(\w+)`", head)]
    assert told == [each.name for each in fields(Counts)]
