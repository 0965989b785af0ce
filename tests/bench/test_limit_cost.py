"""The measurement of what limits cost runs, is plausible, and leaves nothing behind for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.bench.limit_cost import limit_costs
from extproc.cli import main
from tests.redis_server import RedisServer
from tests.registry.deployments import ask


async def test_each_set_of_limits_is_measured(tmp_path: Path) -> None:
    """A call takes longer than its part on the server; buckets that are nearly empty are gone in a second."""
    with RedisServer("valkey", tmp_path) as server:
        costs = await limit_costs(server.url, 20)
        assert ask(server, "DBSIZE") <= 4 * 7
        assert ask(server, "EVAL", "return #redis.call('KEYS', '*:limit:*')", 0) > 0
    assert len(costs) == 4
    for cost in costs:
        assert 0 < cost.redis_s < cost.p50_s <= cost.p99_s
        assert cost.ping_s > 0


def test_the_command_needs_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    """It says which flag."""
    assert main(["bench", "limits"]) == 2
    assert "--redis-url" in capsys.readouterr().err
