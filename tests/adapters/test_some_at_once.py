"""The same errand for many: how many at once, and what comes of one that fails."""

from __future__ import annotations

import asyncio

import pytest

from extproc.adapters.some_at_once import AT_ONCE, for_each
from extproc.errors import RegistryError


async def test_some_are_under_way_at_once_and_all_are_done_in_their_order() -> None:
    under_way, most, done = 0, 0, list[int]()

    async def work(item: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        done.append(item)

    await for_each(range(50), work)
    assert (most, done) == (AT_ONCE, list(range(50)))
    await for_each((), work)


async def test_the_first_that_fails_ends_the_others_and_is_raised_as_it_is() -> None:
    """And nothing more is begun."""
    begun = []

    async def work(item: int) -> None:
        begun.append(item)
        if item == 2:
            raise RegistryError("gone")
        await asyncio.Event().wait()

    with pytest.raises(RegistryError, match="gone"):
        await for_each(range(50), work)
    assert begun == list(range(AT_ONCE))
