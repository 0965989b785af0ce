"""Waiting on a condition, with a bound so generous that only a hang reaches it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(read: Callable[[], Awaitable[T]], holds: Callable[[T], bool], timeout_s: float = 30.0) -> T:
    """The first value that `holds`; AssertionError with the last one if none comes in time."""
    value = await read()
    for _ in range(int(timeout_s / 0.05)):
        if holds(value):
            return value
        await asyncio.sleep(0.05)
        value = await read()
    raise AssertionError(f"still {value!r} after {timeout_s:g} s")
