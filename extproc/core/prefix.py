"""Which instance holds which prefix: an index from the blocks of a hash chain to their holders.

Every block has a row in a table; the row names the set of its holders. Chains share sets, so that 64 instances cost
little more than one, and a lookup is one pass over the chain's rows that stops to think only where the set changes: it
is exact, holes included, and does not rely on the blocks before a held one being held. An instance is either *learned*
(`insert`, from where requests were sent: least recently used blocks leave, tails before heads) or *exact* (`store` and
`remove`, as the engine says). Forgetting takes a bit out of the sets, of which there are few, and leaves rows that
nobody holds; those are swept out some thousand at a time when rows are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from extproc.core.block_table import FIRST_ROW, BlockTable, Hashes, Rows, gathered, spread
from extproc.core.holder_sets import HolderSets
from extproc.core.touch_order import TouchOrder

MAX_ENTRIES = 5_000_000
_SWEPT = 8192  # rows looked at a call while forgotten ones are about
_CHUNK = 65_536  # blocks taken in at a time
_SPARE = 32  # more rows than needed, since some of the oldest were used since


@dataclass(slots=True)
class _Holder:
    """One instance: its two bits, how many blocks it holds, and their order if it is learned."""

    slot: int
    order: TouchOrder | None
    blocks: int = 0
    held: int = field(init=False)  # bit of the blocks that it holds
    young: int = field(init=False)  # bit of those that it used since its order was renewed

    def __post_init__(self) -> None:
        self.held = 1 << 2 * self.slot
        self.young = self.held << 1


class PrefixIndex:
    """Blocks that each instance holds. An entry is one block at one instance; at most `max_entries` are kept."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self.max_entries = max_entries
        self.refused_blocks = 0  # told by engines or loaded, and not taken in for want of room
        self._entries = 0
        self._table = BlockTable()
        self._sets = HolderSets()
        self._set_of: Rows = np.zeros(self._table.room, np.int32)  # number of the set of holders, by row
        self._scratch: Rows = np.zeros(self._table.room, np.int32)  # by row, for taking out doubles
        self._holders: dict[str, _Holder] = {}
        self._keys: list[str | None] = []  # by slot
        self._everyone = 0  # the held bits of all slots
        self._sweep_row = self._unswept = 0  # where to look for rows that nobody holds, and how many are left to see

    @property
    def entries(self) -> int:
        """Blocks held, summed over all instances."""
        return self._entries

    def size(self, key: str) -> int:
        """Blocks that an instance holds."""
        holder = self._holders.get(key)
        return holder.blocks if holder else 0

    def is_exact(self, key: str) -> bool:
        """Whether what an instance holds is told by its engine."""
        holder = self._holders.get(key)
        return holder is not None and holder.order is None

    def matches(self, prefix: Sequence[int]) -> dict[str, int]:
        """Blocks of `prefix` that each instance holds without a gap from the start; instances with none are absent."""
        found: dict[str, int] = {}
        rows = self._table.find_run(spread(prefix))
        if not len(rows):
            return found
        bits, live = self._sets.bits, self._everyone
        for depth, number in self._runs(rows):
            holders = bits[number] & live
            if depth and holders != live:
                self._note(found, live & ~holders, depth)
            live = holders
            if not live:
                return found
        self._note(found, live, len(rows))
        return found

    def insert(self, key: str, prefix: Sequence[int], capacity_blocks: int) -> None:
        """Believe that an instance holds `prefix`, and forget what no longer fits beside it.

        Without effect for an exact instance: its engine tells by itself.
        """
        holder = self._holder(key, exact=False)
        if holder.order is None:
            return
        hashes = spread(prefix[: max(0, min(capacity_blocks, self.max_entries))])
        self._sweep(len(hashes))
        rows = self._table.find_run(hashes)
        if len(rows) < len(hashes):
            rows = np.concatenate((rows, self._rows(hashes[len(rows) :])))
        self._use(holder, holder.order, rows[::-1])  # the head last, so that it is the most recent and leaves last
        self._evict(holder, holder.order, holder.blocks - capacity_blocks)
        self._shrink()

    def store(self, key: str, blocks: Sequence[int]) -> None:
        """An engine says that it now holds `blocks`. What was learned of it before is dropped."""
        holder = self._holder(key, exact=True)
        for start in range(0, len(blocks), _CHUNK):
            hashes = spread(blocks[start : start + _CHUNK])
            self._sweep(len(hashes))
            rows = self._rows(hashes)
            fresh = self._once(rows[~self._having(self._set_of[rows], holder.held)])
            self._count(holder, len(fresh))
            self._retag(fresh, holder.held, 0)
            over = self._shrink()
            if over > 0:
                self.refused_blocks += over
                self._release(holder, fresh[len(fresh) - over :])

    def remove(self, key: str, blocks: Sequence[int]) -> None:
        """An engine says that it no longer holds `blocks`; those that it was not known to hold do not matter."""
        holder = self._holder(key, exact=True)
        for start in range(0, len(blocks), _CHUNK):
            rows = self._table.find(spread(blocks[start : start + _CHUNK]))
            self._release(holder, self._once(rows[self._having(self._set_of[rows], holder.held)]))

    def forget(self, key: str) -> None:
        """Drop all entries of an instance: it restarted, or its cache was reset."""
        holder = self._holders.pop(key, None)
        if holder is None:
            return
        self._keys[holder.slot] = None
        self._everyone &= ~holder.held
        self._entries -= holder.blocks
        if holder.blocks:
            self._sets.forget(holder.held | holder.young)
            self._unswept = self._table.end

    def dump(self, key: str) -> bytes:
        """The blocks that an instance holds, as little-endian 64-bit words, the least recently used first."""
        holder = self._holders.get(key)
        if holder is None:
            return b""
        if holder.order is None:
            rows = np.flatnonzero(self._having(self._set_of[: self._table.end], holder.held)).astype(np.int32)
        else:
            self._renew(holder, holder.order)
            rows = holder.order.rest()
        return gathered(self._table.hashes(rows)).astype("<u8").tobytes()

    def load(self, key: str, dumped: bytes, *, exact: bool = False) -> None:
        """Replace what is known of an instance by a dump. Raises ValueError if that is not of 64-bit words."""
        blocks = np.frombuffer(dumped, "<u8")[-self.max_entries :].tolist()
        self.forget(key)
        holder = self._holder(key, exact=exact)
        if holder.order is None:
            self.store(key, blocks)
            return
        for start in range(0, len(blocks), _CHUNK):
            hashes = spread(blocks[start : start + _CHUNK])
            self._sweep(len(hashes))
            self._use(holder, holder.order, self._rows(hashes))
            self._evict(holder, holder.order, 0)
            self._shrink()

    def _holder(self, key: str, *, exact: bool) -> _Holder:
        holder = self._holders.get(key)
        if holder is not None and exact and holder.order is not None:
            self.forget(key)
            holder = None
        if holder is None:
            slot = self._keys.index(None) if None in self._keys else len(self._keys)
            self._keys[slot : slot + 1] = [key]
            holder = self._holders[key] = _Holder(slot, None if exact else TouchOrder())
            self._everyone |= holder.held
        return holder

    def _note(self, found: dict[str, int], holders: int, blocks: int) -> None:
        while holders:
            lowest = holders & -holders
            found[str(self._keys[lowest.bit_length() >> 1])] = blocks
            holders ^= lowest

    def _runs(self, rows: Rows) -> Iterator[tuple[int, int]]:
        """Where along `rows` a run of equal sets begins, and the number of its set."""
        numbers = self._set_of[rows]
        starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        yield 0, numbers.item(0)
        yield from zip(starts.tolist(), numbers[starts].tolist(), strict=True)

    def _having(self, numbers: Rows, bits: int) -> npt.NDArray[np.bool_]:
        """Which of these sets hold any of `bits`."""
        sets = self._sets.bits
        if len(numbers) > len(sets):
            return np.array([each & bits != 0 for each in sets])[numbers]
        if len(numbers) and (numbers == numbers[0]).all():
            return np.full(len(numbers), sets[numbers.item(0)] & bits != 0)
        distinct, inverse = np.unique(numbers, return_inverse=True)
        return np.array([sets[number] & bits != 0 for number in distinct.tolist()], np.bool_)[inverse]

    def _once(self, rows: Rows) -> Rows:
        """The same rows without doubles."""
        places = np.arange(len(rows), dtype=np.int32)
        self._scratch[rows] = places
        return rows[self._scratch[rows] == places]

    def _rows(self, hashes: Hashes) -> Rows:
        """The rows of blocks, made where there are none. A block that the table has no place for is left out."""
        rows = self._table.find(hashes)
        absent = np.flatnonzero(rows == 0)
        if len(absent):
            rows[absent] = self._table.add(hashes[absent])
            if len(self._set_of) < self._table.room:
                self._set_of.resize(self._table.room, refcheck=False)
                self._scratch.resize(self._table.room, refcheck=False)
        return rows[rows != 0]

    def _use(self, holder: _Holder, order: TouchOrder, rows: Rows) -> None:
        """A learned instance uses rows, the last of them most recently."""
        if not len(rows):
            return
        bits = self._sets.bits
        if not all(bits[number] & holder.young for _, number in self._runs(rows)):
            older = self._once(rows[~self._having(self._set_of[rows], holder.young)])
            held = np.count_nonzero(self._having(self._set_of[older], holder.held))
            self._count(holder, len(older) - int(held))
            self._retag(older, holder.held | holder.young, 0)
        order.use(rows)

    def _evict(self, holder: _Holder, order: TouchOrder, blocks: int) -> None:
        """Take that many least recently used blocks from a learned instance."""
        while blocks > 0:
            rows = order.oldest(blocks + _SPARE)
            if not len(rows):
                self._renew(holder, order)
                continue
            unused = np.flatnonzero(~self._having(self._set_of[rows], holder.young))[:blocks]
            order.skip(unused.item(-1) + 1 if len(unused) == blocks else len(rows))
            self._release(holder, rows[unused])
            blocks -= len(unused)
        if order.is_overdue(holder.blocks):
            self._renew(holder, order)

    def _renew(self, holder: _Holder, order: TouchOrder) -> None:
        unused = ~self._having(self._set_of[order.rest()], holder.young)
        recent = order.recent(self._scratch)
        order.renew(unused, recent)
        self._retag(recent, 0, holder.young)

    def _shrink(self) -> int:
        """Bring the index under its cap at the expense of the largest learned instances; returns what is still over."""
        while self._entries > self.max_entries:
            learned = [each for each in self._holders.values() if each.order is not None and each.blocks]
            if not learned:
                break
            largest = max(learned, key=lambda each: each.blocks)
            some_more = self._entries - self.max_entries + self.max_entries // 1024  # so that this is rare
            if largest.order is not None:
                self._evict(largest, largest.order, min(some_more, largest.blocks))
        return self._entries - self.max_entries

    def _release(self, holder: _Holder, rows: Rows) -> None:
        self._count(holder, -len(rows))
        self._retag(rows, 0, holder.held | holder.young)

    def _count(self, holder: _Holder, blocks: int) -> None:
        holder.blocks += blocks
        self._entries += blocks

    def _retag(self, rows: Rows, added: int, removed: int) -> None:
        """Change the holders of rows, each row once; those that nobody holds any more are given back."""
        if not len(rows):
            return
        sets, numbers = self._sets, self._set_of[rows]
        if (numbers == numbers[0]).all():
            distinct, counts, inverse = [numbers.item(0)], [len(rows)], None
        else:
            unique, inverse, counted = np.unique(numbers, return_inverse=True, return_counts=True)
            distinct, counts = unique.tolist(), counted.tolist()
        changed = []
        for number, count in zip(distinct, counts, strict=True):
            changed.append(sets.take((sets.bits[number] | added) & ~removed, count))
            sets.leave(number, count)
        if inverse is None:
            self._set_of[rows] = changed[0]
            orphans = rows if not changed[0] else rows[:0]
        else:
            numbers = np.array(changed, np.int32)[inverse]
            self._set_of[rows] = numbers
            orphans = rows[numbers == 0]
        if len(orphans):
            self._table.drop(orphans)

    def _sweep(self, wanted: int) -> None:
        """If rows will be wanted, look through the next some thousand for those that nobody holds since a `forget`.

        Not between looking a row up and holding it: it would be given away.
        """
        if not self._unswept or self._table.free_rows >= wanted:
            return
        end = self._table.end
        start = self._sweep_row if FIRST_ROW <= self._sweep_row < end else FIRST_ROW
        self._sweep_row = min(start + _SWEPT, end)
        self._unswept = max(0, self._unswept - (self._sweep_row - start))
        numbers = self._set_of[start : self._sweep_row]
        orphans = np.flatnonzero(~self._having(numbers, -1) & (numbers != 0)) + start
        self._retag(orphans.astype(np.int32), 0, 0)
