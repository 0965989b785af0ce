"""Long work in slices: everybody else on the event loop has a turn after each."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

_T = TypeVar("_T")

SLICE_S = 0.001  # what takes longer is ended after the item at hand


async def others_turn() -> None:
    """Everybody else who is due has a turn."""
    await asyncio.sleep(0)  # who has become due since is behind us in the next turn
    await asyncio.sleep(0)


async def in_slices(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield the items, with a pause after each `SLICE_S` of what is done with them."""
    ends_s = time.perf_counter() + SLICE_S
    for item in items:
        yield item
        if time.perf_counter() >= ends_s:
            await asyncio.sleep(0)
            ends_s = time.perf_counter() + SLICE_S
