"""Settings and servers that all tests share."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Generator
from contextlib import suppress
from functools import cache

import pytest
from betterproto2 import Message
from hypothesis import HealthCheck, settings

from tests.redis_server import KINDS, binary

# Nothing here passes or fails by wall time.
settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


# It evaluates the annotations of a message's class anew for each message: half of what a bootstrap for Envoy takes.
Message._type_hints = classmethod(cache(Message._type_hints.__func__))  # type: ignore[method-assign, assignment, attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Thousands of tests and their modules stay until the end: the garbage collector need not look at them again."""
    gc.disable()
    try:
        _compile_a_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def _compile_a_share(config: pytest.Config) -> None:
    """Begin with other modules than the other workers: else all of them compile all of a fresh clone, side by side."""
    worker = getattr(config, "workerinput", None)
    if worker is None or config.option.file_or_dir:
        return
    number, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for path in sorted(config.rootpath.glob("tests/**/test_*.py"))[number::workers]:
        with suppress(Exception, pytest.skip.Exception):  # the collection tells of it
            importlib.import_module(".".join(path.relative_to(config.rootpath).with_suffix("").parts))


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
