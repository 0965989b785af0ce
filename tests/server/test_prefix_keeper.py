"""Learned prefixes outlive the router that learned them, through a real server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.adapters.prefix_memory import DEFAULT_TTL_S, PrefixMemory
from extproc.adapters.registry import Registry
from extproc.core.router import Router
from extproc.errors import RegistryError
from extproc.server import prefix_keeper
from extproc.server.prefix_keeper import PrefixKeeper
from tests.core.builders import blocks, instance, router
from tests.redis_server import RedisServer
from tests.registry.deployments import Wire

HEAD = blocks(1, 50)


def fleet() -> Router:
    return router(instance("a"), instance("teller", kv_events=True))


async def test_a_router_that_starts_believes_what_the_one_before_it_had_learned(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = PrefixMemory(registry.link, registry.base)
            before, after = fleet(), fleet()
            for key in ("a@1", "teller@1"):
                before.prefixes.insert(key, HEAD, 1000)
            await PrefixKeeper(before, memory).write()
            await PrefixKeeper(after, memory).restore()
            assert after.prefixes.matches(HEAD) == {"a@1": 50}
            other = router(instance("a", incarnation="2"))
            await PrefixKeeper(other, memory).restore()
            assert other.prefixes.matches(HEAD) == {}


async def test_only_what_changed_is_written_again(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = PrefixMemory(registry.link, registry.base)
            made = fleet()
            keeper = PrefixKeeper(made, memory)
            made.prefixes.insert("a@1", HEAD, 1000)
            await keeper.write()
            await memory.write("a@1", b"")
            await keeper.write()
            assert await memory.read("a@1") is None
            made.prefixes.insert("a@1", blocks(2, 1), 1000)
            await keeper.write()
            assert len(await memory.read("a@1") or b"") == 8 * 51


async def test_what_several_routers_have_learned_is_known_to_one_that_starts(tmp_path: Path) -> None:
    """Whoever wrote last; and of one that is gone for long nothing is left but its share of the others' traffic."""
    now = 1e9
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:

            def memory() -> PrefixMemory:
                return PrefixMemory(registry.link, registry.base, clock=lambda: now)

            first, second, third = memory(), memory(), memory()
            for number, each in enumerate((first, second), start=1):
                made = fleet()
                made.prefixes.insert("a@1", blocks(number, 50), 1000)
                await PrefixKeeper(made, each).write()
            late = fleet()
            await PrefixKeeper(late, third).restore()
            assert late.prefixes.matches(blocks(1, 50)) == late.prefixes.matches(blocks(2, 50)) == {"a@1": 50}
            now += DEFAULT_TTL_S + 1
            late.prefixes.insert("a@1", blocks(3, 50), 1000)
            await PrefixKeeper(late, third).write()
            writers = await registry.link.command("HGETALL", f"{registry.base}:prefixes:a@1")
            assert len(writers) == 2


async def test_what_cannot_be_read_is_not_believed_and_no_obstacle(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = PrefixMemory(registry.link, registry.base)
            made = fleet()
            await memory.write("a@1", b"seven b")
            await PrefixKeeper(made, memory).restore()
            assert made.prefixes.size("a@1") == 0
            server.stop()
            await PrefixKeeper(made, memory).restore()
            made.prefixes.insert("a@1", HEAD, 1000)
            with pytest.raises(RegistryError):
                await PrefixKeeper(made, memory).write()


@asynccontextmanager
async def remembered(tmp_path: Path, instances: int) -> AsyncIterator[tuple[Wire, Router, PrefixMemory]]:
    """A wire to a server that remembers `instances`, a new router of them, and its memory over the wire."""
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as near, Wire(server.port) as wire, Registry(wire.url) as far:
            names = [f"i{number}" for number in range(instances)]
            before = router(*map(instance, names))
            for name in names:
                before.prefixes.insert(f"{name}@1", HEAD, 1000)
            await PrefixKeeper(before, PrefixMemory(near.link, near.base), budget_s=60.0).write()
            yield wire, router(*map(instance, names)), PrefixMemory(far.link, far.base)


async def test_a_slow_redis_does_not_hold_up_the_start_or_the_end(tmp_path: Path) -> None:
    """When the time is up, what was read is known and the rest is not."""
    async with remembered(tmp_path, 200) as (wire, made, memory):
        wire.delay_s = 0.3
        keeper = PrefixKeeper(made, memory, budget_s=3.0)
        await keeper.restore()
        assert 0 < len(made.prefixes.matches(HEAD)) < 200
        for member in made.fleet.members():
            made.prefixes.insert(member.instance.key, blocks(2, 1), 1000)
        with pytest.raises(RegistryError, match="too slow"):
            await keeper.write()


async def test_several_instances_are_read_at_once(tmp_path: Path) -> None:
    """Against one after another it is a matter of ratios: eight at once take a good deal less than half the time."""
    async with remembered(tmp_path, 40) as (wire, made, memory):
        wire.delay_s = 0.02
        keeper = PrefixKeeper(made, memory, budget_s=60.0)
        began_s = time.monotonic()
        await keeper.restore()
        at_once_s = time.monotonic() - began_s
        assert len(made.prefixes.matches(HEAD)) == 40
        began_s = time.monotonic()
        for member in made.fleet.members():
            await memory.read(member.instance.key)
        assert at_once_s < (time.monotonic() - began_s) / 2


async def test_one_memory_that_cannot_be_read_does_not_cost_the_others(tmp_path: Path) -> None:
    async with remembered(tmp_path, 20) as (_, made, memory):
        await memory.write("i0@1", b"seven b")
        await PrefixKeeper(made, memory).restore()
        assert made.prefixes.matches(HEAD) == {f"i{number}@1": 50 for number in range(1, 20)}


async def test_writing_goes_on_whatever_went_wrong_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody thought of: it is logged."""

    class Clumsy(PrefixMemory):
        stumbled = False

        async def write(self, instance_key: str, dumped: bytes) -> None:
            if not self.stumbled:
                self.stumbled = True
                raise ZeroDivisionError
            await super().write(instance_key, dumped)

    monkeypatch.setattr(prefix_keeper, "WRITE_EVERY_S", 0.02)
    with RedisServer("valkey", tmp_path) as server:
        async with Registry(server.url) as registry:
            memory = Clumsy(registry.link, registry.base)
            made = fleet()
            made.prefixes.insert("a@1", HEAD, 1000)
            task = asyncio.create_task(PrefixKeeper(made, memory).run())
            async with asyncio.timeout(30):
                while not await memory.read("a@1"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert memory.stumbled
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
