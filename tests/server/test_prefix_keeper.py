"""Learned prefixes outlive the router that learned them, through a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.adapters.prefix_memory import PrefixMemory
from extproc.adapters.registry import Registry
from extproc.core.router import Router
from extproc.errors import RegistryError
from extproc.server.prefix_keeper import PrefixKeeper
from tests.core.builders import blocks, instance, router
from tests.redis_server import RedisServer

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
            assert await memory.read("a@1") == b""
            made.prefixes.insert("a@1", blocks(2, 1), 1000)
            await keeper.write()
            assert len(await memory.read("a@1") or b"") == 8 * 51


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
