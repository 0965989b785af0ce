"""From a block's hash to its row: an open-addressing table of 64-bit hashes that grows one small segment at a time.

Extendible hashing: the top bits of a hash choose a segment of 1024 slots through a directory; a segment that is full is
split in two, so that no insertion ever waits for the whole table to be rehashed. Rows are dense numbers; whatever else
is known of a block lies in columns indexed by its row. The whole hash is kept and compared.

Hash chains are added in order, so a chain's rows are mostly consecutive: `find_run` looks one block up, compares the
rest of the chain with the rows that follow, and only at a branch looks up again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]
Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.intp]

FIRST_ROW = 2  # below it are the two marks of a slot without a row
_EMPTY, _GONE = 0, 1

_SEGMENT_BITS = 10
_SEGMENT = 1 << _SEGMENT_BITS
_LAST = _SEGMENT - 1
_FULL = 620  # slots in use at which a segment is split: 0.6 keeps probes short
_MORE = 256  # that many always fit beyond it
_BATCH = 2048  # blocks added in one go, if not too many fall on one segment
_OFFSET_SHIFT = 20  # hash bits that place a block within its segment; the directory's are above them
_MAX_DEPTH = 20  # room for 300 million blocks; hashes made to begin alike cannot make the directory larger
_FEW = 24  # that many are faster one by one than as an array
_STEPS = np.arange(_SEGMENT)[:, None]
_AHEAD = _STEPS[:4]  # slots looked at in one go where most blocks find what they want among the nearest
_RUNS = 8  # after so many branches a chain is looked up as a whole,
_SHORT_RUN = 24  # or when the runs between them prove to be shorter than this
_NO_ROWS: Rows = np.zeros(0, np.int32)

# Multiplication by an odd number is a bijection of 64-bit words and spreads hashes that are not random, as in tests.
_SPREAD = 0x9E3779B97F4A7C15
_NOBODY = np.uint64(0x5BD1E9955BD1E995)  # in place of a hash in rows that are free; a block has it once in 2**64
_SPREAD_BY = np.array(_SPREAD, np.uint64)  # without dimensions: 0.2 µs, where a scalar takes 0.5
_GATHER = pow(_SPREAD, -1, 1 << 64)


def spread(blocks: Sequence[int]) -> Hashes:
    """Block hashes in the form that the table keeps. Raises OverflowError for one outside of 64 bits."""
    return np.frombuffer(array("Q", blocks), np.uint64) * _SPREAD_BY


def gathered(hashes: Hashes) -> Hashes:
    """The block hashes that `spread` was given."""
    return hashes * np.uint64(_GATHER)


class BlockTable:
    """Rows by block hash. Absent blocks have row 0."""

    def __init__(self) -> None:
        self._depth = 1  # bits that the directory looks at
        self._directory: Rows = np.array([0, 1], np.int32)
        self._slots: Rows = np.zeros(2 * _SEGMENT, np.int32)
        self._used: Rows = np.zeros(2, np.int32)  # slots of a segment that hold a row or held one
        self._depths = [1, 1]
        self._hashes: Hashes = np.zeros(_SEGMENT, np.uint64)
        self._hashes[:FIRST_ROW] = _NOBODY  # so that the marks of a slot without a row are no block's rows
        self._next_row = FIRST_ROW
        self._free: Rows = np.zeros(64, np.int32)  # a stack of rows to use again
        self.free_rows = 0

    @property
    def end(self) -> int:
        """One past the highest row that was ever used."""
        return self._next_row

    @property
    def room(self) -> int:
        """Length of the columns that go with this table's rows."""
        return len(self._hashes)

    def hashes(self, rows: Rows) -> Hashes:
        """The hashes of rows, as `spread` made them."""
        return self._hashes[rows]

    def find_run(self, hashes: Hashes) -> Rows:
        """Rows of a chain up to its first absent block."""
        runs: list[Rows] = []
        done, length = 0, len(hashes)
        while done < length:
            if len(runs) > 1 and (done < _SHORT_RUN * len(runs) or len(runs) == _RUNS):
                rest = self.find(hashes[done:])
                absent = np.flatnonzero(rest == 0)
                runs.append(rest[: absent[0]] if len(absent) else rest)
                break
            row = self._find_one(hashes.item(done))
            if not row:
                break
            following = self._hashes[row : min(row + length - done, self._next_row)]
            count = len(following)
            wanted = hashes[done : done + count]
            if following.tobytes() != wanted.tobytes():
                count = int((following != wanted).argmax())
            runs.append(np.arange(row, row + count, dtype=np.int32))
            done += count
        if len(runs) == 1:
            return runs[0]
        return np.concatenate(runs) if runs else _NO_ROWS

    def find(self, hashes: Hashes) -> Rows:
        """The row of every block, 0 where it is absent."""
        if len(hashes) <= _FEW:
            return np.array([self._find_one(each) for each in hashes.tolist()], np.int32)
        base, offset = self._homes(hashes)
        rows = self._slots.take(base | offset)
        hit = self._hashes.take(rows) == hashes
        found: Rows = rows * hit
        index = np.flatnonzero((rows != _EMPTY) & ~hit)
        steps = _STEPS[:2]  # of those left over the two next slots at once, then twice as many
        reached = 1
        while len(index) > _FEW:
            wanted, within = hashes[index], offset[index] + reached
            here = self._slots.take(base[index] | ((within + steps) & _LAST))
            rows = (here * (self._hashes.take(here) == wanted)).max(axis=0)
            found[index] = rows
            index = index[(rows == 0) & (here.min(axis=0) != _EMPTY)]
            reached += len(steps)
            steps = _STEPS[: 2 * len(steps)]
        for place, each in zip(index.tolist(), hashes[index].tolist(), strict=True):
            found[place] = self._find_one(each)
        return found

    def add(self, hashes: Hashes) -> Rows:
        """Give rows to blocks that are absent; equal ones share a row. 0 where too many hashes begin alike."""
        segments = self._segments(hashes)
        if len(hashes) > _MORE and (len(hashes) > _BATCH or np.bincount(segments).max() > _MORE):
            step = _BATCH if len(hashes) > _BATCH else _MORE
            return np.concatenate([self.add(hashes[at : at + step]) for at in range(0, len(hashes), step)])
        used = self._used.take(segments)
        if used.max() > _FULL:
            fits = used <= _FULL
            rows = np.zeros(len(hashes), np.int32)
            if fits.any():
                rows[fits] = self.add(hashes[fits])
            return rows
        rows = self._new_rows(len(hashes))
        self._hashes[rows] = hashes
        placed = self._place(rows, hashes)
        spare = rows[placed != rows]
        if len(spare):
            self._put_back(spare)
        used = self._used.take(segments)
        if used.max() > _FULL:
            for segment in sorted(set(segments[used > _FULL].tolist())):
                self._relieve(segment)
        return placed

    def drop(self, rows: Rows) -> None:
        """Take blocks out, each row once; their rows will be used again."""
        hashes = self._hashes.take(rows)
        index = np.arange(len(rows))
        if len(rows) > _FEW:
            base, offset = self._homes(hashes)
            while len(index) > _FEW:
                near = base | ((offset + _AHEAD) & _LAST)
                here = self._slots.take(near) == rows.take(index)
                self._slots[near[here]] = _GONE
                onward = np.flatnonzero(~here.any(axis=0))
                index, base, offset = index[onward], base[onward], offset[onward] + len(_AHEAD)
        for each in index.tolist():
            self._drop_one(rows.item(each), hashes.item(each))
        self._put_back(rows)

    def _segments(self, hashes: Hashes) -> Rows:
        return self._directory[(hashes >> np.uint64(64 - self._depth)).astype(np.intp)]

    def _homes(self, hashes: Hashes) -> tuple[Indices, Indices]:
        """First slot of each block's segment, and the place within it where the search begins."""
        base = self._segments(hashes).astype(np.intp) << _SEGMENT_BITS
        return base, (hashes >> np.uint64(_OFFSET_SHIFT)).astype(np.intp) & _LAST

    def _find_one(self, spread_hash: int) -> int:
        slot, hash_at = self._slots.item, self._hashes.item
        base = self._directory.item(spread_hash >> (64 - self._depth)) << _SEGMENT_BITS
        offset = spread_hash >> _OFFSET_SHIFT & _LAST
        while True:
            row = slot(base | offset)
            if row >= FIRST_ROW and hash_at(row) == spread_hash:
                return row
            if row == _EMPTY:
                return 0
            offset = offset + 1 & _LAST

    def _drop_one(self, row: int, spread_hash: int) -> None:
        base, offset = self._home(spread_hash)
        while self._slots.item(base | offset) != row:
            offset = offset + 1 & _LAST
        self._slots[base | offset] = _GONE

    def _place_one(self, row: int, spread_hash: int) -> int:
        base, offset = self._home(spread_hash)
        while True:
            before = self._slots.item(base | offset)
            if before < FIRST_ROW:
                self._slots[base | offset] = row
                self._used[base >> _SEGMENT_BITS] += before == _EMPTY
                return row
            if self._hashes.item(before) == spread_hash:
                return before
            offset = offset + 1 & _LAST

    def _home(self, spread_hash: int) -> tuple[int, int]:
        base = self._directory.item(spread_hash >> (64 - self._depth)) << _SEGMENT_BITS
        return base, spread_hash >> _OFFSET_SHIFT & _LAST

    def _place(self, rows: Rows, hashes: Hashes) -> Rows:
        """Enter rows into slots. Returns them, and for a hash that was entered twice the row of the other."""
        placed = rows.copy()
        index = np.arange(len(rows))
        if len(rows) > _FEW:
            base, offset = self._homes(hashes)
            while len(index) > _FEW:
                mine = rows.take(index)
                near = base | ((offset + _AHEAD) & _LAST)
                first = (self._slots.take(near) < FIRST_ROW).argmax(axis=0)  # the first itself if none is free
                at = near[first, np.arange(len(index))]
                before = self._slots.take(at)
                free = before < FIRST_ROW
                self._slots[at[free]] = mine[free]
                now = self._slots.take(at)
                entered = now == mine
                np.add.at(self._used, at[entered & (before == _EMPTY)] >> _SEGMENT_BITS, np.int32(1))
                twin = self._hashes.take(now) == hashes.take(index)  # true of what was entered, too
                placed[index[twin]] = now[twin]
                onward = np.flatnonzero(~twin)
                offset = (offset + np.where(free, first + 1, len(_AHEAD)))[onward]
                index, base = index[onward], base[onward]
        for each in index.tolist():
            placed[each] = self._place_one(rows.item(each), hashes.item(each))
        return placed

    def _relieve(self, segment: int) -> None:
        """Make room in a segment: by sweeping out what is gone, or by splitting it in two."""
        start = segment << _SEGMENT_BITS
        slots = self._slots[start : start + _SEGMENT]
        rows = slots[slots >= FIRST_ROW]
        hashes = self._hashes[rows]
        depth = self._depths[segment]
        if len(rows) <= _FULL // 2 or depth == _MAX_DEPTH:
            self._fill(segment, rows, hashes)
            return
        new = self._split(segment, hashes.item(0))
        upper = (hashes >> np.uint64(63 - depth) & np.uint64(1)).astype(np.bool_)
        for half, chosen in ((segment, ~upper), (new, upper)):
            self._fill(half, rows[chosen], hashes[chosen])
            if self._used[half] > _FULL:
                self._relieve(half)

    def _fill(self, segment: int, rows: Rows, hashes: Hashes) -> None:
        """Let a segment hold these rows and no other: each as near to its home as those before it leave room."""
        homes = (hashes >> np.uint64(_OFFSET_SHIFT)).astype(np.int32) & _LAST
        order = homes.argsort()
        steps = np.arange(len(rows), dtype=np.int32)
        offsets = np.maximum.accumulate(homes[order] - steps) + steps
        within = int(offsets.searchsorted(_SEGMENT))
        slots = self._slots[segment << _SEGMENT_BITS : (segment + 1) << _SEGMENT_BITS]
        slots[:] = _EMPTY
        slots[offsets[:within]] = rows[order[:within]]
        self._used[segment] = within
        for each in order[within:].tolist():  # past the end: on from the segment's first slot
            self._place_one(rows.item(each), hashes.item(each))

    def _split(self, segment: int, inside: int) -> int:
        """Give the upper half of the hashes of a segment, in which `inside` lies, to a new segment; returns that."""
        depth = self._depths[segment]
        if depth == self._depth:
            self._directory = np.repeat(self._directory, 2)
            self._depth += 1
        new = len(self._depths)
        self._depths[segment] = depth + 1
        self._depths.append(depth + 1)
        if (new + 1) << _SEGMENT_BITS > len(self._slots):
            more = new + 1 + new // 16
            self._slots.resize(more << _SEGMENT_BITS, refcheck=False)
            self._used.resize(more, refcheck=False)
        width = 1 << (self._depth - depth)
        first = (inside >> (64 - depth)) * width
        self._directory[first + width // 2 : first + width] = new
        return new

    def _new_rows(self, count: int) -> Rows:
        again = min(count, self.free_rows)
        self.free_rows -= again
        rows = self._free[self.free_rows : self.free_rows + again][::-1]
        if again == count:
            return rows.copy()
        fresh = np.arange(self._next_row, self._next_row + count - again, dtype=np.int32)
        self._next_row += count - again
        if self._next_row > len(self._hashes):
            self._hashes.resize(self._next_row + max(_SEGMENT, self._next_row // 16), refcheck=False)
        return np.concatenate((rows, fresh))

    def _put_back(self, rows: Rows) -> None:
        end = self.free_rows + len(rows)
        if end > len(self._free):
            self._free.resize(end + end // 8, refcheck=False)
        self._free[self.free_rows : end] = rows
        self._hashes[rows] = _NOBODY  # `find_run` looks at rows without asking the slots
        self.free_rows = end
