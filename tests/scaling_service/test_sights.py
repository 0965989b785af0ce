"""What the autoscaler sees, gathered from a real server: by whom each part of it was written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from extproc.adapters.intents import Intents
from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.registry import Registry
from extproc.adapters.start_memory import StartMemory
from extproc.adapters.traffic_counts import TrafficCounts
from extproc.core.fleet.fleet import Fleet
from extproc.core.scaling.rules import PoolRules, ScalingRules
from extproc.core.scaling.sight import Counts
from extproc.core.speeds.profile import profile_for
from extproc.core.speeds.speed_records import KindRecord, record_of
from extproc.core.speeds.speeds import Speeds
from extproc.core.values.instance import Instance, Lifecycle
from extproc.scaling_service.journal import Journal, Launch, Stop
from extproc.scaling_service.learned_speeds import speeds_of
from extproc.scaling_service.sights import Sights
from tests.core.builders import MODEL, instance
from tests.redis_server import RedisServer

H100 = PoolRules(name="h100", models=(MODEL,), hardware="h100_sxm")
A100 = PoolRules(name="a100", models=(MODEL,), hardware="a100_sxm")
RULES = ScalingRules(pools=(H100, A100))
NOW_S = 1_700_000_000.0


def learned(one: Instance, slower: float) -> KindRecord:
    """The record of a kind that has proven to be so many times slower than the table."""
    speeds = Speeds()
    speeds.speed(MODEL, one)
    (kind,) = speeds.kinds().values()
    for step in kind.steps:
        step.samples = 50
        step.state.second = float(np.log(slower))
    return record_of(kind, 0.0)


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            yield registry


async def fleet_of(registry: Registry, *instances: Instance) -> Fleet:
    for each in instances:
        await registry.publish(each)
    fleet = Fleet()
    fleet.resync(await registry.state(), time.monotonic())
    return fleet


async def test_all_that_is_written_is_seen(registry: Registry) -> None:
    """By routers, by agents, by whoever asks for a model; nothing of it is needed."""
    link, base = registry.link, registry.base
    one, other = instance("a", start_s=40.0), instance("b", hardware="l40s")
    fleet = await fleet_of(registry, one, other)
    empty = await Sights(RULES, registry, Fleet(), clock=lambda: NOW_S).look(Journal())
    assert (empty.sight.instances, empty.sight.counts, empty.sight.speeds, empty.sight.routers) == ((), {}, {}, 0)

    await TrafficCounts(link, base, "r").add(1, {MODEL: Counts(requests=7.0, shed=1.0)}, {MODEL: 2})
    await Intents(link, base, "r").want("cold", 1, 1, 60.0)
    await PrefixMemory(link, base).write(one.key, b"12345678" * 10)
    await PrefixMemory(link, base).write(one.key, b"12345678" * 30)
    await StartMemory(link, base).write({}, [MODEL], {MODEL: {"x@1": 55.0}}, {})
    await ProfileMemory(link, base).write("r", [learned(one, 1.5)])
    told = await registry.link.command("HGET", f"{base}:traffic-routers", "r")
    batch, told_ms, held = told.split(b" ", 2)
    two_s_ago = b"%d %d %b" % (int(batch), int(told_ms) - 2000, held)
    await registry.link.command("HSET", f"{base}:traffic-routers", "r", two_s_ago)
    seen = await Sights(RULES, registry, fleet, clock=lambda: NOW_S).look(Journal())
    sight = seen.sight
    assert sight.at_s == NOW_S
    assert {each.id for each in sight.instances} == {"a", "b"}
    assert sight.counts == {MODEL: Counts(requests=7.0, shed=1.0)}
    assert NOW_S - 15.0 < (sight.counted_at_s or 0.0) <= NOW_S - 2.0, "as old as the router's word"
    assert (sight.held, sight.wanted) == ({MODEL: 2}, {"cold"})
    assert sight.routers == 1
    assert sight.warm_tokens == {"a": 30 * 64.0, "b": 0.0}, "the router that knows most counts"
    assert sight.starts_s == {"h100": (40.0,), "a100": (55.0,)}, "where none was seen, those of the model"
    assert set(sight.speeds) == {"h100"}
    assert seen.outside == ("b",)
    assert [each.id for each in seen.members["h100"]] == ["a"]


async def test_a_look_does_not_wait_until_it_is_known_what_is_warm_in_all_of_a_large_fleet(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else no turn would come to its end where Redis is far away. What was not read in time is read first then."""
    fleet = await fleet_of(registry, *map(instance, "abc"))
    asked: list[str] = []
    slow, now_s = {"b@1", "c@1"}, 0.0

    async def blocks(_: PrefixMemory, key: str) -> int:
        asked.append(key)
        if key in slow:
            await asyncio.Event().wait()
        return 5

    monkeypatch.setattr(PrefixMemory, "blocks", blocks)
    monkeypatch.setattr("extproc.scaling_service.sights._WARM_BUDGET_S", 0.1)
    sights = Sights(RULES, registry, fleet, clock=lambda: NOW_S, since_start=lambda: now_s)
    assert (await sights.look(Journal())).sight.warm_tokens == {"a": 5 * 64.0}
    asked.clear()
    slow.remove("b@1")
    now_s = 60.0
    assert (await sights.look(Journal())).sight.warm_tokens == {"a": 5 * 64.0, "b": 5 * 64.0}
    assert asked == ["b@1", "c@1", "a@1"]


async def test_what_is_over_before_an_agent_can_tell_is_part_of_a_start(registry: Registry) -> None:
    """Whoever has measured the rest of it, in the pool or elsewhere; a start of which that is given up waits for it."""
    rules = ScalingRules(pools=tuple(replace(each, before_start_s=100.0) for each in RULES.pools))
    fleet = await fleet_of(registry, instance("a", start_s=40.0))
    await StartMemory(registry.link, registry.base).write({}, [MODEL], {MODEL: {"x@1": 200.0}}, {})
    journal = Journal(launches=(Launch(id="n", pool="a100", at_s=NOW_S - 890.0),))
    seen = await Sights(rules, registry, fleet, clock=lambda: NOW_S).look(journal)
    assert seen.sight.starts_s == {"h100": (140.0,), "a100": (300.0,)}
    assert seen.journal.launches == journal.launches
    later = await Sights(rules, registry, fleet, clock=lambda: NOW_S + 10.0).look(journal)
    assert later.journal.launches == ()


async def test_what_was_asked_for_is_seen_beside_what_is_there(registry: Registry) -> None:
    """Until it is matched."""
    fleet = await fleet_of(registry, instance("a"))
    journal = Journal(launches=(Launch(id="n", pool="a100", at_s=NOW_S - 5.0),))
    seen = await Sights(RULES, registry, fleet, clock=lambda: NOW_S).look(journal)
    assert [(each.id, each.lifecycle) for each in seen.sight.instances] == [
        ("a", Lifecycle.READY),
        ("n", Lifecycle.STARTING),
    ]
    assert seen.journal.launches == journal.launches
    assert seen.outside == ()


async def test_one_that_loads_and_tells_of_no_model_yet_is_not_outside_and_its_start_is_not_given_up(
    registry: Registry,
) -> None:
    """An agent without `--model` has nothing to tell before the engine lists any."""
    silent = msgspec.structs.replace(instance("n", lifecycle=Lifecycle.LOADING), models=())
    fleet = await fleet_of(registry, silent, msgspec.structs.replace(silent, id="o", lifecycle=Lifecycle.UNHEALTHY))
    journal = Journal(launches=(Launch(id="n", pool="h100", at_s=NOW_S - 10_000.0),))
    seen = await Sights(RULES, registry, fleet, clock=lambda: NOW_S).look(journal)
    assert seen.outside == ("o",)
    assert seen.journal.launches == journal.launches


async def test_a_clock_that_is_set_back_does_not_turn_time_around(registry: Registry) -> None:
    """Rates are differences by time. It goes on meanwhile, else no load would be seen until it is caught up."""
    seen, told_s, passed_s = [], NOW_S, 0.0
    sights = Sights(RULES, registry, Fleet(), clock=lambda: told_s, since_start=lambda: passed_s)
    for told_s, passed_s in ((NOW_S, 50.0), (NOW_S - 2.0, 60.0), (NOW_S + 8.0, 70.0), (NOW_S + 18.5, 80.0)):  # noqa: B007
        seen.append((await sights.look(Journal())).sight.at_s)
    assert seen == [NOW_S, NOW_S + 9.0, NOW_S + 18.0, NOW_S + 27.0]
    told_s, passed_s = NOW_S + 60.0, 90.0
    found = await sights.look(Journal(stops=(Stop(id="a", at_s=NOW_S),)))
    assert (found.sight.at_s, found.sight.stepped_s) == (told_s, 23.0)


async def test_without_rules_pools_are_made_from_what_is_there(registry: Registry) -> None:
    """One for each kind."""
    fleet = await fleet_of(registry, instance("a"), instance("b"), instance("c", hardware="l40s"))
    seen = await Sights(ScalingRules(), registry, fleet).look(Journal())
    assert sorted(len(members) for members in seen.members.values()) == [1, 2]
    assert seen.outside == ()


def test_a_pool_s_speed_is_that_of_its_kind_with_instances_and_without() -> None:
    """A pool of another hardware, of which nobody has learned, has none: the table is as good."""
    one = instance("a")
    record = learned(one, 2.0)
    table = profile_for(MODEL, "h100_sxm", 1)
    for members in ({"h100": (one,)}, {}):
        speeds = speeds_of([record], (H100, A100), members)
        assert set(speeds) == {"h100"}
        assert speeds["h100"].prefill_s(1000, 0) > 1.5 * table.prefill_s(1000, 0)
    assert speeds_of([], (H100,), {}) == {}
