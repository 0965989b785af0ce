"""The control plane put together, in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from extproc.adapters.health_client import SERVING, grpc_health
from extproc.adapters.redis_settings import parse
from extproc.adapters.registry import Registry
from extproc.addresses import UnixSocket
from extproc.server.xds_pages import Pages
from extproc.server.xds_run import XdsSettings, run_xds
from extproc.server.xds_service import Discovery
from tests.core.builders import instance
from tests.e2e.eventually import eventually
from tests.redis_server import RedisServer


async def test_it_is_healthy_also_where_the_fleet_is_known_before_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of its pages may take long to be looked up."""
    published, start, publish = asyncio.Event(), Pages.start, Discovery.publish

    async def slow(pages: Pages, *where: Any) -> int:
        async with asyncio.timeout(60):
            await published.wait()
        return await start(pages, *where)

    def noted(discovery: Discovery, snapshots: Any) -> None:
        publish(discovery, snapshots)
        asyncio.get_running_loop().call_later(0.1, published.set)  # whoever waits for the first one has had its turn

    monkeypatch.setattr(Pages, "start", slow)
    monkeypatch.setattr(Discovery, "publish", noted)
    where = UnixSocket(tmp_path / "xds")
    with RedisServer("valkey", tmp_path) as redis:
        async with Registry(redis.url) as registry:
            await registry.publish(instance("a"), 600.0)
        settings = XdsSettings(listen=where, pages=UnixSocket(tmp_path / "pages"), redis=parse(redis.url))
        running = asyncio.create_task(run_xds(settings))
        try:
            await eventually(
                lambda: asyncio.to_thread(grpc_health, where, "", 5.0), lambda told: told.status == SERVING
            )
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
