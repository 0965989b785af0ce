"""Commands to Redis by how long they take, and those that fail."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from extproc.adapters.redis_link import Link
from extproc.errors import RegistryError
from extproc.observe.redis_metrics import RedisCalls
from tests.redis_server import RedisServer


async def test_commands_are_timed_and_failures_are_counted(tmp_path: Path) -> None:
    """Answers by command; what the server refuses, and what it does not answer since it is gone, are errors."""
    calls = RedisCalls()
    with RedisServer("valkey", tmp_path) as server:
        async with Link(server.url) as link:
            link.on_command = calls.called
            await link.command("SET", "k", "v")
            await link.command("GET", "k")
            await link.command("GET", "k")
            with pytest.raises(RegistryError):
                await link.command("INCR", "k")
            with pytest.raises(RegistryError):  # it does not know the script yet: that is an answer
                await link.command("EVALSHA", "0" * 40, 0)
            server.stop()
            with pytest.raises(RegistryError):
                await link.command("GET", "k")
    registry = CollectorRegistry()
    registry.register(calls)
    page = generate_latest(registry).decode()
    of = re.compile(r'^extproc_redis_(command_seconds_count|errors_total)\{command="(\w+)"\} (\d+)\.0$', re.MULTILINE)
    found = {(what, command): int(number) for what, command, number in of.findall(page)}
    assert {command: number for (what, command), number in found.items() if what == "errors_total"} == {
        "INCR": 1,
        "GET": 1,
    }
    assert found["command_seconds_count", "SET"] == 1
    assert found["command_seconds_count", "GET"] == 2
    assert found["command_seconds_count", "EVALSHA"] == 1
