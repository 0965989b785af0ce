"""The measurement of pushes runs, and every change arrives."""

from __future__ import annotations

from pathlib import Path

from extproc.bench.push import push
from tests.redis_server import RedisServer


async def test_every_published_change_is_known_to_the_router(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:
        seen = await push(server.url, rate_per_s=500.0, number=50)
    assert seen.known == seen.published == 50
    assert 0 < seen.p50_s <= seen.p99_s <= seen.longest_s
