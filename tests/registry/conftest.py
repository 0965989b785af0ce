"""The server that most tests of the registry run against, once of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_server import RedisServer


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(kind, tmp_path) as started:
        yield started
