"""Folds an engine's KV events into deltas of our own block hashes.

Engines name blocks by hashes of their own, with a secret seed. An event carries the tokens as well, so each block is
named anew as a router names it (`core.prefixes.prefix_chain`), from its parent's name and its tokens. A block that
cannot be named (its parent is not known, its content is more than its tokens) is dropped, and its descendants with it:
what is held here is always a part of what the engine holds, as long as events come in order and without a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from extproc.core.prefixes.kv_delta import KvDelta, KvTier
from extproc.core.prefixes.kv_rank import KvRank
from extproc.core.prefixes.prefix_chain import chain_seed, extend_chain, prefix_salt

DEFAULT_MAX_BLOCKS = 1 << 20
DEFAULT_MAX_DELTA_BLOCKS = 1 << 16
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
        self._ranks: dict[int, KvRank] = {}
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
        state = self._ranks.setdefault(rank, KvRank())
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
        if state is not None:
            self._drop_all(state)
            state.forget()

    def lose(self, rank: int) -> None:
        """Events of one rank were lost: any of its blocks may be gone, so none counts as held.

        But their names stay true. And whoever computes a block holds all before it: the next block that is stored
        behind one that was held proves that this one, and those before it, still are.
        """
        state = self._ranks.get(rank)
        if state is not None:
            self._drop_all(state)
            state.lose(self.max_blocks)

    def _drop_all(self, state: KvRank) -> None:
        others = any(held for other in self._ranks.values() if other is not state for held in other.tiers)
        if others:
            for tier, held in zip(KvTier, state.tiers, strict=True):
                for block in held.values():
                    self._drop(block, tier)
        elif self._copies or self._before:
            self._copies.clear()
            self._before.clear()
            self._cleared = True

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

    def _store(self, state: KvRank, event: Stored) -> None:
        if not event.whole_prefix or not self._is_main_group(event.group):
            self.ignored_events += 1
            return
        names = self._names(state, event)
        if names and event.tier is KvTier.GPU and event.token_ids:
            for engine_hash, block in state.proven(event.parent):
                self._add(state, KvTier.GPU, engine_hash, block)
            state.follow(event.parent, event.hashes[: len(names)])
        for engine_hash, block in zip(event.hashes, names, strict=False):
            self._add(state, event.tier, engine_hash, block)
        self.unplaced_blocks += len(event.hashes) - len(names)

    def _is_main_group(self, group: int) -> bool:
        # Groups with full attention hold the same prefixes; one of them tells what is there.
        if self._group is None:
            self._group = group
        return group == self._group

    def _names(self, state: KvRank, event: Stored) -> Sequence[int]:
        """Our hashes of the event's leading blocks, as many as can be named."""
        names = self._names_by_tokens(state, event)
        if names or event.adapter is None or event.cache_salt:
            return names
        # Lower tiers tell hashes without tokens, or tokens in larger pieces: there these are copies of known blocks.
        known = [state.name(engine_hash) for engine_hash in event.hashes]
        return () if None in known else [block for block in known if block is not None]

    def _names_by_tokens(self, state: KvRank, event: Stored) -> Sequence[int]:
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

    def _add(self, state: KvRank, tier: KvTier, engine_hash: int, block: int) -> None:
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
            state.lost.pop(engine_hash, None)
            copies = self._copies.get(block, 0)
            self._before.setdefault(block, copies)
            self._copies[block] = copies + _COPY[tier]

    def _remove(self, state: KvRank, event: Removed) -> None:
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


def _nearest(copies: int) -> KvTier | None:
    if not copies:
        return None
    if copies & _GPU_COPIES:
        return KvTier.GPU
    return KvTier.CPU if copies & _NEAR_COPIES else KvTier.DISK
