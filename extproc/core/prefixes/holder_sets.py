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

    def change(self, number: int, blocks: int, added: int, removed: int) -> int:
        """Add members to what a number stands for, and take some out, for that many blocks; returns their new number.

        That may be the same one.
        """
        before = self.bits[number]
        after = (before | added) & ~removed
        if after and after == before:
            return number
        changed = 0
        if after:
            known = self._numbers.get(after)
            changed = self._new(after) if known is None else known
            self._blocks[changed] += blocks
        if number:
            self._leave(number, blocks)
        return changed

    def _leave(self, number: int, blocks: int) -> None:
        """That many blocks no longer refer to a number."""
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
