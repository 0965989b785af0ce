"""Folds an engine's KV events into deltas of our own block hashes.

Engines name blocks by hashes of their own, with a secret seed. An event carries the tokens as well, so each block is
named anew as a router names it (`core.prefix_chain`), from its parent's name and its tokens. A block that cannot be
named (its parent is not known, its content is more than its tokens) is dropped, and its descendants with it: what is
held here is always a part of what the engine holds, as long as events come in order and without a gap.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from extproc.core.kv_delta import KvDelta, KvTier
from extproc.core.prefix_chain import chain_seed, extend_chain, prefix_salt

DEFAULT_MAX_BLOCKS = 1 << 20
DEFAULT_MAX_DELTA_BLOCKS = 1 << 16
_MAX_EVICTED = 1 << 14  # names of blocks that left, kept for children that come late
_COPY = tuple(1 << 20 * tier for tier in KvTier)  # one copy in each tier, in the sums of `KvFold._copies`
_GPU_COPIES = _COPY[KvTier.CPU] - 1
_NEAR_COPIES = _COPY[KvTier.DISK] - 1


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """An engine put blocks, each the parent of the next, into its cache."""

    hashes: tuple[int, ...]  # the engine's own
    parent: int | None  # the engine's own; None: they begin a prompt
    token_ids: tuple[int, ...]  # of all blocks; () where the engine tells only hashes, as for copies in lower tiers
    block_size_tokens: int
    tier: KvTier = KvTier.GPU
    adapter: str | None = ""  # LoRA adapter's name, "" for none, None where it has one that is not named
    cache_salt: str = ""
    plain_blocks: int = 1 << 30  # leading blocks whose content is their tokens: no image, no embedding
    group: int = 0  # of layers that share one cache layout
    whole_prefix: bool = True  # the group's layers attend to all tokens before, so a hit needs every block


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """An engine evicted a copy of each of these blocks."""

    hashes: tuple[int, ...]
    tier: KvTier = KvTier.GPU
    group: int = 0
    copies_left: tuple[int, ...] = ()  # of each hash, where the engine tells


class Cleared(msgspec.Struct, frozen=True):
    """An engine reset its prefix cache."""


Event = Stored | Removed | Cleared


class KvFold:
    """Blocks that one incarnation of an instance holds, in all its ranks and tiers; changes are fetched by `take`.

    A block counts once however many ranks and tiers have it, at its nearest tier, and is removed with its last copy.
    `model` is what requests to the base model are salted with; adapters go by their own names.
    """

    def __init__(self, model: str, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self.model = model
        self.max_blocks = max_blocks
        self.block_size_tokens = 0  # 0: not known yet
        self.unplaced_blocks = 0  # dropped because they could not be named
        self.surplus_blocks = 0  # dropped because there were `max_blocks` already
        self.ignored_events = 0  # of other layer groups
        self._ranks: dict[int, _Rank] = {}
        self._group: int | None = None
        self._copies: dict[int, int] = {}  # our hash -> copies in all ranks, a sum of `_COPY`
        self._before: dict[int, int] = {}  # touched since the last `take`: copies then; all blocks if `_cleared`
        self._cleared = True  # nobody knows what routers hold from before

    @property
    def held_blocks(self) -> int:
        """Distinct blocks held."""
        return len(self._copies)

    def tier(self, block: int) -> KvTier | None:
        """Where the nearest copy of a block (our hash) lies; None if there is none."""
        return _nearest(self._copies.get(block, 0))

    def apply(self, rank: int, events: Iterable[Event]) -> None:
        """Take in what one rank published, in its order."""
        state = self._ranks.setdefault(rank, _Rank())
        for event in events:
            if isinstance(event, Stored):
                self._store(state, event)
            elif isinstance(event, Removed):
                self._remove(state, event)
            else:
                self.clear(rank)

    def clear(self, rank: int) -> None:
        """Forget all blocks of one rank."""
        state = self._ranks.get(rank)
        if state is None:
            return
        others = any(held for other in self._ranks.values() if other is not state for held in other.tiers)
        if others:
            for tier, held in zip(KvTier, state.tiers, strict=True):
                for block in held.values():
                    self._drop(block, tier)
        elif self._copies or self._before:
            self._copies.clear()
            self._before.clear()
            self._cleared = True
        state.forget()

    def whole(self) -> KvDelta:
        """All that is held now, as a delta that replaces whatever was known."""
        tiers: tuple[list[int], ...] = ([], [], [])
        for block, copies in self._copies.items():
            tier = _nearest(copies)
            if tier is not None:
                tiers[tier].append(block)
        return KvDelta(self.block_size_tokens, True, *map(tuple, tiers))

    def resync(self) -> None:
        """Make the next `take` tell everything anew, for routers that lost or never had it."""
        self._cleared = True
        self._before = dict.fromkeys(self._copies, 0)

    def take(self, max_blocks: int = DEFAULT_MAX_DELTA_BLOCKS) -> KvDelta | None:
        """What changed since the last call, at most `max_blocks` of it; None if nothing did (any more)."""
        if not self._cleared and not self._before:
            return None
        gpu: list[int] = []
        cpu: list[int] = []
        disk: list[int] = []
        removed: list[int] = []
        room = max_blocks
        done = []
        for block, before in self._before.items():
            if not room:
                break
            done.append(block)
            now, old = _nearest(self._copies.get(block, 0)), _nearest(before)
            if now is old:
                continue
            (removed if now is None else (gpu, cpu, disk)[now]).append(block)
            room -= 1
        for block in done:
            del self._before[block]
        cleared, self._cleared = self._cleared, False
        if room == max_blocks and not cleared:
            return None
        return KvDelta(self.block_size_tokens, cleared, tuple(gpu), tuple(cpu), tuple(disk), tuple(removed))

    def _store(self, state: _Rank, event: Stored) -> None:
        if not event.whole_prefix or not self._is_main_group(event.group):
            self.ignored_events += 1
            return
        names = self._names(state, event)
        for engine_hash, block in zip(event.hashes, names, strict=False):
            self._add(state, event.tier, engine_hash, block)
        self.unplaced_blocks += len(event.hashes) - len(names)

    def _is_main_group(self, group: int) -> bool:
        # Groups with full attention hold the same prefixes; one of them tells what is there.
        if self._group is None:
            self._group = group
        return group == self._group

    def _names(self, state: _Rank, event: Stored) -> Sequence[int]:
        """Our hashes of the event's leading blocks, as many as can be named."""
        names = self._names_by_tokens(state, event)
        if names or event.adapter is None or event.cache_salt:
            return names
        # Lower tiers tell hashes without tokens, or tokens in larger pieces: there these are copies of known blocks.
        known = [state.name(engine_hash) for engine_hash in event.hashes]
        return () if None in known else [block for block in known if block is not None]

    def _names_by_tokens(self, state: _Rank, event: Stored) -> Sequence[int]:
        size = event.block_size_tokens
        if not self.block_size_tokens and event.tier is KvTier.GPU:
            self.block_size_tokens = size
        if size != self.block_size_tokens or len(event.token_ids) != size * len(event.hashes):
            return ()
        if event.parent is not None:
            parent = state.name(event.parent)
        elif event.adapter is None:
            parent = None
        else:
            parent = chain_seed(prefix_salt(event.adapter or self.model, cache_salt=event.cache_salt))
        if parent is None:
            return ()
        try:
            return extend_chain(parent, event.token_ids[: size * event.plain_blocks], size)
        except OverflowError:
            return ()  # no token has such a number, and no router can ask for it

    def _add(self, state: _Rank, tier: KvTier, engine_hash: int, block: int) -> None:
        held = state.tiers[tier]
        if engine_hash in held:
            if held[engine_hash] == block:
                state.add_copy(tier, engine_hash)
            else:
                self.unplaced_blocks += 1  # the engine calls two things by one name; the first is taken to be meant
        elif block not in self._copies and len(self._copies) >= self.max_blocks:
            self.surplus_blocks += 1
        else:
            held[engine_hash] = block
            copies = self._copies.get(block, 0)
            self._before.setdefault(block, copies)
            self._copies[block] = copies + _COPY[tier]

    def _remove(self, state: _Rank, event: Removed) -> None:
        if event.group != (self._group or 0):
            self.ignored_events += 1
            return
        for index, engine_hash in enumerate(event.hashes):
            left = event.copies_left[index] if index < len(event.copies_left) else None
            block = state.remove(event.tier, engine_hash, left)
            if block is not None:
                self._drop(block, event.tier)

    def _drop(self, block: int, tier: KvTier) -> None:
        copies = self._copies[block]
        self._before.setdefault(block, copies)
        if copies == _COPY[tier]:
            del self._copies[block]
        else:
            self._copies[block] = copies - _COPY[tier]


class _Rank:
    """One rank's names: engine hash -> our hash for each tier, and of some blocks that left."""

    __slots__ = ("_evicted", "_more_copies", "_tells_each_copy", "tiers")

    def __init__(self) -> None:
        self._tells_each_copy = False
        self.forget()

    def forget(self) -> None:
        self.tiers: tuple[dict[int, int], ...] = ({}, {}, {})
        # An engine may compute the same block twice at once and then holds each copy for itself.
        self._more_copies: dict[tuple[KvTier, int], int] = {}
        # An engine's hash tells its content, so a name stays true when the block is gone. A child may be stored after
        # its parent left: the request that computes it held a copy of its own.
        self._evicted: OrderedDict[int, int] = OrderedDict()

    def name(self, engine_hash: int) -> int | None:
        """Our hash of a block, by the engine's."""
        for held in (*self.tiers, self._evicted):
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
        self._evicted[engine_hash] = block
        if len(self._evicted) > _MAX_EVICTED:
            self._evicted.popitem(last=False)
        return block

    def _remember(self, tier: KvTier, engine_hash: int, copies: int) -> None:
        if copies:
            if len(self._more_copies) >= _MAX_EVICTED:
                self._more_copies.clear()  # short of copies, blocks are forgotten early, never late
            self._more_copies[tier, engine_hash] = copies


def _nearest(copies: int) -> KvTier | None:
    if not copies:
        return None
    if copies & _GPU_COPIES:
        return KvTier.GPU
    return KvTier.CPU if copies & _NEAR_COPIES else KvTier.DISK
