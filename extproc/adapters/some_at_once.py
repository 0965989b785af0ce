"""The same errand for many, some at once: each waits for Redis, and one after the other would wait for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

_T = TypeVar("_T")

AT_ONCE = 8  # a link has as many connections


async def for_each(items: Iterable[_T], work: Callable[[_T], Awaitable[None]]) -> None:
    """Do `work` for all items, begun in their order; raises what the first raises that fails, which ends the others."""
    waiting = iter(items)

    async def some() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
