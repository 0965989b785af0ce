"""Which instance holds which prefix: an index from the blocks of a hash chain to their holders.

A lookup is one pass over the chain's rows that stops to think only where the set of holders changes: it is exact, holes
included, and does not rely on the blocks before a held one being held. An instance is either *learned* (`insert`, from
where requests were sent: least recently used blocks leave, tails before heads) or *exact* (`store` and `remove`, as its
engine says).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from extproc.core.prefixes.block_holders import BlockHolders
from extproc.core.prefixes.block_table import Rows, gathered, spread
from extproc.core.prefixes.touch_order import TouchOrder

MAX_ENTRIES = 5_000_000
_CHUNK = 65_536  # blocks taken in at a time
_REMEMBERED = 1024  # sets of holders whose keys are kept
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
        self._blocks = BlockHolders()
        self._holders: dict[str, _Holder] = {}
        self._keys: list[str | None] = []  # by slot
        self._everyone = 0  # the held bits of all slots
        self._members: dict[int, tuple[str, ...]] = {}  # keys by their held bits, of some sets

    @property
    def entries(self) -> int:
        """Blocks held, summed over all instances."""
        return self._entries

    @property
    def rows(self) -> int:
        """Distinct blocks that there is memory for: held now, or at one time and not yet used again."""
        return self._blocks.row_count

    def size(self, key: str) -> int:
        """Blocks that an instance holds."""
        holder = self._holders.get(key)
        return holder.blocks if holder else 0

    def matches(self, prefix: Sequence[int]) -> dict[str, int]:
        """Blocks of `prefix` that each instance holds without a gap from the start; instances with none are absent."""
        found: dict[str, int] = {}
        for keys, blocks in self.depths(prefix):
            found.update(dict.fromkeys(keys, blocks))
        return found

    def depths(self, prefix: Sequence[int]) -> list[tuple[tuple[str, ...], int]]:
        """The same by groups: keys, and blocks that all of them hold. What a later group says of one counts.

        So the group of a beginning that many share is the same one whoever holds more: its keys are kept.
        """
        found: list[tuple[tuple[str, ...], int]] = []
        _, rows = self._blocks.look_up(prefix)
        if not len(rows):
            return found
        bits, live = self._blocks.sets.bits, self._everyone
        starts, numbers = self._blocks.runs(rows)
        for depth, number in zip(starts, numbers, strict=True):
            holders = bits[number] & live
            if depth and holders != live:
                found.append((self._keys_of(live), depth))
            live = holders
            if not live:
                return found
        found.append((self._keys_of(live), len(rows)))
        return found

    def insert(self, key: str, prefix: Sequence[int], capacity_blocks: int) -> None:
        """Believe that an instance holds `prefix`, and forget what no longer fits beside it.

        Without effect for an exact instance: its engine tells by itself.
        """
        holder = self._holder(key, exact=False)
        if holder.order is None:
            return
        self._blocks.sweep(len(prefix))
        hashes, rows = self._blocks.look_up(prefix)
        fitting = max(0, min(capacity_blocks, self.max_entries))
        if len(hashes) > fitting:
            hashes, rows = hashes[:fitting], rows[:fitting]
        self._hold(holder, rows)
        if len(rows) < len(hashes):
            more = self._blocks.rows(hashes[len(rows) :])
            self._hold(holder, more)
            rows = np.concatenate((rows, more))
        holder.order.use(rows[::-1])  # the head last, so that it is the most recent and leaves last
        self._evict(holder, holder.order, holder.blocks - capacity_blocks)
        self._shrink()

    def withdraw(self, key: str, prefix: Sequence[int], kept_blocks: int) -> None:
        """Take back what `insert` believed of a learned instance, beyond the first `kept_blocks` of the prefix.

        Costs by what the instance holds, milliseconds for 100,000 blocks: for what is rare, such as retries.
        """
        holder = self._holders.get(key)
        if holder is None or holder.order is None:
            return
        rows = self._blocks.find(spread(prefix[kept_blocks:]))
        rows = self._blocks.once(rows[self._blocks.having(rows, holder.held)])
        if len(rows):
            self._renew(holder, holder.order)
            holder.order.drop(rows)
            self._release(holder, rows)

    def store(self, key: str, blocks: Sequence[int]) -> None:
        """An engine says that it now holds `blocks`. What was learned of it before is dropped."""
        holder = self._holder(key, exact=True)
        for start in range(0, len(blocks), _CHUNK):
            hashes = spread(blocks[start : start + _CHUNK])
            self._blocks.sweep(len(hashes))
            rows = self._blocks.rows(hashes)
            fresh = self._blocks.once(rows[~self._blocks.having(rows, holder.held)])
            self._count(holder, len(fresh))
            self._blocks.change(fresh, holder.held, 0)
            over = self._shrink()
            if over > 0:
                self.refused_blocks += over
                self._release(holder, fresh[len(fresh) - over :])

    def remove(self, key: str, blocks: Sequence[int]) -> None:
        """An engine says that it no longer holds `blocks`; those that it was not known to hold do not matter."""
        holder = self._holder(key, exact=True)
        for start in range(0, len(blocks), _CHUNK):
            rows = self._blocks.find(spread(blocks[start : start + _CHUNK]))
            self._release(holder, self._blocks.once(rows[self._blocks.having(rows, holder.held)]))

    def forget(self, key: str) -> None:
        """Drop all entries of an instance: it restarted, or its cache was reset."""
        holder = self._holders.pop(key, None)
        if holder is None:
            return
        self._keys[holder.slot] = None
        self._everyone &= ~holder.held
        self._entries -= holder.blocks
        if holder.blocks:
            self._blocks.forget(holder.held | holder.young)

    def dump(self, key: str) -> bytes:
        """The blocks that an instance holds, as little-endian 64-bit words, the least recently used first."""
        holder = self._holders.get(key)
        if holder is None:
            return b""
        if holder.order is None:
            rows = self._blocks.held_by(holder.held)
        else:
            self._renew(holder, holder.order)
            rows = holder.order.rest()
        return gathered(self._blocks.hashes(rows)).astype("<u8").tobytes()

    def load(self, key: str, dumped: bytes, *, exact: bool = False) -> None:
        """Replace what is known of an instance by a dump. Raises ValueError if that is not of 64-bit words."""
        words = np.frombuffer(dumped, "<u8")[-self.max_entries :]
        self.forget(key)
        holder = self._holder(key, exact=exact)
        for start in range(0, len(words), _CHUNK):
            blocks = words[start : start + _CHUNK].tolist()
            if holder.order is None:
                self.store(key, blocks)
                continue
            self._blocks.sweep(len(blocks))
            rows = self._blocks.rows(spread(blocks))
            self._hold(holder, rows)
            holder.order.use(rows)
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
            self._members.clear()
        return holder

    def _keys_of(self, holders: int) -> tuple[str, ...]:
        if holders & holders - 1:
            return self._members.get(holders) or self._remember(holders)
        return (str(self._keys[holders.bit_length() >> 1]),)

    def _remember(self, holders: int) -> tuple[str, ...]:
        """The keys of several holders; those of a beginning that many share are wanted again and again."""
        keys, left = [], holders
        while left:
            lowest = left & -left
            keys.append(str(self._keys[lowest.bit_length() >> 1]))
            left ^= lowest
        if len(self._members) >= _REMEMBERED:
            self._members.clear()
        self._members[holders] = tuple(keys)
        return self._members[holders]

    def _hold(self, holder: _Holder, rows: Rows) -> None:
        """A learned instance holds rows, and uses them."""
        if not len(rows):
            return
        bits = self._blocks.sets.bits
        numbers = self._blocks.runs(rows)[1]
        if all(bits[number] & holder.young for number in numbers):
            return
        if len(numbers) > 1:
            rows = rows[~self._blocks.having(rows, holder.young)]
        older = self._blocks.once(rows)
        if len(numbers) > 1:
            held = int(np.count_nonzero(self._blocks.having(older, holder.held)))
        else:
            held = len(older) if bits[numbers[0]] & holder.held else 0
        self._count(holder, len(older) - held)
        self._blocks.change(older, holder.held | holder.young, 0)

    def _evict(self, holder: _Holder, order: TouchOrder, blocks: int) -> None:
        """Take that many least recently used blocks from a learned instance."""
        while blocks > 0:
            rows = order.oldest(blocks + _SPARE)
            if not len(rows):
                self._renew(holder, order)
                continue
            unused = np.flatnonzero(~self._blocks.having(rows, holder.young))[:blocks]
            order.skip(unused.item(-1) + 1 if len(unused) == blocks else len(rows))
            self._release(holder, rows[unused])
            blocks -= len(unused)
        if order.is_overdue(holder.blocks):
            self._renew(holder, order)

    def _renew(self, holder: _Holder, order: TouchOrder) -> None:
        unused = ~self._blocks.having(order.rest(), holder.young)
        recent = self._blocks.once(order.recent())
        order.renew(unused, recent)
        self._blocks.change(recent, 0, holder.young)

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
        self._blocks.change(rows, 0, holder.held | holder.young)

    def _count(self, holder: _Holder, blocks: int) -> None:
        holder.blocks += blocks
        self._entries += blocks
