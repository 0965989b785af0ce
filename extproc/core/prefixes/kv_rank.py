"""The names that one rank of an engine gives its KV blocks: its own hashes to ours, and which copies are held where."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from extproc.core.prefixes.kv_delta import KvTier

_MAX_EVICTED = 1 << 14  # names of blocks that left, kept for children that come late


class KvRank:
    """Engine hash -> our hash of what is held in each tier, what was held before a loss of events, and what left."""

    __slots__ = ("_evicted", "_more_copies", "_parents", "_tells_each_copy", "lost", "tiers")

    def __init__(self) -> None:
        self._tells_each_copy = False
        self.forget()

    def forget(self) -> None:
        """Begin anew, with no names at all."""
        self.tiers: tuple[dict[int, int], ...] = ({}, {}, {})
        # An engine may compute the same block twice at once and then holds each copy for itself.
        self._more_copies: dict[tuple[KvTier, int], int] = {}
        # An engine's hash tells its content, so a name stays true when the block is gone. A child may be stored after
        # its parent left: the request that computes it held a copy of its own.
        self._evicted: OrderedDict[int, int] = OrderedDict()
        self._parents: dict[int, int] = {}  # of blocks on the GPU, and of those in `lost`; the engine's hashes
        self.lost: dict[int, int] = {}  # were held on the GPU when events were lost, and nothing was told of them since

    def lose(self, most: int) -> None:
        """Hold nothing any more, but remember what was held: at most about so many blocks."""
        lost, parents, evicted = self.lost, self._parents, self._evicted
        if len(lost) + len(self.tiers[KvTier.GPU]) > most:
            lost = {}
        lost |= self.tiers[KvTier.GPU]
        self.forget()
        self.lost, self._evicted = lost, evicted
        self._parents = {child: parent for child, parent in parents.items() if child in lost}

    def follow(self, parent: int | None, hashes: Sequence[int]) -> None:
        """Remember whom each of these blocks comes after."""
        for engine_hash in hashes:
            if parent is not None:
                self._parents[engine_hash] = parent
            parent = engine_hash

    def proven(self, parent: int | None) -> list[tuple[int, int]]:
        """Blocks that a child of `parent` proves to be held in spite of a loss, the first of the prompt first."""
        chain = []
        while parent is not None and parent in self.lost:
            chain.append((parent, self.lost.pop(parent)))
            parent = self._parents.get(parent)
        return chain[::-1]

    def name(self, engine_hash: int) -> int | None:
        """Our hash of a block, by the engine's."""
        for held in (*self.tiers, self.lost, self._evicted):
            block = held.get(engine_hash)
            if block is not None:
                return block
        return None

    def add_copy(self, tier: KvTier, engine_hash: int) -> None:
        """Count one more copy of a block that is held."""
        self._more_copies[tier, engine_hash] = self._more_copies.get((tier, engine_hash), 0) + 1

    def remove(self, tier: KvTier, engine_hash: int, left: int | None) -> int | None:
        """Take a copy away, or all but `left`; gives our hash if the tier cannot be said to have one any more."""
        held = self.tiers[tier]
        more = self._more_copies.pop((tier, engine_hash), 0)
        if engine_hash not in held:
            # Told again, though not stored again: this engine tells the end of each copy. Others tell the last one's
            # only, so until this is seen the first removal is taken for the last.
            self._tells_each_copy |= more > 0
            if tier is KvTier.GPU and engine_hash in self.lost:
                self._leave(engine_hash, self.lost.pop(engine_hash))
            return None
        if left is None and more and not self._tells_each_copy:
            self._remember(tier, engine_hash, more)
            left = 0
        elif left is None:
            left = more
        if left:
            self._remember(tier, engine_hash, left - 1)
            return None
        block = held.pop(engine_hash)
        self._leave(engine_hash, block, tier)
        return block

    def _leave(self, engine_hash: int, block: int, tier: KvTier = KvTier.GPU) -> None:
        if tier is KvTier.GPU:
            self._parents.pop(engine_hash, None)
        self._evicted[engine_hash] = block
        if len(self._evicted) > _MAX_EVICTED:
            self._evicted.popitem(last=False)

    def _remember(self, tier: KvTier, engine_hash: int, copies: int) -> None:
        if copies:
            if len(self._more_copies) >= _MAX_EVICTED:
                self._more_copies.clear()  # short of copies, blocks are forgotten early, never late
            self._more_copies[tier, engine_hash] = copies
