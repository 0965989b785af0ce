"""A heap whose keys may grow behind its back: what stands first is looked at again before it is believed."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Key = tuple[float, ...]

_FEW = 64  # places that may be out of date, beside as many as there are items


class LazyHeap(Generic[T]):
    """Items by their key, the least first.

    `key_of` gives an item's key now, None if it is gone. Who lets a key become less pushes the item again, or it stands
    where it stood until its turn comes; one that grows, and an item that is gone, is found when its turn comes.
    """

    def __init__(self, key_of: Callable[[T], Key | None]) -> None:
        self._key_of = key_of
        self._heap: list[tuple[Key, int, T]] = []
        self._pushed = 0

    def __len__(self) -> int:
        """Places in use, out of date or not: what it takes of memory."""
        return len(self._heap)

    def push(self, item: T, items: int) -> None:
        """Add an item, or tell that its key is less now. `items`: how many there are, this one included."""
        if len(self._heap) >= 2 * items + _FEW:
            self.refresh()
        key = self._key_of(item)
        if key is not None:
            self._pushed += 1
            heapq.heappush(self._heap, (key, self._pushed, item))

    def first(self) -> T | None:
        """The item with the least key, None if there is none."""
        heap = self._heap
        while heap:
            key, number, item = heap[0]
            now = self._key_of(item)
            if now == key:
                return item
            if now is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (now, number, item))
        return None

    def refresh(self) -> None:
        """Look at all keys again, and leave one place to each item."""
        items = {id(item): (item, number) for _, number, item in reversed(self._heap)}
        keyed = ((self._key_of(item), number, item) for item, number in items.values())
        self._heap = [(key, number, item) for key, number, item in keyed if key is not None]
        heapq.heapify(self._heap)
