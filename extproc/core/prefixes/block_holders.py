"""Which set of instances holds each block: rows of the block table, each with the number of a shared holder set.

Chains share sets, so that 64 instances cost little more than one. Forgetting an instance takes a bit out of the sets,
of which there are few, and leaves rows that nobody holds; those are swept out some thousand at a time when rows are
wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from extproc.core.prefixes.block_table import FIRST_ROW, BlockTable, Hashes, Rows, spread
from extproc.core.prefixes.holder_sets import HolderSets

_SWEPT = 8192  # rows looked at a call while forgotten ones are about
_FEW = 48  # that many are faster one by one than as an array

Runs = tuple[list[int], list[int]]


class BlockHolders:
    """Blocks by row with the bit set of their holders. A row that nobody holds is given away again."""

    def __init__(self) -> None:
        self.sets = HolderSets()
        self._table = BlockTable()
        self._set_of: Rows = np.zeros(self._table.room, np.int32)  # number of the set of holders, by row
        self._scratch: Rows = np.zeros(self._table.room, np.int32)  # by row, for taking out doubles
        self._looked_up: tuple[tuple[int, ...], Hashes, Rows] | None = None  # while no row has come or gone
        self._latest_runs: tuple[Rows, Runs] | None = None  # while no row has another set
        self._sweep_from = self._unswept = 0  # where to look for rows that nobody holds, and how many are left to see

    @property
    def row_count(self) -> int:
        """Rows that are in use or were."""
        return self._table.end - FIRST_ROW

    def hashes(self, rows: Rows) -> Hashes:
        """The hashes of rows, as `spread` made them."""
        return self._table.hashes(rows)

    def find(self, hashes: Hashes) -> Rows:
        """The row of every block, 0 where nobody holds it."""
        return self._table.find(hashes)

    def look_up(self, prefix: Sequence[int]) -> tuple[Hashes, Rows]:
        """A chain's hashes, and its rows up to the first block that nobody holds.

        A decision and the booking of its choice look the same chain up, one right after the other.
        """
        if self._looked_up is not None and self._looked_up[0] is prefix:
            return self._looked_up[1:]
        hashes = spread(prefix)
        rows = self._table.find_run(hashes)
        self._looked_up = (prefix, hashes, rows) if isinstance(prefix, tuple) else None
        return hashes, rows

    def rows(self, hashes: Hashes) -> Rows:
        """The rows of blocks, made where there are none. A block that the table has no place for is left out."""
        rows = self._table.find(hashes)
        absent = np.flatnonzero(rows == 0)
        if not len(absent):
            return rows
        self._looked_up = None
        rows[absent] = self._table.add(hashes[absent])
        if len(self._set_of) < self._table.room:
            self._set_of.resize(self._table.room, refcheck=False)
            self._scratch.resize(self._table.room, refcheck=False)
        return rows if rows.all() else rows[rows != 0]

    def runs(self, rows: Rows) -> Runs:
        """Where along `rows`, at least one, runs of equal sets begin, and the number of each run's set.

        A decision and the booking of its choice ask for those of the same rows, as `look_up` returned them.
        """
        if self._latest_runs is not None and self._latest_runs[0] is rows:
            return self._latest_runs[1]
        runs = _runs(self._set_of.take(rows))
        self._latest_runs = rows, runs
        return runs

    def having(self, rows: Rows, bits: int) -> npt.NDArray[np.bool_]:
        """Which of these rows are held by any of `bits`. Row 0 is held by none."""
        return self._having(self._set_of.take(rows), bits)

    def _having(self, numbers: Rows, bits: int) -> npt.NDArray[np.bool_]:
        """Which of these sets hold any of `bits`."""
        sets = self.sets.bits
        if len(numbers) > len(sets):
            return np.array([each & bits != 0 for each in sets])[numbers]
        if len(numbers) <= _FEW:
            return np.array([sets[number] & bits != 0 for number in numbers.tolist()], np.bool_)
        starts, distinct = _runs(numbers)
        held = np.array([sets[number] & bits != 0 for number in distinct], np.bool_)
        return held.repeat(_lengths(starts, len(numbers)))

    def once(self, rows: Rows) -> Rows:
        """The same rows without doubles."""
        places = np.arange(len(rows), dtype=np.int32)
        self._scratch[rows] = places
        last = self._scratch.take(rows) == places
        return rows if last.all() else rows[last]

    def change(self, rows: Rows, added: int, removed: int) -> None:
        """Change the holders of rows, each row once; those that nobody holds any more are given back."""
        if not len(rows):
            return
        self._latest_runs = None
        sets, numbers = self.sets, self._set_of.take(rows)
        starts, distinct = _runs(numbers)
        if len(starts) == 1:
            changed = sets.change(distinct[0], len(rows), added, removed)
            self._set_of[rows] = changed
            orphans = rows[:0] if changed else rows
        else:
            if len(starts) > _FEW and 4 * len(starts) > len(rows):
                unique, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
                distinct, lengths = unique.tolist(), counts.tolist()
            else:
                inverse, lengths = None, _lengths(starts, len(rows))
            each = zip(distinct, lengths, strict=True)
            places = np.array([sets.change(number, blocks, added, removed) for number, blocks in each], np.int32)
            numbers = places.repeat(lengths) if inverse is None else places[inverse]
            self._set_of[rows] = numbers
            orphans = rows[numbers == 0]
        if len(orphans):
            self._looked_up = None
            self._table.drop(orphans)

    def held_by(self, bits: int) -> Rows:
        """The rows that are held by any of `bits`. Looks at every row there is."""
        return np.flatnonzero(self._having(self._set_of[: self._table.end], bits)).astype(np.int32)

    def forget(self, bits: int) -> None:
        """Take holders away from all blocks."""
        self.sets.forget(bits)
        self._unswept = self.row_count

    def sweep(self, wanted: int) -> None:
        """If rows will be wanted, look through the next some thousand for those that nobody holds since a `forget`.

        Not between looking a row up and holding it: it would be given away.
        """
        if not self._unswept or self._table.free_rows >= wanted:
            return
        count = min(_SWEPT, self.row_count)
        rows = ((self._sweep_from + np.arange(count)) % self.row_count + FIRST_ROW).astype(np.int32)
        self._sweep_from = (self._sweep_from + count) % self.row_count
        self._unswept = max(0, self._unswept - count)
        numbers = self._set_of[rows]
        self.change(rows[~self._having(numbers, -1) & (numbers != 0)], 0, 0)


def _runs(numbers: Rows) -> Runs:
    """Where runs of equal numbers begin, and the number of each."""
    raw = numbers.tobytes()
    if raw == raw[:4] * len(numbers):
        return [0], [numbers.item(0)]
    if len(numbers) <= _FEW:
        places, distinct, latest = [], [], -1
        for place, number in enumerate(numbers.tolist()):
            if number != latest:
                places.append(place)
                distinct.append(number)
                latest = number
        return places, distinct
    starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return [0, *starts.tolist()], [numbers.item(0), *numbers.take(starts).tolist()]


def _lengths(starts: list[int], length: int) -> list[int]:
    """How long each run is."""
    return [end - start for start, end in pairwise((*starts, length))]
