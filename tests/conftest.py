"""Settings and servers that all tests share."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.redis_server import KINDS, binary

# Nothing here passes or fails by wall time.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and their modules stay until the end: the garbage collector need not look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first: none is left for the end, where one worker runs it and the others have nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of server that speaks Redis' protocol, as far as it is installed."""
    if binary(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)
