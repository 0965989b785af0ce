"""Learned speeds are shared by routers and outlive them, through a real server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest

from extproc.adapters.profile_memory import ProfileMemory
from extproc.adapters.registry import Registry
from extproc.cli import main
from extproc.core.speeds.speed_records import decode
from extproc.core.speeds.speeds import Speeds
from extproc.server import profile_keeper
from extproc.server.profile_keeper import ProfileKeeper
from tests.core.builders import MODEL, instance
from tests.core.measured import Truth
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire

SLOW_A = Truth(scale=1.5, factors={"a": 3.0})


def taught() -> Speeds:
    speeds = Speeds()
    for _ in range(40):
        for name in "abcd":
            SLOW_A.finish(speeds, instance(name))
    return speeds


def prefill_s(speeds: Speeds, name: str = "a") -> float:
    return speeds.speed(MODEL, instance(name)).prefill_s(1000, 0)


async def test_a_router_that_starts_begins_with_what_was_learned(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = ProfileMemory(registry.link, registry.base)
            before, after = taught(), Speeds()
            await ProfileKeeper(before, memory, "one").share()
            await ProfileKeeper(after, memory, "two").restore()
            assert prefill_s(after) == pytest.approx(prefill_s(before), rel=0.02)


async def test_routers_hear_each_other_and_not_themselves(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = ProfileMemory(registry.link, registry.base)
            one, two = taught(), Speeds()
            table_s, learned_s = prefill_s(two), prefill_s(one)
            await ProfileKeeper(one, memory, "one").share()
            await ProfileKeeper(two, memory, "two").share()
            assert prefill_s(two) == pytest.approx(learned_s, rel=0.02)
            await ProfileKeeper(one, memory, "one").share()
            assert prefill_s(one) == pytest.approx(learned_s, rel=0.01)
            assert set(await memory.read()) == {"one"}  # who has learned nothing tells nothing
            assert table_s < learned_s / 2


async def test_a_router_that_is_gone_is_heard_no_more_but_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profile_keeper, "ALIVE_S", -1.0)
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = ProfileMemory(registry.link, registry.base)
            two = Speeds()
            table_s = prefill_s(two)
            await ProfileKeeper(taught(), memory, "one").share()
            await ProfileKeeper(two, memory, "two").share()
            assert prefill_s(two) == table_s
            await ProfileKeeper(two, memory, "two").restore()
            assert prefill_s(two) > 2 * table_s


async def test_what_is_old_or_of_another_version_is_dropped(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = ProfileMemory(registry.link, registry.base)
            await ProfileKeeper(taught(), memory, "good").share()
            key = f"{registry.base}:profiles"
            await registry.link.command("HSET", key, "odd", b'{"kinds": 7}', "old", b'{"kinds":[],"written_at_s":1}')
            assert set(await memory.read()) == {"good"}
            await memory.tidy()
            assert await registry.link.command("HKEYS", key) == [b"good"]
            assert await registry.link.command("PTTL", key) > 0


def of_a_large_fleet(seed: int) -> Speeds:
    speeds, truth = Speeds(), Truth(seed=seed)
    for model in range(30):
        truth.model = f"model-{model}"
        for each in range(100):
            truth.finish(speeds, instance(f"instance-{each}", models=(truth.model,)), apart_s=0.01)
    return speeds


async def longest_hold_s(work: Awaitable[object]) -> float:
    """For how long everybody else on the event loop had to wait at the longest, in seconds of this thread's CPU."""
    held_s = 0.0
    task = asyncio.ensure_future(work)
    while not task.done():
        began_s = time.thread_time()
        await asyncio.sleep(0)
        held_s = max(held_s, time.thread_time() - began_s)
    await task
    return held_s


async def test_the_records_of_a_large_fleet_do_not_hold_up_requests(tmp_path: Path) -> None:
    """Telling, hearing and beginning anew are done in slices, each a small part of what reading at once would take."""
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = ProfileMemory(registry.link, registry.base)
            keepers = [ProfileKeeper(of_a_large_fleet(n), memory, f"router-{n}", budget_s=60.0) for n in range(4)]
            for keeper in keepers:
                await keeper.share()
            fields = await registry.link.command("HVALS", f"{registry.base}:profiles")
            at_once_s, held_s = [], []
            for _ in range(3):
                began_s = time.thread_time()
                for field in fields:
                    decode(field)
                at_once_s.append(time.thread_time() - began_s)
                new = ProfileKeeper(Speeds(), memory, "new", budget_s=60.0)
                works = (memory.read(), keepers[0].share(), new.restore())
                held_s.append(max([await longest_hold_s(work) for work in works]))
            assert min(held_s) < min(at_once_s) / 3
            assert len(await memory.read()) == len(keepers)


async def test_records_say_how_long_they_have_lain(tmp_path: Path) -> None:
    """So that their ages are those of now, whenever they are read."""
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = ProfileMemory(registry.link, registry.base)
            await ProfileKeeper(taught(), memory, "one").share()
            key = f"{registry.base}:profiles"
            written = json.loads(await registry.link.command("HGET", key, "one"))
            written["written_at_s"] -= 30.0
            await registry.link.command("HSET", key, "one", json.dumps(written))
            (record,) = (await memory.read())["one"]
            assert 30.0 <= record.lain_s < 60.0


async def test_a_slow_or_dead_redis_holds_nothing_up(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Wire(server.port) as wire, Registry(wire.url) as registry:
            speeds = taught()
            known_s = prefill_s(speeds)
            keeper = ProfileKeeper(speeds, ProfileMemory(registry.link, registry.base), "one", budget_s=0.2)
            wire.delay_s = 0.5
            async with asyncio.timeout(30):
                await keeper.restore()
                await keeper.try_to_share()
                server.stop()
                await keeper.restore()
                await keeper.try_to_share()
            assert prefill_s(speeds) == pytest.approx(known_s, rel=0.01)


async def test_the_fleets_profiles_are_shown_and_can_be_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer("valkey", tmp_path) as server:
        show = ["fleet", "--redis-url", server.url, "--profiles"]
        assert await asyncio.to_thread(main, show) == 0
        assert "no router" in capsys.readouterr().out
        async with Registry(server.url) as registry:
            speeds = taught()
            await ProfileKeeper(speeds, ProfileMemory(registry.link, registry.base), "one").share()
        assert await asyncio.to_thread(main, show) == 0
        head, kind, slow, *others = capsys.readouterr().out.splitlines()
        assert head.split()[:2] == ["KIND", "INSTANCE"]
        assert kind.startswith(f"{MODEL}/h100_sxm/tp1")
        assert "a@1" in slow
        assert len(others) == 3
        assert await asyncio.to_thread(main, [*show, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        reference = told["kinds"][0]["reference"]
        assert set(reference["prefill_s"]) == {"512", "2048", "8192"}
        (tmp_path / "profiles.json").write_text(json.dumps(told), encoding="utf-8")
        from extproc.commands.deciding_arguments import speed_priors

        given = Speeds(speed_priors(str(tmp_path / "profiles.json")))
        assert prefill_s(given) == pytest.approx(prefill_s(speeds), rel=0.02)


@pytest.mark.parametrize(("text", "told"), [(None, "cannot read"), ("{", "truncated"), ('{"kinds": 1}', "kinds")])
def test_a_file_that_cannot_be_used_is_one_readable_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, told: str
) -> None:
    path = tmp_path / "profiles.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    assert main(["serve", "--profiles", str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert told in error
    assert len(error.splitlines()) == 1


def test_profiles_and_an_order_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "drain", "a", "--profiles"]) == 2
    assert "drain" in capsys.readouterr().err
