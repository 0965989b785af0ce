"""What the agent's tests share: a real Valkey and a scripted backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agent.backends import ScriptedBackend
from tests.redis_server import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer("valkey", tmp_path) as started:
        yield started


@pytest.fixture
async def backend() -> AsyncIterator[ScriptedBackend]:
    made = ScriptedBackend()
    yield made
    await made.down()
