"""What is told of outages, and of faults that nobody has thought of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from extproc.adapters.persistence import persist
from extproc.errors import RegistryError


async def told(ends: Iterator[Exception | None], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says while each life ends so; None is one that was in touch and lost it."""

    async def live(in_touch: Callable[[], None]) -> None:
        end = next(ends, asyncio.CancelledError())
        if end is None:
            in_touch()
            raise RegistryError("silent")
        raise end

    with pytest.raises(asyncio.CancelledError):
        await persist("log", "here", live, lambda: None)
    return [record.getMessage().partition(": ")[2] for record in caplog.records]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.adapters.persistence._LONGEST_PAUSE_S", 0.0)


async def test_an_outage_is_told_when_it_begins_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    gone = RegistryError("gone")
    lines = await told(iter([gone, gone, None, gone]), caplog)
    assert lines == [
        "gone; going on with what is known",
        "in touch with here again",
        "silent; going on with what is known",
    ]


async def test_a_fault_is_told_once_as_long_as_it_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Also in an outage; each comes with a page of where it happened, a second after the one before."""
    one, other = ValueError("x"), ValueError("y")
    lines = await told(iter([RegistryError("gone"), one, one, other, one, None, one]), caplog)
    assert lines[1:4] == 3 * ["following failed; starting anew"]
    assert lines[4:] == [
        "in touch with here again",
        "silent; going on with what is known",
        "following failed; starting anew",
    ]
    assert caplog.records[1].exc_info is not None
