"""Which KV blocks each instance truly holds, as its engine's own events tell, and how a prompt is looked up there.

Blocks are those of the engine: of its own size, named by `prefix_chain.token_chain`. So a prompt can be looked up only
where its exact token ids are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extproc.core.kv_delta import KvDelta, KvTier
from extproc.core.model import Instance, KvLayout
from extproc.core.prefix import MAX_ENTRIES, PrefixIndex


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading tokens of a prompt that an instance holds."""

    gpu_tokens: int
    lower_tokens: int = 0  # that follow these, in the host's memory or on its disk

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.gpu_tokens + self.lower_tokens


class KvIndex:
    """Blocks by instance key, kept up by deltas.

    At most `max_entries` on GPUs, and as many again of instances that also have lower tiers, whose blocks are kept
    once more with those: so a look-up is two passes, however many instances there are.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._gpu = PrefixIndex(max_entries)
        self._anywhere = PrefixIndex(max_entries)  # in any tier, of the instances in `_tiered`
        self._tiered: set[str] = set()
        self._block_sizes_tokens: dict[str, int] = {}

    def apply(self, key: str, delta: KvDelta) -> None:
        """Take in what changed at one incarnation of an instance."""
        if delta.cleared:
            self.forget(key)
        if delta.block_size_tokens:
            self._block_sizes_tokens[key] = delta.block_size_tokens
        if (delta.cpu or delta.disk) and key not in self._tiered:
            self._tiered.add(key)
            self._anywhere.load(key, self._gpu.dump(key), exact=True)
        for tier, blocks in delta.stored:
            if not blocks:
                continue
            if tier is KvTier.GPU:
                self._gpu.store(key, blocks)
            else:
                _remove(self._gpu, key, blocks)
            if key in self._tiered:
                self._anywhere.store(key, blocks)
        if delta.removed:
            _remove(self._gpu, key, delta.removed)
            _remove(self._anywhere, key, delta.removed)

    def forget(self, key: str) -> None:
        """Drop an instance: it ended, or its events can no longer be trusted to be complete."""
        self._gpu.forget(key)
        self._anywhere.forget(key)
        self._tiered.discard(key)
        self._block_sizes_tokens.pop(key, None)

    def layout(self, instance: Instance, model: str) -> KvLayout | None:
        """How prompts to `model` are named at an instance; None if its engine does not tell what it holds."""
        block_size_tokens = self._block_sizes_tokens.get(instance.key)
        if block_size_tokens is None:
            return None
        # Of a base model's several names its agent knows the first; an adapter's is its own.
        name = model if model in instance.loras or not instance.models else instance.models[0]
        return KvLayout(block_size_tokens, name)

    def hits(self, chains: Mapping[KvLayout, tuple[int, ...]]) -> dict[tuple[KvLayout, str], Hit]:
        """What instances hold of a prompt, by layout and instance key; those that hold nothing are absent."""
        found: dict[tuple[KvLayout, str], Hit] = {}
        for layout, chain in chains.items():
            size = layout.block_size_tokens
            on_gpu = self._gpu.matches(chain)
            for key, count in on_gpu.items():
                found[layout, key] = Hit(count * size)
            for key, count in (self._anywhere.matches(chain) if self._tiered else {}).items():
                first = on_gpu.get(key, 0)
                found[layout, key] = Hit(first * size, (count - first) * size)
        return found

    def size(self, key: str) -> int:
        """Blocks that an instance holds, in all tiers."""
        return self._anywhere.size(key) if key in self._tiered else self._gpu.size(key)

    @property
    def entries(self) -> int:
        """Entries of both indexes, over all instances."""
        return self._gpu.entries + self._anywhere.entries

    @property
    def refused_blocks(self) -> int:
        """Blocks that engines told of and that were not taken in for want of room."""
        return self._gpu.refused_blocks + self._anywhere.refused_blocks

    @property
    def keys(self) -> Iterable[str]:
        """Instances whose engines tell what they hold."""
        return self._block_sizes_tokens.keys()


def _remove(index: PrefixIndex, key: str, blocks: tuple[int, ...]) -> None:
    if index.size(key):
        index.remove(key, blocks)
