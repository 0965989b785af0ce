"""Which KV blocks each instance truly holds, as its engine's own events tell, and how a prompt is looked up there.

Blocks are those of the engine: of its own size, named by `prefix_chain.token_chain`. So a prompt can be looked up only
where its exact token ids are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extproc.core.kv_delta import KvDelta, KvTier
from extproc.core.model import CacheSource, Instance, KvLayout
from extproc.core.prefix import MAX_ENTRIES, PrefixIndex


@dataclass(frozen=True, slots=True)
class Hit:
    """Leading tokens of a prompt that an instance holds."""

    gpu_tokens: int
    lower_tokens: int = 0  # that follow these, in the host's memory or on its disk
    source: CacheSource = CacheSource.TOLD

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.gpu_tokens + self.lower_tokens


class KvIndex:
    """Blocks by instance key, kept up by deltas; at most `max_entries` in all."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._gpu = PrefixIndex(max_entries)
        self._lower = PrefixIndex(max_entries)
        self._block_sizes_tokens: dict[str, int] = {}

    def apply(self, key: str, delta: KvDelta) -> None:
        """Take in what changed at one incarnation of an instance."""
        if delta.cleared:
            self.forget(key)
        if delta.block_size_tokens:
            self._block_sizes_tokens[key] = delta.block_size_tokens
        for tier, blocks in delta.stored:
            here, there = (self._gpu, self._lower) if tier is KvTier.GPU else (self._lower, self._gpu)
            if blocks:
                here.store(key, blocks)
                _remove(there, key, blocks)
        if delta.removed:
            _remove(self._gpu, key, delta.removed)
            _remove(self._lower, key, delta.removed)

    def forget(self, key: str) -> None:
        """Drop an instance: it ended, or its events can no longer be trusted to be complete."""
        self._gpu.forget(key)
        self._lower.forget(key)
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
            blocks = self._gpu.matches(chain)
            for key in self._lower_keys():
                on_gpu = blocks.get(key, 0)
                more = self._lower.matches(chain[on_gpu:]).get(key, 0)
                if more:
                    found[layout, key] = Hit(on_gpu * size, more * size)
            for key, count in blocks.items():
                found.setdefault((layout, key), Hit(count * size))
        return found

    def size(self, key: str) -> int:
        """Blocks that an instance holds, in all tiers."""
        return self._gpu.size(key) + self._lower.size(key)

    @property
    def entries(self) -> int:
        """Blocks held, summed over all instances."""
        return self._gpu.entries + self._lower.entries

    @property
    def keys(self) -> Iterable[str]:
        """Instances whose engines tell what they hold."""
        return self._block_sizes_tokens.keys()

    def _lower_keys(self) -> list[str]:
        return [key for key in self._block_sizes_tokens if self._lower.size(key)] if self._lower.entries else []


def _remove(index: PrefixIndex, key: str, blocks: tuple[int, ...]) -> None:
    if index.size(key):
        index.remove(key, blocks)
