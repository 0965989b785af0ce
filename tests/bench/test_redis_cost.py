"""The measurement of what a fleet costs its Redis runs, is plausible, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from extproc.bench.redis_cost import readable, redis_cost
from tests.redis_server import RedisServer
from tests.registry.deployments import ask


async def test_a_small_fleet_is_measured_and_cleaned_up(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        cost = await redis_cost(server.url, 20, seconds=1.0)
        assert ask(server, "DBSIZE") == 0
    assert cost.instances == 20
    assert 0 < cost.publish_calls_per_s <= 20.5
    assert cost.commands_per_s > cost.publish_calls_per_s
    assert 20 * 500 < cost.registry_bytes < 20 * 4000
    assert 20 * 2_000_000 < cost.kv_log_bytes < 20 * 4_000_000
    assert len(readable(cost).splitlines()) == 6
