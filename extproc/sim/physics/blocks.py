"""The KV block pool of one engine: who holds how many blocks, and which prefixes stay cached.

A copy of what vLLM v1 does, without block numbers, which nobody needs here: full blocks are known by the hash of
their tokens and of everything before them, freed blocks keep their content until the space is needed, and the
least recently used goes first, a request's tail before its head.

A hash may name several blocks at once (`blocks_per_name`), for workloads that name coarser pieces than an engine's
blocks: such a piece is cached, hit and evicted as a whole, and everything is still counted in the engine's blocks.

One thing is simpler than in vLLM: of two blocks with equal content only one is cached, so a second copy, and a
block that never became full, is the first to be reused once it is free.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence


def hash_chain(token_ids: bytes, block_size_tokens: int, salt: bytes = b"") -> list[int]:
    """Hash every full block of a token sequence, each over its tokens and its predecessor's hash.

    `token_ids` holds 4 bytes a token. Sequences with different `salt` have no hash in common. A rest that does not
    fill a block has no hash. The values are unsigned 64-bit integers.
    """
    size_bytes = 4 * block_size_tokens
    digest = xxhash.xxh3_64_intdigest
    parent = digest(salt)
    hashes = []
    for start in range(0, len(token_ids) - size_bytes + 1, size_bytes):
        parent = digest(token_ids[start : start + size_bytes], parent)
        hashes.append(parent)
    return hashes


class CacheListener(Protocol):
    """Is told what enters and leaves the cache, as it happens."""

    def stored(self, chain: Sequence[int], index: int) -> None:
        """The piece named by `chain[index]` was cached; those before it in the chain are its prefix."""

    def removed(self, block: int) -> None:
        """The piece of this name was evicted."""

    def cleared(self) -> None:
        """All cached pieces were forgotten."""


class Holding:
    """Blocks that one request holds: some known by their hash and perhaps shared, the rest its own."""

    __slots__ = ("full_names", "own_blocks", "shared")

    def __init__(self) -> None:
        self.shared: list[int] = []  # hashes, in the order of the prompt
        self.own_blocks = 0  # blocks without a hash: not full yet, or a copy of a cached one
        self.full_names = 0  # how far `BlockPool.commit` has come in the request's hashes


class BlockPool:
    """Counts of blocks and the prefix cache; every block is either free or held by at least one request.

    A free block is blank (its content is of no use) or idle (cached, waiting for a hit or for its eviction).
    """

    __slots__ = (
        "_blank_blocks",
        "_idle",
        "_own_blocks",
        "_references",
        "block_size_tokens",
        "blocks_per_name",
        "evicted_blocks",
        "hit_tokens",
        "log",
        "name_tokens",
        "queried_tokens",
        "total_blocks",
    )

    def __init__(self, total_blocks: int, block_size_tokens: int, blocks_per_name: int = 1) -> None:
        if total_blocks < 1 or block_size_tokens < 1 or blocks_per_name < 1:
            raise ValueError(
                f"a pool needs blocks and tokens: {total_blocks} x {block_size_tokens} / {blocks_per_name}"
            )
        self.total_blocks = total_blocks
        self.block_size_tokens = block_size_tokens
        self.blocks_per_name = blocks_per_name
        self.name_tokens = blocks_per_name * block_size_tokens
        self.queried_tokens = 0  # prompt tokens looked up since the start
        self.hit_tokens = 0  # of those, found in the cache
        self.evicted_blocks = 0
        self.log: CacheListener | None = None
        self._references: dict[int, int] = {}  # held hash -> requests that hold it
        self._idle: OrderedDict[int, None] = OrderedDict()  # hashes, next to be evicted first
        self._blank_blocks = total_blocks
        self._own_blocks = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds, cached content or not."""
        return self._blank_blocks + self.blocks_per_name * len(self._idle)

    @property
    def used_blocks(self) -> int:
        """Blocks that at least one request holds; shared ones count once."""
        return self.blocks_per_name * len(self._references) + self._own_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks with a known hash, held or idle."""
        return self.blocks_per_name * (len(self._references) + len(self._idle))

    def holds(self, block: int) -> bool:
        """Whether a piece with this hash is cached."""
        return block in self._references or block in self._idle

    @property
    def usage(self) -> float:
        """Share of blocks that are held, 0 to 1: vLLM's `kv_cache_usage_perc`."""
        return self.used_blocks / self.total_blocks

    def held_blocks(self, holding: Holding) -> int:
        """Blocks of one request, shared ones included."""
        return self.blocks_per_name * len(holding.shared) + holding.own_blocks

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` take up."""
        return -(-tokens // self.block_size_tokens)

    def match(self, hashes: Sequence[int], total_tokens: int) -> int:
        """Number of leading names of `hashes` that are cached.

        Never the complete sequence of `total_tokens`: its last token must be computed to get the next one.
        """
        references, idle = self._references, self._idle
        limit = min(len(hashes), (total_tokens - 1) // self.name_tokens)
        for index in range(limit):
            block = hashes[index]
            if block not in references and block not in idle:
                return index
        return limit

    def admit(self, cached: Sequence[int], new_blocks: int, room_blocks: int = 0) -> Holding | None:
        """Hold the `cached` names (from `match`) and `new_blocks` more, or None if there is no space for all.

        `room_blocks`: how many blocks beside the cached ones must be free, though not all of them are taken now.
        """
        references, idle = self._references, self._idle
        woken = sum([block in idle for block in cached])
        if self.blocks_per_name * woken + max(new_blocks, room_blocks) > self.free_blocks:
            return None
        holding = Holding()
        for block in cached:
            count = references.get(block, 0)
            if not count:
                del idle[block]
            references[block] = count + 1
        holding.shared.extend(cached)
        holding.full_names = len(cached)
        self.grow(holding, new_blocks)
        return holding

    def grow(self, holding: Holding, new_blocks: int) -> bool:
        """Give `new_blocks` more to a request; False, and nothing changed, if there are not as many free."""
        if not self.take(new_blocks):
            return False
        holding.own_blocks += new_blocks
        return True

    def take(self, new_blocks: int) -> bool:
        """Take `new_blocks` for several requests at once; who got how many, the caller writes into their holdings.

        False, and nothing changed, if there are not as many free. Each holding must have its share in `own_blocks`
        before it is committed or released.
        """
        missing = new_blocks - self._blank_blocks
        if missing > 0:
            names = -(-missing // self.blocks_per_name)
            if names > len(self._idle):
                return False
            self._evict(names)
        self._blank_blocks -= new_blocks
        self._own_blocks += new_blocks
        return True

    def commit(self, holding: Holding, hashes: Sequence[int], computed_tokens: int) -> None:
        """Make the request's full blocks known by their hashes, as far as `computed_tokens` of it are computed.

        `hashes` is the request's whole chain; it may end early, the blocks after its end are never cached.
        """
        full = min(computed_tokens // self.name_tokens, len(hashes))
        start = holding.full_names
        if full <= start:
            return
        holding.full_names = full
        references, idle = self._references, self._idle
        names = dict.fromkeys(hashes[start:full], 1)
        if not references.keys().isdisjoint(names):  # another request computed the same: ours stay private copies
            names = {name: 1 for name in names if name not in references}
        known = [] if idle.keys().isdisjoint(names) else [name for name in names if name in idle]
        for name in known:
            del idle[name]  # ours is the newer copy
        references.update(names)
        holding.shared.extend(names)
        named_blocks = self.blocks_per_name * len(names)
        holding.own_blocks -= named_blocks
        self._own_blocks -= named_blocks
        self._blank_blocks += self.blocks_per_name * len(known)
        if self.log is not None:
            new = names.keys() - known
            for index in range(start, full):
                if hashes[index] in new:
                    self.log.stored(hashes, index)

    def release(self, holding: Holding) -> None:
        """Take everything back from a request; its hashed blocks stay cached, and its tail is evicted first."""
        references, idle = self._references, self._idle
        for block in reversed(holding.shared):
            count = references.pop(block)
            if count > 1:
                references[block] = count - 1
            else:
                idle[block] = None
        self._own_blocks -= holding.own_blocks
        self._blank_blocks += holding.own_blocks
        holding.shared = []
        holding.own_blocks = 0
        holding.full_names = 0

    def count_lookup(self, prompt_tokens: int, cached_tokens: int) -> None:
        """Add one admitted prompt to the hit counters."""
        self.queried_tokens += prompt_tokens
        self.hit_tokens += cached_tokens

    def reset_cache(self) -> bool:
        """Forget all cached prefixes; refused (False) while any request holds a block, as vLLM does."""
        if self.used_blocks:
            return False
        self._blank_blocks += self.blocks_per_name * len(self._idle)
        self._idle.clear()
        if self.log is not None:
            self.log.cleared()
        return True

    def _evict(self, names: int) -> None:
        popitem, log = self._idle.popitem, self.log
        for _ in range(names):
            block, _ = popitem(last=False)
            if log is not None:
                log.removed(block)
        blocks = self.blocks_per_name * names
        self._blank_blocks += blocks
        self.evicted_blocks += blocks
