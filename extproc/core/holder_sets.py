"""Sets of instances, each kept once and named by a small number: blocks of one chain have the same holders.

A set is a bit set in an int. Its number stays valid while blocks refer to it; 0 is the empty set. The same set may have
two numbers after `forget`: then a comparison of numbers misses that they are equal, and nothing else.
"""

from __future__ import annotations

_REMEMBERED = 32_768  # sets that are looked for before a new number is given


class HolderSets:
    """Numbered bit sets with the count of blocks that refer to each."""

    def __init__(self) -> None:
        self.bits: list[int] = [0]  # by number
        self._blocks = [0]  # how many refer to a number
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []

    def take(self, bits: int, blocks: int) -> int:
        """The number of a set, to which that many more blocks now refer."""
        if not bits:
            return 0
        number = self._numbers.get(bits)
        if number is None:
            number = self._new(bits)
        self._blocks[number] += blocks
        return number

    def leave(self, number: int, blocks: int) -> None:
        """That many blocks no longer refer to a number."""
        if not number:
            return
        self._blocks[number] -= blocks
        if not self._blocks[number]:
            if self._numbers.get(self.bits[number]) == number:
                del self._numbers[self.bits[number]]
            self.bits[number] = 0
            self._free.append(number)

    def forget(self, bits: int) -> None:
        """Take members out of all sets, without a look at the blocks."""
        kept = ~bits
        self.bits = [each & kept for each in self.bits]
        self._numbers.clear()

    def _new(self, bits: int) -> int:
        if self._free:
            number = self._free.pop()
            self.bits[number] = bits
        else:
            number = len(self.bits)
            self.bits.append(bits)
            self._blocks.append(0)
        if len(self._numbers) >= _REMEMBERED:
            self._numbers.clear()
        self._numbers[bits] = number
        return number
