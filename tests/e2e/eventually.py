"""Waiting on a condition, with a bound so generous that only a hang reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(read: Callable[[], Awaitable[T]], holds: Callable[[T], bool], timeout_s: float = 30.0) -> T:
    """The first value that `holds`; AssertionError with the last one if none comes in time."""
    value, waited_s = await read(), 0.0
    while waited_s < timeout_s:
        if holds(value):
            return value
        pause_s = min(0.05, 0.005 + waited_s / 4)  # most of what is waited for comes at once
        await asyncio.sleep(pause_s)
        waited_s += pause_s
        value = await read()
    raise AssertionError(f"still {value!r} after {timeout_s:g} s")
