"""Which instance holds which prefix: an index from the blocks of a hash chain to their holders."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Blocks that each instance is believed to hold, learned from where requests were sent.

    Holders are kept as a bit set a block, so that one walk over a chain answers for all instances. Every instance has
    a capacity in blocks; beyond it the least recently used go first, tails before heads.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # block hash -> bit set of slots
        self._slots: dict[str, int] = {}  # instance key -> bit number
        self._keys: dict[int, str] = {}
        self._recency: dict[str, OrderedDict[int, None]] = {}

    def matches(self, prefix: Sequence[int]) -> dict[str, int]:
        """Blocks of `prefix` that each instance holds without a gap from the start; instances with none are absent."""
        found: dict[str, int] = {}
        live = -1
        for depth, block in enumerate(prefix):
            holders = self._holders.get(block, 0) & live
            if depth and holders != live:
                self._note(found, live & ~holders, depth)
            live = holders
            if not live:
                return found
        if prefix:
            self._note(found, live, len(prefix))
        return found

    def insert(self, key: str, prefix: Sequence[int], capacity_blocks: int) -> None:
        """Believe that an instance holds `prefix`, and forget what no longer fits beside it."""
        bit = 1 << self._slot(key)
        recency = self._recency.setdefault(key, OrderedDict())
        for block in reversed(prefix):  # the head last, so that it is the most recent and leaves last
            if block in recency:
                recency.move_to_end(block)
            else:
                recency[block] = None
                self._holders[block] = self._holders.get(block, 0) | bit
        while len(recency) > capacity_blocks:
            evicted, _ = recency.popitem(last=False)
            self._drop(evicted, bit)

    def forget(self, key: str) -> None:
        """Drop all entries of an instance: it restarted, or its cache was reset."""
        slot = self._slots.pop(key, None)
        if slot is None:
            return
        del self._keys[slot]
        for block in self._recency.pop(key, ()):
            self._drop(block, 1 << slot)

    def size(self, key: str) -> int:
        """Blocks that an instance is believed to hold."""
        return len(self._recency.get(key, ()))

    def _slot(self, key: str) -> int:
        slot = self._slots.get(key)
        if slot is None:
            slot = next(number for number in range(len(self._slots) + 1) if number not in self._keys)
            self._slots[key] = slot
            self._keys[slot] = key
        return slot

    def _note(self, found: dict[str, int], slots: int, blocks: int) -> None:
        while slots:
            lowest = slots & -slots
            found[self._keys[lowest.bit_length() - 1]] = blocks
            slots ^= lowest

    def _drop(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
