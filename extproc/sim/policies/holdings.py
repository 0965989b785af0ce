"""What a router believes of each instance's prefix cache, looked up for all instances in one walk of a prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class Holdings:
    """Which instance holds which blocks, a bit an instance. Instances go by their number at the desk.

    What is written is up to the owner: an engine's own events, or `LruHoldings` for what a router sent itself.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # block name -> bits of the instances that hold it

    def store(self, number: int, blocks: Iterable[int]) -> None:
        """An instance holds these blocks from now on."""
        bit, holders = 1 << number, self._holders
        for block in blocks:
            holders[block] = holders.get(block, 0) | bit

    def remove(self, number: int, blocks: Iterable[int]) -> None:
        """An instance dropped these blocks."""
        bit, holders = 1 << number, self._holders
        for block in blocks:
            left = holders.get(block, 0) & ~bit
            if left:
                holders[block] = left
            else:
                holders.pop(block, None)

    def forget(self, number: int) -> None:
        """An instance has lost all it held."""
        bit = 1 << number
        self.remove(number, [block for block, bits in self._holders.items() if bits & bit])

    def blocks_held(self, prompt: Sequence[int]) -> dict[int, int]:
        """Leading blocks of a prompt that each instance holds, by its number; who holds none is left out."""
        held: dict[int, int] = {}
        holders = self._holders
        alive = -1  # bits of those that held every block so far
        depth = 0
        for depth, block in enumerate(prompt):
            bits = alive & holders.get(block, 0)
            if bits != alive:
                if depth:
                    _note(held, alive & ~bits, depth)
                alive = bits
                if not alive:
                    return held
        if alive > 0:
            _note(held, alive, depth + 1)
        return held


class LruHoldings(Holdings):
    """Approximation by what a router sent where: the most recent blocks up to a capacity, oldest dropped first.

    `capacity_blocks` counts for each instance, or with `common` for one table over all of them.
    `keep_s`: what was not touched that long is dropped as well.
    """

    def __init__(self, capacity_blocks: int, common: bool = False, keep_s: float | None = None) -> None:
        super().__init__()
        self._capacity = max(1, capacity_blocks)
        self._common = common
        self._keep_s = keep_s
        self._touched: dict[int, OrderedDict[int, float]] = {}  # by instance, or all under -1: block -> when

    def sent(self, number: int, prompt: Sequence[int], now: float) -> None:
        """A prompt goes to an instance: it will hold its blocks, its first block being dropped last."""
        self.store(number, prompt)
        touched = self._touched.setdefault(-1 if self._common else number, OrderedDict())
        for block in reversed(prompt):
            touched[block] = now
            touched.move_to_end(block)
        while len(touched) > self._capacity:
            self._drop(number, touched.popitem(last=False)[0])
        if self._keep_s is not None:
            while touched and next(iter(touched.values())) < now - self._keep_s:
                self._drop(number, touched.popitem(last=False)[0])

    def forget(self, number: int) -> None:
        """An instance has lost all it held."""
        super().forget(number)
        self._touched.pop(number, None)

    def _drop(self, number: int, block: int) -> None:
        if self._common:
            self._holders.pop(block, None)
        else:
            self.remove(number, (block,))


def _note(held: dict[int, int], bits: int, depth: int) -> None:
    """Write down that the instances of `bits` hold exactly `depth` leading blocks."""
    while bits > 0:
        lowest = bits & -bits
        held[lowest.bit_length() - 1] = depth
        bits ^= lowest
