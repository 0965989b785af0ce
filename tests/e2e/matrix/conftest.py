"""Starts the house once and an Envoy for each mode and shape, in which tests run over both versions of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from extproc.adapters.http_client import HttpClient
from extproc.adapters.registry import Registry
from extproc.control.settings import RequestBodies, Shape
from extproc.demo.processes import Processes
from tests.e2e.matrix.cells import Building, Cell, open_building
from tests.e2e.matrix.clients import Http
from tests.e2e.matrix.engines import Engine
from tests.e2e.matrix.house import Family, House
from tests.e2e.matrix.renamer import Renamer, open_renamer
from tests.redis_server import RedisServer

BUILDINGS = [
    pytest.param((mode, shape), id=f"{mode}-{shape}")
    for mode in (RequestBodies.BUFFERED, RequestBodies.FULL_DUPLEX)
    for shape in Shape
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them run in one event loop: the servers live in it."""
    for item in items:
        if "/e2e/matrix/" in item.path.as_posix():
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def families() -> AsyncIterator[dict[Shape, Family]]:
    async with AsyncExitStack() as stack:
        families = {}
        for shape in Shape:
            engines = [Engine(f"{shape}-{name}") for name in ("first", "second", "open")]
            for engine in engines:
                await engine.start()
                stack.push_async_callback(engine.stop)
            families[shape] = Family(shape, *engines)
        yield families


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def renamer(families: dict[Shape, Family]) -> AsyncIterator[Renamer]:
    """The service that knows aliases."""
    async with open_renamer(families.values()) as opened:
        yield opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def house(
    tmp_path_factory: pytest.TempPathFactory, families: dict[Shape, Family], renamer: Renamer
) -> AsyncIterator[House]:
    folder = tmp_path_factory.mktemp("matrix")
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(RedisServer("valkey", folder))
        registry = await stack.enter_async_context(Registry(redis.url))
        processes = await stack.enter_async_context(Processes(folder))
        http = await stack.enter_async_context(HttpClient(timeout_s=30.0))
        made = House(folder, redis, registry, processes, http, families, renamer.port)
        publishing = asyncio.create_task(made.keep_publishing())
        stack.callback(publishing.cancel)
        await made.start_service()
        yield made


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=BUILDINGS)
async def building(
    house: House, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Building]:
    mode, shape = request.param
    folder = tmp_path_factory.mktemp("envoy")
    async with open_building(house, mode, shape, folder) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session", params=Http)
async def cell(building: Building, request: pytest.FixtureRequest) -> Cell:
    """One of the eight, with nothing bad known of its instances."""
    await building.house.renew(building.family)
    return Cell(building, request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def http1_cell(building: Building) -> Cell:
    """For what only HTTP/1 has."""
    await building.house.renew(building.family)
    return Cell(building, Http.HTTP1)


@pytest_asyncio.fixture(loop_scope="session")
async def http2_cell(building: Building) -> Cell:
    """For what only HTTP/2 has."""
    await building.house.renew(building.family)
    return Cell(building, Http.HTTP2)
